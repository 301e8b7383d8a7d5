"""How every page of Weir looks, static or served: one style, one set of pictures, one place where values become text.

What stands on pages comes out of messages, so all of it is hostile: every value is cut, has its invisible signs spelled out and is
escaped here, whatever the template does.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

FOLDER = Path(__file__).parent
MOST_ROWS = 100
"""Of any one table on a page."""
_MAX_CHARACTERS = 4_000
"""Of any one value, where the page does not cut it shorter."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control signs, marks that turn the direction of text, signs without width, and what no file can hold."""


def page_environment(templates: Path) -> Environment:
    """Jinja over these templates and the shared ones: every value of every page passes `visible` and is escaped."""
    environment = Environment(
        loader=FileSystemLoader([templates, FOLDER]),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, cut=cut, moment=moment, ago=ago, lasting=lasting, size=size, short=short, whole=whole)
    environment.filters.update(share_down=share_down, share_up=share_up, meter=meter)
    environment.globals.update(most=MOST_ROWS)
    return environment


@cache
def style() -> str:
    return (FOLDER / "style.css").read_text(encoding="utf-8")


def whole(text: str) -> Markup:
    """A text of ours, such as a declaration, however long: escaped, but not cut."""
    return escape(_INVISIBLE.sub(lambda sign: f"\\u{ord(sign.group()):04x}", text))


def visible(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _INVISIBLE.sub(lambda sign: f"\\u{ord(sign.group()):04x}", cut(value, _MAX_CHARACTERS))


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text):,} characters)"


def number(value: int) -> str:
    return f"{value:,}"


def short(value: float) -> str:
    """A number of three digits: 12.3k."""
    for whole, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= whole:
            return f"{value / whole:.3g}{sign}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Bytes for people."""
    for whole, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= whole:
            return f"{count / whole:.3g} {unit}"
    return f"{count:.0f} B"


def moment(at: datetime) -> str:
    try:
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return str(at)


def lasting(seconds: float | timedelta) -> str:
    """A duration in its two largest units, as people say it."""
    left = round(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    if left < 0:
        return f"−{lasting(-left)}"
    parts = [(left // 86_400, "d"), (left % 86_400 // 3_600, "h"), (left % 3_600 // 60, "min"), (left % 60, "s")]
    first = next((place for place, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count or first == 3)


def ago(at: datetime, now: datetime) -> str:
    return f"{lasting(max(0, (now - at).total_seconds()))} ago"


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def share_down(part: int, whole: int) -> str:
    """Rounded down: nothing is 100 % that is not all."""
    found = share(part, whole)
    return "–" if found is None else f"{math.floor(found * 1000 + 1e-9) / 10:.1f} %"


def share_up(part: int, whole: int) -> str:
    """Something that is not nothing never shows as 0."""
    found = share(part, whole)
    return "–" if found is None else "< 0.1 %" if 0 < found < 0.001 else f"{100 * found:.1f} %"


def meter(part: int, whole: int) -> float:
    """The width of a bar in percent: at least a sliver of what is not nothing."""
    found = share(part, whole)
    return min(100.0, max(1.0, 100 * found)) if found else 0.0

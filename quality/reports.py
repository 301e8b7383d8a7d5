"""The quality report site of a pipeline: static pages that need no script, no outside host and no server.

What stands on them comes out of messages, so all of it is hostile: every value is cut, has its invisible signs spelled out and is
escaped in one place (weir.look), and the pages forbid themselves to load or run anything. The site is bounded: a month of
days per stream, and so many rules, samples and expectations a day.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup

from weir.event_time import utc_now
from weir.lake_files import write_whole
from weir.look import MOST_ROWS, cut, page_environment, share, short, style, visible
from weir.look.charts import Frame, Tick, axis_end, round_up
from weir.pipeline import Pipeline
from weir.records.quality import DayQuality, ExpectationResult, GateReport
from weir.summaries import DAYS_KEPT

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult, ExpectationValidationResult

TREND_DAYS = 30
KINDS = ("accepted", "duplicates", "rejected", "undecodable")
"""What can become of a row, in the order in which pictures show it. Also the names of their colours in base.html."""

_TEMPLATES = Path(__file__).with_name("templates")
_MAX_REMOVED = 1_000
"""Pages removed in one go; the rest goes with the next."""
_PAGE_NAME = re.compile(r"\.?(\d{4}-\d\d-\d\d)(-gx)?\.html(\..{1,20})?")
"""Pages of a day, and what a crash left of them."""

Quality = Mapping[str, Mapping[str, DayQuality]]
"""Stream → day → its quality."""


def write_site(
    folder: Path,
    pipeline: Pipeline,
    quality: Quality,
    blocked: Mapping[str, GateReport],
    changed: Collection[tuple[str, str]] | None = None,
) -> Path:
    """Write index.html and the pages of the changed days (all where `changed` is None), remove those of days that are gone.

    Also written are pages that are not there yet, and those whose neighbours came or went, so that no link leads nowhere. A page shows
    the month before its day, so a change to an old day leaves later pages as they were until they change themselves.
    """
    kept = {name: _last_days(quality.get(name, {})) for name in pipeline.sources}
    for name, days in kept.items():
        there = _remove_old_pages(folder / name, days)
        for day, of_day in days.items():
            beside = _neighbours(day, days)
            if changed is None or (name, day) in changed or day not in there or beside != _neighbours(day, there):
                has_data_docs = (folder / name / f"{day}-gx.html").is_file()
                write_whole(folder / name / f"{day}.html", _day_page(pipeline, name, of_day, days, beside, has_data_docs))
    for undeclared in _folders_of_others(folder, pipeline):
        _remove_old_pages(undeclared, {})
    index = folder / "index.html"
    write_whole(index, _index_page(pipeline, kept, blocked))
    return index


def _last_days(days: Mapping[str, DayQuality]) -> dict[str, DayQuality]:
    for day in days:
        if date.fromisoformat(day).isoformat() != day:
            raise ValueError(f"'{day}' is no day: it would name a page")
    return {day: days[day] for day in sorted(days)[-DAYS_KEPT:]}


def _remove_old_pages(folder: Path, days: Mapping[str, Any]) -> list[str]:
    """Remove the pages of other days, and give the days whose pages stood there before."""
    if not folder.is_dir():
        return []
    found = [(file, page) for file in sorted(folder.iterdir()) if (page := _PAGE_NAME.fullmatch(file.name))]
    old = [file for file, page in found if page.group(1) not in days]
    for file in old[:_MAX_REMOVED]:
        file.unlink(missing_ok=True)
    return [page.group(1) for file, page in found if file.name == f"{page.group(1)}.html"]


def _folders_of_others(folder: Path, pipeline: Pipeline) -> list[Path]:
    """Folders of streams that are no longer declared."""
    if not folder.is_dir():
        return []
    return [child for child in folder.iterdir() if child.is_dir() and not child.is_symlink() and child.name not in pipeline.sources]


def _neighbours(day: str, days: Iterable[str]) -> tuple[str | None, str | None]:
    ordered = sorted(days)
    return max((other for other in ordered if other < day), default=None), min((other for other in ordered if other > day), default=None)


def _index_page(pipeline: Pipeline, quality: Quality, blocked: Mapping[str, GateReport]) -> str:
    """A static page cannot know what day it is read on: it shows the last day on which anything arrived, by its date."""
    day = max((day for days in quality.values() for day in days), default=None)
    frame = Frame(170, 34, left=0, right=170, top=2, bottom=32)
    # One scale for all streams, so that their lines can be compared.
    spark_share = round_up(max([0.05, *(_share_set_aside(of_day) or 0 for days in quality.values() for of_day in days.values())]))
    streams = [
        {
            "name": name,
            "kind": "table" if name in pipeline.tables else "stream",
            "topic": ", ".join(contract.topics),
            "today": quality[name].get(day or ""),
            "last": max(quality[name], default=None),
            "picture": bar_picture(_month_until(day), quality[name], frame, f"{name}/", least_share=spark_share) if day else None,
        }
        for name, contract in pipeline.sources.items()
    ]
    return render(
        "index.html",
        pipeline=pipeline.name,
        day=day,
        streams=streams,
        spark_share=spark_share,
        blocked=dict(sorted(blocked.items())),
        written_at=utc_now(),
    )


def _day_page(
    pipeline: Pipeline,
    stream: str,
    quality: DayQuality,
    days: Mapping[str, DayQuality],
    beside: tuple[str | None, str | None],
    has_data_docs: bool,
) -> str:
    month = _month_until(quality.day)
    reasons = dict.fromkeys(quality.samples, 0) | quality.reasons
    return render(
        "day.html",
        pipeline=pipeline.name,
        stream=stream,
        quality=quality,
        beside=beside,
        has_data_docs=has_data_docs,
        difference=_imbalance(quality),
        parts=_parts_of_the_whole(quality),
        wide=bar_picture(month, days, Frame(1040, 260, left=52, right=984, top=24, bottom=228), here=quality.day),
        narrow=bar_picture(month, days, Frame(340, 220, left=42, right=296, top=24, bottom=190), here=quality.day, labelled_days=4),
        rules=sorted(reasons.items(), key=lambda rule: (-rule[1], rule[0])),
        results=sorted(quality.results, key=lambda result: (result.success, -_LOUDNESS.index(_alarm(result)), result.rule)),
    )


_LOUDNESS = ("dull", "warn", "bad")


def _alarm(result: ExpectationResult) -> str:
    """How loudly a page says that it was not met."""
    return "bad" if result.severity == "critical" or result.error is not None else "warn" if result.severity == "warning" else "dull"


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _imbalance(quality: DayQuality) -> str | None:
    known = sum(_fates(quality).values())
    if known < quality.rows:
        return f"{quality.rows - known:,} rows have no fate"
    return f"{known - quality.rows:,} rows more than came in" if known > quality.rows else None


def _fates(quality: DayQuality) -> dict[str, int]:
    return {kind: getattr(quality, kind) for kind in KINDS}


def _parts_of_the_whole(quality: DayQuality) -> list[dict[str, Any]]:
    """The day's rows as widths of a bar 1,000 wide. The smallest part still shows."""
    parts: list[dict[str, Any]] = []
    x, total = 0.0, max(quality.rows, sum(_fates(quality).values()))
    for kind, rows in _fates(quality).items():
        width = max(3.0, 1000 * rows / total) if rows else 0.0
        parts.append({"kind": kind, "rows": rows, "x": x, "width": width})
        x += width
    scale = min(1.0, 1000 / x) if x else 1.0
    return [part | {"x": part["x"] * scale, "width": part["width"] * scale} for part in parts]


# Pictures: numbers become coordinates here and marks in pictures.html.


@dataclass(frozen=True)
class Part:
    kind: str
    y: float
    height: float


@dataclass(frozen=True)
class Bar:
    """One day. `left` and `step` are the whole room it has, which reacts to a pointer."""

    left: float
    step: float
    x: float
    width: float
    here: bool
    title: str | None
    href: str | None
    parts: list[Part]


@dataclass(frozen=True)
class Picture(Frame):
    """Rows per day as bars, the share that was set aside as lines through dots."""

    bars: list[Bar]
    lines: list[list[tuple[float, float]]]
    rows_axis: list[Tick]
    share_axis: list[Tick]
    day_axis: list[Tick]


def bar_picture(
    month: list[str],
    days: Mapping[str, DayQuality],
    frame: Frame,
    folder: str = "",
    here: str | None = None,
    labelled_days: int = 8,
    least_share: float = 0.01,
) -> Picture:
    """The days of a month as a picture; a day on which nothing arrived leaves a gap, and breaks the line."""
    shown = {day: days[day] for day in month if day in days}
    shares = {day: share for day, of_day in shown.items() if (share := _share_set_aside(of_day)) is not None}
    most = axis_end(max((sum(_fates(of_day).values()) for of_day in shown.values()), default=0))
    highest = round_up(max([least_share, *shares.values()]))
    step, height = (frame.right - frame.left) / len(month), frame.bottom - frame.top
    gap = min(3.0, step / 4)
    bars = []
    lines: list[list[tuple[float, float]]] = [[]]
    for place, day in enumerate(month):
        left = frame.left + place * step
        title = f"{day}: " + ", ".join(f"{rows:,} {kind}" for kind, rows in _fates(shown[day]).items()) if day in shown else None
        href = f"{folder}{day}.html" if day in shown and day != here else None
        parts = _stacked(shown[day], most, frame) if day in shown else []
        bars.append(Bar(left, step, left + gap / 2, step - gap, day == here, title, href, parts))
        if day in shares:
            lines[-1].append((left + step / 2, frame.bottom - height * min(1.0, shares[day] / highest)))
        else:
            lines.append([])
    every = math.ceil(len(month) / labelled_days)
    return Picture(
        **vars(frame),
        bars=bars,
        lines=[line for line in lines if line],
        rows_axis=[Tick(frame.bottom - height * part / 4, short(most * part / 4)) for part in range(5)],
        share_axis=[Tick(frame.bottom - height * part / 4, f"{100 * highest * part / 4:.3g} %") for part in range(5)],
        day_axis=[
            Tick(frame.left + (place + 0.5) * step, f"{date.fromisoformat(day):%-d %b}")
            for place, day in enumerate(month)
            if (len(month) - 1 - place) % every == 0
        ],
    )


def _share_set_aside(quality: DayQuality) -> float | None:
    return share(quality.rejected + quality.undecodable, quality.rows)


def _stacked(quality: DayQuality, most: float, frame: Frame) -> list[Part]:
    parts, y = [], float(frame.bottom)
    for kind, rows in _fates(quality).items():
        if rows:
            height = min(y - frame.top, max(1.0, (frame.bottom - frame.top) * rows / most))
            y -= height
            parts.append(Part(kind, y, height))
    return parts


def _month_until(day: str) -> list[str]:
    last = date.fromisoformat(day)
    return [(last - timedelta(days=back)).isoformat() for back in range(TREND_DAYS - 1, -1, -1)]


@cache
def _environment() -> Environment:
    environment = page_environment(_TEMPLATES)
    environment.filters.update(alarm=_alarm, spelled=_spelled)
    environment.globals.update(kinds=KINDS, style=Markup(style()))  # noqa: S704 (a file of ours)
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


# Great Expectations' own page


def data_docs_page(result: "ExpectationSuiteValidationResult", title: str, private: Collection[str] = ()) -> str:
    """Great Expectations' own page for one validation, made safe: its renderers print values of the data as they are, and load from
    eight outside hosts.

    Values go through the renderers with stand-ins for every sign that means something in HTML or in a template, and come out
    escaped. Of the rendered page only known tags and attributes stay. Expectations of private columns keep their counts and lose
    their values. Raises where anything that could load or run were left.
    """
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    document = ValidationResultsPageRenderer().render(_veiled_result(result, title, frozenset(private)))
    rendered = DefaultJinjaPageView(custom_views_directory=_TEMPLATES).render(document, template="data_docs_sections.j2")
    body = _Cleaned.of(rendered)
    page = render("data_docs.html", title=title, page=Markup(body.translate(_ENTITIES)))  # noqa: S704 (cleaned, then escaped)
    prove_inert(page)
    return page


_STAND_INS = {sign: chr(0x10600 + place) for place, sign in enumerate("<>&\"'$")}
"""Letters of Linear A, which nobody can read or writes: GX's renderers and templates, and Python's repr, pass them on as they are."""
_VEIL = str.maketrans(_STAND_INS)
_ENTITIES = str.maketrans({stand_in: escape(sign) for sign, stand_in in _STAND_INS.items()})
_UNREADABLE = re.compile("[\U00010600-\U0001077f]")
_MAX_DEPTH = 8
_VALUE_CHARACTERS = 200


def _veiled_result(result: "ExpectationSuiteValidationResult", title: str, private: frozenset[str]) -> "ExpectationSuiteValidationResult":
    """A copy in which every text is veiled and short. What it was made from (paths, ids of the run) is left out."""
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult, ExpectationValidationResult

    def veiled(one: "ExpectationValidationResult") -> "ExpectationValidationResult":
        config = one.expectation_config
        assert config is not None
        named = _named_columns(config.kwargs)
        found = {name: value for name, value in one.result.items() if _may_show(name, named, private)}
        return ExpectationValidationResult(
            success=one.success,
            expectation_config=type(config)(type=config.type, kwargs=_veil(config.kwargs), severity=config.severity),
            result=_veil(found),
            exception_info=_what_broke(one.exception_info, bool(named & private)),
        )

    meta = {
        "batch_spec": {"data_asset_name": _veil(title)},
        "run_id": {"run_name": "micro-batch", "run_time": _run_time(result.meta)},
        "great_expectations_version": _veil(result.meta.get("great_expectations_version")),
    }
    return ExpectationSuiteValidationResult(
        success=bool(result.success),
        results=[veiled(one) for one in result.results],
        suite_name=_veil(result.suite_name),
        statistics=_veil(result.statistics),
        meta=meta,
    )


def _named_columns(kwargs: Mapping[str, Any]) -> set[str]:
    named = [kwargs.get(key) for key in ("column", "column_A", "column_B")] + list(kwargs.get("column_list") or [])
    return {name for name in named if isinstance(name, str)}


def _may_show(name: str, named: set[str], private: frozenset[str]) -> bool:
    """Whether a part of a result is free of values of private columns. What finds a row again may hold those of any column."""
    if name in ("observed_value", "details") or name.endswith(("_list", "_counts", "_query")):
        return not private or not (named & private or "index" in name)
    return name != "unexpected_rows"


def _what_broke(exception: Mapping[str, Any], is_private: bool) -> dict[str, Any]:
    """Great Expectations gives one exception, or one per metric. Its trace names files of this machine, so only its message stays."""
    first = exception if "raised_exception" in exception else next(iter(exception.values()), {})
    message = "withheld: the column is private" if is_private else _veil(first.get("exception_message"))
    raised = bool(first.get("raised_exception"))
    return {"raised_exception": raised, "exception_message": message, "exception_traceback": "It stands in the log."}


def _run_time(meta: Any) -> str:
    run = meta.get("run_id")
    at = run.get("run_time") if isinstance(run, dict) else getattr(run, "run_time", None)
    return at.isoformat() if isinstance(at, datetime) else str(at or utc_now().isoformat())


def _veil(value: Any, depth: int = 0) -> Any:
    """Numbers stay, containers are followed to a depth that no declared value has, all else becomes short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {
            name if isinstance(name, int) else _veil(str(name)): _veil(held, depth + 1)
            for name, held in value.items()
            if name != "unexpected_rows"
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < _MAX_DEPTH:
        return [_veil(held, depth + 1) for held in list(value)[:MOST_ROWS]]
    text = visible(cut(str(value), _VALUE_CHARACTERS))
    return _UNREADABLE.sub("\ufffd", text).translate(_VEIL)


class _Cleaned(HTMLParser):
    """Keeps the known tags of a page, with their class and id."""

    BLOCKS = frozenset(
        ("div", "p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li", "hr")
    )
    TAGS = BLOCKS | {"span", "strong", "em", "b", "i", "code", "pre", "br", "small"}
    WITHOUT_END = frozenset(("br", "hr"))
    DROPPED_WHOLE = frozenset(
        ("head", "script", "style", "nav", "footer", "form", "button", "select", "textarea", "svg", "iframe", "object")
    )
    SAFE = re.compile(r"[\w :.,-]{0,200}", re.ASCII)

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.kept: list[str] = []
        self.open: list[str] = []
        self.within: list[str] = []

    @classmethod
    def of(cls, page: str) -> str:
        cleaned = cls()
        cleaned.feed(page)
        cleaned.close()
        return "".join([*cleaned.kept, *(f"</{tag}>" for tag in reversed(cleaned.open))])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.DROPPED_WHOLE:
            self.within.append(tag)
        elif tag in self.TAGS and not self.within:
            self.kept.append(f"<{tag}{''.join(self._attribute(name, value or '') for name, value in attrs)}>")
            if tag not in self.WITHOUT_END:
                self.open.append(tag)

    def _attribute(self, name: str, value: str) -> str:
        if name == "hidden":
            return " hidden"
        if name in ("class", "id", "colspan", "rowspan") and self.SAFE.fullmatch(value):
            return f' {name}="{value}"'
        return ""

    def handle_endtag(self, tag: str) -> None:
        if tag in self.within:
            del self.within[self.within.index(tag) :]
        elif tag in self.open and not self.within:
            while (last := self.open.pop()) != tag:
                self.kept.append(f"</{last}>")
            self.kept.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self.within:
            self.kept.append(escape(data))


def prove_inert(page: str) -> None:
    """Raise at the first thing in a finished page that could load, run or lead outside."""
    proof = _Proof(convert_charrefs=True)
    proof.feed(page)
    proof.close()


class _Proof(HTMLParser):
    TAGS = _Cleaned.TAGS | frozenset(("a", "html", "head", "meta", "link", "title", "style", "body", "main", "header"))
    HARMLESS = ("../index.html", "data:,")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            leads_away = name in ("href", "src") and value not in self.HARMLESS
            if leads_away or name.startswith("on") or name in ("style", "srcdoc", "action"):
                raise RuntimeError(f"Great Expectations' page holds <{tag} {name}={str(value)[:80]!r}>: it is not written")
        if tag not in self.TAGS:
            raise RuntimeError(f"Great Expectations' page holds <{tag}>: it is not written")

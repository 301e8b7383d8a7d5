"""An answer as a picture: lines over a time, or bars; which columns they are drawn from is chosen here, unless a person has chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from weir.answers import NUMBER, TEXT, TIME, PlainAnswer, Value
from weir.look.charts import Frame, Line, Tick, round_up

MOST_LINES, MOST_BARS = 8, 40
MOST_VALUES = 200
"""Of a column that can be shown by colour: of more than eight lines the largest are drawn. A column with more values names its rows."""
FRAME = Frame(900, 260, left=64, right=888, top=14, bottom=226)
STATUS = "status"
"""A column of every served view, and the last by which somebody wants to see colours."""


@dataclass(frozen=True)
class Choice:
    """Which columns are drawn: y over x, with a line or bar of its own for each value of colour."""

    x: str
    y: str
    colour: str = ""
    is_line: bool = True


@dataclass(frozen=True)
class Series:
    name: str
    lines: list[Line]
    number: int
    """Of its colour."""


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Picture(Frame):
    choice: Choice
    series: list[Series]
    bars: list[Bar]
    value_axis: list[Tick]
    x_axis: list[Tick]
    left_out: int
    """Bars or lines that there was no room for."""


def choose(answer: PlainAnswer, x: str = "", y: str = "", colour: str = "") -> Choice | None:
    """What a person named holds where it can be drawn; for the rest, what people mostly mean. None where there is no number."""
    names, numbers, times = [own.name for own in answer.columns], answer.of_kind(NUMBER), answer.of_kind(TIME)
    if not answer.rows or not numbers:
        return None
    first = answer.columns[0]
    y = y if y in numbers else next((name for name in numbers if name != (x or first.name)), "")
    if not y:
        return None
    x = x if x in names else first.name if first.name != y else next((name for name in names if name != y), y)
    is_line = x in times
    if colour == "-" or not is_line:
        return Choice(x, y, "", is_line)
    fitting = [name for name in answer.of_kind(TEXT) if name != x and 1 < len(_values(answer, name)) <= MOST_VALUES]
    by_itself = next((name for name in sorted(fitting, key=lambda own: (own == STATUS, names.index(own)))), "")
    if by_itself == STATUS:
        by_itself = ""
    return Choice(x, y, colour if colour in fitting else by_itself, is_line)


def colours_of(answer: PlainAnswer) -> list[str]:
    """The columns that can be shown by colour."""
    return [name for name in answer.of_kind(TEXT) if len(_values(answer, name)) <= MOST_VALUES]


def draw(answer: PlainAnswer, choice: Choice, frame: Frame = FRAME) -> Picture | None:
    """None where no row has both values."""
    return _lines(answer, choice, frame) if choice.is_line else _bars(answer, choice, frame)


def _lines(answer: PlainAnswer, choice: Choice, frame: Frame) -> Picture | None:
    at, of = answer.place(choice.x), answer.place(choice.y)
    by = answer.place(choice.colour) if choice.colour else None
    points: dict[str, list[tuple[datetime, float]]] = {}
    for row in answer.rows:
        moment, number = _moment(row[at]), _number(row[of])
        if moment is not None and number is not None:
            points.setdefault(str(row[by]) if by is not None else choice.y, []).append((moment, number))
    largest = sorted(points, key=lambda name: (-sum(abs(number) for _, number in points[name]), name))
    points = {name: points[name] for name in sorted(largest[:MOST_LINES])}
    every = [point for own in points.values() for point in own]
    if not every:
        return None
    since, until = min(own[0] for own in every), max(own[0] for own in every)
    low, high = value_range([own[1] for own in every])
    whole = (until - since).total_seconds()

    def place(point: tuple[datetime, float]) -> tuple[float, float]:
        part = (point[0] - since).total_seconds() / whole if whole else 0.5
        return round(frame.left + (frame.right - frame.left) * part, 1), _height(point[1], low, high, frame)

    series = [Series(name, [[place(point) for point in sorted(own)]], number) for number, (name, own) in enumerate(points.items())]
    pattern = "%H:%M" if whole and since.date() == until.date() else "%m-%d %H:%M" if whole < 5 * 86_400 else "%Y-%m-%d"
    steps = range(5) if whole else range(2, 3)
    ticks = [
        Tick(frame.left + (frame.right - frame.left) * step / 4, f"{since + (until - since) * (step / 4):{pattern}}") for step in steps
    ]
    return Picture(
        **vars(frame),
        choice=choice,
        series=series,
        bars=[],
        value_axis=_axis(low, high, frame),
        x_axis=ticks,
        left_out=len(largest) - len(points),
    )


def _bars(answer: PlainAnswer, choice: Choice, frame: Frame) -> Picture | None:
    at, of = answer.place(choice.x), answer.place(choice.y)
    found = [(row[at], number) for row in answer.rows if (number := _number(row[of])) is not None]
    if not found:
        return None
    shown = found[:MOST_BARS]
    low, high = value_range([number for _, number in shown])
    step = (frame.right - frame.left) / len(shown)
    zero = _height(0.0, low, high, frame)
    bars, ticks = [], []
    every = -(-len(shown) // 12)
    for number, (label, value) in enumerate(shown):
        top = _height(value, low, high, frame)
        left, name = frame.left + number * step, "–" if label is None else str(label)
        bars.append(
            Bar(
                round(left + step * 0.12, 1),
                min(top, zero),
                round(step * 0.76, 1),
                round(max(1.0, abs(zero - top)), 1),
                f"{name}: {value:,.10g}",
            )
        )
        if number % every == 0:
            room = max(3, int(step * every / 7))
            ticks.append(Tick(round(left + step / 2, 1), name if len(name) <= room else f"{name[: room - 1]}…"))
    axis = _axis(low, high, frame)
    return Picture(**vars(frame), choice=choice, series=[], bars=bars, value_axis=axis, x_axis=ticks, left_out=len(found) - len(shown))


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """From zero, or below it, to a number that reads well."""
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    if low == high:
        return 0.0, 1.0
    return (-round_up(-low) if low < 0 else 0.0), (round_up(high) if high > 0 else 0.0)


def _height(value: float, low: float, high: float, frame: Frame) -> float:
    return round(frame.bottom - (frame.bottom - frame.top) * (value - low) / (high - low), 1)


def _axis(low: float, high: float, frame: Frame) -> list[Tick]:
    return [Tick(_height(value, low, high, frame), _short(value)) for value in (low + (high - low) * part / 4 for part in range(5))]


def _short(value: float) -> str:
    for whole, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= whole:
            return f"{value / whole:.4g}{sign}"
    return f"{value:.4g}"


def _values(answer: PlainAnswer, name: str) -> set[Value]:
    place, found = answer.place(name), set()
    for row in answer.rows:
        found.add(row[place])
        if len(found) > MOST_VALUES:
            break
    return found


def _number(value: Value) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _moment(value: Value) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

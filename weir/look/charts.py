"""Numbers become coordinates here, and marks in pictures.html."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir.look import short


@dataclass(frozen=True)
class Frame:
    """The size of a picture and where in it the marks stand."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


def axis_end(most: float) -> float:
    """Where an axis with four steps ends, so that each step is a number that reads well."""
    return 4 * math.ceil(max(1, most) / 4) if most < 40 else round_up(most)


def round_up(value: float) -> float:
    whole = 10.0 ** math.floor(math.log10(value))
    return next(step * whole for step in (1, 1.2, 1.6, 2, 2.4, 2.8, 3.2, 3.6, 4, 4.8, 6, 8, 10) if step * whole >= value * (1 - 1e-9))


Line = list[tuple[float, float]]
POINT_WIDTH = 2
"""Points nearer to each other than so many pixels cannot be told apart."""


@dataclass(frozen=True)
class TimeChart(Frame):
    """One number over time: its lines (a gap in the readings breaks it), the area below each, and its axes."""

    lines: list[Line]
    value_axis: list[Tick]
    time_axis: list[Tick]
    last: str
    most: str

    @property
    def curves(self) -> list[str]:
        """Each line as SVG wants it."""
        return [_points(line) for line in self.lines]

    @property
    def areas(self) -> list[str]:
        return [_points([(line[0][0], self.bottom), *line, (line[-1][0], self.bottom)]) for line in self.lines]


def _points(line: Line) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in line)


def time_chart(
    points: Sequence[tuple[float, float]],
    since: datetime,
    until: datetime,
    frame: Frame,
    gap_seconds: float,
    words: Callable[[float], str] = short,
) -> TimeChart:
    """The points (seconds since 1970, number) between the two times; where two are further apart than the gap, nothing was measured in
    between. Of several points that would fall on one place the highest is drawn: a picture has no more of them than it is wide."""
    first, whole = since.timestamp(), max((until - since).total_seconds(), 1.0)
    step = POINT_WIDTH * whole / (frame.right - frame.left)
    runs: list[list[tuple[float, float]]] = []
    before, place, last = -math.inf, -1, None
    for at, value in points:
        own = at - first
        if not 0 <= own <= whole:
            continue
        if own - before > gap_seconds:
            runs.append([])
            place = -1
        here = int(own / step)
        if here != place:
            runs[-1].append((own, value))
        elif value > runs[-1][-1][1]:
            runs[-1][-1] = (runs[-1][-1][0], value)
        before, place, last = own, here, value
    highest = max((value for run in runs for _, value in run), default=0.0)
    end, wide, high = axis_end(highest), (frame.right - frame.left) / whole, frame.bottom - frame.top
    times = [since + timedelta(seconds=whole * part / 4) for part in range(5)]
    return TimeChart(
        **vars(frame),
        lines=[[(round(frame.left + wide * own, 1), round(frame.bottom - high * value / end, 1)) for own, value in run] for run in runs],
        value_axis=[Tick(frame.bottom - high * part / 2, words(end * part / 2)) for part in range(3)],
        time_axis=[Tick(frame.left + (frame.right - frame.left) * part / 4, f"{at:%H:%M}") for part, at in enumerate(times)],
        last=words(last) if last is not None else "–",
        most=words(highest),
    )

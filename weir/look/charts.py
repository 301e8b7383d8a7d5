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


@dataclass(frozen=True)
class TimeChart(Frame):
    """One number over time: its lines (a gap in the readings breaks it), the area below each, and its axes."""

    lines: list[Line]
    value_axis: list[Tick]
    time_axis: list[Tick]
    last: str
    most: str

    @property
    def areas(self) -> list[Line]:
        return [[(line[0][0], self.bottom), *line, (line[-1][0], self.bottom)] for line in self.lines]


def time_chart(
    points: Sequence[tuple[datetime, float]],
    since: datetime,
    until: datetime,
    frame: Frame,
    gap_seconds: float,
    words: Callable[[float], str] = short,
) -> TimeChart:
    """The points between the two times; where two are further apart than the gap, nothing was measured in between."""
    shown = [(at, value) for at, value in points if since <= at <= until]
    highest = max((value for _, value in shown), default=0.0)
    end, whole = axis_end(highest), max((until - since).total_seconds(), 1.0)
    lines: list[Line] = []
    before: datetime | None = None
    for at, value in shown:
        if before is None or (at - before).total_seconds() > gap_seconds:
            lines.append([])
        x = frame.left + (frame.right - frame.left) * (at - since).total_seconds() / whole
        lines[-1].append((round(x, 1), round(frame.bottom - (frame.bottom - frame.top) * value / end, 1)))
        before = at
    hours = [since + timedelta(seconds=whole * part / 4) for part in range(5)]
    return TimeChart(
        **vars(frame),
        lines=lines,
        value_axis=[Tick(frame.bottom - (frame.bottom - frame.top) * part / 2, words(end * part / 2)) for part in range(3)],
        time_axis=[Tick(frame.left + (frame.right - frame.left) * part / 4, f"{at:%H:%M}") for part, at in enumerate(hours)],
        last=words(shown[-1][1]) if shown else "–",
        most=words(highest),
    )

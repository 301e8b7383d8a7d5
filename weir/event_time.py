"""Arithmetic of event time: durations, half-open days. Depends on nothing, everything UTC."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

FUTURE_TOLERANCE = timedelta(minutes=5)
"""How far an event may be ahead of its arrival. One event from the future would push the watermark past all others."""

ONE_DAY = timedelta(days=1)

_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_PART = re.compile(r"(\d+)\s*(second|minute|hour|day|week)s?", re.IGNORECASE)
_DURATION = re.compile(rf"\s*{_PART.pattern}(\s+{_PART.pattern})*\s*", re.IGNORECASE)


def parse_duration(text: str) -> timedelta:
    """'10 minutes', '1 hour 30 minutes' → timedelta."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"'{text}' is not a duration: write a number and a unit, for example '10 minutes'")
    return timedelta(seconds=sum(int(n) * _UNITS[unit.lower()] for n, unit in _PART.findall(text)))


def format_duration(duration: timedelta) -> str:
    """The inverse of parse_duration, in Spark's words: whole seconds."""
    return f"{int(duration.total_seconds())} seconds"


def divides_a_day(duration: timedelta) -> bool:
    """Whether tumbling windows of this length never reach across midnight (UTC)."""
    seconds = int(duration.total_seconds())
    return seconds > 0 and 86_400 % seconds == 0


def day_bounds(day: date) -> tuple[datetime, datetime]:
    """The half-open day [start, end) in UTC."""
    start = datetime.combine(day, time(), UTC)
    return start, start + timedelta(days=1)


def first_raw_day(day: date, reach: timedelta) -> date:
    """The first day of arrival that a recomputation of this day reads: an event may be ahead of its arrival by the tolerance."""
    return (day_bounds(day)[0] - reach - timedelta(days=1)).date()


@dataclass(frozen=True)
class Run:
    """Days without a hole, [since, until), and those ahead of it that wait for a day between."""

    since: date
    until: date
    ahead: frozenset[date] = frozenset()

    @staticmethod
    def of(day: date) -> "Run":
        return Run(day, day + ONE_DAY)

    def with_day(self, day: date) -> "Run":
        """Add a day: the run grows at either end as far as there is no hole."""
        ahead = self.ahead if self.since <= day < self.until else self.ahead | {day}
        since, until = self.since, self.until
        while until in ahead:
            until += ONE_DAY
        while since - ONE_DAY in ahead:
            since -= ONE_DAY
        return Run(since, until, frozenset(other for other in ahead if not since <= other < until))

    def before(self, day: date) -> "Run | None":
        """What is left when this day and all after it are taken back."""
        return Run(self.since, min(self.until, day), frozenset(d for d in self.ahead if d < day)) if day > self.since else None


def utc_now() -> datetime:
    return datetime.now(UTC)

"""What may be tidied away, and what must stay: decisions over what lies on disk, as pure functions. Acting is housekeeping_job's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

from weir.event_time import first_raw_day

SMALL_FILE_BYTES = 64 * 1024 * 1024
"""A file that is worth being merged. OPTIMIZE makes files of up to a gigabyte: what it has made is never crowded again by itself."""

EXPIRY_GRACE = timedelta(days=7)
"""How long expired rows are listed before they are marked: a week has a working day for everybody."""

REPORTS_KEPT = timedelta(days=400)
"""A year and a month: this day a year ago can still be looked at."""

STAGES_KEPT = timedelta(days=7)
"""A stage lives for minutes. One so old was left by a run that died, and no run has come to throw it away."""


@dataclass(frozen=True)
class PartitionFiles:
    """One partition of a table as its log has it. `day` is None where the partition names none."""

    values: tuple[tuple[str, str | None], ...]
    day: date | None
    files: int
    small: int


def crowded_partitions(partitions: Iterable[PartitionFiles], today: date, from_files: int) -> list[PartitionFiles]:
    """The closed days with more small files than that, oldest first. Days from today on are left to those who write them."""
    crowded = [p for p in partitions if p.day is not None and p.day < today and p.small > from_files]
    return sorted(crowded, key=lambda p: (p.day or date.min, str(p.values)))


@dataclass(frozen=True)
class RawDay:
    """One stream's raw of one day of arrival; `until` is the offset behind its last message, by topic/partition."""

    stream: str
    day: date
    until: Mapping[str, int]


@dataclass(frozen=True)
class RawRetention:
    """Which days of raw go, and which of those that are old enough stay all the same, with the reason."""

    drop: list[RawDay]
    held: dict[str, str]


def raw_cutoff(now: datetime, keep_raw: timedelta, dirty: Iterable[date], reach: timedelta, kept_since: date | None) -> date:
    """Raw before this day is no longer needed: it is old enough, and no dirty day that can still be recomputed reads it."""
    needed = [first_raw_day(day, reach) for day in dirty]
    return min([(now - keep_raw).date(), *(day for day in needed if kept_since is None or day >= kept_since)])


def retire_raw(days: Iterable[RawDay], cutoff: date, refined: Mapping[str, Mapping[str, int]]) -> RawRetention:
    """Drop what is older than the cutoff, and nothing that somebody still has to read.

    What is not refined is in no other table. And the last message of each topic's partition stays, because a new
    archive goes on behind it: without it, everything that the log still has would be archived a second time.
    """
    days = sorted(days, key=lambda d: (d.stream, d.day))
    ends: dict[str, int] = {}
    for own in days:
        for place, until in own.until.items():
            ends[place] = max(until, ends.get(place, 0))
    drop, held = [], {}
    for own in days:
        if own.day >= cutoff:
            continue
        bounds = refined.get(own.stream, {})
        if any(until > bounds.get(place, 0) for place, until in own.until.items()):
            held[f"{own.stream} {own.day}"] = "not refined yet"
        elif any(until == ends[place] for place, until in own.until.items()):
            held[f"{own.stream} {own.day}"] = "holds the last message of a partition"
        else:
            drop.append(own)
    return RawRetention(drop, held)


def outdated(written_at: Mapping[Path, datetime], now: datetime, kept: timedelta, in_use: Iterable[Path] = ()) -> list[Path]:
    """What was last written before that time, and is not in use."""
    used = set(in_use)
    return sorted(path for path, written in written_at.items() if written < now - kept and path not in used)

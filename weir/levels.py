"""Service levels: what was declared of freshness, lag and rejected rows against what is measured. Decisions only."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import computed_field

from weir.gauges import headroom_seconds, stale_seconds
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, view_query
from weir.look import lasting
from weir.pipeline import Pipeline
from weir.records.driver import Heartbeat
from weir.records.record import Record

LEAST_HEADROOM = 0.25
"""Of the log's retention. Below it a person still has time to act; it holds without being declared."""

Kind = Literal["freshness", "behind", "rejected", "headroom"]


class Level(Record):
    """One declared bound and what was measured. Nothing measured is no breach: a stream that never ran breaks no promise."""

    of: str
    """The view, stream or pipeline."""
    kind: Kind
    bound: float
    measured: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def name(self) -> str:
        return f"{self.of} {self.kind}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_breached(self) -> bool:
        if self.measured is None:
            return False
        return self.measured < self.bound if self.kind == "headroom" else self.measured > self.bound

    def told(self, value: float | None) -> str:
        if value is None:
            return "–"
        match self.kind:
            case "behind":
                return f"{value:,.0f} messages"
            case "rejected":
                return f"{100 * value:.3g} %"
        return lasting(value)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def line(self) -> str:
        what = {
            "freshness": "is stale by",
            "behind": "is behind by",
            "rejected": "has rows set aside:",
            "headroom": "has left until the log drops unread messages:",
        }[self.kind]
        against = "at least" if self.kind == "headroom" else "at most"
        return f"{self.of} {what} {self.told(self.measured)} (promised: {against} {self.told(self.bound)})"


class Breaches(Record):
    """Levels that are not met, by name, each with the time at which that was first seen."""

    since: dict[str, datetime] = {}


def measure_levels(pipeline: Pipeline, beat: Heartbeat | None, set_aside: Mapping[str, float | None], now: datetime) -> list[Level]:
    """Every level of the pipeline. `set_aside` is each stream's share of rows that the last micro-batches have set aside."""
    found: list[Level] = []
    for name, view in pipeline.views.items():
        if (freshness := view.levels.freshness) is not None:
            measured = stale_seconds(beat, view_query(name), now) if beat else None
            found.append(Level(of=name, kind="freshness", bound=freshness.total_seconds(), measured=measured))
    for name, source in pipeline.sources.items():
        if source.levels.behind is not None:
            found.append(Level(of=name, kind="behind", bound=source.levels.behind, measured=_behind(pipeline, name, beat)))
        if source.levels.rejected is not None:
            found.append(Level(of=name, kind="rejected", bound=source.levels.rejected, measured=set_aside.get(name)))
    if beat and beat.retention_seconds:
        found.append(
            Level(of=pipeline.name, kind="headroom", bound=LEAST_HEADROOM * beat.retention_seconds, measured=headroom_seconds(beat, now))
        )
    return found


def _behind(pipeline: Pipeline, source: str, beat: Heartbeat | None) -> float | None:
    """Of the slowest reader: the archive, the intake, or a view of the stream."""
    views = [view_query(view) for view in pipeline.views if source in pipeline.streams_of(view)]
    pulses = [beat.queries[name].behind for name in (ARCHIVE_QUERY, INTAKE_QUERY, *views) if name in beat.queries] if beat else []
    return max(pulses, default=None)


def compare_breaches(before: Breaches, levels: list[Level], now: datetime) -> tuple[Breaches, list[Level], list[Level]]:
    """What is breached now, and of it what is new and what was mended: each is told once."""
    breached = {level.name: level for level in levels if level.is_breached}
    after = Breaches(since={name: before.since.get(name, now) for name in breached})
    new = [level for name, level in breached.items() if name not in before.since]
    mended = [level for level in levels if level.name in before.since and level.name not in breached]
    return after, new, mended

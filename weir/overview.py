"""How each pipeline is, read from its records without a JVM: what the pages, the REST interface and `weir status` show alike."""

import re
from datetime import datetime, timedelta
from pathlib import Path

from weir.gauges import headroom_seconds, stale_seconds, stalest_seconds
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, Home, Lake, view_query, watch_query
from weir.levels import Breaches, Level, measure_levels
from weir.loader import declared_folders, load_pipeline
from weir.pipeline import Pipeline
from weir.records.driver import Control, DriverEnd, Heartbeat, QueryPulse
from weir.records.night import DirtyDay
from weir.records.record import Record, read_once
from weir.refusal import Refusal
from weir.summaries import QualitySummary
from weir.supervision import LEASE_SECONDS

RECENT = timedelta(days=1)
"""Restarts of so long ago still say something about a stream."""


NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Declarations:
    """The pipelines of a folder, loaded again only when one of their files has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[tuple[str, int, int], ...], Pipeline | Refusal]] = {}

    def names(self, home: Home) -> list[str]:
        return [folder.name for folder in declared_folders(home.pipelines)]

    def load(self, home: Home, name: str) -> Pipeline:
        """The pipeline, or the refusal that says what is wrong with its declaration."""
        folder = home.pipelines / name
        if not NAME.fullmatch(name) or not (folder / "pipeline.yaml").is_file():
            raise Refusal(f"there is no pipeline '{name}'")
        return self.load_folder(folder)

    def load_folder(self, folder: Path) -> Pipeline:
        # A folder that was moved here with old times is another one by its inode.
        stats = sorted((file.name, (stat := file.stat()).st_mtime_ns, stat.st_ino) for file in folder.iterdir())
        known = self._known.get(folder)
        if known is None or known[0] != tuple(stats):
            try:
                found: Pipeline | Refusal = load_pipeline(folder)
            except Refusal as refusal:
                found = refusal
            known = self._known[folder] = (tuple(stats), found)
        if isinstance(known[1], Refusal):
            raise known[1]
        return known[1]


class QueryOverview(Record):
    """One query of a driver."""

    name: str
    kind: str
    """archive, intake, view or watch."""
    batch: int | None
    rows_per_second: float
    behind: int
    stale_seconds: float | None
    watermark: datetime | None
    state_rows: int
    state_bytes: int


class StreamOverview(Record):
    """A pipeline's driver as it is now."""

    pipeline: str
    state: str
    """As the driver last told it; one that died without a word is dead, one that has not been heard of is silent."""
    reason: str | None
    is_running: bool
    generation: int | None
    process: str | None
    told_at: datetime | None
    arriving: float | None
    behind: int | None
    stale_seconds: float | None
    headroom_seconds: float | None
    watermark: datetime | None
    """Of the view that is furthest back."""
    state_bytes: int | None
    restarts: int
    """Drivers that ended without having been asked to, of late."""
    last_end: DriverEnd | None
    queries: list[QueryOverview]
    levels: list[Level]
    breaches: dict[str, datetime]
    dirty_days: list[DirtyDay]
    spark_ui: str | None


def stream_overview(home: Home, pipeline: Pipeline, now: datetime) -> StreamOverview:
    lake = home.lake
    control = Control(lake.control(pipeline.name))
    beat, history = control.heartbeat(), control.history()
    state, reason = stream_state(beat, pipeline.name, now)
    recent = [end for end in history if end.ended_at > now - RECENT]
    breaches = Breaches.read(lake.breaches(pipeline.name)) or Breaches()
    running = state in ("starting", "running")
    watermarks = [own.watermark for own in beat.queries.values() if own.watermark] if beat else []
    return StreamOverview(
        pipeline=pipeline.name,
        state=state,
        reason=reason,
        is_running=running,
        generation=beat.generation if beat else None,
        process=f"{beat.holder.pid} on {beat.holder.host}" if beat else None,
        told_at=beat.written_at if beat else None,
        arriving=beat.arriving if beat and running else None,
        behind=max((own.behind for own in beat.keepers.values()), default=0) if beat else None,
        stale_seconds=stalest_seconds(beat, now) if beat else None,
        headroom_seconds=headroom_seconds(beat, now) if beat else None,
        watermark=min(watermarks, default=None),
        state_bytes=sum(own.state_bytes for own in beat.queries.values()) if beat else None,
        restarts=len(recent),
        last_end=history[-1] if history else None,
        queries=[_query(name, pulse, beat, now) for name, pulse in beat.queries.items()] if beat else [],
        levels=levels_of(lake, pipeline, beat, now),
        breaches=breaches.since,
        dirty_days=dirty_days(lake, pipeline.name),
        spark_ui=beat.spark_ui if beat and running else None,
    )


def _query(name: str, pulse: QueryPulse, beat: Heartbeat, now: datetime) -> QueryOverview:
    kinds = {"view": view_query(""), "watch": watch_query(""), "intake": INTAKE_QUERY}
    kind = next((kind for kind, prefix in kinds.items() if name.startswith(prefix)), ARCHIVE_QUERY)
    return QueryOverview(
        name=name.removeprefix(kinds.get(kind, "")) or name,
        kind=kind,
        batch=pulse.batch,
        rows_per_second=pulse.rows_per_second,
        behind=pulse.behind,
        stale_seconds=stale_seconds(beat, name, now),
        watermark=pulse.watermark,
        state_rows=pulse.state_rows,
        state_bytes=pulse.state_bytes,
    )


def stream_state(beat: Heartbeat | None, pipeline: str, now: datetime) -> tuple[str, str | None]:
    """The state in a word, and what a person should know about it."""
    if beat is None:
        return "never started", f"start it with `weir stream {pipeline}`, or switch its DAG on"
    if beat.state in ("stopped", "failed"):
        return beat.state, beat.error
    if beat.holder.is_known_dead():
        return "dead", f"process {beat.holder.pid} is gone; it was {beat.state}: start it again with `weir stream {pipeline}`"
    silent = (now - beat.written_at).total_seconds()
    if silent > LEASE_SECONDS:
        return "silent", f"process {beat.holder.pid} on {beat.holder.host} has not been heard of for {silent:.0f} s"
    return beat.state, beat.error


def levels_of(lake: Lake, pipeline: Pipeline, beat: Heartbeat | None, now: datetime) -> list[Level]:
    summary = read_once(QualitySummary, lake.quality_summary(pipeline.name))
    return measure_levels(pipeline, beat, summary.share_set_aside() if summary else {}, now)


def dirty_days(lake: Lake, pipeline: str) -> list[DirtyDay]:
    return [found for file in sorted(lake.dirty_days(pipeline).glob("*.json")) if (found := DirtyDay.read(file))]

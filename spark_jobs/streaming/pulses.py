"""What each query of a driver did last, as its heartbeat says it."""

import json
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.columns import BATCH
from spark_jobs.intake.intake import Intake
from weir.layout import view_query
from weir.pipeline import Pipeline
from weir.records.driver import QueryPulse

NOTES_REMEMBERED = 10_000
IDENTITY_BYTES = 24
NO_PULSE = QueryPulse(batch=None, rows_per_second=0, behind=0, until={}, watermark=None, state_rows=0, state_bytes=0)


def pulse_of(query: StreamingQuery, before: QueryPulse) -> QueryPulse:
    """What the query's last progress says. An idle one says nothing of offsets: then what was known before holds."""
    progress: Any = query.lastProgress
    if progress is None:
        return before
    sources, states = progress["sources"], progress["stateOperators"]
    ends = [json.loads(s["endOffset"]) for s in sources if s["endOffset"]]
    behind = int(sum(float(s["metrics"].get("maxOffsetsBehindLatest") or 0) for s in sources))
    watermark = progress["eventTime"].get("watermark")
    return QueryPulse(
        batch=progress["batchId"],
        rows_per_second=round(float(progress["processedRowsPerSecond"] or 0), 1),
        behind=behind,
        until=before.until
        | {f"{topic}/{p}": o for end in ends if BATCH not in end for topic, part in end.items() for p, o in part.items()},
        watermark=None if watermark is None or watermark.startswith("1970-01-01T00:00:00") else watermark,
        state_rows=sum(s["numRowsTotal"] for s in states),
        state_bytes=sum(s["memoryUsedBytes"] for s in states),
        caught_up_at=before.caught_up_at if behind else progress["timestamp"],
        batch_seconds=progress["durationMs"].get("triggerExecution", 0) / 1_000 if progress["numInputRows"] else before.batch_seconds,
    )


def _by_partition(ends: list[dict[str, Any]]) -> dict[str, int]:
    kafka = (end for end in ends if BATCH not in end)
    return {f"{topic}/{partition}": offset for end in kafka for topic, part in end.items() for partition, offset in part.items()}


class JournalPulses:
    """Pulses of the intake and of the views that read the journal, in the log's offsets: the views themselves count journal batches."""

    def __init__(self, pipeline: Pipeline, intake: Intake) -> None:
        self._pipeline, self._intake = pipeline, intake
        self._remembered: deque[tuple[int, int, dict[str, int]]] = deque(maxlen=NOTES_REMEMBERED)
        """Of the last batches: number, rows in the journal, and how far they had read."""
        self._read_at_start: dict[str, int] = {}
        self.partitions: list[str] = []
        """All topic/partitions of the log: one that nobody has read yet is read up to 0."""

    def of_intake(self, pulse: QueryPulse) -> QueryPulse:
        note, intake = self._intake.note, self._intake
        if note is None:
            return pulse.model_copy(update={"until": self._of_all({})})
        if not self._remembered or self._remembered[-1][0] < note.batch:
            self._remembered.append((note.batch, note.rows, self._of_all(intake.until)))
        identities = sum(map(len, intake.identities.values()))
        watermarks = [_time(at) for stream in self._pipeline.streams if (at := intake.watermark(stream)) > 0]
        told = {"batch": note.batch, "until": self._of_all(intake.until), "watermark": min(watermarks, default=None)}
        return pulse.model_copy(update=told | {"state_rows": identities, "state_bytes": identities * IDENTITY_BYTES})

    def of_aggregates(self, intake: QueryPulse) -> dict[str, QueryPulse]:
        """The views whose cells the intake computes are as far as the intake."""
        return {
            view_query(view.view): intake.model_copy(
                update={
                    "until": self._of_topics(view.view, intake.until),
                    "watermark": _time(at) if (at := self._intake.watermark(view.stream)) > 0 else None,
                    "state_rows": len(view),
                    "state_bytes": 0,
                }
            )
            for view in self._intake.aggregates
        }

    def note_start(self, view: str, read_until: int) -> None:
        """Up to which journal batch a view had read when its query was started: one without new rows reports nothing."""
        self._read_at_start[view] = read_until

    def of_view(self, view: str, query: StreamingQuery, before: QueryPulse, intake: QueryPulse) -> QueryPulse:
        """A view with a query of its own: its journal batch, told as offsets of the log."""
        progress, pulse = query.lastProgress, pulse_of(query, before)
        note = self._intake.note
        read = _journal_batch(progress["sources"]) if progress is not None else None
        read = self._read_at_start[view] if read is None else read
        if note is None:
            return pulse
        known = next(((rows, until) for batch, rows, until in reversed(self._remembered) if batch <= read), None)
        rows, until = known or (0, before.until or self._of_all({}))
        is_up_to_date = read >= note.batch
        return pulse.model_copy(
            update={
                "until": self._of_topics(view, until),
                "behind": intake.behind + (0 if is_up_to_date else note.rows - rows),
                "caught_up_at": intake.caught_up_at if is_up_to_date else before.caught_up_at,
            }
        )

    def _of_all(self, until: dict[str, int]) -> dict[str, int]:
        return dict.fromkeys(self.partitions, 0) | until

    def _of_topics(self, view: str, until: dict[str, int]) -> dict[str, int]:
        topics = {topic for stream in self._pipeline.streams_of(view) for topic in self._pipeline.streams[stream].topics}
        return {place: end for place, end in until.items() if place.rpartition("/")[0] in topics}


def _journal_batch(sources: Iterable[Any]) -> int | None:
    ends = [json.loads(s["endOffset"]) for s in sources if s["endOffset"]]
    return min((int(end[BATCH]) for end in ends if BATCH in end), default=None)


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)

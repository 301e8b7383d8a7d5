"""The speed layer of one pipeline: archive, one query per view and one per watched stream in one driver.

1. take the lease, or be refused before Spark starts
2. start the queries; each batch is: fence, write once, fence
3. every two seconds: beat, copy progress, look for a stop request
4. stop every query at a batch border, say how it ended
"""

import argparse
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.backlog import Resized, next_limit
from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.known import KNOWN_AFTER_SECONDS, Known, Unseen
from spark_jobs.progress import ProgressCopy, checkpoint_id, next_offsets, read_log
from spark_jobs.session import PYTHON_TOO_SLOW, build_session
from spark_jobs.tables import append_cells, append_once, compact_speed, ensure, exists, read, with_day
from spark_jobs.transform import accepted_rows, compute_view, dedupe_stream, look_up, table_changes
from spark_jobs.watch import CHECKPOINT_SECONDS, usable, watched_rows
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.gauges import Readings
from weir.lake_files import lake_path, remove_folder
from weir.layout import ARCHIVE_QUERY, alerts_topic, app_id, archive_fingerprint, rejected_topic, table_query, view_query, watch_query
from weir.records.driver import Control, Heartbeat, Lease, Loss, Losses, QueryPulse, Searches, State
from weir.records.jobs import Outcome
from weir.refusal import Refusal
from weir.stack import create_topics, end_offsets, first_offsets, missing_topics, shortest_retention_seconds
from weir.supervision import BEAT_SECONDS, LOST_OFFSETS, LeaseLost, check_lease, take_lease

COPY_PROGRESS_SECONDS = 30
ARCHIVE_TRIGGER_SECONDS = 10
"""An archive of many small files is slow to read; ten seconds keep it at a few thousand a day."""
TABLE_TRIGGER_SECONDS = 5
MAX_BATCH_MESSAGES = 200_000
"""A batch is bounded however large the backlog: this many fit into a driver of 2 GB with room to spare. Where they take too long, fewer."""
COMPACT_EVERY_BATCHES = 100
STOP_SECONDS = 60
HUNG_SECONDS = 300
"""Copying progress and starting queries take seconds, on a crowded machine a minute; what takes longer will not end."""
UNSEEN, RESIZED = (f"{own.__module__}.{own.__name__}" for own in (Unseen, Resized))
"""What a query dies of on purpose, to start again at once; by its full name, which no column has: an error also shows the query's plan."""
CONCURRENT = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
MAX_DISTURBANCES = 3
"""A frozen driver that wakes can plan one batch per query before it sees that its lease is gone. More often is no accident."""
EARLIEST = -2
"""Kafka's number for the first offset that a partition still has."""

Told = dict[str, Any]
Sink = Callable[[DataFrame, int], None]
Append = Callable[[DataFrame, int, Told], None]


class StopAtBorder(Exception):
    """A stop was requested before this batch wrote anything; it will run again after the next start."""


class Driver:
    """One generation of a pipeline's speed layer."""

    def __init__(self, call: Call, lease: Lease, control: Control) -> None:
        self.call, self.lease, self.control = call, lease, control
        self.stopping = threading.Event()
        self.queries: dict[str, StreamingQuery] = {}
        self.copies: dict[str, ProgressCopy] = {}
        self._pulses: dict[str, QueryPulse] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._checkpoints: dict[str, str] = {}
        self._started_at: dict[str, datetime] = {}
        self._known = Known()
        self._limits: dict[str, int] = {}
        """Of those queries whose batches may read fewer messages than the options say."""
        self._resized: set[str] = set()
        self._disturbances = 0
        self._searches = Searches()
        self._deadly: Searches | None = None
        """Searches under which a watch has died: it goes on without them until they are changed."""
        self._readings = Readings.read(call.lake.readings(call.pipeline.name)) or Readings()
        self._retention_seconds: float | None = None
        self.spark: SparkSession
        self.spark_ui: str | None = None
        self._told: tuple[State, str | None] = ("starting", None)
        self._told_at = time.monotonic()
        self._beating = threading.Lock()
        # Copying progress is a Spark job, and waits behind the batches of all queries: meanwhile the driver has to look after them.
        self._copying: threading.Thread | None = None
        self._copy_failed: Exception | None = None
        self._compactions: dict[str, threading.Thread] = {}
        self._rewriting = threading.Lock()

    # Step 2

    def start(self) -> None:
        """Start every query."""
        pipeline, options = self.call.pipeline, self.call.options
        self.beat("starting")
        threading.Thread(target=self.keep_beating, daemon=True).start()
        self._retention_seconds = shortest_retention_seconds(self.call.kafka, list(pipeline.topics))
        watched = [] if options.once or options.no_watch else list(pipeline.watch)
        self.spark = build_session(f"weir {pipeline.name} stream", occupied=pipeline.watched_partitions if watched else 0)
        self.spark_ui = self.spark.sparkContext.uiWebUrl
        self.beat("starting")
        self._follow_tables()
        if not options.no_archive:
            self._starts[ARCHIVE_QUERY] = self._start_archive
        for name in self._views():
            self._starts[view_query(name)] = partial(self._start_view, name)
        for name in watched:
            self._starts[watch_query(name)] = partial(self._start_watch, name)
        for start in self._starts.values():
            start()
            self.beat("starting")

    def _follow_tables(self) -> None:
        """Read the tables up to now before any view starts, so that events find what was there before them; then follow them."""
        has_news = False
        for name in self._tables():
            self._start_table(name, follow=False)
            while self.queries[table_query(name)].isActive:
                self.beat("starting")
                time.sleep(0.2)
            self._raise_failure(table_query(name))
            progress: Any = self.queries[table_query(name)].recentProgress
            has_news = has_news or any(own["numInputRows"] for own in progress)
            if not self.call.options.once:
                self._starts[table_query(name)] = partial(self._start_table, name)
        if has_news:
            time.sleep(KNOWN_AFTER_SECONDS)

    def _views(self) -> list[str]:
        chosen = self.call.options.views
        return chosen.split(",") if chosen else list(self.call.pipeline.views)

    def _tables(self) -> list[str]:
        """All of them; those that the views need where only some views are started."""
        pipeline = self.call.pipeline
        needed = {table for view in self._views() for table in pipeline.views[view].as_of}
        return [name for name in pipeline.tables if name in needed or not self.call.options.views]

    def _raise_failure(self, query: str) -> None:
        if error := self.queries[query].exception():
            raise error

    def _start_table(self, name: str, follow: bool = True) -> None:
        """Keep every version of a table's rows. From `_known_at` on all batches of all views see it, and none before."""
        pipeline, lake, query = self.call.pipeline, self.call.lake, table_query(name)
        table, fingerprint = pipeline.tables[name], pipeline.table_fingerprint(name)
        path, checkpoint = lake.history(pipeline.name, name, fingerprint), lake.checkpoint(pipeline.name, query, fingerprint)
        lost = self._book_losses(query, checkpoint, table.topics)
        changes = table_changes(self._messages(table.topics, self._limit(query), not lost), table)
        ensure(self.spark.createDataFrame([], changes.schema).withColumn("_known_at", F.lit(None).cast("timestamp")), path)

        def append(frame: DataFrame, batch: int, told: Told) -> None:
            known_at = F.lit(self._known.announce(name)).cast("timestamp")
            fault_point(f"announced.{query}", batch)
            identity = app_id(pipeline.name, query, checkpoint_id(checkpoint))
            append_once(frame.withColumn("_known_at", known_at), path, [], identity, batch, told)
            self._known.done(name)

        # All of a table is read before the views start: no time to start again in between.
        write = self._fenced(query, checkpoint, append, adapts=False)
        self._start_query(query, changes, "append", checkpoint, TABLE_TRIGGER_SECONDS, write, not follow)

    def _known_changes(self, name: str) -> DataFrame:
        """What is known of a table at the time of a batch, by the clock that Spark writes into the batch's log: the night can tell it."""
        pipeline = self.call.pipeline
        path = self.call.lake.history(pipeline.name, name, pipeline.table_fingerprint(name))
        return read(self.spark, path).filter(F.col("_known_at") <= F.current_timestamp())

    def _start_archive(self) -> None:
        """One query for all topics. Its checkpoint belongs to this set of topics; a new one goes on where raw ends."""
        name, lake, topics = self.call.pipeline.name, self.call.lake, self.call.pipeline.topics
        table, checkpoint = lake.raw(name), lake.checkpoint(name, ARCHIVE_QUERY, archive_fingerprint(topics))
        forget_other_checkpoints(checkpoint)
        resume = (
            "earliest" if (lake_path(checkpoint) / "offsets").exists() else offsets_after(self.spark, table, self.call.kafka, list(topics))
        )
        stream = F.create_map(*(F.lit(word) for pair in topics.items() for word in pair))[F.col("topic")]
        lost = self._book_losses(ARCHIVE_QUERY, checkpoint, list(topics))
        messages = self._messages(list(topics), self._limit(ARCHIVE_QUERY), not lost, resume, headers=True)
        messages = messages.withColumn("stream", stream).withColumn("received_on", F.to_date("received_at"))

        def append(frame: DataFrame, batch: int, told: Told) -> None:
            append_once(frame, table, ["stream", "received_on"], app_id(name, ARCHIVE_QUERY, checkpoint_id(checkpoint)), batch, told)

        write = self._fenced(ARCHIVE_QUERY, checkpoint, append)
        self._start_query(ARCHIVE_QUERY, messages, "append", checkpoint, ARCHIVE_TRIGGER_SECONDS, write)

    def _start_view(self, view: str) -> None:
        pipeline, lake = self.call.pipeline, self.call.lake
        query, fingerprint = view_query(view), pipeline.fingerprint(view)
        table = lake.speed(pipeline.name, view, fingerprint)
        checkpoint = lake.checkpoint(pipeline.name, query, fingerprint)
        lost = self._book_losses(
            query, checkpoint, [topic for name in pipeline.streams_of(view) for topic in pipeline.streams[name].topics]
        )
        cells = with_day(self._speed_cells(view, not lost), pipeline.views[view].time)

        def append(changed: DataFrame, batch: int, told: Told) -> None:
            named = changed.withColumn("_generation", F.lit(self.lease.generation)).withColumn("_batch", F.lit(batch).cast("bigint"))
            append_cells(named, table, told)
            if batch % COMPACT_EVERY_BATCHES == COMPACT_EVERY_BATCHES - 1:
                self._compact_beside(view, table)

        write_cells = self._fenced(query, checkpoint, append, looks_up=bool(pipeline.views[view].as_of))
        self._start_query(query, cells, output_mode(cells), checkpoint, self.call.options.trigger_seconds, write_cells)
        self.copies[query] = ProgressCopy(self.spark, pipeline.name, lake.progress(pipeline.name), query, checkpoint)

    def _compact_beside(self, view: str, table: str) -> None:
        """Rewrite what has become many files while batches go on: it takes seconds, in which no number would move. One view at a time."""

        def compact() -> None:
            with self._rewriting:
                try:
                    self.check_lease()
                    compact_speed(self.spark, table, self.call.pipeline.views[view].grain)
                except Exception as error:  # what must end the driver also meets its batches
                    print(f"{view}: files were not merged: {one_line(error)}", flush=True)

        if not (view in self._compactions and self._compactions[view].is_alive()):
            self._compactions[view] = threading.Thread(target=compact, daemon=True)
            self._compactions[view].start()

    def _speed_cells(self, view: str, strict: bool) -> DataFrame:
        pipeline, frames = self.call.pipeline, {}
        changes = {name: self._known_changes(name) for name in pipeline.views[view].as_of}
        for name in pipeline.streams_of(view):
            stream = pipeline.streams[name]
            messages = self._messages(stream.topics, self._limit(view_query(view)), strict)
            frames[name] = look_up(dedupe_stream(accepted_rows(messages, stream), stream), pipeline, view, name, changes)
        return compute_view(self.spark, pipeline, view, frames)

    def _limit(self, query: str) -> int:
        """How many messages a batch may read, of a view's each stream, of the archive in all."""
        return self._limits.get(query, self._most(query))

    def _most(self, query: str) -> int:
        options = self.call.options
        return int(options.max_archive_batch if query == ARCHIVE_QUERY else options.max_batch)

    def _learn(self, query: str, messages: int, seconds: float) -> None:
        """Choose anew how many messages a batch may read. The query starts again with it before its next batch."""
        limit = self._limit(query)
        if (chosen := next_limit(limit, self._most(query), messages, seconds)) != limit:
            self._limits[query] = chosen
            self._resized.add(query)

    def _start_watch(self, name: str) -> None:
        """Tell of the stream's rows as they arrive. What is told is no number: it starts with what comes now, and counts no losses."""
        pipeline, query = self.call.pipeline, watch_query(name)
        topics = pipeline.streams[name].topics
        create_topics(self.call.kafka, {alerts_topic(pipeline.name): 1, **{rejected_topic(topic): 1 for topic in topics}})
        messages = self._messages(topics, None, False, "latest")
        self._searches = Searches.read(self.call.lake.searches(pipeline.name)) or Searches()
        searches = {} if self._searches == self._deadly else usable(messages, pipeline, name, self._searches.of(name))
        conditions = pipeline.watch[name].alerts | searches
        checkpoint = self.call.lake.checkpoint(pipeline.name, query, archive_fingerprint(topics))
        rows = watched_rows(messages, pipeline, name, conditions)
        writer = rows.writeStream.queryName(query).outputMode("update").format("kafka").option("checkpointLocation", checkpoint)
        writer = writer.option("kafka.bootstrap.servers", self.call.kafka).option("kafka.linger.ms", 0)
        self.queries[query] = writer.trigger(realTime=f"{CHECKPOINT_SECONDS} seconds").start()  # type: ignore[call-overload] # not in its types

    def _hear_of_searches(self) -> None:
        """Start the watches anew when people have saved or dropped a search. The views go on."""
        if not any(query.startswith(watch_query("")) for query in self.queries):
            return
        now = Searches.read(self.call.lake.searches(self.call.pipeline.name)) or Searches()
        if now == self._searches:
            return
        changed = {name for name in self.call.pipeline.watch if now.of(name) != self._searches.of(name)}
        self._searches = now
        for name in changed:
            self.queries[watch_query(name)].stop()
            self._starts[watch_query(name)]()

    def _messages(
        self, topics: list[str], at_most: int | None, strict: bool, from_offsets: str = "earliest", headers: bool = False
    ) -> DataFrame:
        """The topics as raw rows, with the headers only where they are kept.

        Lost offsets end a strict query: going on would be silent loss. One that is not strict goes on behind what is booked as lost.
        """
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.call.kafka)
            .option("subscribe", ",".join(topics))
            .option("startingOffsets", from_offsets)
            .option("failOnDataLoss", strict)
            .option("includeHeaders", headers)
            .option("groupIdPrefix", f"weir-{self.call.pipeline.name}")
        )
        if at_most is not None:
            reader = reader.option("maxOffsetsPerTrigger", at_most)
        kept = ["topic", "partition", "offset", "timestamp AS received_at", "key", "value", *(["headers"] if headers else [])]
        return reader.load().selectExpr(*kept)

    def _start_query(
        self, name: str, frame: DataFrame, mode: str, checkpoint: str, every_seconds: float, sink: Sink, once: bool = False
    ) -> None:
        writer = frame.writeStream.queryName(name).outputMode(mode).option("checkpointLocation", checkpoint).foreachBatch(sink)
        once = once or self.call.options.once
        trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_seconds} seconds")
        self._checkpoints[name], self._started_at[name] = checkpoint, utc_now()
        self.queries[name] = trigger.start()

    def _book_losses(self, query: str, checkpoint: str, topics: list[str]) -> list[Loss]:
        """What the log has dropped before this query could read it; noted for the ledger, each once."""
        if not (lake_path(checkpoint) / "metadata").exists():
            return []
        first, file = first_offsets(self.call.kafka, topics), self.call.lake.losses(self.call.pipeline.name)
        lost = [
            Loss(query=query, topic=topic, partition=number, from_offset=own, until_offset=there, noticed_at=utc_now())
            for (topic, number), own in sorted(next_offsets(checkpoint).items())
            if (there := first.get(f"{topic}/{number}", 0)) > own
        ]
        known = Losses.read(file) or Losses()
        booked = {(loss.query, loss.topic, loss.partition, loss.from_offset): loss.until_offset for loss in known.found}
        new = [loss for loss in lost if booked.get((loss.query, loss.topic, loss.partition, loss.from_offset), 0) < loss.until_offset]
        if new:
            self.check_lease()
            Losses(found=[*known.found, *new]).write(file)
        for loss in new:
            count = loss.until_offset - loss.from_offset
            print(f"{query}: {count:,} messages of {loss.topic}/{loss.partition} from offset {loss.from_offset:,} are lost", flush=True)
        return lost

    def _fenced(self, query: str, checkpoint: str, append: Append, looks_up: bool = False, adapts: bool = True) -> Sink:
        """Append a batch as long as this driver holds the lease; the commit says which offsets it covers."""

        is_warm = False

        def write(frame: DataFrame, batch: int) -> None:
            nonlocal is_warm
            if self.stopping.is_set():
                raise StopAtBorder
            self.check_lease()
            if query in self._resized:
                self._resized.remove(query)
                raise Resized
            began = time.monotonic()
            fault_point(f"before_write.{query}", batch)
            ranges = read_log(query, checkpoint, batch - 1)
            if looks_up and ranges:
                self._known.check(ranges[0].planned_at, self._started_at[query], self.stopping)
            offsets = {own.place: [own.from_offset, own.until_offset] for own in ranges}
            append(frame, batch, {"query": query, "batch": batch, "generation": self.lease.generation, "offsets": offsets})
            fault_point(f"after_write.{query}", batch)
            self.check_lease()
            if adapts and is_warm:  # the first batch also compiles its plan
                self._learn(query, sum(own.until_offset - own.from_offset for own in ranges), time.monotonic() - began)
            is_warm = True

        return write

    def check_lease(self) -> None:
        check_lease(self.control, self.lease)

    # Steps 3 and 4

    def look_after(self) -> str | None:
        """Beat until a stop is requested or all queries have ended. Returns the error of a query that failed."""
        next_copy = time.monotonic() + COPY_PROGRESS_SECONDS
        while not self.stopping.is_set():
            self.check_lease()
            if failed := self._failure():
                return failed
            if not any(query.isActive for query in self.queries.values()):
                return None
            request = self.control.stop_request()
            if request and request.generation >= self.lease.generation:
                break
            self.beat("running")
            self._hear_of_searches()
            if time.monotonic() >= next_copy and not (self._copying and self._copying.is_alive()):
                self._await_copy()
                self._copying = threading.Thread(target=self._copy_beside, daemon=True)
                self._copying.start()
                next_copy = time.monotonic() + COPY_PROGRESS_SECONDS
            if time.monotonic() > next_copy + HUNG_SECONDS:
                return f"progress could not be copied for {HUNG_SECONDS} s"
            self.stopping.wait(BEAT_SECONDS)
        return None

    def stop(self) -> None:
        """Stop each query between two batches. What does not come to a border in time is cut; its batch runs again."""
        self.stopping.set()
        for name, query in self.queries.items():
            if name.startswith(watch_query("")):  # it has no borders: what it has told since it last noted its place is told again
                query.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for query in self.queries.values():
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                self.beat("stopping")
                time.sleep(0.2)
            query.stop()
        for compaction in self._compactions.values():
            compaction.join(max(0, deadline - time.monotonic()))
        self._await_copy()
        self._copy_progress()

    def beat(self, state: State, error: str | None = None) -> None:
        """Say how it is now. Between two of these a thread repeats the last one: a slow Spark job is no sign of death."""
        self._pulses = {name: _pulse(query, self._pulses.get(name, NO_PULSE)) for name, query in self.queries.items()}
        self._told, self._told_at = (state, error), time.monotonic()
        self._write_beat()

    def _write_beat(self) -> None:
        with self._beating:
            now, (state, error) = utc_now(), self._told
            beat = Heartbeat(
                holder=self.lease.holder,
                generation=self.lease.generation,
                state=state,
                written_at=now,
                error=error,
                queries=self._pulses,
                arriving=self._readings.arriving(now),
                retention_seconds=self._retention_seconds,
                spark_ui=self.spark_ui,
            )
            self.control.beat(beat)
            if state == "running" and self._readings.is_due(now):
                self._readings = self._readings.with_beat(beat, now)
                self._readings.write(self.call.lake.readings(self.call.pipeline.name))

    def keep_beating(self) -> None:
        """Repeat the last beat, but not for ever: a driver that has not gone round for minutes hangs, and is to be replaced."""
        while self._told[0] not in ("stopped", "failed") and self.control.lease() == self.lease:
            if time.monotonic() - self._told_at < HUNG_SECONDS:
                self._write_beat()
            time.sleep(BEAT_SECONDS)

    def _await_copy(self) -> None:
        """Let the copying beside come to its end; what went wrong in it is raised here."""
        if self._copying is not None:
            self._copying.join(STOP_SECONDS)
        if self._copy_failed is not None:
            raise self._copy_failed

    def _copy_beside(self) -> None:
        try:
            self._copy_progress()
        except Exception as error:
            self._copy_failed = error

    def _copy_progress(self) -> None:
        for copy in self.copies.values():
            copy.copy()

    def _failure(self) -> str | None:
        for name, query in self.queries.items():
            if error := query.exception():
                if "LeaseLost" in str(error):
                    raise LeaseLost(one_line(error))
                disturbs = UNSEEN not in str(error) and RESIZED not in str(error)
                if (reason := self._mend(name, str(error))) and self._disturbances + disturbs <= MAX_DISTURBANCES:
                    self._disturbances += disturbs
                    print(f"{name} starts again: {reason}", flush=True)
                    self._starts[name]()
                    continue
                return f"{name}: {one_line(error)}"
        return None

    def _mend(self, name: str, error: str) -> str | None:
        """Why the query can be started again at once, if it can."""
        if UNSEEN in error:
            return "a table's change was committed later than it counts, and its batch may have missed it"
        if RESIZED in error:
            return f"its batches read at most {self._limit(name):,} messages from now on, by the time that the last ones took"
        if PYTHON_TOO_SLOW in error:
            return "Spark waits ten seconds for a Python worker, which this machine did not start in that time"
        if any(word in error for word in CONCURRENT):
            return "a driver that lost its lease wrote into its checkpoint as it woke"
        if name.startswith(watch_query("")) and self._searches.saved and self._searches != self._deadly:
            self._deadly = self._searches
            return f"it has died, perhaps of a saved search, and goes on without them: {error.splitlines()[0]}"
        topics = list(self.call.pipeline.topics)
        if re.search(LOST_OFFSETS, error) and self._book_losses(name, self._checkpoints[name], topics):
            return "the log had dropped messages before they were read; they are booked as lost"
        return None


def forget_other_checkpoints(checkpoint: str) -> None:
    """Remove the archive's checkpoints of other sets of topics: raw knows how far it is, and an old one would repeat what came since."""
    own = lake_path(checkpoint)
    for sibling in own.parent.glob("*"):
        if sibling.name != own.name:
            remove_folder(sibling)


def offsets_after(spark: SparkSession, raw: str, kafka: str, topics: list[str]) -> str:
    """Kafka's startingOffsets for an archive without a checkpoint: behind what raw already holds, so that nothing comes twice."""
    if not exists(spark, raw):
        return "earliest"
    held = read(spark, raw).groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    after = {f"{row['topic']}/{row['partition']}": row["last"] + 1 for row in held}
    offsets: dict[str, dict[str, int]] = {topic: {} for topic in topics}
    for place in end_offsets(kafka, topics):
        topic, partition = place.rsplit("/", 1)
        offsets[topic][partition] = after.get(place, EARLIEST)
    return json.dumps(offsets)


def output_mode(cells: DataFrame) -> str:
    """'update' where Spark allows it for this query, else 'append': sessions and some joins are only told when closed."""
    jvm = cells.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(cells._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Update())
        return "update"
    except Exception:
        checker.checkForStreaming(cells._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Append())
        return "append"


NO_PULSE = QueryPulse(batch=None, rows_per_second=0, behind=0, until={}, watermark=None, state_rows=0, state_bytes=0)


def _pulse(query: StreamingQuery, before: QueryPulse) -> QueryPulse:
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
        until=before.until | {f"{topic}/{p}": offset for end in ends for topic, part in end.items() for p, offset in part.items()},
        watermark=None if watermark is None or watermark.startswith("1970-01-01T00:00:00") else watermark,
        state_rows=sum(s["numRowsTotal"] for s in states),
        state_bytes=sum(s["memoryUsedBytes"] for s in states),
        caught_up_at=before.caught_up_at if behind else progress["timestamp"],
    )


def stream(call: Call) -> Outcome:
    if missing := missing_topics(call.kafka, list(call.pipeline.topics)):
        raise Refusal(f"topic {', '.join(missing)} is not on {call.kafka}: run `weir up`, or create it there")
    control = Control(call.lake.control(call.pipeline.name))
    name = call.pipeline.name
    lease = take_lease(control, f"{name} already has a driver", f"stop it with `weir stream {name} --stop`", call.options.launch)
    driver = Driver(call, lease, control)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: driver.stopping.set())
    try:
        driver.start()
        error = driver.look_after()
        driver.stop()
    except LeaseLost as lost:
        return Outcome(failure=f"stopped at once: {lost}")
    except Exception as failure:
        driver.beat("failed", one_line(failure))
        raise
    driver.beat("failed" if error else "stopped", error)
    return Outcome(failure=error)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--launch", help="the nonce by which the starter knows this driver again")
    parser.add_argument("--once", action="store_true", help="read what is there, then stop")
    parser.add_argument("--views", default="", help="only these views, separated by commas")
    parser.add_argument("--no-archive", action="store_true")
    parser.add_argument("--no-watch", action="store_true")
    parser.add_argument("--trigger-seconds", type=float, default=1)
    most = int(os.environ.get("WEIR_MAX_BATCH") or MAX_BATCH_MESSAGES)
    parser.add_argument("--max-batch", type=int, default=most, help="messages in one batch of a view")
    parser.add_argument("--max-archive-batch", type=int, default=MAX_BATCH_MESSAGES)


if __name__ == "__main__":
    run_job(stream, add_options)

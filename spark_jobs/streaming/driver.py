"""One generation of a pipeline's speed layer: the archive, the intake, the views on the journal and the watches, in one process."""

import json
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.arrow_tables import ArrowTable
from spark_jobs.backlog import Resized, next_limit
from spark_jobs.columns import JOURNALED_ON
from spark_jobs.entry import Call, one_line
from spark_jobs.intake.aggregates import CELL_BATCH, DAY, GENERATION, AggregateView
from spark_jobs.intake.intake import Intake
from spark_jobs.intake.mergeable import mergeable_views
from spark_jobs.journal_source import START, JournalSource, journal_batches, read_journal
from spark_jobs.output_mode import output_mode
from spark_jobs.session import PYTHON_TOO_SLOW, build_session
from spark_jobs.streaming.catch_up import take_in_from_raw
from spark_jobs.streaming.checkpoint import checkpoint_id, committed_batch, next_offsets, offsets_before, planned_offsets
from spark_jobs.streaming.messages import EARLIEST, book_losses, dropped_ranges, read_messages
from spark_jobs.streaming.pulses import NO_PULSE, JournalPulses, pulse_of
from spark_jobs.tables import append_once, compact_speed, ensure_partitioned, exists, read, with_day
from spark_jobs.transform import compute_view
from spark_jobs.watch import CHECKPOINT_SECONDS, usable, watched_rows
from weir.event_time import format_duration, utc_now
from weir.faults import fault_point
from weir.gauges import Readings
from weir.lake_files import lake_path, remove_folder
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, alerts_topic, app_id, archive_fingerprint, rejected_topic, view_query, watch_query
from weir.records.driver import Control, Heartbeat, Lease, QueryPulse, Searches, State
from weir.records.night import ViewVersion
from weir.refusal import Refusal
from weir.stack import create_topics, end_offsets, first_offsets, shortest_retention_seconds
from weir.supervision import BEAT_SECONDS, LOST_OFFSETS, LeaseLost, check_lease

ARCHIVE_TRIGGER_SECONDS = 10
"""An archive of many small files is slow to read; ten seconds keep it at a few thousand a day."""
VIEW_TRIGGER_SECONDS = 6
"""Of a view with a query of its own: each trigger costs about a core second, which the intake needs as well. Measured at 100 events/s on
two cores: with 3 s the worst aggregate was 12.0 s old at the 95th percentile, with 6 s 9.5 s; the other views 14.4 and 14.8 s."""
LEAST_SOURCE_MESSAGES = 50
COMPACT_EVERY_BATCHES = 100
STOP_SECONDS = 60
HUNG_SECONDS = 300
"""Starting queries takes seconds, on a crowded machine a minute; what takes longer will not end."""
RESIZED = f"{Resized.__module__}.{Resized.__name__}"
"""What a query dies of on purpose, to start again at once; by its full name, which no column has: an error also shows the query's plan."""
CONCURRENT = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
MAX_DISTURBANCES = 3
"""A frozen driver that wakes can plan one batch per query before it sees that its lease is gone. More often is no accident."""

Sink = Callable[[DataFrame, int], None]
Write = Callable[[DataFrame, int], int]
"""Writes a batch; gives how many messages it read, for choosing the size of the next ones."""


class StopAtBorder(Exception):
    """A stop was requested before this batch wrote anything; it will run again after the next start."""


class Driver:
    def __init__(self, call: Call, lease: Lease, control: Control) -> None:
        self.call, self.lease, self.control = call, lease, control
        self.stopping = threading.Event()
        self.queries: dict[str, StreamingQuery] = {}
        self._pulses: dict[str, QueryPulse] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._waiting: list[Callable[[], None]] = []
        """Views that start when the intake has read all that is there."""
        self._limits: dict[str, int] = {}
        """Of those queries whose batches may read fewer messages than the options say."""
        self._resized: set[str] = set()
        self._disturbances = 0
        self._searches = Searches()
        self._crashing_searches: Searches | None = None
        """Searches under which a watch has died: it goes on without them until they are changed."""
        self._readings = Readings.read(call.lake.readings(call.pipeline.name)) or Readings()
        self._retention_seconds: float | None = None
        self.spark: SparkSession
        self.intake: Intake
        self._journal_pulses: JournalPulses
        self.spark_ui: str | None = None
        self._last_reported: tuple[State, str | None] = ("starting", None)
        self._last_reported_at = time.monotonic()
        self._beating = threading.Lock()
        self._compactions: dict[str, threading.Thread] = {}
        self._rewriting = threading.Lock()

    # Starting

    def start(self) -> None:
        """Start every query."""
        pipeline, options = self.call.pipeline, self.call.options
        self.beat("starting")
        threading.Thread(target=self.keep_beating, daemon=True).start()
        self._retention_seconds = shortest_retention_seconds(self.call.kafka, list(pipeline.topics))
        watched = [] if options.once or options.no_watch else list(pipeline.watch)
        self.spark = build_session(f"weir {pipeline.name} stream", occupied=pipeline.watched_partitions if watched else 0)
        self.spark.dataSource.register(JournalSource)
        self.spark_ui = self.spark.sparkContext.uiWebUrl
        self.beat("starting")
        chosen = options.views.split(",") if options.views else list(pipeline.views)
        mergeable = mergeable_views(self.spark, pipeline, chosen)
        aggregates = [AggregateView(self.spark, self.call.lake, pipeline, *own, self.lease.generation) for own in mergeable.items()]
        self.intake = Intake(self.spark, self.call.lake, pipeline, aggregates)
        self._journal_pulses = JournalPulses(pipeline, self.intake)
        for view in chosen:
            contracts = {name: self.intake.journal.contracts[name] for name in pipeline.streams_of(view)}
            version = ViewVersion(contracts=contracts, is_aggregate=view in mergeable)
            version.write(self.call.lake.view_version(pipeline.name, view, pipeline.fingerprint(view)))
        self._starts[INTAKE_QUERY] = self._start_intake
        if not options.no_archive:
            self._starts[ARCHIVE_QUERY] = self._start_archive
        for name in watched:
            self._starts[watch_query(name)] = partial(self._start_watch, name)
        for start in list(self._starts.values()):
            start()
            self.beat("starting")
        for view in (view for view in chosen if view not in mergeable):
            self._starts[view_query(view)] = partial(self._start_view, view)
            self._waiting.append(self._starts[view_query(view)])
        if not options.once:
            self._start_waiting()

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in waiting:
            start()
            self.beat(self._last_reported[0])

    def _start_intake(self) -> None:
        """Judge every message once, from where the journal ends. The checkpoint is new at each start: the journal knows how far it is."""
        lake, pipeline = self.call.lake, self.call.pipeline
        self.intake.prepare(self.check_lease)
        self.beat(self._last_reported[0])
        topics = list(pipeline.topics)
        first, end = first_offsets(self.call.kafka, topics), end_offsets(self.call.kafka, topics)
        self._journal_pulses.partitions = list(end)
        self._refuse_recreated_topics(end)
        take_in_from_raw(self.spark, lake, self.intake, first, self._between_raw_batches)
        lost = self._lost_to_the_intake(first)
        folder = lake_path(lake.checkpoint(pipeline.name, INTAKE_QUERY, ""))
        remove_folder(folder)
        checkpoint = lake.checkpoint(pipeline.name, INTAKE_QUERY, f"{self.lease.generation}-{utc_now():%Y%m%d%H%M%S%f}")
        until = self.intake.until
        limits = self._source_limits({place: own - max(until.get(place, 0), first.get(place, 0)) for place, own in end.items()})
        messages = {}
        for source, contract in pipeline.sources.items():
            starts: dict[str, dict[str, int]] = {topic: {} for topic in contract.topics}
            for place in end:
                topic, _, partition = place.rpartition("/")
                if topic in starts:
                    starts[topic][partition] = until[place] if until.get(place, 0) > first.get(place, 0) else EARLIEST
            args = (contract.topics, limits[source], not lost, json.dumps(starts))
            messages[source] = read_messages(self.spark, self.call.kafka, pipeline.name, *args)
        candidates = self.intake.candidates(messages)

        def take_in(frame: DataFrame, batch: int) -> int:
            reached = planned_offsets(checkpoint, batch)
            count = sum(reached.values()) - sum(offsets_before(checkpoint, batch).values())
            self.intake.take_in(frame, reached, self.check_lease)
            if self.intake.note and self.intake.note.batch % COMPACT_EVERY_BATCHES == COMPACT_EVERY_BATCHES - 1:
                self._merge_journal_files()
            return count

        write = self._fenced(INTAKE_QUERY, take_in)
        self._start_query(INTAKE_QUERY, candidates, "append", checkpoint, self.call.options.trigger_seconds, write)

    def _source_limits(self, backlog: dict[str, int]) -> dict[str, int]:
        """How many messages of each source a batch may read: an equal share of the limit, or its share of the backlog if that is more."""
        limit, sources = self._limit(INTAKE_QUERY), self.call.pipeline.sources
        unread = {name: sum(own for place, own in backlog.items() if place.rpartition("/")[0] in s.topics) for name, s in sources.items()}
        total = max(sum(unread.values()), 1)
        return {name: max(limit // len(sources), limit * own // total, LEAST_SOURCE_MESSAGES) for name, own in unread.items()}

    def _between_raw_batches(self) -> None:
        self.check_lease()
        self.beat(self._last_reported[0])

    def _refuse_recreated_topics(self, end: dict[str, int]) -> None:
        if short := [place for place, own in self.intake.until.items() if place in end and end[place] < own]:
            place = short[0]
            raise Refusal(
                f"topic {place.rpartition('/')[0]} was made anew: partition {place} ends at offset {end[place]:,}, the journal has read to "
                f"{self.intake.until[place]:,}: give the stream another topic, or the pipeline a new lake"
            )

    def _lost_to_the_intake(self, first: dict[str, int]) -> bool:
        """Book what neither the journal nor the archive has and Kafka has dropped; whether there is any."""
        topics = list(self.call.pipeline.topics)
        lost = dropped_ranges(
            INTAKE_QUERY, {place: end for place, end in self.intake.until.items() if place in first}, self.call.kafka, topics
        )
        if lost:
            self.check_lease()
            book_losses(self.call.lake, self.call.pipeline.name, lost)
        return bool(lost)

    def _merge_journal_files(self) -> None:
        """One small file a batch is what readers would have to open. Beside the batches, and under a commit that changes no row."""

        def compact() -> None:
            ArrowTable(self.intake.journal.path).compact(JOURNALED_ON, str(utc_now().date()))

        self._beside(INTAKE_QUERY, compact)

    def _start_archive(self) -> None:
        """One query for all topics. Its checkpoint belongs to this set of topics; a new one goes on where raw ends."""
        name, lake, topics = self.call.pipeline.name, self.call.lake, self.call.pipeline.topics
        table, checkpoint = lake.raw(name), lake.checkpoint(name, ARCHIVE_QUERY, archive_fingerprint(topics))
        forget_other_checkpoints(checkpoint)
        resume = (
            "earliest" if (lake_path(checkpoint) / "offsets").exists() else offsets_after(self.spark, table, self.call.kafka, list(topics))
        )
        stream = F.create_map(*(F.lit(word) for pair in topics.items() for word in pair))[F.col("topic")]
        lost = self._lost_to_the_archive(checkpoint)
        args = (list(topics), self._limit(ARCHIVE_QUERY), not lost, resume, True)
        messages = read_messages(self.spark, self.call.kafka, name, *args)
        messages = messages.withColumn("stream", stream).withColumn("received_on", F.to_date("received_at"))

        def append(frame: DataFrame, batch: int) -> int:
            before, until = offsets_before(checkpoint, batch), planned_offsets(checkpoint, batch)
            offsets = {place: [before.get(place, 0), end] for place, end in until.items()}
            metadata = {"query": ARCHIVE_QUERY, "batch": batch, "generation": self.lease.generation, "offsets": offsets}
            append_once(frame, table, ["stream", "received_on"], app_id(name, ARCHIVE_QUERY, checkpoint_id(checkpoint)), batch, metadata)
            return sum(end - start for start, end in offsets.values())

        self._start_query(ARCHIVE_QUERY, messages, "append", checkpoint, ARCHIVE_TRIGGER_SECONDS, self._fenced(ARCHIVE_QUERY, append))

    def _lost_to_the_archive(self, checkpoint: str) -> bool:
        if not (lake_path(checkpoint) / "metadata").exists():
            return False
        lost = dropped_ranges(ARCHIVE_QUERY, next_offsets(checkpoint), self.call.kafka, list(self.call.pipeline.topics))
        if lost:
            self.check_lease()
            book_losses(self.call.lake, self.call.pipeline.name, lost)
        return bool(lost)

    def _start_view(self, view: str) -> None:
        """A view that needs state: a query over the accepted rows of the journal that are not late."""
        pipeline, lake, query = self.call.pipeline, self.call.lake, view_query(view)
        declared, fingerprint = pipeline.views[view], pipeline.fingerprint(view)
        path, checkpoint = lake.speed(pipeline.name, view, fingerprint), lake.view_checkpoint(pipeline.name, view, fingerprint)
        frames = {}
        for name in pipeline.streams_of(view):
            stream = pipeline.streams[name]
            rows = read_journal(self.spark, self.intake.journal, name, view, self._limit(query))
            frames[name] = rows.withWatermark(stream.occurred_at, format_duration(stream.lateness))
        cells = with_day(compute_view(self.spark, pipeline, view, frames), declared.time)
        numbered = cells.withColumn(GENERATION, F.lit(self.lease.generation)).withColumn(CELL_BATCH, F.lit(0).cast("bigint"))
        ensure_partitioned(self.spark.createDataFrame([], numbered.schema), path, [DAY])
        table, schema = ArrowTable(path), to_arrow_schema(numbered.schema, timezone="UTC")
        writer = app_id(pipeline.name, "cells", f"{view}-{fingerprint}")

        def append(changed: DataFrame, batch: int) -> int:
            own = changed.withColumn(GENERATION, F.lit(self.lease.generation)).withColumn(CELL_BATCH, F.lit(batch).cast("bigint"))
            found = own.toArrow()
            if len(found):
                metadata = {"query": query, "batch": batch, "generation": self.lease.generation}
                table.append(found.cast(schema), writer, batch, metadata)
            if batch % COMPACT_EVERY_BATCHES == COMPACT_EVERY_BATCHES - 1:
                self._beside(query, partial(compact_speed, self.spark, path, declared.grain))
            return len(found)

        last = committed_batch(checkpoint)
        self._journal_pulses.note_start(view, min(journal_batches(checkpoint, last).values()) if last >= 0 else START)
        write = self._fenced(query, append, adapts=False)
        self._start_query(query, cells, output_mode(cells), checkpoint, VIEW_TRIGGER_SECONDS, write)

    def _beside(self, query: str, rewrite: Callable[[], Any]) -> None:
        """Merge files while batches go on: it takes seconds, in which no number would move. One table at a time."""

        def run() -> None:
            with self._rewriting:
                try:
                    self.check_lease()
                    rewrite()
                except Exception as error:  # what must end the driver also meets its batches
                    print(f"{query}: files were not merged: {one_line(error)}", flush=True)

        if not (query in self._compactions and self._compactions[query].is_alive()):
            self._compactions[query] = threading.Thread(target=run, daemon=True)
            self._compactions[query].start()

    def _start_watch(self, name: str) -> None:
        """Report rows of the stream as they arrive. No number depends on it: it starts with what comes now, and counts no losses."""
        pipeline, query = self.call.pipeline, watch_query(name)
        topics = pipeline.streams[name].topics
        create_topics(self.call.kafka, {alerts_topic(pipeline.name): 1, **{rejected_topic(topic): 1 for topic in topics}})
        messages = read_messages(self.spark, self.call.kafka, pipeline.name, topics, None, False, "latest")
        self._searches = Searches.read(self.call.lake.searches(pipeline.name)) or Searches()
        searches = {} if self._searches == self._crashing_searches else usable(messages, pipeline, name, self._searches.of(name))
        conditions = pipeline.watch[name].alerts | searches
        checkpoint = self.call.lake.checkpoint(pipeline.name, query, archive_fingerprint(topics))
        rows = watched_rows(messages, pipeline, name, conditions)
        writer = rows.writeStream.queryName(query).outputMode("update").format("kafka").option("checkpointLocation", checkpoint)
        writer = writer.option("kafka.bootstrap.servers", self.call.kafka).option("kafka.linger.ms", 0)
        self.queries[query] = writer.trigger(realTime=f"{CHECKPOINT_SECONDS} seconds").start()  # type: ignore[call-overload] # not in its types

    def _reload_saved_searches(self) -> None:
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

    def _start_query(self, name: str, frame: DataFrame, mode: str, checkpoint: str, every_seconds: float, sink: Sink) -> None:
        writer = frame.writeStream.queryName(name).outputMode(mode).option("checkpointLocation", checkpoint).foreachBatch(sink)
        trigger = writer.trigger(availableNow=True) if self.call.options.once else writer.trigger(processingTime=f"{every_seconds} seconds")
        self.queries[name] = trigger.start()

    # Each batch

    def _fenced(self, query: str, write: Write, adapts: bool = True) -> Sink:
        """Write a batch as long as this driver holds the lease."""
        is_warm = False

        def sink(frame: DataFrame, batch: int) -> None:
            nonlocal is_warm
            if self.stopping.is_set():
                raise StopAtBorder
            self.check_lease()
            if query in self._resized:
                self._resized.remove(query)
                raise Resized
            began = time.monotonic()
            fault_point(f"before_write.{query}", batch)
            messages = write(frame, batch)
            fault_point(f"after_write.{query}", batch)
            self.check_lease()
            if adapts and is_warm:  # the first batch also compiles its plan
                self._learn(query, messages, time.monotonic() - began)
            is_warm = True

        return sink

    def _limit(self, query: str) -> int:
        """How many messages a batch may read, of all topics together; of a view, how many journal rows."""
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

    def check_lease(self) -> None:
        check_lease(self.control, self.lease)

    # Looking after the queries

    def look_after(self) -> str | None:
        """Beat until a stop is requested or all queries have ended. Returns the error of a query that failed."""
        while not self.stopping.is_set():
            self.check_lease()
            if failed := self._failure():
                return failed
            if self._waiting and not self.queries[INTAKE_QUERY].isActive:
                self._start_waiting()
            if not any(query.isActive for query in self.queries.values()):
                return None
            request = self.control.stop_request()
            if request and request.generation >= self.lease.generation:
                break
            self.beat("running")
            self._reload_saved_searches()
            self.stopping.wait(BEAT_SECONDS)
        return None

    def stop(self) -> None:
        """Stop each query between two batches. What does not come to a border in time is cut; its batch runs again."""
        self.stopping.set()
        for name, query in self.queries.items():
            if name.startswith(watch_query("")):  # it has no borders: what it has reported since it last noted its place comes again
                query.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for query in self.queries.values():
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                self.beat("stopping")
                time.sleep(0.2)
            query.stop()
        for compaction in self._compactions.values():
            compaction.join(max(0, deadline - time.monotonic()))

    def beat(self, state: State, error: str | None = None) -> None:
        """Report how it is now. Between two of these a thread repeats the last one: a slow Spark job is no sign of death."""
        self._pulses = self._measure_pulses()
        self._last_reported, self._last_reported_at = (state, error), time.monotonic()
        self._write_beat()

    def _measure_pulses(self) -> dict[str, QueryPulse]:
        if INTAKE_QUERY not in self.queries:
            return {}
        of, before = self._journal_pulses, self._pulses
        views = {view_query(view): view for view in self.call.pipeline.views}
        intake = of.of_intake(pulse_of(self.queries[INTAKE_QUERY], before.get(INTAKE_QUERY, NO_PULSE)))
        found = {INTAKE_QUERY: intake} | of.of_aggregates(intake)
        for name, query in self.queries.items():
            last = before.get(name, NO_PULSE)
            if name in views:
                found[name] = of.of_view(views[name], query, last, intake)
            elif name != INTAKE_QUERY:
                found[name] = pulse_of(query, last)
        waiting = {name: NO_PULSE for name in views if name in self._starts and name not in found}
        return found | waiting

    def _write_beat(self) -> None:
        with self._beating:
            now, (state, error) = utc_now(), self._last_reported
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
        while self._last_reported[0] not in ("stopped", "failed") and self.control.lease() == self.lease:
            if time.monotonic() - self._last_reported_at < HUNG_SECONDS:
                self._write_beat()
            time.sleep(BEAT_SECONDS)

    # Failures

    def _failure(self) -> str | None:
        for name, query in list(self.queries.items()):
            if error := query.exception():
                if "LeaseLost" in str(error):
                    raise LeaseLost(one_line(error))
                disturbs = RESIZED not in str(error)
                if (reason := self._recovery(name, str(error))) and self._disturbances + disturbs <= MAX_DISTURBANCES:
                    self._disturbances += disturbs
                    print(f"{name} starts again: {reason}", flush=True)
                    self._starts[name]()
                    continue
                return f"{name}: {one_line(error)}"
        return None

    def _recovery(self, name: str, error: str) -> str | None:
        """Why the query can be started again at once, if it can."""
        if RESIZED in error:
            return f"its batches read at most {self._limit(name):,} messages from now on, by the time that the last ones took"
        if PYTHON_TOO_SLOW in error:
            return "Spark waits ten seconds for a Python worker, which this machine did not start in that time"
        if any(word in error for word in CONCURRENT):
            return "a driver that lost its lease wrote into its checkpoint as it woke"
        if name.startswith(watch_query("")) and self._searches.saved and self._searches != self._crashing_searches:
            self._crashing_searches = self._searches
            return f"it has died, perhaps of a saved search, and goes on without them: {error.splitlines()[0]}"
        if re.search(LOST_OFFSETS, error) and self._has_lost(name):
            return "the log had dropped messages before they were read; they are booked as lost"
        return None

    def _has_lost(self, name: str) -> bool:
        """Whether the log has dropped what the query has not read. Starting it again books it, or finds it in the archive."""
        topics = list(self.call.pipeline.topics)
        if name == INTAKE_QUERY:
            return bool(dropped_ranges(name, self.intake.until, self.call.kafka, topics))
        checkpoint = self.call.lake.checkpoint(self.call.pipeline.name, ARCHIVE_QUERY, archive_fingerprint(topics))
        return name == ARCHIVE_QUERY and bool(dropped_ranges(name, next_offsets(checkpoint), self.call.kafka, topics))


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

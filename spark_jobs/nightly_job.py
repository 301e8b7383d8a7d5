"""The proof of one pipeline and day: recompute from raw, account for every event, compare with what was streamed, settle.

1. pin what the speed layer has said, and wait until raw holds all that it has read
2. read the day's raw messages, judge and rank them (once per stream)
3. per view: recompute, give every event its fate, line up speed, batch and the counted events, name the causes
4. write the books: ledger and differences
5. per view: decide; unless blocked, tell the corrections, replace the day's cells, move settled_until
6. mark the settled days that late arrivals have made dirty, and do the same for each of them

Killed anywhere, it is run again and does the same: each step replaces what it wrote, and settled_until moves last.
"""

import argparse
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from quality.nights import write_nights
from spark_jobs import ledger, reconcile
from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.fates import count_fates, lateness_choices, with_fates
from spark_jobs.pins import Pin, archive_ends, batches_beyond, pin_view
from spark_jobs.progress import read_until
from spark_jobs.reconcile import Sides, Suspects
from spark_jobs.session import build_session, side_by_side
from spark_jobs.tables import exists, last_version, read, replace_day, with_day
from spark_jobs.transform import CHANGE_ORDER, compute_view, judged_rows, look_up, mark_copies, table_changes, table_row
from weir.event_time import ONE_DAY, day_bounds, first_raw_day, utc_now
from weir.faults import fault_point
from weir.layout import ARCHIVE_QUERY, corrections_topic, view_query
from weir.pipeline import COORDINATES, Stream, View
from weir.records.driver import Control, Loss, Losses
from weir.records.jobs import Outcome, RawKept
from weir.records.night import (
    Arrivals,
    Cause,
    DayVerdict,
    DirtyDay,
    LedgerLine,
    NightlyReport,
    Settlement,
    StreamDay,
    VersionComparison,
    ViewComparison,
)
from weir.records.quality import Decision
from weir.refusal import Refusal
from weir.settling import dirtied_days, is_settled, judge_day, settle
from weir.summaries import NightSummary
from weir.supervision import hold_lease

RAW = "raw"
"""Stands in the ledger where a view's name stands, for streams that no view reads."""


_GATING = threading.Lock()
"""Great Expectations has one project in a process: views pass its gate one after another."""


@dataclass(frozen=True)
class Proof:
    """What was found of a view's day, and nobody was told yet."""

    comparison: ViewComparison
    lines: list[LedgerLine]
    batch: DataFrame
    lined: DataFrame
    texts: DataFrame
    """The differing cells as people read them."""
    told: DataFrame
    """The same, and those of earlier declarations."""


class Night:
    """One recomputation of one day."""

    def __init__(self, spark: SparkSession, call: Call, day: date, check_lease: Callable[[], None]) -> None:
        self.spark, self.call, self.day, self.check_lease = spark, call, day, check_lease
        self.pipeline, self.lake = call.pipeline, call.lake
        self.start, self.end = day_bounds(day)
        self.earliest = first_raw_day(day, self.pipeline.reach)
        known = Losses.read(self.lake.losses(self.pipeline.name)) or Losses()
        # What was noticed earlier concerns messages that this night does not read.
        self.losses: list[Loss] = [loss for loss in known.found if loss.noticed_at >= day_bounds(self.earliest)[0]]
        self.booked = [own for file in self.lake.arrivals(self.pipeline.name).glob("*.json") if (own := Arrivals.read(file))]
        views = self.pipeline.views
        pins = side_by_side(spark, lambda view: self._pin(view, self.pipeline.fingerprint(view)), views)
        self.pins = dict(zip(views, pins, strict=True))
        self.cut = archive_ends(spark, call, self.pins.values())
        raw = self.lake.raw(self.pipeline.name)
        self.archive = read(spark, raw, last_version(spark, raw))
        self.ranked = {name: self._ranked(name) for name in self.pipeline.sources}
        self.all = reduce(DataFrame.unionByName, (self._in_common(name) for name in self.pipeline.sources))
        self.changes = {name: self._changes(name) for name in self._tables_read()}
        self.partitions = ledger.partitions_of(self.all, self.day, self._booked_until(), self.archive)

    def _pin(self, view: str, fingerprint: str) -> Pin:
        return pin_view(self.spark, self.call, view, fingerprint, self.day, self.earliest)

    def close(self) -> None:
        """Nothing of this day stays in memory: dirty days may follow."""
        self.spark.catalog.clearCache()

    # Step 2

    def _ranked(self, source: str) -> DataFrame:
        """Every message that can belong to the day, judged, the first of each identity marked. Kept for all views."""
        wanted = (F.col("stream") == source) & (F.col("received_on") >= F.lit(self.earliest))
        if spared := self._spared_days(source):
            wanted = wanted & ~F.col("received_on").isin(spared)
        contract = self.pipeline.sources[source]
        judged = judged_rows(self.archive.filter(wanted), contract).drop("_payload")
        if isinstance(contract, Stream):
            return mark_copies(judged, contract)
        return judged.withColumn("_first", F.col("_accepted")).withColumn("_copies", F.lit(1)).persist()

    def _tables_read(self) -> set[str]:
        return {table for view in self.pipeline.views.values() for table in view.as_of}

    def _changes(self, name: str) -> DataFrame:
        """Every change of a table, with `_known_at` where the speed layer knew it: what it has kept, and what raw has beyond that."""
        table = self.pipeline.tables[name]
        path = self.lake.history(self.pipeline.name, name, self.pipeline.table_fingerprint(name))
        archived = self.archive.filter(F.col("stream") == name)
        unknown = F.lit(None).cast("timestamp").alias("_known_at")
        if not exists(self.spark, path):
            return table_changes(archived, table).select("*", unknown).persist()
        kept = read(self.spark, path, last_version(self.spark, path))
        place = ["topic", "partition", "offset"]
        recent = table_changes(archived.filter(F.col("received_on") >= F.lit(self.earliest)), table)
        beyond = recent.join(kept.select(*place), place, "left_anti").select("*", unknown)
        return kept.select(*beyond.columns).unionByName(beyond).persist()

    def _spared_days(self, source: str) -> list[date]:
        """Days of arrival that are booked and brought nothing for this day: an old day is read without all that came since."""
        first, last = self.earliest, self.day + self.pipeline.reach + ONE_DAY
        others = [own for own in self.booked if own.day != self.day and own.day >= first]
        return [own.day for own in others if not any(first <= day <= last for day in own.streams.get(source, {}))]

    def _in_common(self, source: str) -> DataFrame:
        """What all sources have: one job counts for all of them."""
        at = F.col(self.pipeline.sources[source].occurred_at).alias("_at")
        kept = [*COORDINATES, "_undecodable", "_verdict", "_accepted", "_first"]
        return self.ranked[source].select(F.lit(source).alias("stream"), *kept, at)

    def count_messages(self) -> list[Row]:
        """Every message that can belong to the day, counted once for all that the report and the books ask for.

        One that is not accepted belongs to the day on which it came.
        """
        arrived_on = F.to_date("received_at").cast("string").alias("arrived_on")
        belongs_to = F.to_date(F.when(F.col("_accepted"), F.col("_at")).otherwise(F.col("received_at"))).cast("string").alias("belongs_to")
        alike = ["stream", "topic", "partition", "_undecodable", "_verdict", "_accepted", "_first"]
        return self.all.groupBy(*alike, arrived_on, belongs_to).agg(F.count("*").alias("messages"), F.max("offset").alias("last")).collect()

    def streams(self, counted: list[Row]) -> list[StreamDay]:
        """What became of the day's messages."""
        own = [group for group in counted if group["belongs_to"] == str(self.day)]
        return [_stream_day(source, [group for group in own if group["stream"] == source]) for source in self.pipeline.sources]

    def _booked_until(self) -> dict[str, int]:
        """How far the books of the days before reach."""
        if not exists(self.spark, self.lake.ledger(self.pipeline.name)):
            return {}
        last_month = F.col("_day").between(self.day - 31 * ONE_DAY, self.day - ONE_DAY)
        before = read(self.spark, self.lake.ledger(self.pipeline.name)).filter(last_month)
        ends = before.groupBy("topic", "partition").agg(F.max("until_offset").alias("until")).collect()
        return {f"{row['topic']}/{row['partition']}": row["until"] for row in ends}

    def arrivals(self, counted: list[Row]) -> Arrivals:
        """Which days the events that arrived on this day belong to."""
        streams: dict[str, dict[date, dict[str, int]]] = {}
        for row in counted:
            if row["arrived_on"] == str(self.day) and row["_accepted"]:
                last = streams.setdefault(row["stream"], {}).setdefault(date.fromisoformat(row["belongs_to"]), {})
                place = f"{row['topic']}/{row['partition']}"
                last[place] = max(row["last"], last.get(place, 0))
        return Arrivals(day=self.day, streams=streams)

    # Step 3

    def prove(self, view: str) -> Proof:
        """Everything about one view of the day. Changes nothing, so that several views may be proved at once."""
        self.check_lease()
        fault_point("proving", list(self.pipeline.views).index(view))
        declared, pin, fingerprint = self.pipeline.views[view], self.pins[view], self.pipeline.fingerprint(view)
        fated = self._fated(view, pin, self.ranked)
        counted = {name: count_fates(frame, self.pipeline.streams[name], self.day) for name, frame in fated.items()}
        batch = self._compute(view, {name: self.ranked[name].filter("_first") for name in fated})
        lined, differing = self._compare(view, pin, fated, batch, "unexplained")
        older = self._older_versions(view, batch)
        there = F.when(F.col("_batch").isNull(), "speed").when(F.col("_speed").isNull(), "batch").otherwise("both").alias("there")
        counts = {(row["_state"], row["there"]): row["count"] for row in lined.groupBy("_state", there).count().collect()}
        texts = reconcile.as_texts(declared, differing, str(self.day), view, fingerprint).persist()
        comparison = reconcile.summarise(declared, view, fingerprint, counts, texts)
        lateness = {name: lateness_choices(groups, self.pipeline.streams[name]) for name, groups in counted.items()}
        return Proof(
            comparison=comparison.model_copy(update={"versions": [found for found, _ in older], "lateness": lateness}),
            lines=[line for name, groups in counted.items() for line in self._draw_lines(view, name, groups)],
            batch=batch,
            lined=lined,
            texts=texts,
            told=reduce(DataFrame.unionByName, [texts, *(frame for _, frame in older)]),
        )

    def _fated(self, view: str, pin: Pin, ranked: dict[str, DataFrame]) -> dict[str, DataFrame]:
        lost = [loss for loss in self.losses if loss.query == view_query(view)]
        return {name: with_fates(ranked[name], self.pipeline.streams[name], pin.batches, lost) for name in self.pipeline.streams_of(view)}

    def _compare(
        self, view: str, pin: Pin, fated: dict[str, DataFrame], batch: DataFrame, else_cause: Cause
    ) -> tuple[DataFrame, DataFrame]:
        """All cells lined up, and those that differ with their causes."""
        declared = self.pipeline.views[view]
        suspects = [reconcile.suspects(frame, self.pipeline.streams[name]) for name, frame in fated.items()]
        heard = {name: frame.filter("_fate = 'counted'") for name, frame in fated.items()}
        if declared.as_of:
            suspects += [self._changed_since(view, name, frame) for name, frame in heard.items()]
        found = Suspects.find(suspects)
        counted = self._compute(view, heard, as_then=True) if found.causes else batch
        lined = reconcile.line_up(declared, Sides(pin.cells(batch), batch, counted, pin.told_until)).persist()
        beyond = batches_beyond(pin.batches, self.cut)
        return lined, reconcile.with_causes(declared, lined.filter("_state != 'equal'"), found, beyond, else_cause)

    def _as_then(self, view: str, stream: str, rows: DataFrame) -> DataFrame:
        """The stream's rows with the tables' rows as the batch knew them that read the event."""
        own, place = self.pipeline.streams[stream], ["topic", "partition", "offset"]
        for name, column in self.pipeline.views[view].as_of.items():
            if column not in own.columns:
                continue
            table = self.pipeline.tables[name]
            changes = self.changes[name].select(
                F.col(table.key).alias("_key"),
                F.col(table.changed_at).alias("_from"),
                F.col("_known_at"),
                F.struct(table.changed_at, *CHANGE_ORDER).alias("_order"),
                table_row(table).alias(name),
            )
            known = (
                (F.col("_key") == F.col(column)) & (F.col("_from") <= F.col(own.occurred_at)) & (F.col("_known_at") <= F.col("_planned_at"))
            )
            held = rows.join(changes, known).groupBy(*place).agg(F.max_by(name, "_order").alias(name))
            rows = rows.join(held, place, "left")
        return rows

    def _changed_since(self, view: str, stream: str, counted: DataFrame) -> DataFrame:
        """The counted events that would find another row in a table now than they found then."""
        own = self.pipeline.streams[stream]
        tables = [name for name, column in self.pipeline.views[view].as_of.items() if column in own.columns]
        now = look_up(counted, self.pipeline, view, stream, self.changes).withColumnsRenamed({name: f"_now_{name}" for name in tables})
        both = self._as_then(view, stream, now)
        differs = reduce(Column.__or__, (~F.col(name).eqNullSafe(F.col(f"_now_{name}")) for name in tables), F.lit(False))
        told = [F.lit("table").alias("_cause"), F.col(own.identity).cast("string").alias("_identity"), F.col(own.occurred_at).alias("_at")]
        return both.filter(differs).select(*own.columns, *told)

    def _older_versions(self, view: str, batch: DataFrame) -> list[tuple[VersionComparison, DataFrame]]:
        """What earlier declarations have streamed of the day, and people have seen. It never blocks: the declaration is another one."""
        found = []
        for fingerprint in self.lake.view_versions(self.pipeline.name, view):
            if fingerprint == self.pipeline.fingerprint(view):
                continue
            pin = self._pin(view, fingerprint)
            if pin.speed is None or pin.speed.isEmpty() or not _is_of_one_grain(self.pipeline.views[view], pin.speed, batch):
                continue
            released = {name: self._released(name) for name in self.pipeline.streams_of(view)}
            ranked = {name: self._as_rejected(name, rows) for name, rows in released.items()}
            fated = self._fated(view, pin, ranked)
            then = [column for column in batch.columns if column in pin.speed.columns]  # one that is new was nothing that people saw
            lined, differing = self._compare(view, pin, fated, batch.select(*then), "version")
            texts = reconcile.as_texts(self.pipeline.views[view], differing, str(self.day), view, fingerprint).persist()
            own = [
                frame.filter((F.to_date(self.pipeline.streams[name].occurred_at) == F.lit(self.day)) & F.col("_first"))
                for name, frame in fated.items()
                if released[name] is not None
            ]
            comparison = VersionComparison(
                fingerprint=fingerprint,
                compared=(cells := lined.count()),
                equal=cells - texts.count(),
                causes=reconcile.count_causes(texts),
                released=sum(frame.filter("_fate = 'rejected'").count() for frame in own),
            )
            found.append((comparison, texts))
        return found

    def _released(self, source: str) -> DataFrame | None:
        """The places of the rows that people have released from quarantine."""
        acts = self.lake.quarantine_acts(self.pipeline.name)
        if not exists(self.spark, acts):
            return None
        return (
            read(self.spark, acts).filter((F.col("stream") == source) & (F.col("act") == "released")).select("topic", "partition", "offset")
        )

    def _as_rejected(self, source: str, released: DataFrame | None) -> DataFrame:
        """The day's rows as they were judged before the release."""
        if released is None:
            return self.ranked[source]
        marked = F.broadcast(released.distinct().withColumn("_released", F.lit(True)))
        joined = self.ranked[source].join(marked, ["topic", "partition", "offset"], "left")
        accepted = F.col("_accepted") & F.col("_released").isNull()
        return joined.withColumn("_accepted", accepted).drop("_released").select(*self.ranked[source].columns)

    def _draw_lines(self, view: str, source: str, counted: list[Row]) -> list[LedgerLine]:
        lost = [loss for loss in self.losses if loss.query == ARCHIVE_QUERY]
        own = [partition for partition in self.partitions if partition.topic in self.pipeline.sources[source].topics]
        return ledger.draw_lines(view, source, self.day, own, counted, lost)

    def _compute(self, view: str, frames: dict[str, DataFrame], as_then: bool = False) -> DataFrame:
        """The day's cells over these events, with the tables as they are known now, or as the stream knew them."""
        declared = self.pipeline.views[view]
        near = {}
        for name, frame in frames.items():
            stream = self.pipeline.streams[name]
            occurred_at = F.col(stream.occurred_at)
            within = (occurred_at >= F.lit(self.start - declared.reach)) & (occurred_at < F.lit(self.end + declared.reach))
            events = frame.filter(within)
            joined = self._as_then(view, name, events) if as_then else look_up(events, self.pipeline, view, name, self.changes)
            tables = [table for table, column in declared.as_of.items() if column in stream.columns]
            near[name] = joined.select(*stream.columns, *tables)
        # Materialised before the day is cut out: Spark would push that filter below the merging of sessions, and cut them short.
        cells = with_day(compute_view(self.spark, self.pipeline, view, near), declared.time).localCheckpoint()
        return cells.filter(F.col("_day") == F.lit(self.day))

    # Step 4

    def write_books(self, proofs: list[Proof]) -> list[LedgerLine]:
        """The differences of these views; and where they are all of them, the ledger, whose lines are returned."""
        self.check_lease()
        if proofs:
            told = reduce(DataFrame.unionByName, (proof.told for proof in proofs))
            views = [proof.comparison.view for proof in proofs]
            replace_day(told, self.lake.differences(self.pipeline.name), self.day, {"view": views})
        if len(proofs) < len(self.pipeline.views):
            return []
        lines = [*(line for proof in proofs for line in proof.lines), *self._unread()]
        if lines:
            rows = self.spark.createDataFrame(ledger.as_rows(lines, self.day), ledger.LINES).coalesce(1)
            replace_day(rows, self.lake.ledger(self.pipeline.name), self.day)
        return lines

    def _unread(self) -> list[LedgerLine]:
        """The books of the streams that no view reads: what is accepted counts."""
        read_by_views = {name for view in self.pipeline.views for name in self.pipeline.streams_of(view)}
        fate = F.when(F.col("_undecodable").isNotNull(), "undecodable").when(~F.col("_accepted"), "rejected")
        fate = fate.when(F.col("_first"), "counted").otherwise("duplicate")
        lines = []
        for source in self.pipeline.sources:
            if source not in read_by_views:
                fated = self.ranked[source].withColumn("_fate", fate).filter(ledger.arrived_on(self.day))
                counted = fated.groupBy("topic", "partition", "_fate").agg(F.count("*").alias("arrived")).collect()
                lines += self._draw_lines(RAW, source, counted)
        return lines

    # Step 5

    def _gate(self, view: str, cells: DataFrame) -> tuple[Decision, list[str]]:
        """Judge the cells by the view's expectations. Only then Great Expectations is loaded: it takes seconds."""
        if not (expectations := self.pipeline.views[view].expectations):
            return "PASS", []
        from quality.gate import decide, validate

        # No verdict has set single cells aside, so that a row rule is here like all others: it holds for the day, or it does not.
        mild = [expectation.model_copy(update={"severity": "warning"}) for expectation in expectations]
        with _GATING:
            validation = validate(cells.drop("_day"), view, mild)
        found = [r.model_copy(update={"severity": e.severity}) for r, e in zip(validation.results, expectations, strict=False)]
        return decide(mild, replace(validation, results=found), 0, {})

    def settle(self, proof: Proof) -> ViewComparison:
        """Decide, and unless it is blocked serve the recomputed cells from now on."""
        comparison, lined = proof.comparison, proof.lined
        view, name = comparison.view, self.pipeline.name
        file = self.lake.settlement(name, view, comparison.fingerprint)
        settled = Settlement.read(file) or Settlement(view=view, fingerprint=comparison.fingerprint)
        unbalanced = [wrong for line in proof.lines for wrong in line.wrong]
        accepted = [own for own in settled.acceptances if own.day == self.day]
        decision, reasons = judge_day(comparison, self._gate(view, proof.batch), unbalanced, self._early(self.pins[view]), accepted)
        corrections = 0
        self.check_lease()
        if decision != "BLOCK":
            changed = self._changed(view, settled, lined, proof.texts)
            corrections = changed.count()
            if corrections and self.call.kafka:  # told first: after the replacement nobody knows what was served before
                self._tell(view, changed)
            fault_point("after_telling", 0)
            self._publish(view, proof.batch.columns, lined)
            fault_point("after_publish", 0)
        verdict = DayVerdict(
            day=self.day,
            decision=decision,
            reasons=reasons,
            equal=comparison.equal,
            repaired=comparison.differing,
            pending=comparison.pending,
            unexplained=comparison.unexplained,
            causes=comparison.causes,
            cut=self.cut,
            written_at=utc_now(),
        )
        after = settle(Settlement.read(file) or settled, verdict)
        after.write(file)
        lined.unpersist()
        told = {"decision": decision, "gate": reasons, "corrections": corrections}
        return comparison.model_copy(update=told | {"settled_before": settled.until, "settled_until": after.until})

    def _early(self, pin: Pin) -> list[str]:
        """Where the view had read further than raw reached: it may know events that the recomputation does not."""
        return [
            f"raw ends at {place} offset {self.cut.get(place, 0):,}, the view has read to {end:,}: let the stream run, then try again"
            for place, end in read_until(pin.batches).items()
            if end > self.cut.get(place, 0)
        ]

    def _publish(self, view: str, columns: list[str], lined: DataFrame) -> None:
        """Put the cells, each with its status, in the place of what the batch table had for this day."""
        declared = self.pipeline.views[view]
        own = [column for column in columns if not column.startswith("_")]
        values = [F.col(column) if column in declared.grain else F.col(f"_batch.{column}").alias(column) for column in own]
        status = F.when(F.col("_state") == "equal", "proved").otherwise("repaired").alias("_status")
        cells = lined.filter("_batch IS NOT NULL").select(*values, status, F.lit(self.day).cast("date").alias("_day"))
        cells = cells.sortWithinPartitions(*declared.grain)  # so that a reader of one cell skips the rest of a file
        replace_day(cells, self.lake.batch(self.pipeline.name, view, self.pipeline.fingerprint(view)), self.day)

    def _changed(self, view: str, settled: Settlement, lined: DataFrame, texts: DataFrame) -> DataFrame:
        """Corrections as messages: cell, before, after, causes. Before is what was served: speed, or the cells settled earlier."""
        moment = F.lit(utc_now().isoformat()).alias("corrected_at")
        told = [F.lit(str(self.day)).alias("day"), F.col("grain").alias("cell")]
        if not is_settled(settled, self.day):
            changes = texts.select(*told, F.col("speed").alias("before"), F.col("batch").alias("after"), "causes", moment)
        else:
            table = self.lake.batch(self.pipeline.name, view, self.pipeline.fingerprint(view))
            served = read(self.spark, table).filter(F.col("_day") == F.lit(self.day)).localCheckpoint()
            compared = reconcile.against_served(self.pipeline.views[view], served, lined)
            changes = compared.select(*told, "before", "after", F.lit(None).cast(reconcile.CAUSES).alias("causes"), moment)
        whole = {"ignoreNullFields": "false"}  # a cell that was not there before says so
        return changes.select(F.to_json("cell", whole).alias("key"), F.to_json(F.struct("*"), whole).alias("value"))

    def _tell(self, view: str, changed: DataFrame) -> None:
        from weir.stack import create_topics

        topic = corrections_topic(self.pipeline.name, view)
        create_topics(self.call.kafka, {topic: 1})
        changed.write.format("kafka").option("kafka.bootstrap.servers", self.call.kafka).option("topic", topic).save()


def _is_of_one_grain(view: View, then: DataFrame, now: DataFrame) -> bool:
    """Whether cells of an earlier declaration can be told apart as today's are. A column that is gone may have been of its grain."""
    return set(view.grain) <= set(then.columns) and not set(then.columns) - set(now.columns) - {"_generation", "_batch"}


def _stream_day(source: str, groups: list[Row]) -> StreamDay:
    reasons: dict[str, int] = {}
    for group in groups:
        for reason in [f"undecodable:{group['_undecodable']}"] if group["_undecodable"] else group["_verdict"]:
            reasons[reason] = reasons.get(reason, 0) + group["messages"]
    return StreamDay(
        stream=source,
        archived=_total(groups),
        accepted=_total(g for g in groups if g["_accepted"] and g["_first"]),
        duplicates=_total(g for g in groups if g["_accepted"] and not g["_first"]),
        rejected=_total(g for g in groups if not g["_accepted"] and not g["_undecodable"]),
        undecodable=_total(g for g in groups if g["_undecodable"]),
        reasons=dict(sorted(reasons.items())),
    )


def _total(groups: Iterable[Row]) -> int:
    return sum(group["messages"] for group in groups)


def _cannot_recompute(call: Call, day: date) -> str | None:
    """A day whose raw was dropped would be replaced by what is left of it."""
    kept = RawKept.read(call.lake.raw_kept(call.pipeline.name))
    if kept and first_raw_day(day, call.pipeline.reach) < kept.since:
        return f"{day} cannot be recomputed: raw before {kept.since} was dropped (keep_raw: {kept.keep_raw}); its cells stay"
    return None


def prove_day(spark: SparkSession, call: Call, day: date, check_lease: Callable[[], None]) -> NightlyReport:
    """Steps 1 to 5 for one day, and the marks of step 6."""
    began, name = time.monotonic(), call.pipeline.name
    mark = call.lake.dirty_days(name) / f"{day}.json"
    dirty = DirtyDay.read(mark)
    night = Night(spark, call, day, check_lease)

    def attempt(view: str) -> Proof | Exception:
        try:
            return night.prove(view)
        except Exception as error:
            traceback.print_exc()
            return Exception(f"{view} of {day} could not be proved: {one_line(error)}")

    try:
        counted = night.count_messages()
        found = side_by_side(spark, attempt, call.pipeline.views)
        proofs = [own for own in found if isinstance(own, Proof)]
        lines = night.write_books(proofs)
        fault_point("after_differences", 0)
        views = side_by_side(spark, night.settle, proofs)
        for own in found:
            if isinstance(own, Exception):  # the other views are settled by now; the day is not done
                raise own
        streams, arrivals = night.streams(counted), night.arrivals(counted)
    finally:
        night.close()
    _mark_dirty(call, arrivals)
    arrivals.write(call.lake.arrivals(name) / f"{day}.json")
    report = NightlyReport(
        pipeline=name,
        day=str(day),
        written_at=utc_now(),
        seconds=round(time.monotonic() - began, 1),
        streams=streams,
        views=views,
        ledger=lines,
    )
    report.write(call.lake.nightly_report(name, str(day)))
    blocked = any(view.decision == "BLOCK" for view in views)
    if dirty and not blocked and DirtyDay.read(mark) == dirty:  # what was marked meanwhile waits for the next night
        mark.unlink()
    return report


def _mark_dirty(call: Call, arrivals: Arrivals) -> None:
    for view, declared in call.pipeline.views.items():
        settled = Settlement.read(call.lake.settlement(call.pipeline.name, view, call.pipeline.fingerprint(view)))
        if not settled:
            continue
        for day in dirtied_days(settled, call.pipeline.streams_of(view), declared.as_of, declared.reach, arrivals):
            reason = f"events of it arrived on {arrivals.day}, after it was settled"
            DirtyDay(day=str(day), reason=reason, marked_at=utc_now()).write(call.lake.dirty_days(call.pipeline.name) / f"{day}.json")


def nightly(call: Call) -> Outcome:
    name, day = call.pipeline.name, call.options.day
    with hold_lease(Control(call.lake.night_control(name)), f"a night of {name} is running already") as check_lease:
        spark = build_session(f"weir {name} nightly")
        if not exists(spark, call.lake.raw(name)):
            raise Refusal(f"nothing of '{name}' is archived yet: run `weir stream {name}` first")
        if refusal := _cannot_recompute(call, day):
            raise Refusal(refusal)
        report = prove_day(spark, call, day, check_lease)
        others = [date.fromisoformat(file.stem) for file in sorted(call.lake.dirty_days(name).glob("*.json"))]
        others = [other for other in others if other != day and other < utc_now().date() and not _cannot_recompute(call, other)]
        reports = [report, *(prove_day(spark, call, other, check_lease) for other in others)]
        report = report.model_copy(update={"also": [str(other) for other in others]})
        report.write(call.lake.nightly_report(name, str(day)))
        told = [*reports[1:], report]
        summary = (NightSummary.read(call.lake.nights_summary(name)) or NightSummary()).with_reports(told)
        summary.write(call.lake.nights_summary(name))
        write_nights(call.lake.nights_site(name), call.pipeline, told, summary)
    blocked = [f"{view.view} of {own.day} is blocked: {view.gate[0]}" for own in reports for view in own.views if view.decision == "BLOCK"]
    return Outcome(report=report, failure="; ".join(blocked) or None)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--day", type=date.fromisoformat, required=True)


if __name__ == "__main__":
    run_job(nightly, add_options)

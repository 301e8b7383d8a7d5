"""The audit of one pipeline and day: judge raw again, compare it with the journal, recompute the views, explain differences, settle.

1. take a snapshot of journal and speed cells, and wait until raw has all that the journal has
2. judge the day's raw messages and join them with the journal, once per stream; count every message's fate
3. per view: recompute; line up speed, batch and what the stream has counted; name the causes of what differs
4. write the books: ledger and differences
5. per view: decide; unless blocked, publish the corrections, replace the day's cells, move settled_until
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
from spark_jobs.columns import POSITION, RECEIVED_AT
from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.intake.journal import Journal
from spark_jobs.journal_source import START
from spark_jobs.night import audit
from spark_jobs.night.audit import FIRST
from spark_jobs.night.snapshot import ViewSnapshot, archive_ends, snapshot_view
from spark_jobs.reconcile import Sides
from spark_jobs.session import build_session, side_by_side
from spark_jobs.tables import exists, last_version, read, replace_day, with_day
from spark_jobs.transform import compute_view, judged_rows, look_up
from weir.event_time import ONE_DAY, day_bounds, first_raw_day, utc_now
from weir.faults import fault_point
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, corrections_topic
from weir.pipeline import Stream, View
from weir.records.driver import Control, Loss, Losses
from weir.records.jobs import Outcome, RawKept
from weir.records.night import (
    CAUSES,
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
    ViewVersion,
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
        self.journal = Journal(spark, self.lake, self.pipeline)
        views = self.pipeline.views
        found = side_by_side(spark, lambda view: self._snapshot(view, self.pipeline.fingerprint(view)), views)
        never_started = {view: self._never_started(view) for view in views}
        self.snapshots = {view: own or never_started[view] for view, own in zip(views, found, strict=True)}
        note = self.journal.last_note()
        self.until = note.until_of(self.journal.contracts) if note else {}
        self.cut = archive_ends(spark, call, self.until)
        self.is_lost = audit.never_read([loss for loss in self.losses if loss.query == INTAKE_QUERY], self.until)
        raw = self.lake.raw(self.pipeline.name)
        self.archive = read(spark, raw, last_version(spark, raw))
        self.audited = {name: self._audited(name, self.journal.contracts[name]) for name in self.pipeline.sources}
        self.changes = {name: self._changes(name) for name in self._tables_read()}
        cuts = [batch for own in self.snapshots.values() for batch in own.read_until.values()]
        together = {name: (frame, self.pipeline.sources[name]) for name, frame in self.audited.items()}
        self.groups = audit.count_groups(together, self.day, cuts, self.is_lost)
        self.partitions = ledger.partitions_of(self._positions(), self.day, self._booked_until(), self.archive)

    def _snapshot(self, view: str, fingerprint: str) -> ViewSnapshot | None:
        return snapshot_view(self.spark, self.call, view, fingerprint, self.day)

    def _never_started(self, view: str) -> ViewSnapshot:
        contracts = {name: self.journal.contracts[name] for name in self.pipeline.streams_of(view)}
        return ViewSnapshot(None, ViewVersion(contracts=contracts, is_aggregate=False), dict.fromkeys(contracts, START))

    def _positions(self) -> DataFrame:
        return reduce(DataFrame.unionByName, (frame.select(*POSITION, RECEIVED_AT) for frame in self.audited.values()))

    def close(self) -> None:
        """Nothing of this day stays in memory: dirty days may follow."""
        self.spark.catalog.clearCache()

    # Step 2

    def _audited(self, source: str, contract: str) -> DataFrame:
        """Every message that can belong to the day, judged, with what the journal says of it by a contract."""
        wanted = (F.col("stream") == source) & (F.col("received_on") >= F.lit(self.earliest))
        if spared := self._spared_days(source):
            wanted = wanted & ~F.col("received_on").isin(spared)
        declared = self.pipeline.sources[source]
        judged = judged_rows(self.archive.filter(wanted), declared).drop("_payload")
        if isinstance(declared, Stream):
            judged = self._with_references(judged, declared)
        return audit.audited_rows(judged, self.journal, source, contract, self.earliest)

    def _with_references(self, judged: DataFrame, stream: Stream) -> DataFrame:
        """What refers to a key that its table does not have is not accepted, as far as the tables are known now."""
        for column, table in stream.references.items():
            key = self.pipeline.tables[table].key
            known = self._changes(table).select(F.col(key).alias("_key")).distinct()
            judged = judged.join(known, F.col(column) == F.col("_key"), "left")
            missing = F.col("_accepted") & F.col(column).isNotNull() & F.col("_key").isNull()
            reasons = F.array_append("_verdict", F.lit(f"{column}:exist_in_{table}"))
            judged = judged.withColumn("_verdict", F.when(missing, reasons).otherwise(F.col("_verdict")))
            judged = judged.withColumn("_accepted", F.col("_accepted") & ~missing).drop("_key")
        return judged

    def _tables_read(self) -> set[str]:
        return {table for view in self.pipeline.views.values() for table in view.as_of}

    def _changes(self, name: str) -> DataFrame:
        """Every accepted change of a table, as the intake has stored it."""
        return read(self.spark, self.lake.history(self.pipeline.name, name, self.pipeline.table_fingerprint(name))).persist()

    def _spared_days(self, source: str) -> list[date]:
        """Days of arrival that are booked and brought nothing for this day: an old day is read without all that came since."""
        first, last = self.earliest, self.day + self.pipeline.reach + ONE_DAY
        others = [own for own in self.booked if own.day != self.day and own.day >= first]
        return [own.day for own in others if not any(first <= day <= last for day in own.streams.get(source, {}))]

    def streams(self) -> list[StreamDay]:
        """What became of the day's messages."""
        own = [group.row for group in self.groups if group.row["belongs_to"] == str(self.day)]
        return [_stream_day(source, [group for group in own if group["stream"] == source]) for source in self.pipeline.sources]

    def _booked_until(self) -> dict[str, int]:
        """How far the books of the days before reach."""
        if not exists(self.spark, self.lake.ledger(self.pipeline.name)):
            return {}
        last_month = F.col("_day").between(self.day - 31 * ONE_DAY, self.day - ONE_DAY)
        before = read(self.spark, self.lake.ledger(self.pipeline.name)).filter(last_month)
        ends = before.groupBy("topic", "partition").agg(F.max("until_offset").alias("until")).collect()
        return {f"{row['topic']}/{row['partition']}": row["until"] for row in ends}

    def arrivals(self) -> Arrivals:
        """Which days the events that arrived on this day belong to."""
        streams: dict[str, dict[date, dict[str, int]]] = {}
        for row in (group.row for group in self.groups):
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
        declared, snapshot, fingerprint = self.pipeline.views[view], self.snapshots[view], self.pipeline.fingerprint(view)
        streams = self.pipeline.streams_of(view)
        batch = self._compute(view, {name: self.audited[name].filter(FIRST) for name in streams})
        causes = audit.causes_of(self.groups, streams, snapshot)
        lined, differing = self._compare(view, snapshot, {name: self.audited[name] for name in streams}, batch, causes, "unexplained")
        older = self._older_versions(view, batch)
        there = F.when(F.col("_batch").isNull(), "speed").when(F.col("_speed").isNull(), "batch").otherwise("both").alias("there")
        counts = {(row["_state"], row["there"]): row["count"] for row in lined.groupBy("_state", there).count().collect()}
        texts = reconcile.as_texts(declared, differing, str(self.day), view, fingerprint)
        texts = texts.persist() if any(state != "equal" for state, _ in counts) else texts.limit(0)
        comparison = reconcile.summarise(declared, view, fingerprint, counts, texts)
        lateness = {name: audit.lateness_choices(self.groups, name, self.pipeline.streams[name]) for name in streams}
        return Proof(
            comparison=comparison.model_copy(update={"versions": [found for found, _ in older], "lateness": lateness}),
            lines=[line for name in streams for line in self._draw_lines(view, name, snapshot)],
            batch=batch,
            lined=lined,
            texts=texts,
            told=reduce(DataFrame.unionByName, [texts, *(frame for _, frame in older)]),
        )

    def _compare(
        self,
        view: str,
        snapshot: ViewSnapshot,
        audited: dict[str, DataFrame],
        batch: DataFrame,
        causes: set[str],
        else_cause: Cause,
    ) -> tuple[DataFrame, DataFrame]:
        """All cells lined up, and those that differ with their causes. `causes` are those that the fates of the events allow."""
        declared, fates = self.pipeline.views[view], {name: audit.fate_in(snapshot, name, self.is_lost) for name in audited}
        suspects = [audit.suspects(frame, self.pipeline.streams[name], fates[name]) for name, frame in audited.items()] if causes else []
        counted = {name: frame.filter(fates[name] == "counted") for name, frame in audited.items()}
        if declared.as_of:
            changed = [self._changed_since(view, name, frame).persist() for name, frame in counted.items()]
            if any(not frame.isEmpty() for frame in changed):
                causes, suspects = causes | {"table"}, suspects + changed
        by_stream = self._compute(view, counted, as_then=True) if causes else batch
        lined = reconcile.line_up(declared, Sides(snapshot.cells(batch), batch, by_stream, snapshot.told_until)).persist()
        differs = lined.filter("_state != 'equal'")
        return lined, reconcile.with_causes(declared, differs, suspects, causes, self._is_early(), else_cause)

    def _is_early(self) -> bool:
        """Whether the stream has read further than raw reaches: it may know events that the recomputation does not."""
        return any(end > self.cut.get(place, 0) for place, end in self.until.items())

    def _as_then(self, view: str, stream: str, rows: DataFrame) -> DataFrame:
        """The stream's rows with the tables' rows as the intake found them."""
        own = self.pipeline.streams[stream]
        pairs = [(table, column) for table, column in self.pipeline.views[view].as_of.items() if column in own.columns]
        return rows.withColumns(
            {table: F.col(audit.then(table, column)) for table, column in pairs if audit.then(table, column) in rows.columns}
        )

    def _changed_since(self, view: str, stream: str, counted: DataFrame) -> DataFrame:
        """The counted events that would find another row in a table now than they found then."""
        own = self.pipeline.streams[stream]
        pairs = [(table, column) for table, column in self.pipeline.views[view].as_of.items() if column in own.columns]
        pairs = [pair for pair in pairs if audit.then(*pair) in counted.columns]
        now = look_up(counted, self.pipeline, view, stream, self.changes)
        differs = reduce(Column.__or__, (~F.col(audit.then(*pair)).eqNullSafe(F.col(pair[0])) for pair in pairs), F.lit(False))
        said = [F.lit("table").alias("_cause"), F.col(own.identity).cast("string").alias("_identity"), F.col(own.occurred_at).alias("_at")]
        return now.filter(differs).select(*own.columns, *said)

    def _older_versions(self, view: str, batch: DataFrame) -> list[tuple[VersionComparison, DataFrame]]:
        """What earlier declarations have streamed of the day, and people have seen. It never blocks: the declaration is another one."""
        found = []
        for fingerprint in self.lake.view_versions(self.pipeline.name, view):
            if fingerprint == self.pipeline.fingerprint(view):
                continue
            snapshot = self._snapshot(view, fingerprint)
            if snapshot is None or snapshot.speed is None or snapshot.speed.isEmpty():
                continue
            if not _is_of_one_grain(self.pipeline.views[view], snapshot.speed, batch):
                continue
            audited = {name: self._audited_by(name, snapshot) for name in self.pipeline.streams_of(view)}
            # What is new in the declaration was nothing that people saw.
            then = [column for column in batch.columns if column in snapshot.speed.columns]
            every = {cause for cause in CAUSES if cause not in ("unexplained", "version", "cut")}
            lined, differing = self._compare(view, snapshot, audited, batch.select(*then), set(map(str, every)), "version")
            texts = reconcile.as_texts(self.pipeline.views[view], differing, str(self.day), view, fingerprint).persist()
            comparison = VersionComparison(
                fingerprint=fingerprint,
                compared=(cells := lined.count()),
                equal=cells - texts.count(),
                causes=reconcile.count_causes(texts),
                released=sum(self._count_released(name, frame) for name, frame in audited.items()),
            )
            found.append((comparison, texts))
        return found

    def _audited_by(self, source: str, snapshot: ViewSnapshot) -> DataFrame:
        """The audited rows, with what the journal says of them by the contract of another version of a view."""
        contract = snapshot.version.contracts.get(source)
        if contract is None or contract == self.journal.contracts[source]:
            return self.audited[source]
        return self._audited(source, contract)

    def _count_released(self, source: str, audited: DataFrame) -> int:
        """Events of the day that the stream had rejected, that count now, and that people have released from quarantine."""
        acts, own = self.lake.quarantine_acts(self.pipeline.name), self.pipeline.streams[source]
        if not exists(self.spark, acts):
            return 0
        released = read(self.spark, acts).filter((F.col("stream") == source) & (F.col("act") == "released")).select(*POSITION).distinct()
        rejected = audited.filter((F.to_date(own.occurred_at) == F.lit(self.day)) & F.col(FIRST) & (F.col(audit.JOURNALED) == "rejected"))
        return rejected.join(F.broadcast(released), list(POSITION)).count()

    def _draw_lines(self, view: str, source: str, snapshot: ViewSnapshot | None) -> list[LedgerLine]:
        lost = [loss for loss in self.losses if loss.query == ARCHIVE_QUERY]
        own = [partition for partition in self.partitions if partition.topic in self.pipeline.sources[source].topics]
        return ledger.draw_lines(view, source, self.day, own, audit.fates_of(self.groups, source, self.day, snapshot), lost)

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
        return [line for name in self.pipeline.sources if name not in read_by_views for line in self._draw_lines(RAW, name, None)]

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
        decision, reasons = judge_day(comparison, self._gate(view, proof.batch), unbalanced, self._early(view), accepted)
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

    def _early(self, view: str) -> list[str]:
        """Where the stream had read further than raw reached: it may know events that the recomputation does not."""
        topics = {topic for name in self.pipeline.streams_of(view) for topic in self.pipeline.streams[name].topics}
        return [
            f"raw ends at {place} offset {self.cut.get(place, 0):,}, the view has read to {end:,}: let the stream run, then try again"
            for place, end in self.until.items()
            if end > self.cut.get(place, 0) and place.rpartition("/")[0] in topics
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
        accepted=_total(g for g in groups if g["_accepted"] and g[FIRST]),
        duplicates=_total(g for g in groups if g["_accepted"] and not g[FIRST]),
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
        found = side_by_side(spark, attempt, call.pipeline.views)
        proofs = [own for own in found if isinstance(own, Proof)]
        lines = night.write_books(proofs)
        fault_point("after_differences", 0)
        views = side_by_side(spark, night.settle, proofs)
        for own in found:
            if isinstance(own, Exception):  # the other views are settled by now; the day is not done
                raise own
        streams, arrivals = night.streams(), night.arrivals()
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
        if not Journal(spark, call.lake, call.pipeline).exists:
            raise Refusal(f"'{name}' has no journal yet: run `weir stream {name}` first, which builds it from the archive")
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

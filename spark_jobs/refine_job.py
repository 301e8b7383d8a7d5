"""One micro-batch of every stream of a pipeline: new rows of the journal → Great Expectations → gate → accepted.

1. finish what a run that died had planned
2. count what the intake has journaled behind the cursor: by day, fate and reason
3. validate the accepted rows, decide
4. PASS or WARN: publish them, move the cursor. BLOCK: publish nothing, move nothing, say why
5. write the report pages of the days that changed

Nothing is judged here: each message has its fate since the intake journaled it, and what is rejected is in quarantine already.
"""

import argparse
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from quality.drift import find_drift
from quality.gate import DEADLINE_SECONDS, Validation, decide, validate
from quality.reports import data_docs_page, write_site
from spark_jobs.columns import ACCEPTED, DUPLICATE, OFFSET, PARTITION, RECEIVED_AT, REJECTED, TOPIC, UNDECODABLE
from spark_jobs.entry import Call, run_job
from spark_jobs.intake.journal import BatchNote, Journal
from spark_jobs.publish import Shelf
from spark_jobs.session import build_session
from spark_jobs.tables import exists
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.lake_files import write_whole
from weir.layout import REFINE
from weir.masking import shown_payload, shown_row
from weir.pipeline import COORDINATES, nearest
from weir.records.driver import Control
from weir.records.jobs import Outcome
from weir.records.quality import DayQuality, Decision, GateReport, JournalRange, PublishPlan, RefineCursor, RefineReport, Sample
from weir.refusal import Refusal
from weir.serving import summarise_quarantine
from weir.summaries import DAYS_KEPT, summarise_quality
from weir.supervision import hold_lease

MAX_ROWS = 2_000_000
"""Of one stream in one run. What is more waits for the next run, which comes in minutes."""
SAMPLES_PER_REASON = 3
DRIFT_LOOKS_AT = 1_000
FATES = (ACCEPTED, DUPLICATE, REJECTED, UNDECODABLE)


class Refinery:
    """One run over the sources of a pipeline, up to the batch of the intake that was the last when it began."""

    def __init__(self, spark: SparkSession, call: Call, note: BatchNote, check_lease: Callable[[], None]) -> None:
        self.spark, self.call, self.note, self.check_lease = spark, call, note, check_lease
        self.pipeline, self.lake = call.pipeline, call.lake
        self.changed: set[tuple[str, str]] = set()
        self.validations: dict[str, Validation] = {}

    def refine(self, source: str) -> GateReport | None:
        """One batch of one source; None when nothing has come."""
        shelf = Shelf(self.spark, self.lake, self.pipeline, source)
        if finished := shelf.finish(self.check_lease):
            self.changed |= {(source, day) for day in finished.cursor.days}
        began, cursor = time.monotonic(), self._cursor(shelf)
        if (found := self._behind(cursor, shelf)) is None:
            return None
        wanted, after = found
        batch, rows = cursor.batch + 1, shelf.journaled(wanted)
        days = self._count_days(source, rows)
        total = _sum(days.values())
        if not total.rows:  # offsets without messages
            self.check_lease()
            after.write(shelf.record(REFINE))
            return None
        fault_point(f"counted.{source}", batch)
        validation = self._validate(source, rows, total.accepted, batch)
        decoded = total.rows - total.undecodable
        decision, reasons = decide(shelf.contract.expectations, validation, decoded, total.reasons)
        report = _gate_report(source, batch, decision, reasons, total, validation, began)
        blocked = shelf.record("blocked")
        if decision == "BLOCK":
            report.write(blocked)
            return report
        after = after.model_copy(update={"batch": batch, "days": merge_days(cursor.days, days, validation)})
        shelf.publish(PublishPlan(way=REFINE, rows=wanted, cursor=after), self.check_lease)
        blocked.unlink(missing_ok=True)
        self.changed |= {(source, day) for day in days}
        self.validations[source] = validation
        return report

    def _cursor(self, shelf: Shelf) -> RefineCursor:
        if found := shelf.cursor(REFINE):
            return found
        if exists(self.spark, shelf.accepted):
            raise Refusal(
                f"{shelf.source}: its cursor {shelf.record(REFINE)} is gone, but {shelf.accepted} has rows: restore the cursor, "
                "or move the table away to refine everything anew"
            )
        return RefineCursor(id=secrets.token_hex(8))

    def _behind(self, cursor: RefineCursor, shelf: Shelf) -> tuple[JournalRange, RefineCursor] | None:
        """What the intake has journaled behind the cursor, at most --max-rows of it, and the cursor after that; None for nothing."""
        source, contract = shelf.source, shelf.journal.contracts[shelf.source]
        read_until = {own: progress.until for own, progress in self.note.sources.items() if own.startswith(f"{source}/")}
        new = _beyond(read_until.pop(f"{source}/{contract}", {}), cursor.until)
        if not new:
            return None
        is_known = cursor.contract == contract and cursor.intake_batch <= self.note.batch
        wanted = JournalRange(
            contract=contract,
            struct=shelf.journal.struct_columns[source],
            columns=list(shelf.contract.columns),
            since=cursor.until,
            until=cursor.until | new,
            after_batch=cursor.intake_batch if is_known else -1,
            judged_before=_beyond(_greatest(read_until.values()), cursor.until),
        )
        most, done = self.call.options.max_rows, self.note.batch
        if sum(end - cursor.until.get(place, 0) for place, end in new.items()) > most:
            firsts = shelf.journaled(wanted).groupBy(TOPIC, PARTITION).agg(F.min(OFFSET).alias("first")).collect()
            ends = {f"{row[TOPIC]}/{row[PARTITION]}": row["first"] + max(most // len(firsts), 1) for row in firsts}
            until = {place: min(end, ends.get(place, end)) for place, end in new.items()}
            wanted, done = wanted.model_copy(update={"until": cursor.until | until}), wanted.after_batch
        return wanted, cursor.model_copy(update={"until": wanted.until, "contract": contract, "intake_batch": done})

    def _validate(self, source: str, judged: DataFrame, accepted: int, batch: int) -> Validation:
        """Judge the accepted rows by the suite. Where there are none, nothing unvalidated can be published."""
        contract = self.pipeline.sources[source]
        if not accepted:
            return Validation([])
        rows = judged.filter(F.col("_fate") == ACCEPTED).select(*contract.columns)
        deadline = self.call.options.deadline_seconds

        def strike() -> None:
            fault_point(f"validate.{source}", batch)

        return validate(rows, source, contract.expectations, deadline, strike, contract.private_columns)

    def _count_days(self, source: str, rows: DataFrame) -> dict[str, DayQuality]:
        """What came on which day of arrival, with a few samples of each reason."""
        by_day = rows.withColumn("_day", F.to_date(RECEIVED_AT).cast("string"))
        counts = by_day.groupBy("_day", "_fate", "_reasons").count().collect()
        groups = sum(row["_fate"] in (REJECTED, UNDECODABLE) for row in counts)
        examples = self._examples(source, by_day, max(DRIFT_LOOKS_AT // groups, SAMPLES_PER_REASON)) if groups else []
        drift = find_drift(self.pipeline.sources[source], [None if r["_payload"] is None else bytes(r["_payload"]) for r in examples])
        found: dict[str, DayQuality] = {}
        for day in sorted({row["_day"] for row in counts}):
            own = [row for row in counts if row["_day"] == day]
            fates = {fate: sum(row["count"] for row in own if row["_fate"] == fate) for fate in FATES}
            reasons: dict[str, int] = {}
            for row in own:
                for reason in row["_reasons"]:
                    reasons[reason] = reasons.get(reason, 0) + row["count"]
            found[day] = DayQuality(
                stream=source,
                day=day,
                batches=1,
                rows=sum(fates.values()),
                accepted=fates[ACCEPTED],
                duplicates=fates[DUPLICATE],
                rejected=fates[REJECTED],
                undecodable=fates[UNDECODABLE],
                reasons=dict(sorted(reasons.items())),
                samples=self._samples(source, [row for row in examples if row["_day"] == day]),
                drift=drift,
            )
        return found

    def _examples(self, source: str, by_day: DataFrame, of_each: int) -> list[Row]:
        """The first rejected and undecodable rows of each day with the same reasons."""
        bad = by_day.filter(F.col("_fate").isin(REJECTED, UNDECODABLE))
        first = Window.partitionBy("_day", "_reasons").orderBy(PARTITION, OFFSET)
        few = bad.withColumn("_number", F.row_number().over(first)).filter(F.col("_number") <= of_each)
        texts = [F.col(column).cast("string").alias(column) for column in self.pipeline.sources[source].columns]
        return few.select("_day", "_reasons", *COORDINATES, "_payload", *texts).orderBy(PARTITION, OFFSET).collect()

    def _samples(self, source: str, examples: list[Row]) -> dict[str, list[Sample]]:
        contract = self.pipeline.sources[source]
        found: dict[str, list[Sample]] = {}
        for row in examples:
            sample = Sample(
                place=f"{row[TOPIC]}/{row[PARTITION]}/{row[OFFSET]}",
                received_at=row[RECEIVED_AT],
                row=shown_row(contract, {column: row[column] for column in contract.columns}),
                payload=shown_payload(contract, row["_payload"]),
            )
            for reason in row["_reasons"]:
                if len(own := found.setdefault(reason, [])) < SAMPLES_PER_REASON:
                    own.append(sample)
        return found

    # Step 5

    def write_pages(self) -> str:
        folder = self.lake.quality_site(self.pipeline.name)
        records = {s: partial(self.lake.refine_record, self.pipeline.name, s) for s in self.pipeline.sources}
        cursors = {source: RefineCursor.read(record(REFINE)) for source, record in records.items()}
        blocked = {source: report for source, record in records.items() if (report := GateReport.read(record("blocked")))}
        for source, validation in self.validations.items():
            if validation.suite_result is not None:
                day = max(day for its, day in self.changed if its == source)
                private = self.pipeline.sources[source].private_columns
                page = data_docs_page(validation.suite_result, f"{self.pipeline.name}.{source}, {day}", private)
                write_whole(folder / source / f"{day}-gx.html", page)
        quality = {source: cursor.days for source, cursor in cursors.items() if cursor}
        summarise_quality(quality, blocked).write(self.lake.quality_summary(self.pipeline.name))
        summarise_quarantine(self.lake, self.pipeline).write(self.lake.quarantine_summary(self.pipeline.name))
        return str(write_site(folder, self.pipeline, quality, blocked, self.changed))


def _beyond(ends: Mapping[str, int], since: Mapping[str, int]) -> dict[str, int]:
    """The ends of the partitions that go on behind `since`."""
    return {place: end for place, end in ends.items() if end > since.get(place, 0)}


def _greatest(ends: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for own in ends:
        found |= _beyond(own, found)
    return found


def _sum(days: Iterable[DayQuality]) -> DayQuality:
    total = DayQuality(stream="", day="")
    for day in days:
        total = _add(total, day)
    return total


def _add(one: DayQuality, other: DayQuality) -> DayQuality:
    counts = ("batches", "rows", "accepted", "duplicates", "rejected", "undecodable")
    reasons = {r: one.reasons.get(r, 0) + other.reasons.get(r, 0) for r in sorted({*one.reasons, *other.reasons})}
    return other.model_copy(
        update={name: getattr(one, name) + getattr(other, name) for name in counts}
        | {"reasons": reasons, "samples": one.samples | other.samples, "drift": other.drift or one.drift}
    )


def merge_days(known: dict[str, DayQuality], new: dict[str, DayQuality], validation: Validation) -> dict[str, DayQuality]:
    """The counts of all batches, each day's last results; the last days only."""
    merged = dict(known)
    for day, quality in new.items():
        quality = quality.model_copy(update={"results": validation.results})
        merged[day] = _add(merged[day], quality) if day in merged else quality
    return {day: merged[day] for day in sorted(merged)[-DAYS_KEPT:]}


def _gate_report(
    source: str, batch: int, decision: Decision, reasons: list[str], total: DayQuality, validation: Validation, began: float
) -> GateReport:
    return GateReport(
        stream=source,
        batch=batch,
        decision=decision,
        reasons=reasons,
        rows=total.rows,
        accepted=total.accepted,
        duplicates=total.duplicates,
        rejected=total.rejected,
        undecodable=total.undecodable,
        broken=total.reasons,
        results=validation.results,
        drift=total.drift,
        written_at=utc_now(),
        seconds=round(time.monotonic() - began, 1),
    )


def refine(call: Call) -> Outcome:
    began = time.monotonic()
    asked = call.options.streams.split(",") if call.options.streams else list(call.pipeline.sources)
    if unknown := [name for name in asked if name not in call.pipeline.sources]:
        raise Refusal(f"'{unknown[0]}' is no stream or table of {call.pipeline.name}{nearest(unknown[0], call.pipeline.sources)}")
    control = Control(call.lake.refine_control(call.pipeline.name))
    with hold_lease(control, f"refining {call.pipeline.name}", call.options.wait_seconds) as check_lease:
        spark = build_session(f"weir {call.pipeline.name} refine")
        if (note := Journal(spark, call.lake, call.pipeline).last_note()) is None:
            raise Refusal(f"nothing of '{call.pipeline.name}' is in the journal yet: run `weir stream {call.pipeline.name}` first")
        refinery = Refinery(spark, call, note, check_lease)
        reports = [report for name in asked if (report := refinery.refine(name))]
        site = refinery.write_pages()
    refined = RefineReport(pipeline=call.pipeline.name, streams=reports, site=site, seconds=round(time.monotonic() - began, 1))
    blocked = [f"{report.stream} is blocked: {report.reasons[0]}" for report in reports if report.decision == "BLOCK"]
    return Outcome(refined=refined, failure="; ".join(blocked) or None)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", default="", help="only these, separated by commas")
    parser.add_argument("--max-rows", type=int, default=MAX_ROWS, help="of one stream in this run")
    parser.add_argument("--wait-seconds", type=float, default=0, help="for another run, or an act on quarantined rows, that goes on")
    parser.add_argument("--deadline-seconds", type=float, default=DEADLINE_SECONDS, help="for one validation")


if __name__ == "__main__":
    run_job(refine, add_options)

"""One micro-batch of every stream of a pipeline: new raw → stage → Great Expectations → gate → accepted and quarantined.

1. finish what a run that died had planned
2. read the raw messages behind the cursor, judge them, stage them
3. validate what the verdict accepted, decide
4. PASS or WARN: publish both tables, move the cursor. BLOCK: publish nothing, move nothing, say why
5. write the report pages of the days that changed
"""

import argparse
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from quality.drift import find_drift
from quality.gate import DEADLINE_SECONDS, Validation, decide, validate
from quality.reports import data_docs_page, write_site
from spark_jobs.entry import Call, run_job
from spark_jobs.publish import Shelf
from spark_jobs.session import build_session
from spark_jobs.tables import exists, read
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.lake_files import write_whole
from weir.layout import REFINE
from weir.masking import shown_payload, shown_row
from weir.pipeline import COORDINATES, nearest
from weir.records.driver import Control
from weir.records.jobs import Outcome
from weir.records.quality import DayQuality, Decision, Drift, GateReport, PublishPlan, RefineCursor, RefineReport, Sample
from weir.refusal import Refusal
from weir.serving import summarise_quarantine
from weir.summaries import DAYS_KEPT, summarise_quality
from weir.supervision import hold_lease

MAX_ROWS = 2_000_000
"""Of one stream in one run. What is more waits for the next run, which comes in minutes."""
SAMPLES_PER_REASON = 3
DRIFT_LOOKS_AT = 1_000
FATES = ("accepted", "duplicate", "rejected", "undecodable")


class Refinery:
    """One run over the sources of a pipeline."""

    def __init__(self, spark: SparkSession, call: Call, check_lease: Callable[[], None]) -> None:
        self.spark, self.call, self.check_lease = spark, call, check_lease
        self.pipeline, self.lake = call.pipeline, call.lake
        self.changed: set[tuple[str, str]] = set()
        self.validations: dict[str, Validation] = {}

    def refine(self, source: str) -> GateReport | None:
        """One batch of one source; None when nothing has come."""
        shelf = Shelf(self.spark, self.lake, self.pipeline, source)
        if finished := shelf.finish(self.check_lease):
            self.changed |= {(source, day) for day in finished.cursor.days}
        began, cursor = time.monotonic(), self._cursor(shelf)
        messages, until = self._behind(cursor, source)
        if until == cursor.until:
            return None
        batch = cursor.batch + 1
        stage = shelf.stage(shelf.judge(messages), str(batch))
        staged = self.spark.read.parquet(stage)
        days = self._count_days(source, staged)
        total = _sum(days.values())
        fault_point(f"staged.{source}", batch)
        validation = self._validate(source, staged, total.accepted, batch)
        decoded = total.rows - total.undecodable
        decision, reasons = decide(shelf.contract.expectations, validation, decoded, total.reasons)
        report = _gate_report(source, batch, decision, reasons, total, validation, began)
        blocked = shelf.record("blocked")
        if decision == "BLOCK":
            shelf.forget_stages()
            report.write(blocked)
            return report
        after = RefineCursor(id=cursor.id, batch=batch, until=until, days=merge_days(cursor.days, days, validation))
        shelf.publish(PublishPlan(way=REFINE, stage=stage, cursor=after), self.check_lease)
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

    def _behind(self, cursor: RefineCursor, source: str) -> tuple[DataFrame, dict[str, int]]:
        """The raw messages behind the cursor, bounded, and where the cursor will stand after them."""
        raw = read(self.spark, self.lake.raw(self.pipeline.name)).filter(F.col("stream") == source)
        if cursor.until:
            # The second condition says nothing new; by it Delta skips the files that hold older offsets only.
            raw = raw.filter(_is_behind(cursor.until)).filter(F.col("offset") >= min(cursor.until.values()))
        bounds = raw.groupBy("topic", "partition").agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        ends = {f"{row['topic']}/{row['partition']}": row for row in bounds.collect()}
        most = max(self.call.options.max_rows // max(len(ends), 1), 1)
        until = {place: min(row["last"] + 1, row["first"] + most) for place, row in ends.items()}
        messages = raw.filter(~_is_behind(until)) if until else raw
        return messages, cursor.until | until

    def _validate(self, source: str, staged: DataFrame, accepted: int, batch: int) -> Validation:
        """Judge the accepted rows by the suite. Where there are none, nothing unvalidated can be published."""
        contract = self.pipeline.sources[source]
        if not accepted:
            return Validation([])
        rows = staged.filter("_fate = 'accepted'").select(*contract.columns)
        deadline = self.call.options.deadline_seconds

        def strike() -> None:
            fault_point(f"validate.{source}", batch)

        return validate(rows, source, contract.expectations, deadline, strike, contract.private_columns)

    def _count_days(self, source: str, staged: DataFrame) -> dict[str, DayQuality]:
        """What came on which day of arrival, with a few samples of each reason."""
        by_day = staged.withColumn("_day", F.to_date("received_at").cast("string"))
        counts = by_day.groupBy("_day", "_fate", "_reasons").count().collect()
        samples = self._samples(source, by_day)
        drift = self._drift(source, staged)
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
                accepted=fates["accepted"],
                duplicates=fates["duplicate"],
                rejected=fates["rejected"],
                undecodable=fates["undecodable"],
                reasons=dict(sorted(reasons.items())),
                samples={reason: rows for (its_day, reason), rows in samples.items() if its_day == day},
                drift=drift,
            )
        return found

    def _samples(self, source: str, by_day: DataFrame) -> dict[tuple[str, str], list[Sample]]:
        contract = self.pipeline.sources[source]
        bad = by_day.filter("_fate IN ('rejected', 'undecodable')").withColumn("_reason", F.explode("_reasons"))
        texts = [F.col(column).cast("string").alias(column) for column in contract.columns]
        first = Window.partitionBy("_day", "_reason").orderBy("partition", "offset")
        few = bad.withColumn("_number", F.row_number().over(first)).filter(F.col("_number") <= SAMPLES_PER_REASON)
        found: dict[tuple[str, str], list[Sample]] = {}
        for row in few.select("_day", "_reason", *COORDINATES, "_payload", *texts).collect():
            sample = Sample(
                place=f"{row['topic']}/{row['partition']}/{row['offset']}",
                received_at=row["received_at"],
                row=shown_row(contract, {column: row[column] for column in contract.columns}),
                payload=shown_payload(contract, row["_payload"]),
            )
            found.setdefault((row["_day"], row["_reason"]), []).append(sample)
        return found

    def _drift(self, source: str, staged: DataFrame) -> list[Drift]:
        bad = staged.filter("_fate IN ('rejected', 'undecodable')").select("_payload").limit(DRIFT_LOOKS_AT).collect()
        return find_drift(self.pipeline.sources[source], [None if r["_payload"] is None else bytes(r["_payload"]) for r in bad])

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


def _is_behind(until: dict[str, int]) -> Column:
    """Whether a row stands at or behind the offset of its partition; one that is not named is behind."""
    place = F.concat_ws("/", "topic", "partition")
    bounds = F.create_map(*(F.lit(word) for pair in until.items() for word in pair))
    return F.col("offset") >= F.coalesce(bounds[place], F.lit(0))


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
        if not exists(spark, call.lake.raw(call.pipeline.name)):
            raise Refusal(f"nothing of '{call.pipeline.name}' is archived yet: run `weir stream {call.pipeline.name}` first")
        refinery = Refinery(spark, call, check_lease)
        # Tables first: what refers to them finds what came in the same minutes.
        ordered = [name for name in asked if name in call.pipeline.tables] + [name for name in asked if name in call.pipeline.streams]
        reports = [report for name in ordered if (report := refinery.refine(name))]
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

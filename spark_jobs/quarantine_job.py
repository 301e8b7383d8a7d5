"""What people do about quarantined rows: preview, replay, discard.

A replay sends the payloads through the same transform as everything else, by the declaration as it is now. It first shows
what would change; applied, it publishes what now passes, marks it released, and leaves the rest where it is.
"""

import argparse
import secrets

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quality.gate import Validation, decide, validate
from spark_jobs.entry import Call, run_job
from spark_jobs.publish import Shelf, mark_rows, open_rows
from spark_jobs.session import build_session
from spark_jobs.tables import exists
from weir.event_time import utc_now
from weir.layout import REPLAY, Lake
from weir.pipeline import COORDINATES, nearest
from weir.records.driver import Control
from weir.records.jobs import Outcome
from weir.records.quality import PublishPlan, RefineCursor, ReplayReport
from weir.refusal import Refusal
from weir.serving import summarise_quarantine
from weir.supervision import hold_lease


def asked_rows(spark: SparkSession, lake: Lake, pipeline: str, options: argparse.Namespace) -> DataFrame:
    """The quarantined rows of a stream that nobody has acted on, by rule and day of arrival."""
    if not exists(spark, lake.quarantined(pipeline)):
        raise Refusal(f"nothing of '{pipeline}' is in quarantine")
    rows = open_rows(spark, lake, pipeline).filter(F.col("stream") == options.stream)
    if options.rule:
        rows = rows.filter(F.array_contains("reasons", options.rule))
    if options.since:
        rows = rows.filter(F.col("received_on") >= options.since)
    if options.until:
        rows = rows.filter(F.col("received_on") <= options.until)
    return rows


def replay(call: Call, spark: SparkSession, shelf: Shelf, rows: DataFrame) -> tuple[ReplayReport, PublishPlan | None]:
    """Judge the rows anew. With --apply, and when the gate lets them, the plan to publish those that pass."""
    messages = rows.select(*COORDINATES, F.col("payload").alias("value"))
    cursor = shelf.cursor(REPLAY) or RefineCursor(id=secrets.token_hex(8))
    stage = shelf.stage(shelf.judge(messages), f"replay-{cursor.batch + 1}")
    staged = spark.read.parquet(stage)
    counts = staged.groupBy("_fate", "_reasons").count().collect()
    fates = {fate: sum(row["count"] for row in counts if row["_fate"] == fate) for fate in ("accepted", "duplicate")}
    remaining: dict[str, int] = {}
    for row in counts:
        for reason in row["_reasons"]:
            remaining[reason] = remaining.get(reason, 0) + row["count"]
    day = F.to_date(F.col(shelf.contract.occurred_at)).cast("string").alias("day")
    days = {row["day"]: row["count"] for row in staged.filter("_fate = 'accepted'").groupBy(day).count().orderBy("day").collect()}
    # The aggregates are meant for whole batches, not for a handful of late rows.
    rules = [expectation for expectation in shelf.contract.expectations if expectation.rejects]
    accepted = staged.filter("_fate = 'accepted'").select(*shelf.contract.columns)
    validation = validate(accepted, shelf.source, rules) if fates["accepted"] else Validation([])
    decision, reasons = decide(rules, validation, 0, {})
    views = [view for view in call.pipeline.views if shelf.source in call.pipeline.streams_of(view)]
    report = ReplayReport(
        pipeline=call.pipeline.name,
        source=shelf.source,
        applied=call.options.apply and decision != "BLOCK",
        rows=sum(row["count"] for row in counts),
        released=fates["accepted"],
        duplicates=fates["duplicate"],
        remaining=dict(sorted(remaining.items())),
        days=days,
        views=views if fates["accepted"] else [],
        blocked=reasons if decision == "BLOCK" else [],
    )
    if not report.applied or not (fates["accepted"] or fates["duplicate"]):
        shelf.forget_stages()
        return report, None
    after = RefineCursor(id=cursor.id, batch=cursor.batch + 1)
    why = f"{report.released:,} quarantined rows of {shelf.source} were released on {utc_now():%Y-%m-%d}"
    plan = PublishPlan(way=REPLAY, stage=stage, cursor=after, dirty=dict.fromkeys(days, why))
    return report, plan


def act(call: Call) -> Outcome:
    options, sources = call.options, call.pipeline.sources
    if options.stream not in sources:
        raise Refusal(f"'{options.stream}' is no stream or table of {call.pipeline.name}{nearest(options.stream, sources)}")
    control = Control(call.lake.refine_control(call.pipeline.name))
    with hold_lease(control, f"{call.pipeline.name} is being refined", options.wait_seconds) as check_lease:
        spark = build_session(f"weir {call.pipeline.name} quarantine")
        shelf = Shelf(spark, call.lake, call.pipeline, options.stream)
        shelf.finish(check_lease)
        rows = asked_rows(spark, call.lake, call.pipeline.name, options)
        if options.act == "discard":
            count = mark_rows(rows, call.lake, call.pipeline.name, shelf.source, "discarded", options.note)
            _count_anew(call)
            return Outcome(lines=[str(count)])
        report, plan = replay(call, spark, shelf, rows)
        if plan:
            shelf.publish(plan, check_lease)
            _count_anew(call)
    return Outcome(replayed=report, failure=f"nothing was replayed: {report.blocked[0]}" if report.blocked else None)


def _count_anew(call: Call) -> None:
    """What pages over all pipelines show."""
    summarise_quarantine(call.lake, call.pipeline).write(call.lake.quarantine_summary(call.pipeline.name))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--act", choices=["replay", "discard"], required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--rule", default="")
    parser.add_argument("--since", default="", help="day of arrival")
    parser.add_argument("--until", default="", help="day of arrival, inclusive")
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("--wait-seconds", type=float, default=0, help="for a micro-batch that runs")


if __name__ == "__main__":
    run_job(act, add_options)

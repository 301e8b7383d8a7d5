"""The batch layer of one pipeline and day: recompute from raw, replace, compare with the speed layer.

1. read the day's raw messages, judge and rank them (once per stream)
2. recompute each view with the same transform, gate its cells, replace the day
3. compare speed with batch, cell by cell
4. report
"""

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_jobs.entry import Call, run_job
from spark_jobs.progress import read_progress
from spark_jobs.reconcile import compare_cells
from spark_jobs.session import build_session
from spark_jobs.tables import exists, read, replace_day, with_day
from spark_jobs.transform import compute_view, judged_rows, mark_first
from weir.event_time import day_bounds, first_raw_day, utc_now
from weir.layout import view_query
from weir.pipeline import Stream
from weir.records import Decision, DirtyDay, NightlyReport, Outcome, RawKept, StreamDay, ViewComparison
from weir.refusal import Refusal


class Night:
    """One recomputation of one day."""

    def __init__(self, spark: SparkSession, call: Call, day: date) -> None:
        self.spark, self.call, self.day = spark, call, day
        self.start, self.end = day_bounds(day)
        self.ranked = {name: self._ranked(name) for name in call.pipeline.sources}

    def _ranked(self, source: str) -> DataFrame:
        """Every message that can belong to the day, judged, the first of each identity marked. Kept for all views."""
        earliest = first_raw_day(self.day, self.call.pipeline.reach)
        raw = read(self.spark, self.call.lake.raw(self.call.pipeline.name))
        raw = raw.filter((F.col("stream") == source) & (F.col("received_on") >= F.lit(earliest)))
        contract = self.call.pipeline.sources[source]
        judged = judged_rows(raw, contract).drop("_payload")
        ranked = mark_first(judged, contract) if isinstance(contract, Stream) else judged.withColumn("_first", F.col("_accepted"))
        return ranked.persist()

    def count_stream(self, source: str) -> StreamDay:
        """What became of the day's messages. One that is not accepted belongs to the day on which it came."""
        occurred_at = self.call.pipeline.sources[source].occurred_at
        belongs_to = F.when(F.col("_accepted"), F.col(occurred_at)).otherwise(F.col("received_at"))
        own = self.ranked[source].filter((belongs_to >= F.lit(self.start)) & (belongs_to < F.lit(self.end)))
        groups = own.groupBy("_undecodable", "_verdict", "_accepted", "_first").count().collect()
        reasons: dict[str, int] = {}
        for group in groups:
            for reason in [f"undecodable:{group['_undecodable']}"] if group["_undecodable"] else group["_verdict"]:
                reasons[reason] = reasons.get(reason, 0) + group["count"]
        return StreamDay(
            stream=source,
            archived=_total(groups),
            accepted=_total(g for g in groups if g["_accepted"] and g["_first"]),
            duplicates=_total(g for g in groups if g["_accepted"] and not g["_first"]),
            rejected=_total(g for g in groups if not g["_accepted"] and not g["_undecodable"]),
            undecodable=_total(g for g in groups if g["_undecodable"]),
            reasons=dict(sorted(reasons.items())),
        )

    def recompute_view(self, view: str) -> DataFrame:
        """The day's cells from raw."""
        pipeline = self.call.pipeline
        declared = pipeline.views[view]
        frames = {}
        for name in pipeline.streams_of(view):
            stream = pipeline.streams[name]
            occurred_at = F.col(stream.occurred_at)
            near = (occurred_at >= F.lit(self.start - declared.reach)) & (occurred_at < F.lit(self.end + declared.reach))
            frames[name] = self.ranked[name].filter("_first").filter(near).select(*stream.columns)
        # Materialised before the day is cut out: Spark would push that filter below the merging of sessions, and cut them short.
        cells = with_day(compute_view(self.spark, pipeline, view, frames), declared.time).localCheckpoint()
        return cells.filter(F.col("_day") == F.lit(self.day))

    def gate_view(self, view: str, cells: DataFrame) -> tuple[Decision, list[str]]:
        """Judge the cells by the view's expectations. Only then Great Expectations is loaded: it takes seconds."""
        if not (expectations := self.call.pipeline.views[view].expectations):
            return "PASS", []
        from quality.gate import decide, validate

        # No verdict has set single cells aside, so that a row rule is here like all others: it holds for the day, or it does not.
        mild = [expectation.model_copy(update={"severity": "warning"}) for expectation in expectations]
        validation = validate(cells.drop("_day"), view, mild)
        found = [r.model_copy(update={"severity": e.severity}) for r, e in zip(validation.results, expectations, strict=False)]
        return decide(mild, replace(validation, results=found), 0, {})

    def replace_view(self, view: str, cells: DataFrame) -> None:
        """Put the cells in the place of what the batch table had for this day."""
        replace_day(cells, self.call.lake.batch(self.call.pipeline.name, view, self.call.pipeline.fingerprint(view)), self.day)

    def settle_view(self, view: str) -> ViewComparison:
        """Recompute, gate, replace, compare. A blocked day is compared too, but what was served before stays."""
        cells = self.recompute_view(view)
        decision, reasons = self.gate_view(view, cells)
        if decision != "BLOCK":
            self.replace_view(view, cells)
        return self.compare_view(view, cells).model_copy(update={"decision": decision, "gate": reasons})

    def compare_view(self, view: str, batch: DataFrame) -> ViewComparison:
        pipeline, lake = self.call.pipeline, self.call.lake
        fingerprint = pipeline.fingerprint(view)
        table = lake.speed(pipeline.name, view, fingerprint)
        speed = read(self.spark, table).filter(F.col("_day") == F.lit(self.day)) if exists(self.spark, table) else None
        checkpoint = lake.checkpoint(pipeline.name, view_query(view), fingerprint)
        batches = read_progress(self.spark, lake.progress(pipeline.name), view_query(view), checkpoint)
        watermark = datetime.fromtimestamp(batches[-1].watermark_ms / 1_000, UTC) if batches else self.start
        return compare_cells(pipeline.views[view], view, fingerprint, speed, batch, watermark)


def _total(groups: Iterable[Row]) -> int:
    return sum(group["count"] for group in groups)


def _refuse_without_raw(call: Call) -> None:
    """A day whose raw was dropped would be replaced by what is left of it."""
    kept = RawKept.read(call.lake.raw_kept(call.pipeline.name))
    if kept and first_raw_day(call.options.day, call.pipeline.reach) < kept.since:
        raise Refusal(
            f"{call.options.day} cannot be recomputed: raw before {kept.since} was dropped (keep_raw: {kept.keep_raw}); its cells stay"
        )


def nightly(call: Call) -> Outcome:
    began = time.monotonic()
    spark = build_session(f"weir {call.pipeline.name} nightly")
    if not exists(spark, call.lake.raw(call.pipeline.name)):
        raise Refusal(f"nothing of '{call.pipeline.name}' is archived yet: run `weir stream {call.pipeline.name}` first")
    _refuse_without_raw(call)
    mark = call.lake.dirty_days(call.pipeline.name) / f"{call.options.day}.json"
    dirty = DirtyDay.read(mark)
    night = Night(spark, call, call.options.day)
    streams = [night.count_stream(name) for name in call.pipeline.sources]
    views = [night.settle_view(name) for name in call.pipeline.views]
    report = NightlyReport(
        pipeline=call.pipeline.name,
        day=str(call.options.day),
        written_at=utc_now(),
        seconds=round(time.monotonic() - began, 1),
        streams=streams,
        views=views,
    )
    report.write(call.lake.nightly_report(call.pipeline.name, str(call.options.day)))
    blocked = [f"{view.view} is blocked: {view.gate[0]}" for view in views if view.decision == "BLOCK"]
    if dirty and not blocked and DirtyDay.read(mark) == dirty:  # what was marked meanwhile waits for the next night
        mark.unlink()
    return Outcome(report=report, failure="; ".join(blocked) or None)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--day", type=date.fromisoformat, required=True)


if __name__ == "__main__":
    run_job(nightly, add_options)

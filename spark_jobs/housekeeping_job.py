"""Keeps a pipeline's lake small and quick, and takes nothing away that anybody still has to read.

1. compact   closed days of raw, journal, accepted and quarantined tables that lie in many small files are merged, day by day
2. retain    days of raw older than `keep_raw` are dropped, whole; files that no version of the last week needs are removed
3. expire    open quarantined rows whose time has passed are told; a week later they are marked, and no longer open
4. rotate    old nightly reports and outcomes, and stages that no plan names, are removed

Each step finds what is left to do by looking, so that after a crash the next run goes on, and a run after a run does nothing.
Left alone: the speed cells of fingerprints that are no longer declared (an older declaration may come back and serve them); the
quality pages and the job logs, which whoever writes them keeps bounded; and every row of the quarantined table.
"""

import argparse
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_jobs.columns import JOURNALED_ON
from spark_jobs.entry import Call, run_job
from spark_jobs.publish import mark_rows, open_rows
from spark_jobs.session import build_session
from spark_jobs.tables import COMPACT_FROM_FILES, compact_partition, delete_rows, exists, partition_files, read, vacuum
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.housekeeping import (
    EXPIRY_GRACE,
    REPORTS_KEPT,
    STAGES_KEPT,
    RawDay,
    crowded_partitions,
    outdated,
    raw_cutoff,
    retire_raw,
)
from weir.lake_files import lake_path, remove_folder, written_at
from weir.layout import REFINE
from weir.records.driver import Control, Losses
from weir.records.jobs import ExpiredRows, HousekeepingReport, Outcome, RawKept, TableFiles
from weir.records.night import DirtyDay
from weir.records.quality import PublishPlan, RefineCursor
from weir.refusal import Refusal
from weir.serving import summarise_quarantine
from weir.supervision import hold_lease

RECEIVED, OCCURRED = "received_on", "_day"
"""By which day a table is partitioned."""


class Housekeeping:
    """One run over one pipeline, at one moment."""

    def __init__(self, spark: SparkSession, call: Call, now: datetime) -> None:
        self.spark, self.call, self.now = spark, call, now
        self.pipeline, self.lake, self.name = call.pipeline, call.lake, call.pipeline.name

    # Step 1

    def compact(self) -> dict[str, tuple[int, int]]:
        """Merge the crowded closed days of each table: how many partitions were rewritten and how many files there were before."""
        by_day = {self.lake.accepted(self.name, source): OCCURRED for source in self.pipeline.sources}
        by_day |= {self.lake.raw(self.name): RECEIVED, self.lake.quarantined(self.name): RECEIVED}
        by_day |= {self.lake.journal(self.name): JOURNALED_ON}
        done: dict[str, tuple[int, int]] = {}
        for path, day_column in by_day.items():
            if not exists(self.spark, path):
                continue
            partitions = partition_files(self.spark, path, day_column)
            crowded = crowded_partitions(partitions, self.now.date(), self.call.options.from_files)
            for partition in crowded:
                compact_partition(self.spark, path, partition)
                fault_point("compacting", 0)
            done[path] = (len(crowded), sum(partition.files for partition in partitions))
        return done

    # Step 2

    def drop_raw(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Drop the days of raw that are older than declared: those dropped by stream, and those held back with the reason."""
        keep, path, record = self.pipeline.keep_raw, self.lake.raw(self.name), self.lake.raw_kept(self.name)
        if keep is None or not exists(self.spark, path):
            return {}, {}
        kept = RawKept.read(record)
        marks = [DirtyDay.read(file) for file in self.lake.dirty_days(self.name).glob("*.json")]
        dirty = [date.fromisoformat(mark.day) for mark in marks if mark]
        cutoff = raw_cutoff(self.now, keep, dirty, self.pipeline.reach, kept.since if kept else None)
        if not any(p.day and p.day < cutoff for p in partition_files(self.spark, path, RECEIVED)):
            return {}, {}
        days = self._raw_days()
        refined = {stream: self._refined_until(stream) for stream in {own.stream for own in days}}
        found = retire_raw(days, cutoff, refined)
        dropped: dict[str, list[date]] = {}
        for own in found.drop:
            dropped.setdefault(own.stream, []).append(own.day)
        if dropped:
            # Told first: a night that finds only a part of its raw must know.
            since = max(own.day for own in found.drop) + timedelta(days=1)
            since = max(since, kept.since) if kept else since
            RawKept(since=since, keep_raw=f"{keep.days} days", written_at=self.now).write(record)
            fault_point("told", 0)
        for stream, own_days in dropped.items():
            delete_rows(self.spark, path, _is_refined_of(stream, own_days, refined[stream]))
        self._forget_books()
        return {stream: [str(day) for day in own_days] for stream, own_days in dropped.items()}, found.held

    def _forget_books(self) -> None:
        """Drop the notes of what arrived and what was lost on days whose raw is gone: no night can read them again."""
        kept, file = RawKept.read(self.lake.raw_kept(self.name)), self.lake.losses(self.name)
        if kept is None:
            return
        for own in self.lake.arrivals(self.name).glob("*.json"):
            if date.fromisoformat(own.stem) < kept.since:
                own.unlink()
        # A driver may book a loss at this very moment: only when there is something to drop is the file written.
        known = Losses.read(file) or Losses()
        held = [loss for loss in known.found if loss.noticed_at.date() >= kept.since]
        if len(held) < len(known.found):
            Losses(found=held).write(file)

    def _raw_days(self) -> list[RawDay]:
        raw = read(self.spark, self.lake.raw(self.name))
        place = F.concat_ws("/", "topic", "partition").alias("place")
        ends = raw.groupBy("stream", RECEIVED, place).agg((F.max("offset") + 1).alias("until")).collect()
        until: dict[tuple[str, date], dict[str, int]] = {}
        for row in ends:
            until.setdefault((row["stream"], row[RECEIVED]), {})[row["place"]] = row["until"]
        return [RawDay(stream, day, places) for (stream, day), places in until.items()]

    def _refined_until(self, stream: str) -> dict[str, int]:
        cursor = RefineCursor.read(self.lake.refine_record(self.name, stream, REFINE))
        return cursor.until if cursor else {}

    def vacuum(self, compacted: dict[str, tuple[int, int]]) -> list[TableFiles]:
        """Remove what no version of the last week needs from each table whose files are ever replaced."""
        layers = [
            layer(self.name, view, self.pipeline.fingerprint(view))
            for view in self.pipeline.views
            for layer in (self.lake.speed, self.lake.batch)
        ]
        layers += [self.lake.ledger(self.name), self.lake.differences(self.name)]
        found = []
        for path in [*compacted, *(path for path in layers if exists(self.spark, path))]:
            files = sum(partition.files for partition in partition_files(self.spark, path, OCCURRED))
            removed, size = vacuum(self.spark, path)
            partitions, before = compacted.get(path, (0, files))
            found.append(
                TableFiles(
                    table=path.removeprefix(f"{self.lake.root}/{self.name}/"),
                    files_before=before,
                    files_after=files,
                    compacted=partitions,
                    files_removed=removed,
                    bytes_removed=size,
                )
            )
        return found

    # Step 3

    def expire(self) -> list[ExpiredRows]:
        """Tell the open rows whose time has passed, and mark those whose grace has passed too."""
        if not exists(self.spark, self.lake.quarantined(self.name)):
            return []
        keep = {name: source.keep_quarantined.total_seconds() for name, source in self.pipeline.sources.items()}
        # A stream that is no longer declared has no time, so that its rows stay.
        kept_seconds = F.create_map(*(F.lit(word) for pair in keep.items() for word in pair))[F.col("stream")]
        overdue = F.unix_seconds(F.lit(self.now).cast("timestamp")) - F.unix_seconds("quarantined_at") - kept_seconds
        rows = open_rows(self.spark, self.lake, self.name).withColumn("_overdue", overdue >= EXPIRY_GRACE.total_seconds())
        rows = rows.filter(overdue >= 0).select("stream", "topic", "partition", "offset", "reasons", "_overdue").localCheckpoint()
        counts = rows.groupBy("stream", "reasons", "_overdue").count().collect()
        for stream in sorted({row["stream"] for row in counts if row["_overdue"]}):
            note = f"kept for {self.pipeline.sources[stream].keep_quarantined.days} days and a week, and nobody acted"
            mark_rows(rows.filter((F.col("stream") == stream) & F.col("_overdue")), self.lake, self.name, stream, "expired", note)
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for row in counts:
            for reason in row["reasons"]:
                expired, marked = found.get((row["stream"], reason), (0, 0))
                found[row["stream"], reason] = (expired + row["count"], marked + row["_overdue"] * row["count"])
        return [ExpiredRows(stream=s, reason=r, rows=rows, marked=marked) for (s, r), (rows, marked) in sorted(found.items())]

    # Step 4

    def rotate(self) -> list[str]:
        """Remove old reports and outcomes, and the stages that were left behind."""
        removed = outdated(_written_at(self._records()), self.now, REPORTS_KEPT)
        for file in removed:
            file.unlink(missing_ok=True)
        return [str(path).removeprefix(f"{self.lake.root}/") for path in [*removed, *self._remove_stages()]]

    def _records(self) -> list[Path]:
        every = (self.lake.nightly_report(self.name, "*"), self.lake.outcome(self.name, "*"))
        return [file for pattern in every for file in pattern.parent.glob(pattern.name)]

    def _remove_stages(self) -> list[Path]:
        """Under the lease of the micro-batches, which reuse names of stages. Where one runs, this can wait."""
        if not self._left_stages():
            return []
        try:
            with hold_lease(Control(self.lake.refine_control(self.name)), f"{self.name} is being refined"):
                left = self._left_stages()
                for folder in left:
                    remove_folder(folder)
                return left
        except Refusal as refusal:
            print(f"old stages stay for now: {refusal}", flush=True)
            return []

    def _left_stages(self) -> list[Path]:
        every_plan = self.lake.refine_record(self.name, "*", "plan")
        plans = [plan for file in every_plan.parent.glob(every_plan.name) if (plan := PublishPlan.read(file))]
        return outdated(
            _written_at(self.lake.stages(self.name).glob("*/*")), self.now, STAGES_KEPT, [lake_path(p.stage) for p in plans if p.stage]
        )


def _is_refined_of(stream: str, days: list[date], refined: dict[str, int]) -> Column:
    """The stream's rows of these days that were refined. One that was archived since the days were chosen was not, and stays."""
    bounds = F.create_map(*(F.lit(word) for pair in refined.items() for word in pair))
    is_refined = F.col("offset") < bounds[F.concat_ws("/", "topic", "partition")]
    return (F.col("stream") == stream) & F.col(RECEIVED).isin(days) & is_refined


def _written_at(paths: Iterable[Path]) -> dict[Path, datetime]:
    return {path: datetime.fromtimestamp(written_at(path), UTC) for path in paths}


def housekeep(call: Call) -> Outcome:
    began, name = time.monotonic(), call.pipeline.name
    with hold_lease(Control(call.lake.housekeeping_control(name)), f"{name} is being kept") as check_lease:
        keeping = Housekeeping(build_session(f"weir {name} housekeeping"), call, utc_now())
        compacted = keeping.compact()
        fault_point("compacted", 0)
        check_lease()
        dropped, held = keeping.drop_raw()
        fault_point("dropped", 0)
        tables = keeping.vacuum(compacted)
        fault_point("vacuumed", 0)
        check_lease()
        expired = keeping.expire()
        summarise_quarantine(call.lake, call.pipeline).write(call.lake.quarantine_summary(name))
        fault_point("expired", 0)
        removed = keeping.rotate()
    report = HousekeepingReport(
        pipeline=name,
        tables=tables,
        days_dropped=dropped,
        days_held=held,
        expired=expired,
        removed=removed,
        seconds=round(time.monotonic() - began, 1),
    )
    return Outcome(housekept=report)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from-files", type=int, default=COMPACT_FROM_FILES, help="a closed day with more small files is merged")


if __name__ == "__main__":
    run_job(housekeep, add_options)

"""Snapshot of the speed layer at the start of a night: the journal, and of each view its cells and how far it has read."""

import time
from dataclasses import dataclass
from datetime import date

from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from spark_jobs.entry import Call
from spark_jobs.intake.aggregates import CELL_BATCH, DAY, GENERATION
from spark_jobs.journal_source import START, journal_batches
from spark_jobs.streaming.checkpoint import committed_batch, next_offsets, watermark_millis
from spark_jobs.tables import exists, last_version, last_words, read
from weir.lake_files import delta_options
from weir.layout import ARCHIVE_QUERY, app_id, archive_fingerprint
from weir.records.driver import Control
from weir.records.night import ViewVersion

ARCHIVE_SECONDS = 60
"""How long a night waits for the archive, which reads every ten seconds what the intake reads every second."""


@dataclass(frozen=True)
class ViewSnapshot:
    """The speed cells of a view and day, and how far the view had read the journal when it wrote them."""

    speed: DataFrame | None
    version: ViewVersion
    read_until: dict[str, int]
    """By stream the last journal batch that its cells can hold."""
    told_until: int = 0
    """The watermark in microseconds: a view that gives closed cells only has given none that reaches beyond it."""

    def cells(self, like: DataFrame) -> DataFrame:
        """The cells in the shape of others; none where nothing was streamed. An earlier declaration may have told other types."""
        if self.speed is None:
            return like.limit(0).withColumn(CELL_BATCH, F.lit(None).cast("bigint"))
        streamed = {field.name: field.dataType for field in self.speed.schema}
        other = [field for field in like.schema if field.name in streamed and field.dataType != streamed[field.name]]
        return self.speed.withColumns({field.name: _converted(self.speed, field.name, field.dataType) for field in other})


def _converted(frame: DataFrame, column: str, to: DataType) -> Column:
    """The column in another type; null where that is not possible."""
    converted = F.col(column).try_cast(to)
    try:
        frame.select(converted)
    except AnalysisException:
        return F.lit(None).cast(to)
    return converted


def snapshot_view(spark: SparkSession, call: Call, view: str, fingerprint: str, day: date) -> ViewSnapshot | None:
    """None where the view in this form was never started."""
    lake, name = call.lake, call.pipeline.name
    version = ViewVersion.read(lake.view_version(name, view, fingerprint))
    if version is None:
        return None
    path, checkpoint = lake.speed(name, view, fingerprint), lake.view_checkpoint(name, view, fingerprint)
    last, nothing = committed_batch(checkpoint), dict.fromkeys(version.contracts, START)
    if not exists(spark, path):
        return ViewSnapshot(None, version, nothing)
    table_version = last_version(spark, path)
    said = read(spark, path, table_version).filter(F.col(DAY) == F.lit(day))
    speed = last_words(said, call.pipeline.views[view].grain)
    if version.is_aggregate:
        written = DeltaTable(path, version=table_version, storage_options=delta_options(path))
        found = written.transaction_version(app_id(name, "cells", f"{view}-{fingerprint}"))
        return ViewSnapshot(speed, version, nothing if found is None else dict.fromkeys(version.contracts, int(found)))
    newest = said.agg(F.max(F.struct(GENERATION, CELL_BATCH)).alias("newest")).first()
    if newest and newest["newest"]:  # written, and not committed by Spark yet
        last = max(last, newest["newest"][CELL_BATCH])
    if last < 0:
        return ViewSnapshot(speed, version, nothing)
    return ViewSnapshot(speed, version, nothing | journal_batches(checkpoint, last), watermark_millis(checkpoint, last) * 1_000)


def archive_ends(spark: SparkSession, call: Call, needed: dict[str, int]) -> dict[str, int]:
    """By topic/partition how far raw reaches: at least as far as the journal, if the archive gets there in a minute."""
    deadline = time.monotonic() + ARCHIVE_SECONDS
    while True:
        ends = _archived(spark, call)
        if all(ends.get(place, 0) >= end for place, end in needed.items()) or time.monotonic() > deadline or not _is_alive(call):
            return ends
        time.sleep(1)


def _archived(spark: SparkSession, call: Call) -> dict[str, int]:
    """From the archive's own log; where there is none, from raw."""
    checkpoint = call.lake.checkpoint(call.pipeline.name, ARCHIVE_QUERY, archive_fingerprint(call.pipeline.topics))
    if committed_batch(checkpoint) >= 0:
        return next_offsets(checkpoint)
    ends = read(spark, call.lake.raw(call.pipeline.name)).groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    return {f"{row['topic']}/{row['partition']}": row["last"] + 1 for row in ends}


def _is_alive(call: Call) -> bool:
    beat = Control(call.lake.control(call.pipeline.name)).heartbeat()
    return beat is not None and beat.is_of_a_runner

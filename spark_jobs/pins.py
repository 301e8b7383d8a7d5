"""What the speed layer had said of a day when its night began. Events go on arriving; the proof is about this."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from spark_jobs.entry import Call
from spark_jobs.progress import BatchRange, committed_batch, next_offsets, read_progress, read_until
from spark_jobs.tables import exists, last_version, last_words, read
from weir.event_time import day_bounds
from weir.layout import ARCHIVE_QUERY, archive_fingerprint, view_query
from weir.records.driver import Control

ARCHIVE_SECONDS = 60
"""How long a night waits for the archive, which reads every ten seconds what the views read every second."""


@dataclass(frozen=True)
class Pin:
    """The speed cells of a view and day, and the batches whose words they are."""

    speed: DataFrame | None
    batches: list[BatchRange]

    @property
    def told_until(self) -> int:
        """The watermark of the last batch, in microseconds."""
        return self.batches[-1].watermark_ms * 1_000 if self.batches else 0

    def cells(self, like: DataFrame) -> DataFrame:
        """The cells in the shape of others; none where nothing was streamed. An earlier declaration may have told other types."""
        if self.speed is None:
            return like.limit(0).withColumn("_batch", F.lit(None).cast("bigint"))
        told = {field.name: field.dataType for field in self.speed.schema}
        other = [field for field in like.schema if field.name in told and field.dataType != told[field.name]]
        return self.speed.withColumns({field.name: _converted(self.speed, field.name, field.dataType) for field in other})


def _converted(frame: DataFrame, column: str, to: DataType) -> Column:
    """The column in another type; null where that is not possible."""
    converted = F.col(column).try_cast(to)
    try:
        frame.select(converted)
    except AnalysisException:
        return F.lit(None).cast(to)
    return converted


def pin_view(spark: SparkSession, call: Call, view: str, fingerprint: str, day: date, earliest: date) -> Pin:
    """The last words that were told, and all batches up to the last that could have told one.

    Read in this order the batches can only be too few by ones that told nothing: those are read again by the next night.
    """
    name = call.pipeline.name
    checkpoint = call.lake.checkpoint(name, view_query(view), fingerprint)
    last, speed = committed_batch(checkpoint), None
    table = call.lake.speed(name, view, fingerprint)
    if exists(spark, table):
        said = read(spark, table, last_version(spark, table)).filter(F.col("_day") == F.lit(day))
        newest = said.agg(F.max(F.struct("_generation", "_batch")).alias("newest")).first()
        if newest and newest["newest"]:
            last = max(last, newest["newest"]["_batch"])
        speed = last_words(said, call.pipeline.views[view].grain)
    batches = read_progress(spark, call.lake.progress(name), view_query(view), checkpoint, day_bounds(earliest)[0])
    return Pin(speed, [own for own in batches if own.batch <= last])


def archive_ends(spark: SparkSession, call: Call, pins: Iterable[Pin]) -> dict[str, int]:
    """By topic/partition how far raw reaches: at least as far as the views had read, if the archive gets there in a minute."""
    needed = read_until(own for pin in pins for own in pin.batches)
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
        return {f"{topic}/{partition}": end for (topic, partition), end in next_offsets(checkpoint).items()}
    ends = read(spark, call.lake.raw(call.pipeline.name)).groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    return {f"{row['topic']}/{row['partition']}": row["last"] + 1 for row in ends}


def _is_alive(call: Call) -> bool:
    beat = Control(call.lake.control(call.pipeline.name)).heartbeat()
    return beat is not None and beat.is_of_a_runner


def batches_beyond(batches: list[BatchRange], ends: dict[str, int]) -> range:
    """The batches that had read further than raw reaches: from the first such one to the last that is known."""
    beyond = [own.batch for own in batches if own.until_offset > ends.get(own.place, 0)]
    return range(min(beyond), max(own.batch for own in batches) + 1) if beyond else range(0)

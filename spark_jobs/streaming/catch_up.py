"""Raw → journal, for what the intake has not judged and Kafka no longer holds: a changed contract, an older lake, a long stop."""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.columns import OFFSET, PARTITION, POSITION, RECEIVED_AT, STREAM, TOPIC
from spark_jobs.intake.intake import Intake
from spark_jobs.tables import exists, read
from weir.layout import Lake

BATCH_MESSAGES = 200_000

Ranges = dict[str, tuple[int, int]]
"""By topic/partition a half-open range of offsets."""


def take_in_from_raw(spark: SparkSession, lake: Lake, intake: Intake, first: Mapping[str, int], check: Callable[[], None]) -> None:
    """Judge the archived messages between what the journal has and the first offset that Kafka still has."""
    path = lake.raw(intake.pipeline.name)
    if not any(end > intake.until.get(place, 0) for place, end in first.items()) or not exists(spark, path):
        return
    raw = read(spark, path)
    wanted = {place: (intake.until.get(place, 0), end) for place, end in first.items() if end > intake.until.get(place, 0)}
    for ranges in batches_of(_archived(raw, wanted), BATCH_MESSAGES):
        check()
        print(f"intake: {sum(end - start for start, end in ranges.values()):,} offsets are read from the archive", flush=True)
        rows = raw.filter(_is_in(ranges)).select(*POSITION, RECEIVED_AT, "value", STREAM)
        frames = {source: rows.filter(F.col(STREAM) == source) for source in intake.pipeline.sources}
        intake.take_in(intake.candidates(frames), {place: end for place, (_, end) in ranges.items()}, check)


def _archived(raw: DataFrame, wanted: Ranges) -> Ranges:
    """What raw has of these ranges."""
    ends = raw.filter(_is_in(wanted)).groupBy(TOPIC, PARTITION).agg(F.min(OFFSET).alias("first"), F.max(OFFSET).alias("last")).collect()
    return {f"{row[TOPIC]}/{row[PARTITION]}": (row["first"], row["last"] + 1) for row in ends}


def batches_of(ranges: Ranges, batch_messages: int) -> Iterator[Ranges]:
    """Cut ranges into batches in which each partition advances by the same share of its range, so that event time advances evenly."""
    total = sum(end - start for start, end in ranges.values())
    pieces = -(-total // batch_messages)
    for piece in range(pieces):
        cut = {
            place: (start + (end - start) * piece // pieces, start + (end - start) * (piece + 1) // pieces)
            for place, (start, end) in ranges.items()
        }
        yield {place: own for place, own in cut.items() if own[0] < own[1]}


def _is_in(ranges: Ranges) -> Column:
    def is_in(place: str, start: int, end: int) -> Column:
        topic, _, partition = place.rpartition("/")
        return (F.col(TOPIC) == topic) & (F.col(PARTITION) == int(partition)) & (F.col(OFFSET) >= start) & (F.col(OFFSET) < end)

    return reduce(Column.__or__, (is_in(place, *own) for place, own in ranges.items()), F.lit(False))

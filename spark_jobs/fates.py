"""Raw events + progress → one fate each: what became of every event in one view.

The rules are Spark's own, and the night can apply them afterwards because the checkpoint's offset log says which batch
read an event and which watermark was in force:

- late: it occurred at or before the watermark of the batch before the one that read it;
- duplicate: an event of its identity was counted before and was not forgotten yet (an identity is forgotten when the
  watermark has reached its event time plus the lateness);
- counted: every other accepted event that a batch has read;
- pending: no batch has read it yet; lost: the view went on behind it without reading it.
"""

from collections.abc import Iterable
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_jobs.progress import BatchRange, read_until
from weir.pipeline import Stream
from weir.records.driver import Loss
from weir.records.night import LatenessChoice

RANGES = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "_bucket": pa.int64(),
        "_from": pa.int64(),
        "_until": pa.int64(),
        "_batch": pa.int64(),
        "_late_before": pa.int64(),
        "_planned_at": pa.timestamp("us", "UTC"),
    }
)
"""As an Arrow table Spark takes a day of batches, one a second, at once; row by row it would take as long as the proof."""
_NEVER = -(2**62)


def with_fates(ranked: DataFrame, stream: Stream, batches: list[BatchRange], lost: list[Loss]) -> DataFrame:
    """The rows of mark_first with `_batch`, `_fate`, `_mixed` and `_moot`.

    `_mixed` are copies of an event that came into one batch with different content: which of them Spark took is chance, and
    any is right. `_moot` are copies of an event of which exactly one was counted, with the content that the batch counts: it
    does not matter which. Nearly all events come once, and those need no look at others.
    """
    read = _with_batch(ranked, stream, batches, lost)
    once = read.filter("_copies = 1").withColumn("_mixed", F.lit(False)).withColumn("_moot", F.lit(False))
    several = read.filter("_copies > 1")
    alone = F.when(F.col("_fate") == "read", "counted").otherwise(F.col("_fate"))
    return once.withColumn("_fate", alone).unionByName(_among_copies(several, stream).persist())


LATENESSES = (0, 10, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
"""Seconds. What people would choose from."""


def count_fates(fated: DataFrame, stream: Stream, day: date) -> list[Row]:
    """By topic, partition and fate, in one pass: how many messages `arrived` on the day, and for the events that occurred on it, how
    many a batch has `read` and how many of those came behind the newest one by each of LATENESSES and more.
    """
    newest = F.col("_late_before") + int(stream.lateness.total_seconds()) * 1_000_000
    behind = newest - F.unix_micros(stream.occurred_at)
    read = F.col("_accepted") & F.col("_batch").isNotNull() & (F.to_date(stream.occurred_at) == F.lit(day))
    late = [
        F.count_if(read & (F.col("_late_before") > 0) & (behind >= own * 1_000_000)).alias(f"behind_{own}") for own in _latenesses(stream)
    ]
    arrived = F.count_if(F.to_date("received_at") == F.lit(day)).alias("arrived")
    found = fated.groupBy("topic", "partition", "_fate").agg(arrived, F.count_if(read).alias("read"), *late)
    return found.filter("arrived > 0 OR read > 0").collect()


def lateness_choices(counted: list[Row], stream: Stream) -> list[LatenessChoice]:
    """What each lateness would have cost and gained on the day.

    How far an event came behind the newest one of the batches before does not depend on the lateness; which of them are late does.
    """
    if not (read := sum(row["read"] for row in counted)):
        return []
    late = {own: sum(row[f"behind_{own}"] for row in counted) for own in _latenesses(stream)}
    return [LatenessChoice(seconds=own, late=late[own], state=round(read * 2 * own / 86_400)) for own in late]


def _latenesses(stream: Stream) -> list[int]:
    return sorted({*LATENESSES, int(stream.lateness.total_seconds())})


def _with_batch(ranked: DataFrame, stream: Stream, batches: list[BatchRange], lost: list[Loss]) -> DataFrame:
    """Every row with its batch, and all of its fate that needs no look at other rows; 'read' is counted or duplicate.

    Of messages that the log dropped before the view read them the archive may still have a copy: for the view they are lost.
    """
    size = _bucket_size(batches)
    rows = [dict(zip(RANGES.names, own, strict=True)) for own in _in_buckets(batches, size)]
    ranges = ranked.sparkSession.createDataFrame(pa.Table.from_pylist(rows, RANGES))
    bucket = F.floor(F.col("offset") / size).cast("bigint")
    within = (F.col("offset") >= F.col("_from")) & (F.col("offset") < F.col("_until"))
    placed = ranked.withColumn("_bucket", bucket)
    same = (placed["topic"] == ranges["topic"]) & (placed["partition"] == ranges["partition"]) & (placed["_bucket"] == ranges["_bucket"])
    found = placed.join(F.broadcast(ranges), same & within, "left").drop(ranges["topic"], ranges["partition"], ranges["_bucket"])
    ends = F.create_map(*(F.lit(word) for pair in read_until(batches).items() for word in pair)) if batches else None
    behind = F.coalesce(F.col("offset") < ends[_place()], F.lit(False)) if ends is not None else F.lit(False)
    fate = (
        F.when(F.col("_undecodable").isNotNull(), "undecodable")
        .when(~F.col("_accepted"), "rejected")
        .when(_is_in(lost), "lost")
        .when(F.col("_batch").isNull(), F.when(behind, "lost").otherwise("pending"))
        .when(F.unix_micros(stream.occurred_at) <= F.col("_late_before"), "late")
        .otherwise("read")
    )
    return found.withColumn("_fate", fate).drop("_bucket", "_from", "_until")


def _among_copies(several: DataFrame, stream: Stream) -> DataFrame:
    """Fold the copies of each identity in the order in which the view read them, as Spark's state does."""
    columns = several.columns
    ahead = F.unix_millis(stream.occurred_at) * 1_000 + int(stream.lateness.total_seconds() * 1_000_000)
    is_read = F.when(F.col("_fate") == "read", 0).otherwise(1)
    copy = F.struct(
        is_read.alias("_order"),
        F.col("_batch").alias("_in_batch"),
        *(F.col(name).alias(f"_by_{name}") for name in ("received_at", "topic", "partition", "offset")),
        ahead.alias("_kept_until"),
        F.xxhash64(*stream.columns).alias("_content"),
        F.struct(*columns).alias("_row"),
    )
    folded = several.groupBy(F.col(stream.identity).alias("_identity")).agg(F.array_sort(F.collect_list(copy)).alias("_list"))
    start = F.struct(F.lit(_NEVER).alias("kept_until"), F.array().cast("array<string>").alias("fates"))

    def step(state: Column, own: Column) -> Column:
        read = own["_order"] == 0
        known = state["kept_until"] > own["_row"]["_late_before"]
        counted = read & ~known
        fate = F.when(~read, own["_row"]["_fate"]).when(counted, "counted").otherwise("duplicate")
        kept_until = F.when(counted, own["_kept_until"]).otherwise(state["kept_until"])
        return F.struct(kept_until.alias("kept_until"), F.concat(state["fates"], F.array(fate)).alias("fates"))

    fates = F.aggregate("_list", start, step)["fates"]
    by_batch = F.transform(F.filter("_list", lambda own: own["_order"] == 0), lambda own: F.struct(own["_in_batch"], own["_content"]))
    # More contents than batches: some batch saw two of them.
    contents = F.array_distinct(by_batch)
    batches = F.array_distinct(F.transform(contents, lambda own: own["_in_batch"]))
    mixed = F.size(contents) > F.size(batches)
    told = folded.withColumn("_fates", fates)
    counted = F.filter(
        F.zip_with("_list", "_fates", lambda own, fate: F.when(fate == "counted", own["_content"])), lambda own: own.isNotNull()
    )
    first = F.element_at(F.filter("_list", lambda own: own["_row"]["_first"]), 1)["_content"]
    moot = F.coalesce((F.size(counted) == 1) & (F.element_at(counted, 1) == first), F.lit(False))
    each = told.select(F.explode(F.arrays_zip("_list", "_fates")).alias("_own"), mixed.alias("_mixed"), moot.alias("_moot"))
    kept = [F.col(f"_own._list._row.{name}").alias(name) for name in columns if name != "_fate"]
    fate = F.when(F.col("_own._list._row._fate") == "read", F.col("_own._fates")).otherwise(F.col("_own._list._row._fate"))
    return each.select(*kept, fate.alias("_fate"), "_mixed", "_moot")


def _is_in(lost: list[Loss]) -> Column:
    found = F.lit(False)
    for own in lost:
        within = (F.col("offset") >= own.from_offset) & (F.col("offset") < own.until_offset)
        found = found | ((F.col("topic") == own.topic) & (F.col("partition") == own.partition) & within)
    return found


def _place() -> Column:
    return F.concat_ws("/", F.col("topic"), F.col("partition"))


def _bucket_size(batches: list[BatchRange]) -> int:
    """About the length of a range, so that a row meets two or three of them."""
    lengths = [own.until_offset - own.from_offset for own in batches if own.until_offset > own.from_offset]
    return max(1, sum(lengths) // len(lengths)) if lengths else 1


def _in_buckets(batches: Iterable[BatchRange], size: int) -> Iterable[tuple[Any, ...]]:
    """Each range under every bucket of offsets that it touches: so that Spark can look a batch up by equality."""
    watermarks = {own.batch: own.watermark_ms for own in batches}
    for own in batches:
        if own.until_offset > own.from_offset:
            late_before = watermarks.get(own.batch - 1, 0) * 1_000
            for bucket in range(own.from_offset // size, (own.until_offset - 1) // size + 1):
                yield own.topic, own.partition, bucket, own.from_offset, own.until_offset, own.batch, late_before, own.planned_at

"""Kafka as a streaming source, and what the log has dropped before it was read."""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession

from weir.event_time import utc_now
from weir.layout import Lake
from weir.records.driver import Loss, Losses
from weir.stack import first_offsets

EARLIEST = -2
"""Kafka's number for the first offset that a partition still has."""


def read_messages(
    spark: SparkSession,
    kafka: str,
    pipeline: str,
    topics: list[str],
    max_messages: int | None,
    strict: bool,
    from_offsets: str = "earliest",
    headers: bool = False,
) -> DataFrame:
    """The committed messages of these topics as raw rows, with the headers only where they are kept.

    Lost offsets end a strict query: going on would be silent loss. One that is not strict goes on behind what is booked as lost.
    """
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", from_offsets)
        .option("failOnDataLoss", strict)
        .option("includeHeaders", headers)
        .option("groupIdPrefix", f"weir-{pipeline}")
        .option("kafka.isolation.level", "read_committed")  # messages of aborted transactions are no events
    )
    if max_messages is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_messages)
    kept = ["topic", "partition", "offset", "timestamp AS received_at", "key", "value", *(["headers"] if headers else [])]
    return reader.load().selectExpr(*kept)


def dropped_ranges(query: str, next_offsets: Mapping[str, int], kafka: str, topics: Iterable[str]) -> list[Loss]:
    """What the log has dropped behind the offsets at which a query goes on."""
    first = first_offsets(kafka, list(topics))
    return [
        Loss(
            query=query,
            topic=place.rpartition("/")[0],
            partition=int(place.rpartition("/")[2]),
            from_offset=own,
            until_offset=first[place],
            noticed_at=utc_now(),
        )
        for place, own in sorted(next_offsets.items())
        if first.get(place, 0) > own
    ]


def book_losses(lake: Lake, pipeline: str, lost: list[Loss]) -> list[Loss]:
    """Note losses for the ledger, each once; those that are new."""
    known = Losses.read(lake.losses(pipeline)) or Losses()
    booked = {(loss.query, loss.topic, loss.partition, loss.from_offset): loss.until_offset for loss in known.found}
    new = [loss for loss in lost if booked.get((loss.query, loss.topic, loss.partition, loss.from_offset), 0) < loss.until_offset]
    if new:
        Losses(found=[*known.found, *new]).write(lake.losses(pipeline))
    for loss in new:
        count = loss.until_offset - loss.from_offset
        print(f"{loss.query}: {count:,} messages of {loss.topic}/{loss.partition} from offset {loss.from_offset:,} are lost", flush=True)
    return new

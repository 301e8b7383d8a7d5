"""What each micro-batch of a query read, and the watermark in force: copied from the checkpoint's own offset log.

Spark writes `offsets/<N>` before it runs batch N, so nothing is missing after a crash, as listener events are. It purges
old files, so the log is copied into a table while the query runs.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.tables import append_once, exists, read
from weir.lake_files import lake_path
from weir.layout import app_id

SCHEMA = StructType(
    [
        StructField("query", StringType()),
        StructField("generation", StringType()),
        StructField("batch", LongType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("from_offset", LongType()),
        StructField("until_offset", LongType()),
        StructField("watermark_ms", LongType()),
        StructField("planned_at", TimestampType()),
    ]
)


@dataclass(frozen=True)
class BatchRange:
    """The half-open range of offsets that one batch read of one partition. `generation` is the checkpoint's id."""

    query: str
    generation: str
    batch: int
    topic: str
    partition: int
    from_offset: int
    until_offset: int
    watermark_ms: int
    planned_at: datetime

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}"


def read_until(batches: Iterable[BatchRange]) -> dict[str, int]:
    """By topic/partition the offset up to which these batches have read."""
    ends: dict[str, int] = {}
    for own in batches:
        ends[own.place] = max(own.until_offset, ends.get(own.place, 0))
    return ends


def checkpoint_id(checkpoint: str) -> str:
    """The id that Spark gave the checkpoint when it was new: another one after a reset."""
    return str(json.loads((lake_path(checkpoint) / "metadata").read_text())["id"])


def committed_batch(checkpoint: str) -> int:
    """The last batch whose cells are told for sure, or -1."""
    return max((int(file.name) for file in (lake_path(checkpoint) / "commits").glob("*") if file.name.isdigit()), default=-1)


def next_offsets(checkpoint: str) -> dict[tuple[str, int], int]:
    """Where the query goes on: behind its last committed batch, or where it began. A batch that was only planned runs again."""
    if (last := committed_batch(checkpoint)) >= 0:
        return _offsets(lake_path(checkpoint) / "offsets" / str(last))
    return _initial_offsets(checkpoint)


def read_log(query: str, checkpoint: str, after_batch: int = -1) -> list[BatchRange]:
    """The ranges of all batches after the given one that the checkpoint still knows."""
    offsets = lake_path(checkpoint) / "offsets"
    numbers = sorted(int(file.name) for file in offsets.glob("*") if file.name.isdigit())
    wanted = [number for number in numbers if number > after_batch]
    if not wanted:
        return []
    generation = checkpoint_id(checkpoint)
    before = _initial_offsets(checkpoint) if wanted[0] == 0 else _offsets(offsets / str(wanted[0] - 1))
    ranges: list[BatchRange] = []
    for number in wanted:
        until = _offsets(offsets / str(number))
        ranges += _ranges(query, generation, number, before, until, _header(offsets / str(number)))
        before = until
    return ranges


def _ranges(
    query: str, generation: str, batch: int, before: dict[tuple[str, int], int], until: dict[tuple[str, int], int], header: dict[str, int]
) -> Iterator[BatchRange]:
    planned_at = datetime.fromtimestamp(header["batchTimestampMs"] / 1_000, UTC)
    for (topic, partition), end in sorted(until.items()):
        start = before.get((topic, partition), 0)
        yield BatchRange(query, generation, batch, topic, partition, start, end, header["batchWatermarkMs"], planned_at)


def _header(file: Path) -> dict[str, int]:
    header: dict[str, int] = json.loads(file.read_text().splitlines()[1])
    return header


def _offsets(file: Path) -> dict[tuple[str, int], int]:
    """The offsets up to which a batch read. A source that had nothing new yet stands there as '-'."""
    return _by_partition(file.read_text().splitlines()[2:])


def _initial_offsets(checkpoint: str) -> dict[tuple[str, int], int]:
    files = sorted((lake_path(checkpoint) / "sources").glob("*/0"))
    return _by_partition([file.read_text().splitlines()[-1] for file in files])


def _by_partition(lines: list[str]) -> dict[tuple[str, int], int]:
    read = [json.loads(line) for line in lines if line.startswith("{")]
    return {(topic, int(partition)): offset for source in read for topic, part in source.items() for partition, offset in part.items()}


class ProgressCopy:
    """Copies one query's log into the pipeline's progress table, each batch once."""

    def __init__(self, spark: SparkSession, pipeline: str, table: str, query: str, checkpoint: str) -> None:
        self._spark, self._pipeline, self._table, self._query, self._checkpoint = spark, pipeline, table, query, checkpoint
        self._copied: int | None = None

    def copy(self) -> None:
        """Append what the checkpoint has planned since the last call."""
        if not (lake_path(self._checkpoint) / "metadata").exists():
            return
        if self._copied is None:
            self._copied = self._last_copied()
        if ranges := read_log(self._query, self._checkpoint, self._copied):
            last = ranges[-1].batch
            identity = app_id(self._pipeline, f"progress_{self._query}", checkpoint_id(self._checkpoint))
            rows = self._spark.createDataFrame([astuple(r) for r in ranges], SCHEMA).coalesce(1)
            append_once(rows, self._table, ["query"], identity, last, {"query": self._query, "batches": [ranges[0].batch, last]})
            self._copied = last

    def _last_copied(self) -> int:
        if not exists(self._spark, self._table):
            return -1
        own = (F.col("query") == self._query) & (F.col("generation") == checkpoint_id(self._checkpoint))
        row = read(self._spark, self._table).filter(own).agg(F.max("batch")).first()
        return -1 if row is None or row[0] is None else int(row[0])


def read_progress(spark: SparkSession, table: str, query: str, checkpoint: str, since: datetime) -> list[BatchRange]:
    """What is known of a query's batches in its present checkpoint: the table, and what the log has beyond it.

    All batches that were planned since then, and the one before them.
    """
    if not (lake_path(checkpoint) / "metadata").exists():
        return []
    copied: list[BatchRange] = []
    if exists(spark, table):
        own = read(spark, table).filter((F.col("query") == query) & (F.col("generation") == checkpoint_id(checkpoint)))
        before = own.filter(F.col("planned_at") < F.lit(since)).agg(F.max("batch")).first()
        if before and before[0] is not None:
            own = own.filter(F.col("batch") >= before[0])
        rows = own.withColumn("planned_at", F.unix_micros("planned_at")).collect()
        copied = [BatchRange(**row.asDict() | {"planned_at": datetime.fromtimestamp(row["planned_at"] / 1e6, UTC)}) for row in rows]
    last = max((r.batch for r in copied), default=-1)
    return sorted(copied + read_log(query, checkpoint, last), key=lambda r: (r.batch, r.topic, r.partition))

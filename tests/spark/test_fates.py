"""Fates against Spark itself: what a real streaming query lets through is what the fates call counted, per event."""

import json
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from events import NOON, message, order
from oracle import Message
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.fates import count_fates, lateness_choices, with_fates
from spark_jobs.progress import BatchRange
from spark_jobs.transform import MESSAGE, dedupe_stream, judged_rows, mark_copies
from weir.pipeline import Pipeline, Stream
from weir.records.driver import Loss

LATENESS = timedelta(minutes=10)
Batch = list[Message]


def streamed(spark: SparkSession, folder: Path, stream: Stream, batches: list[Batch]) -> tuple[list[tuple[int, Row]], list[int]]:
    """What a real query with these very batches lets through, with the batch, and the watermark of each batch from its own log."""
    (folder / "in").mkdir()
    for number, batch in enumerate(batches):
        columns = {
            "topic": pa.array([m.topic for m in batch]),
            "partition": pa.array([m.partition for m in batch], pa.int32()),
            "offset": pa.array([m.offset for m in batch], pa.int64()),
            "received_at": pa.array([m.received_at for m in batch], pa.timestamp("us", "UTC")),
            "value": pa.array([m.value for m in batch], pa.binary()),
        }
        file = folder / "in" / f"{number:03d}.parquet"
        pq.write_table(pa.table(columns), file)
        os.utime(file, (1_772_000_000 + number,) * 2)  # Spark reads them in the order of their times
    passed: list[tuple[int, Row]] = []

    def keep(frame: DataFrame, number: int) -> None:
        passed.extend((number, row) for row in frame.select("partition", "offset", stream.identity, "amount").collect())

    source = spark.readStream.schema(MESSAGE).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = dedupe_stream(judged_rows(source, stream).filter("_accepted"), stream).writeStream.foreachBatch(keep)
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    logged = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return passed, [json.loads(file.read_text().splitlines()[1])["batchWatermarkMs"] for file in logged]


def ranges(batches: list[Batch], watermarks: list[int]) -> list[BatchRange]:
    found = []
    ends: Counter[int] = Counter()
    for number, watermark in enumerate(watermarks):
        for partition in (0, 1):
            own = [m.offset for m in batches[number] if m.partition == partition] if number < len(batches) else []
            start, ends[partition] = ends[partition], ends[partition] + len(own)
            assert not own or (min(own), max(own) + 1) == (start, ends[partition])
            found.append(BatchRange("view_v", "g", number, "shop.orders", partition, start, ends[partition], watermark, NOON))
    return found


def frame_of(spark: SparkSession, stream: Stream, messages: Batch, batches: list[BatchRange], lost: list[Loss]) -> DataFrame:
    frame = spark.createDataFrame([(m.topic, m.partition, m.offset, m.received_at, m.value) for m in messages], MESSAGE)
    ranked = mark_copies(judged_rows(frame, stream).drop("_payload"), stream)
    return with_fates(ranked, stream, batches, lost)


def fated(spark: SparkSession, stream: Stream, messages: Batch, batches: list[BatchRange], lost: list[Loss] | None = None) -> list[Row]:
    rows = frame_of(spark, stream, messages, batches, lost or []).collect()
    assert Counter((r["partition"], r["offset"]) for r in rows) == Counter((m.partition, m.offset) for m in messages), "each message once"
    return rows


class Log:
    """Messages with rising offsets in two partitions, cut into batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = [[]]
        self._next: Counter[int] = Counter()
        self._arrived = 0

    def send(self, identity: str, at: datetime, partition: int = 0, **columns: Any) -> None:
        received_at = max(at, NOON) + timedelta(days=1, milliseconds=self._arrived)
        self.batches[-1].append(message(order(identity, at, **columns), self._next[partition], received_at, partition=partition))
        self._next[partition] += 1
        self._arrived += 1

    def cut(self) -> None:
        self.batches.append([])

    @property
    def messages(self) -> Batch:
        return [m for batch in self.batches for m in batch]


def as_counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter((r["_batch"], r["order_id"], r["amount"]) for r in rows if r["_fate"] == "counted")


def as_passed(passed: list[tuple[int, Row]]) -> Counter[tuple[Any, ...]]:
    return Counter((number, row["order_id"], row["amount"]) for number, row in passed)


def test_the_rules_hold_to_the_millisecond(spark: SparkSession, shop: Pipeline, tmp_path: Path) -> None:
    """An event at the watermark is late, one behind it is not; an identity is forgotten when the watermark reaches its time + lateness."""
    stream, ms = shop.streams["orders"].model_copy(update={"oldest": timedelta(days=36_500)}), timedelta(milliseconds=1)
    log = Log()
    log.send("o-old", datetime(1969, 7, 20, tzinfo=UTC))
    log.send("o-early", NOON - timedelta(minutes=20))
    log.send("o-1", NOON)  # the watermark will be 11:50
    log.cut()
    log.send("o-2", NOON + timedelta(seconds=1))
    log.cut()
    log.send("o-at", NOON - LATENESS)
    log.send("o-behind", NOON - LATENESS + ms)
    log.send("o-1", NOON + timedelta(minutes=9), amount="99.00")  # the same identity at another time
    log.send("o-3", NOON + LATENESS * 2)
    log.cut()
    log.send("o-4", NOON + LATENESS * 2)
    log.cut()
    log.send("o-1", NOON + LATENESS * 2, amount="77.00")  # the watermark has reached 12:10, where o-1 was kept until
    log.send("o-2", NOON + LATENESS * 2, amount="66.00")  # and this one has a second left
    log.cut()
    log.send("o-5", NOON + LATENESS * 2)
    passed, watermarks = streamed(spark, tmp_path, stream, log.batches)
    rows = fated(spark, stream, log.messages, ranges(log.batches, watermarks))
    assert as_counted(rows) == as_passed(passed)
    fates = {(r["order_id"], r["ordered_at"], r["amount"] == 10): r["_fate"] for r in rows}
    told = {(identity, plain): fate for (identity, _, plain), fate in fates.items()}
    assert told["o-at", True] == "late" and told["o-behind", True] == "counted" and told["o-old", True] == "late"
    assert Counter(r["_fate"] for r in rows if r["order_id"] == "o-1") == {"counted": 2, "duplicate": 1}
    assert Counter(r["_fate"] for r in rows if r["order_id"] == "o-2") == {"counted": 1, "duplicate": 1}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
def test_random_days_come_out_as_spark_had_them(spark: SparkSession, shop: Pipeline, tmp_path: Path, seed: int) -> None:
    """Late ones, copies with the same and with other content, in the same and in other batches and partitions; every event compared."""
    stream, chance, log = shop.streams["orders"], random.Random(seed), Log()
    sent: list[tuple[str, datetime, int]] = []
    for number in range(120):
        at = NOON + timedelta(seconds=number * 50 - chance.choice([0, 0, 0, 30, 500, 900, 3_000]))
        partition = chance.randrange(2)
        log.send(f"o-{number}", at, partition)
        sent.append((f"o-{number}", at, partition))
        if chance.random() < 0.25:
            identity, at, partition = chance.choice(sent[-25:])
            shift = chance.choice([0, 0, 0, 30, 900])
            # Another amount only in another batch: which of two in one batch Spark takes is chance.
            amount = "10.00" if not shift else f"{20 + number}.00"
            if shift:
                log.cut()
            log.send(identity, at + timedelta(seconds=shift), chance.choice([partition, 1 - partition]), amount=amount)
            if shift:
                log.cut()
        if chance.random() < 0.08:
            log.cut()
    log.batches = [batch for batch in log.batches if batch]
    passed, watermarks = streamed(spark, tmp_path, stream, log.batches)
    rows = fated(spark, stream, log.messages, ranges(log.batches, watermarks))
    assert as_counted(rows) == as_passed(passed)
    fates = Counter(r["_fate"] for r in rows)
    assert fates["late"] > 5 and fates["duplicate"] > 5 and fates["counted"] > 80
    assert set(fates) == {"late", "duplicate", "counted"}
    frame = frame_of(spark, stream, log.messages, ranges(log.batches, watermarks), [])
    choices = lateness_choices(count_fates(frame, stream, NOON.date()), stream)
    by_seconds = {own.seconds: own.late for own in choices}
    assert by_seconds[int(LATENESS.total_seconds())] == fates["late"], "by the declared lateness, those that were late"
    assert sorted(by_seconds.values(), reverse=True) == list(by_seconds.values()) and by_seconds[86_400] == 0


def test_what_the_view_did_not_read_is_pending_or_lost(spark: SparkSession, shop: Pipeline) -> None:
    stream, log = shop.streams["orders"], Log()
    for number in range(10):
        log.send(f"o-{number}", NOON)
    log.send("o-10", NOON, amount="abc")
    log.send("o-11", NOON, partition=1)
    batches = [BatchRange("view_v", "g", 0, "shop.orders", 0, 2, 6, 0, NOON), BatchRange("view_v", "g", 1, "shop.orders", 0, 6, 9, 0, NOON)]
    noted = Loss(query="view_v", topic="shop.orders", partition=0, from_offset=4, until_offset=6, noticed_at=NOON)
    fates = {r["order_id"]: r["_fate"] for r in fated(spark, stream, log.messages, batches, [noted])}
    expected = ["lost", "lost", "counted", "counted", "lost", "lost", "counted", "counted", "counted", "pending", "rejected", "pending"]
    assert [fates[f"o-{number}"] for number in range(12)] == expected
    assert {r["_fate"] for r in fated(spark, stream, log.messages, [])} == {"pending", "rejected"}, "a view that never ran"


def test_copies_with_other_content_in_one_batch_are_marked(spark: SparkSession, shop: Pipeline) -> None:
    stream, log = shop.streams["orders"], Log()
    for identity, amounts in {"o-same": ("10.00", "10.00"), "o-other": ("10.00", "11.00"), "o-once": ("10.00",)}.items():
        for amount in amounts:
            log.send(identity, NOON, amount=amount)
    log.cut()
    log.send("o-later", NOON)
    log.cut()
    log.send("o-later", NOON, amount="12.00")
    rows = fated(spark, stream, log.messages, ranges(log.batches, [0, 0, 0]))
    assert {r["order_id"]: (r["_mixed"], r["_moot"]) for r in rows} == {
        "o-same": (False, True),
        "o-other": (True, True),
        "o-once": (False, False),
        "o-later": (False, True),
    }

"""One declaration, the same numbers: as a batch, as a stream however it is cut, and in the oracle's plain Python."""

import itertools
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from events import click, message, order, payment, search
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from oracle import Cells, Message
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.stream_job import output_mode
from spark_jobs.transform import MESSAGE, accepted_rows, compute_view, dedupe_stream, judged_rows, mark_first
from weir.generator import Shares, load_produce
from weir.pipeline import Pipeline
from weir.produce import plan_events

DAY = date(2026, 3, 1)
NO_LATE_ONES = Shares(dirty=0.05, late=0, duplicate=0.05, out_of_order=0.2, skewed=0.05, future=0.01)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def messages(shop: Pipeline) -> dict[str, list[Message]]:
    """Per stream some hundred messages of a day in the order of their arrival, with every fault but late ones."""
    declaration = load_produce(ROOT / "pipelines" / "shop", shop)
    now = datetime(2026, 3, 3, tzinfo=UTC)
    offsets: dict[str, Iterator[int]] = {name: itertools.count() for name in shop.sources}
    found: dict[str, list[Message]] = {name: [] for name in shop.sources}
    for event in plan_events(shop, declaration, DAY, 3_000, 11, NO_LATE_ONES, None, None, now):
        found[event.stream].append(Message(event.topic, 0, next(offsets[event.stream]), event.arrives_at, event.value))
    for stream in found:
        found[stream].append(_flush(stream, found[stream][-1]))
    return found


def _flush(stream: str, last: Message) -> Message:
    """An event two days later: it moves the watermark past all others, so that everything closes."""
    at = last.received_at + timedelta(days=2)
    documents = {"clicks": click("flush", at, customer_id=-1), "payments": payment("flush", at), "searches": search("flush", at)}
    return message(documents.get(stream, order("flush", at, country="XX")), last.offset + 1, at, last.topic)


def frame(spark: SparkSession, messages: list[Message]) -> DataFrame:
    rows = [(m.topic, m.partition, m.offset, m.received_at, m.value) for m in messages]
    return spark.createDataFrame(rows, MESSAGE).coalesce(1)


def as_cells(rows: list[Any], grain: list[str]) -> Cells:
    cells = {}
    for row in rows:
        values = {k: v.replace(tzinfo=None).astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.asDict().items()}
        key = tuple(values.pop(column) for column in grain)
        cells[key] = tuple(values.values())
    return cells


def truth(view: str, messages: dict[str, list[Message]]) -> Cells:
    return oracle.truth(view, messages.__getitem__)


def run_as_batch(spark: SparkSession, shop: Pipeline, view: str, messages: dict[str, list[Message]]) -> Cells:
    frames = {}
    for name in shop.streams_of(view):
        stream = shop.streams[name]
        ranked = mark_first(judged_rows(frame(spark, messages[name]), stream), stream)
        frames[name] = ranked.filter("_first").select(*stream.columns)
    return as_cells(compute_view(spark, shop, view, frames).collect(), shop.views[view].grain)


Pieces = list[list[Message]]


def run_as_stream(spark: SparkSession, shop: Pipeline, view: str, pieces: dict[str, Pieces], folder: Path, crash_in: int = -1) -> Cells:
    """Each piece is what one micro-batch reads of a stream. With `crash_in` the sink dies in that batch, and the query is started again."""
    shutil.rmtree(folder, ignore_errors=True)
    frames = {}
    for name in shop.streams_of(view):
        source = folder / name
        source.mkdir(parents=True)
        for number, piece in enumerate(pieces[name]):
            frame(spark, piece).write.parquet(str(folder / "staged" / name / str(number)))
            (part,) = (folder / "staged" / name / str(number)).glob("part-*.parquet")
            os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))
            part.rename(source / f"{number:03}.parquet")
        live = spark.readStream.schema(MESSAGE).option("maxFilesPerTrigger", 1).parquet(str(source))
        frames[name] = dedupe_stream(accepted_rows(live, shop.streams[name]), shop.streams[name])
    cells = compute_view(spark, shop, view, frames)
    told: dict[int, Cells] = {}
    crashes = [crash_in]

    def sink(changed: DataFrame, batch: int) -> None:
        told[batch] = as_cells(changed.collect(), shop.views[view].grain)
        if batch in crashes:
            crashes.clear()
            raise RuntimeError("crash")

    writer = cells.writeStream.outputMode(output_mode(cells)).foreachBatch(sink).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if crash_in >= 0:
        with pytest.raises(Exception, match="crash"):
            writer.start().awaitTermination()
    writer.start().awaitTermination()
    last_words: Cells = {}
    for _, changed in sorted(told.items()):
        last_words |= changed
    return last_words


def cut(messages: list[Message], at: set[int]) -> list[list[Message]]:
    borders = [0, *sorted(at), len(messages) - 1, len(messages)]
    return [messages[a:b] for a, b in itertools.pairwise(borders) if a < b]


def without_flush(cells: Cells) -> Cells:
    return {grain: values for grain, values in cells.items() if not {"XX", -1, "flush"} & set(grain)}


ONE_OF_EACH_KIND = ["revenue_per_minute", "payments_per_hour", "visits", "clicked_searches", "paid_orders"]


@pytest.mark.parametrize("view", ONE_OF_EACH_KIND)
def test_batch_equals_the_oracle(spark: SparkSession, shop: Pipeline, messages: dict[str, list[Message]], view: str) -> None:
    expected = truth(view, messages)
    assert len(expected) > 40
    assert run_as_batch(spark, shop, view, messages) == expected


@pytest.mark.parametrize("view", ["revenue_per_minute", "visits", "clicked_searches", "paid_orders"])
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(cuts=st.sets(st.floats(0, 1), max_size=4), crash=st.integers(-1, 2))
def test_random_cuts_and_a_crash_change_nothing(
    spark: SparkSession, shop: Pipeline, messages: dict[str, list[Message]], tmp_path: Path, view: str, cuts: set[float], crash: int
) -> None:
    pieces = {name: cut(own, {int(share * (len(own) - 1)) for share in cuts}) for name, own in messages.items()}
    batches = max(len(pieces[name]) for name in shop.streams_of(view))
    streamed = run_as_stream(spark, shop, view, pieces, tmp_path / "run", min(crash, batches - 1))
    assert without_flush(streamed) == without_flush(truth(view, messages))

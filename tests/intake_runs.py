"""The intake run over messages that a test makes, without a broker: as the driver would run it."""

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from oracle import Message
from pyspark.sql import SparkSession

from spark_jobs.intake.aggregates import AggregateView
from spark_jobs.intake.intake import Intake
from spark_jobs.intake.mergeable import mergeable_views
from spark_jobs.transform import MESSAGE
from weir.generator import Shares, load_produce
from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.produce import plan_events


def open_intake(spark: SparkSession, lake: Lake, pipeline: Pipeline, generation: int = 1) -> Intake:
    """A prepared intake, as after a start of the driver."""
    aggregates = [AggregateView(spark, lake, pipeline, *own, generation) for own in mergeable_views(spark, pipeline).items()]
    intake = Intake(spark, lake, pipeline, aggregates)
    intake.prepare()
    return intake


def take_in(spark: SparkSession, intake: Intake, messages: Mapping[str, Iterable[Message]]) -> None:
    """One batch of these messages, by source."""
    frames, until = {}, {}
    for source, given in messages.items():
        own = list(given)
        rows = [(m.topic, m.partition, m.offset, m.received_at, m.value) for m in own]
        frames[source] = spark.createDataFrame(rows, MESSAGE).coalesce(1)
        for m in own:
            place = f"{m.topic}/{m.partition}"
            until[place] = max(m.offset + 1, until.get(place, 0))
    intake.take_in(intake.candidates(frames), until)


def cut(messages: Mapping[str, list[Message]], pieces: int, seed: int) -> list[dict[str, list[Message]]]:
    """The messages, in the order of their arrival, cut into batches at random."""
    everything = sorted(((m.received_at, source, n, m) for source, own in messages.items() for n, m in enumerate(own)), key=lambda x: x[:3])
    chance = random.Random(seed)
    borders = sorted(chance.sample(range(1, len(everything)), pieces - 1))
    found = []
    for start, end in zip([0, *borders], [*borders, len(everything)], strict=True):
        batch: dict[str, list[Message]] = {}
        for _, source, _, m in everything[start:end]:
            batch.setdefault(source, []).append(m)
        found.append(batch)
    return found


def planned_messages(pipeline: Pipeline, folder: Path, events: int, seed: int, shares: Shares | None = None) -> dict[str, list[Message]]:
    """The messages of a simulated day with every fault, as the broker would number them."""
    day, now = date(2026, 3, 1), datetime(2026, 3, 3, tzinfo=UTC)
    planned = plan_events(pipeline, load_produce(folder, pipeline), day, events, seed, shares, None, None, now)
    ends: dict[tuple[str, int], int] = {}
    found: dict[str, list[Message]] = {name: [] for name in pipeline.sources}
    for event in planned:
        partition = hash_of(event.key) % 2
        place = (event.topic, partition)
        offset = ends.get(place, 0)
        ends[place] = offset + 1
        found[pipeline.topics[event.topic]].append(Message(event.topic, partition, offset, event.arrives_at, event.value))
    return found


def hash_of(key: bytes | str | None) -> int:
    return 0 if key is None else sum(key if isinstance(key, bytes) else key.encode())

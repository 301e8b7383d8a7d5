"""The intake: every message gets one fate, whatever the batches; the mergeable views count what was accepted, once."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from deltalake import DeltaTable
from intake_runs import cut, open_intake, planned_messages, take_in
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.intake.intake import Intake
from spark_jobs.journal_source import JournalSource, journal_batches, read_journal
from spark_jobs.output_mode import output_mode
from spark_jobs.streaming.checkpoint import committed_batch, watermark_millis
from spark_jobs.transform import compute_view
from weir.event_time import format_duration
from weir.generator import Shares
from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.serving import answer_query

WITH_LATE = Shares(dirty=0.02, late=0.08, duplicate=0.03, out_of_order=0.1, skewed=0.02, future=0.01)
ROOT = Path(__file__).resolve().parent.parent.parent


def journal_rows(lake: Lake) -> list[dict[str, Any]]:
    columns = ["stream", "topic", "partition", "offset", "fate", "late", "batch", "reasons"]
    return DeltaTable(lake.journal("shop")).to_pyarrow_table(columns=columns).to_pylist()


def test_every_message_of_a_day_has_one_fate_and_views_count_the_accepted(spark: SparkSession, shop: Pipeline, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    messages = planned_messages(shop, ROOT / "pipelines" / "shop", 1_500, 7)
    intake = open_intake(spark, lake, shop)
    for number, batch in enumerate(cut(messages, 6, seed=1)):
        if number == 3:
            intake = open_intake(spark, lake, shop, generation=2)  # a restart
        take_in(spark, intake, batch)
    rows = journal_rows(lake)
    found = Counter((r["stream"], r["topic"], r["partition"], r["offset"]) for r in rows)
    assert found == Counter((s, m.topic, m.partition, m.offset) for s, own in messages.items() for m in own)
    for source in shop.sources:
        fates = {(r["topic"], r["partition"], r["offset"]): r["fate"] for r in rows if r["stream"] == source}
        counted = {(m.topic, m.partition, m.offset) for m, _ in oracle.counted_of(source, messages[source])}
        for m in messages[source]:
            place, (fate, _) = (m.topic, m.partition, m.offset), oracle.fate_of(source, m)
            expected = fate if fate != "accepted" or place in counted else "duplicate"
            assert fates[place] == expected, (m, fates[place])
    for view in ("revenue_per_minute", "payments_per_hour", "revenue_per_segment"):
        answer = answer_query(lake, [shop], f"SELECT * FROM {view}")
        grain = len(shop.views[view].grain)
        cells = {tuple(row[:grain]): tuple(row[grain:-1]) for row in answer.rows}
        assert len(cells) == len(answer.rows)
        assert cells == oracle.truth(view, lambda stream: messages[stream])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_views_on_the_journal_lose_no_event_that_is_not_late(spark: SparkSession, shop: Pipeline, tmp_path: Path, seed: int) -> None:
    """However the intake cuts its batches and the view its own, with backlogs and restarts: Spark's watermark drops nothing more."""
    spark.dataSource.register(JournalSource)
    lake, chance = Lake.at(str(tmp_path / "lake")), random.Random(seed)
    messages = planned_messages(shop, ROOT / "pipelines" / "shop", 1_000, 20 + seed, WITH_LATE)
    intake, words = open_intake(spark, lake, shop), {view: dict[Any, Any]() for view in ("visits", "clicked_searches")}
    for batch in cut(messages, chance.randint(4, 9), seed):
        take_in(spark, intake, batch)
        if chance.random() < 0.5:
            for view, found in words.items():
                run_view(spark, shop, intake, view, chance.choice([50, 300, 5_000]), tmp_path / view, found)
    watermarks = {view: run_view(spark, shop, intake, view, 300, tmp_path / view, found) for view, found in words.items()}
    fates = {(r["topic"], r["partition"], r["offset"]): (r["fate"], r["late"]) for r in journal_rows(lake)}
    rows = {
        stream: [row for m in own if fates[m.topic, m.partition, m.offset] == ("accepted", False) and (row := oracle.fate_of(stream, m)[1])]
        for stream, own in messages.items()
        if stream in ("clicks", "searches")
    }
    assert sum(late for _, late in fates.values()) > 5, "nothing was late: this proves nothing"
    assert words["clicked_searches"] == oracle.clicked_searches(rows["searches"], rows["clicks"])
    closed = {g: c for g, c in oracle.visits(rows["clicks"]).items() if c[2] + timedelta(minutes=30) <= watermarks["visits"]}
    assert words["visits"] == closed and len(closed) > 100


def run_view(
    spark: SparkSession, shop: Pipeline, intake: Intake, view: str, max_rows: int, folder: Path, words: dict[Any, Any]
) -> datetime:
    """Read what is there, from where the view's last run ended; its watermark."""
    declared, frames = shop.views[view], {}
    for name in shop.streams_of(view):
        stream = shop.streams[name]
        rows = read_journal(spark, intake.journal, name, view, max_rows)
        frames[name] = rows.withWatermark(stream.occurred_at, format_duration(stream.lateness))
    cells = compute_view(spark, shop, view, frames)

    def sink(changed: DataFrame, batch: int) -> None:
        for row in changed.collect():
            values = [value.astimezone(UTC) if isinstance(value, datetime) else value for value in row]
            words[tuple(values[: len(declared.grain)])] = tuple(values[len(declared.grain) :])

    writer = cells.writeStream.outputMode(output_mode(cells)).option("checkpointLocation", str(folder)).foreachBatch(sink)
    writer.trigger(availableNow=True).start().awaitTermination()
    last = committed_batch(str(folder))
    assert set(journal_batches(str(folder), last).values()) == {intake.note.batch if intake.note else -1}, "it has read the whole journal"
    return datetime.fromtimestamp(watermark_millis(str(folder), last) / 1_000, UTC)

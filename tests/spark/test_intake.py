"""The intake: every message gets one fate, whatever the batches; the mergeable views count what was accepted, once."""

from collections import Counter
from pathlib import Path
from typing import Any

import oracle
import pytest
from deltalake import DeltaTable
from intake_runs import cut, open_intake, planned_messages, take_in
from pyspark.sql import SparkSession

from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.serving import answer_query

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


def test_views_with_state_read_the_journal_and_find_what_the_oracle_finds(spark: SparkSession, shop: Pipeline, tmp_path: Path) -> None:
    from spark_jobs.journal_source import JournalSource, read_journal
    from spark_jobs.output_mode import output_mode
    from spark_jobs.transform import compute_view
    from weir.event_time import format_duration
    import time

    lake = Lake.at(str(tmp_path / "lake"))
    messages = planned_messages(shop, ROOT / "pipelines" / "shop", 1_500, 7)
    intake = open_intake(spark, lake, shop)
    spark.dataSource.register(JournalSource)
    for batch in cut(messages, 6, seed=1):
        take_in(spark, intake, batch)
    for view in ("visits", "clicked_searches"):
        frames = {
            s: read_journal(spark, intake.journal, s, view, 300).withWatermark(
                shop.streams[s].occurred_at, format_duration(shop.streams[s].lateness)
            )
            for s in shop.streams_of(view)
        }
        cells = compute_view(spark, shop, view, frames)
        words = {}

        def sink(f, b):
            for r in f.collect():
                words[tuple(r[c] for c in shop.views[view].grain)] = r

        t = time.time()
        q = (
            cells.writeStream.outputMode(output_mode(cells))
            .option("checkpointLocation", str(tmp_path / view))
            .foreachBatch(sink)
            .trigger(availableNow=True)
            .start()
        )
        q.awaitTermination()
        print(view, len(words), len(oracle.truth(view, lambda stream: messages[stream])), q.lastProgress["batchId"], time.time() - t)
        for p in q.recentProgress:
            print(p["batchId"], p["durationMs"], p["sources"][0]["endOffset"], p["numInputRows"])

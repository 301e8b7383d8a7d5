"""Every append happens once, every replacement is whole, and compaction changes no cell."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import tables
from spark_jobs.arrow_tables import ArrowTable
from weir.layout import app_id

DAY, OTHER = date(2026, 3, 1), date(2026, 3, 2)


def cells(spark: SparkSession, *rows: tuple[str, int, date, int, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), "cell string, n int, _day date, _generation int, _batch bigint").coalesce(1)


def content(spark: SparkSession, path: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in tables.read(spark, path).collect())


def test_a_version_is_appended_once_and_another_checkpoint_is_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    path, row = str(tmp_path / "t"), ("a", 1, DAY, 1, 0)
    old, new = app_id("shop", "view_x", "checkpoint-1"), app_id("shop", "view_x", "checkpoint-2")
    for identity, version, rows in ((old, 0, 1), (old, 0, 1), (old, 1, 2), (old, 0, 2), (new, 0, 3), (new, 0, 3)):
        tables.append_once(cells(spark, row), path, ["_day"], identity, version, {"batch": version})
        assert len(content(spark, path)) == rows
    told = [json.loads(entry["userMetadata"]) for entry in DeltaTable(path).history()]
    assert [entry["batch"] for entry in told] == [0, 1, 0]  # the skipped ones left no commit


def test_a_table_that_another_process_makes_is_there_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)  # as it is while the first commit is made
    assert not tables.exists(spark, path)
    write_deltalake(path, pa.table({"cell": ["a"]}))
    assert tables.exists(spark, path)
    assert not tables.exists(spark, str(tmp_path / "elsewhere"))


def test_a_replaced_day_leaves_the_others_alone(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    tables.replace_day(cells(spark, ("a", 1, DAY, 1, 0), ("b", 1, DAY, 1, 0)), path, DAY)
    tables.replace_day(cells(spark, ("c", 1, OTHER, 1, 0)), path, OTHER)
    tables.replace_day(cells(spark, ("a", 2, DAY, 1, 0)), path, DAY)
    assert [row[:2] for row in content(spark, path)] == [("a", 2), ("c", 1)]


def test_of_a_day_only_the_rows_of_some_values_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    first = cells(spark, ("a", 1, DAY, 1, 0), ("b", 1, DAY, 1, 0), ("c", 1, DAY, 1, 0))
    tables.replace_day(first, path, DAY, {"cell": ["a", "b", "c"]})
    tables.replace_day(cells(spark, ("a", 2, DAY, 1, 0)), path, DAY, {"cell": ["a", "b"]})
    assert [row[:2] for row in content(spark, path)] == [("a", 2), ("c", 1)]


def test_the_last_word_is_that_of_the_latest_generation_then_batch(spark: SparkSession) -> None:
    said = cells(spark, ("a", 1, DAY, 1, 7), ("a", 2, DAY, 2, 0), ("b", 3, DAY, 2, 1), ("b", 4, DAY, 2, 2), ("c", 5, DAY, 1, 1))
    assert sorted((row["cell"], row["n"]) for row in tables.last_words(said, ["cell"]).collect()) == [("a", 2), ("b", 4), ("c", 5)]


def test_compaction_keeps_the_last_words_of_crowded_days_and_can_be_read_by_others(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for batch in range(6):
        row = (f"cell {batch % 3}", batch, DAY, 1, batch)
        rows = (row, ("quiet", 1, OTHER, 1, 0)) if batch == 0 else (row,)
        tables.append_once(cells(spark, *rows), path, ["_day"], "app", batch, {})
    before = sorted(tuple(row) for row in tables.last_words(tables.read(spark, path), ["cell"]).collect())
    assert tables.compact_speed(spark, path, ["cell"], from_files=7) == []
    assert tables.compact_speed(spark, path, ["cell"], from_files=6) == [DAY]
    assert content(spark, path) == before
    assert len(DeltaTable(path).file_uris()) == 2
    assert tables.compact_speed(spark, path, ["cell"], from_files=6) == []
    assert sorted(row["cell"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()) == ["cell 0", "cell 1", "cell 2", "quiet"]


def test_what_is_appended_while_files_are_merged_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    path, batches, merged = str(tmp_path / "t"), 12, 0
    tables.ensure_partitioned(cells(spark, ("cell 0", 0, DAY, 1, 0)), path, ["_day"])
    table, rows = ArrowTable(path), [cells(spark, (f"cell {n}", n, DAY, 1, n)).toArrow() for n in range(batches)]
    with ThreadPoolExecutor(1) as beside:
        appending = beside.submit(lambda: [(table.append_once(own, "app", n, {}), time.sleep(1)) for n, own in enumerate(rows)])
        while not appending.done():
            merged += len(tables.compact_speed(spark, path, ["cell"], from_files=2))
        assert all(appended for appended, _ in appending.result())
    assert merged > 1
    words = tables.last_words(tables.read(spark, path), ["cell"]).collect()
    assert sorted((row["cell"], row["n"]) for row in words) == sorted((f"cell {n}", n) for n in range(batches))

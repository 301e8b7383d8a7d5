"""What the proof costs, and how fast served cells are looked up, as ratios in one run.

ratio_to_plain     the whole night (recompute, fates, ledger, reconcile, settle) against a plain Spark job that only recomputes the same
                   view from the same raw rows, at the large size
growth             what an event costs the night at the large size, against the small size: 1 is linear
lookup_to_parquet  one cell by its key from the served view, against the same lookup in one plain Parquet file of the same cells (p50)

`--json` prints one object. Orders alternate and medians count: the machine is shared.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import duckdb  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

from spark_jobs.entry import Call  # noqa: E402
from spark_jobs.intake.aggregates import AggregateView  # noqa: E402
from spark_jobs.intake.intake import Intake  # noqa: E402
from spark_jobs.intake.mergeable import mergeable_views  # noqa: E402
from spark_jobs.nightly_job import prove_day  # noqa: E402
from spark_jobs.session import build_session  # noqa: E402
from spark_jobs.tables import replace_day, with_day  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.layout import Lake  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.pipeline import Pipeline  # noqa: E402
from weir.records.night import DayVerdict, Settlement, ViewVersion  # noqa: E402
from weir.serving import ServedView  # noqa: E402
from weir.settling import settle  # noqa: E402

DAY, VIEW, BATCHES = date(2026, 3, 1), "revenue_per_minute", 50
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--lookups", type=int, default=200)
    options = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        fetch_jars()
        spark = build_session("nightly benchmark")
        night_and_plain(spark, room / "warm", 100_000, 1)
        seconds = {size: night_and_plain(spark, room / str(size), size, options.rounds) for size in (options.small, options.large)}
        found: dict[str, Any] = {
            "ratio_to_plain": round(seconds[options.large]["night"] / seconds[options.large]["plain"], 2),
            "ratio_to_plain_small": round(seconds[options.small]["night"] / seconds[options.small]["plain"], 2),
            "growth": round(seconds[options.large]["night"] / seconds[options.small]["night"] / (options.large / options.small), 2),
            "seconds": {f"{part} {size:,}": round(s, 1) for size, parts in seconds.items() for part, s in parts.items()},
            "events": [options.small, options.large],
            "rounds": options.rounds,
        }
        found |= lookups(spark, room / "served", options)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")


def orders_only() -> Pipeline:
    whole = load_named(ROOT / "pipelines", "shop")
    only = {"streams": {"orders": whole.streams["orders"]}, "tables": {}, "views": {VIEW: whole.views[VIEW]}}
    return whole.model_copy(update=only)


# The night


def night_and_plain(spark: SparkSession, room: Path, events: int, rounds: int) -> dict[str, float]:
    pipeline, lake = orders_only(), Lake.at(str(room / "lake"))
    fill(spark, pipeline, lake, events)
    call = Call(pipeline, lake, "", argparse.Namespace(day=DAY))

    def night() -> None:
        report = prove_day(spark, call, DAY, lambda: None)
        (view,) = report.views
        assert view.unexplained == 0 and view.compared > 0, view
        assert not any(line.wrong for line in report.ledger) and sum(line.offsets for line in report.ledger) == events

    def plain() -> None:
        replace_day(plain_cells(spark, pipeline, lake), str(room / "plain"), DAY)

    times: dict[str, list[float]] = {"night": [], "plain": []}
    acts: dict[str, Callable[[], None]] = {"night": night, "plain": plain}
    for number in range(rounds):
        for name in ("night", "plain") if number % 2 else ("plain", "night"):
            began = time.monotonic()
            acts[name]()
            times[name].append(time.monotonic() - began)
            spark.catalog.clearCache()
    shutil.rmtree(room)
    return {name: statistics.median(found) for name, found in times.items()}


def plain_cells(spark: SparkSession, pipeline: Pipeline, lake: Lake) -> DataFrame:
    """What somebody would write without Weir: from_json, cleansing, the rules as a filter, the first of each identity, the view's SQL."""
    schema = "order_id string, customer_id bigint, country string, amount string, currency string, ordered_at timestamp"
    raw = spark.read.format("delta").load(lake.raw(pipeline.name)).filter("stream = 'orders' AND received_on >= DATE'2026-02-28'")
    orders = raw.select("partition", "offset", "received_at", F.from_json(F.col("value").cast("string"), schema).alias("o"))
    orders = orders.select("partition", "offset", "received_at", "o.*")
    orders = orders.withColumn("amount", F.expr("try_cast(replace(amount, ',', '') AS decimal(12,2))"))
    orders = orders.withColumn("country", F.expr("coalesce(upper(trim(country)), 'ZZ')"))
    orders = orders.withColumn("currency", F.expr("upper(trim(currency))"))
    good = orders.filter(
        "order_id IS NOT NULL AND ordered_at <= received_at + INTERVAL 5 MINUTES AND amount BETWEEN 0 AND 100000 "
        "AND currency IN ('EUR', 'USD', 'GBP') AND country RLIKE '^[A-Z]{2}$'"
    )
    by_arrival = "row_number() OVER (PARTITION BY order_id ORDER BY received_at, partition, offset)"
    good.withColumn("_n", F.expr(by_arrival)).filter("_n = 1").createOrReplaceTempView("orders")
    return with_day(spark.sql(pipeline.views[VIEW].sql), pipeline.views[VIEW].time).filter(F.col("_day") == F.lit(DAY))


def fill(spark: SparkSession, pipeline: Pipeline, lake: Lake, events: int) -> None:
    """Raw, and the journal and speed cells that the intake makes of it in 50 batches: 1 % late, 1 % twice, 1 % with a bad currency."""
    step = 86_400_000 / events
    source = "if(id % 100 = 3, id - 2, id)"
    late = f"if({source} % 100 = 50 AND {source} > {events // 4}, 7200000, 0)"
    messages = spark.range(events, numPartitions=BATCHES).selectExpr(
        "'shop.orders' AS topic",
        "cast(id % 2 AS int) AS partition",
        "id div 2 AS offset",
        f"timestamp_millis(cast({_millis(MIDNIGHT)} + id * {step}D AS bigint)) AS received_at",
        "cast(null AS binary) AS key",
        f"""cast(to_json(named_struct('order_id', concat('o-', {source}), 'customer_id', {source} % 5000,
             'country', element_at(array('DE', 'FR', 'NL', ' de', 'it'), cast({source} % 5 AS int) + 1),
             'amount', format_number(cast({source} % 90000 AS double) / 100, 2),
             'currency', if({source} % 100 = 7, 'DOGE', element_at(array('EUR', 'usd'), cast({source} % 2 AS int) + 1)),
             'ordered_at', date_format(timestamp_millis(cast({_millis(MIDNIGHT)} + {source} * {step}D AS bigint) - {late}),
                                       "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))) AS binary) AS value""",
        "'orders' AS stream",
        "DATE'2026-03-01' AS received_on",
    )
    messages.write.format("delta").partitionBy("stream", "received_on").save(lake.raw(pipeline.name))
    raw, mergeable = spark.read.format("delta").load(lake.raw(pipeline.name)), mergeable_views(spark, pipeline)
    intake = Intake(spark, lake, pipeline, [AggregateView(spark, lake, pipeline, *own, 1) for own in mergeable.items()])
    intake.prepare()
    each = events // 2 // BATCHES
    for number in range(BATCHES):
        rows = raw.filter((F.col("offset") >= number * each) & (F.col("offset") < (number + 1) * each))
        until = {f"shop.orders/{partition}": (number + 1) * each for partition in (0, 1)}
        intake.take_in(intake.candidates({"orders": rows}), until)
    version = ViewVersion(contracts={"orders": pipeline.contract_fingerprint("orders")}, is_aggregate=VIEW in mergeable)
    version.write(lake.view_version(pipeline.name, VIEW, pipeline.fingerprint(VIEW)))


def append_cells(cells: DataFrame, path: str) -> None:
    cells.write.format("delta").mode("append").partitionBy("_day").save(path)


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1_000)


# The served view


def lookups(spark: SparkSession, room: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Cells of two settled days and of today, a million in all; keys by chance, the same for both."""
    pipeline, lake = orders_only(), Lake.at(str(room / "lake"))
    fingerprint, days = pipeline.fingerprint(VIEW), 3
    each = options.cells // days
    countries = each // 1_440 + 1
    for number in range(days):
        day = DAY + timedelta(days=number)
        cells = spark.range(each).selectExpr(
            f"timestamp'{day} 00:00:00Z' + make_interval(0, 0, 0, 0, 0, cast(id div {countries} AS int), 0) AS minute",
            f"concat('C', id % {countries}) AS country",
            "id AS orders",
            "cast(id / 100 AS decimal(22,2)) AS revenue",
        )
        cells = with_day(cells, "minute")
        if number < days - 1:
            replace_day(cells.withColumn("_status", F.lit("proved")), lake.batch(pipeline.name, VIEW, fingerprint), day)
        else:
            told = cells.withColumn("_generation", F.lit(1)).withColumn("_batch", F.lit(1).cast("bigint"))
            append_cells(told, lake.speed(pipeline.name, VIEW, fingerprint))
    settled = Settlement(view=VIEW, fingerprint=fingerprint)
    for number in range(days - 1):
        verdict = DayVerdict(
            day=DAY + timedelta(days=number), decision="PASS", equal=each, repaired=0, pending=0, unexplained=0, cut={}, written_at=MIDNIGHT
        )
        settled = settle(settled, verdict)
    settled.write(lake.settlement(pipeline.name, VIEW, fingerprint))
    plain = str(room / "plain.parquet")
    served = ServedView(lake, pipeline, VIEW)
    columns = ["minute", "country", "orders", "revenue"]
    settled_cells = spark.read.format("delta").load(lake.batch(pipeline.name, VIEW, fingerprint)).select(*columns)
    both = settled_cells.union(spark.read.format("delta").load(lake.speed(pipeline.name, VIEW, fingerprint)).select(*columns))
    both.coalesce(1).sortWithinPartitions("minute", "country").write.parquet(str(room / "one"))
    (file,) = (room / "one").glob("*.parquet")
    file.rename(plain)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET parquet_metadata_cache = true")
    keys = connection.execute(f"SELECT minute, country FROM '{plain}' USING SAMPLE {options.lookups} ROWS (reservoir, 7)").fetchall()
    by_served, by_parquet = [], []
    for minute, country in keys:
        began = time.perf_counter()
        first = served.look_up({"minute": minute, "country": country})
        middle = time.perf_counter()
        found = connection.execute(f"SELECT * FROM '{plain}' WHERE minute = ? AND country = ?", [minute, country]).fetchall()
        by_parquet.append(time.perf_counter() - middle)
        by_served.append(middle - began)
        assert first is not None and [tuple(first[column] for column in columns)] == found, (minute, country, first, found)
    ms = {name: round(1_000 * statistics.median(times), 1) for name, times in (("served", by_served), ("parquet", by_parquet))}
    return {"lookup_to_parquet": round(ms["served"] / ms["parquet"], 2), "lookup_milliseconds": ms, "cells": each * days}


if __name__ == "__main__":
    main()

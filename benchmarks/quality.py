"""What quality costs, as ratios in one run.

cost_of_rules    twelve row rules in the stream against none: the same query over the same files, time of its batches
verdict_speedup  counting broken rules by the verdict against Great Expectations (SUMMARY) as it comes, a million rows, the same rules;
                 from files, as a micro-batch validates what it has staged, and in the form in which the transform judges: rows that
                 break nothing are found first, and the rules are told apart only of the others; without adaptive execution, which
                 Spark switches off in a stateful stream; Great Expectations with it and without, whichever is faster; all after a
                 minute of warm-up, because a driver that validates every micro-batch is warm
verdict_speedup_tuned  the same against Great Expectations as Weir calls it: without caching the frame, with five examples for twenty
report_growth    what the reports of a micro-batch cost after a thousand of them, five minutes apart, against the first fifty
memory_growth    Python's and the JVM's memory after all validations against that after a fifth of them

`--json` prints one object. Orders alternate and medians count: the machine is shared.
"""

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

from quality.gate import Validation, validate  # noqa: E402
from quality.reports import write_site  # noqa: E402
from quality.suite import build_suite, quiet_context  # noqa: E402
from quality.verdict import broken_by, is_accepted  # noqa: E402
from spark_jobs.refine_job import merge_days  # noqa: E402
from spark_jobs.session import build_session  # noqa: E402
from spark_jobs.transform import MESSAGE, accepted_rows, compute_view, dedupe_stream, judged_rows  # noqa: E402
from weir.expectations import Expectation  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.pipeline import Pipeline, Stream  # noqa: E402
from weir.records.quality import DayQuality, ExpectationResult, RefineCursor, Sample  # noqa: E402

RULES: list[dict[str, Any]] = [
    {"expect_column_values_to_not_be_null": {"column": "order_id"}},
    {"expect_column_values_to_not_be_null": {"column": "customer_id"}},
    {"expect_column_values_to_not_be_null": {"column": "amount"}},
    {"expect_column_values_to_not_be_null": {"column": "currency"}},
    {"expect_column_values_to_be_between": {"column": "amount", "min_value": 0, "max_value": 100000}},
    {"expect_column_values_to_be_between": {"column": "customer_id", "min_value": 0}},
    {"expect_column_values_to_be_in_set": {"column": "currency", "value_set": ["EUR", "USD", "GBP"]}},
    {"expect_column_values_to_not_be_in_set": {"column": "country", "value_set": ["XX", "YY"]}},
    {"expect_column_values_to_match_regex": {"column": "country", "regex": "^[A-Z]{2}$"}},
    {"expect_column_values_to_not_match_regex": {"column": "order_id", "regex": "^test"}},
    {"expect_column_value_lengths_to_be_between": {"column": "order_id", "min_value": 1, "max_value": 40}},
    {"expect_column_value_lengths_to_equal": {"column": "currency", "value": 3}},
]

WARM_UP_ROUNDS = 10
"""Of the verdict and Great Expectations, some six seconds each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="rules,verdict,memory,reports", help="only these")
    parser.add_argument("--validations", type=int, default=500)
    parser.add_argument("--reports", type=int, default=1_000)
    options = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        fetch_jars()
        spark = build_session("quality benchmark")
        write_messages(spark, room / "messages", options.rows)
        parts = {"rules": cost_of_rules, "verdict": verdict_speedup, "memory": memory_growth, "reports": report_growth}
        found: dict[str, Any] = {}
        for part in options.parts.split(","):
            found |= parts[part](spark, room, options)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    found |= {
        "rows": options.rows,
        "rounds": options.rounds,
        "validations": options.validations,
        "reports": options.reports,
        "rules": len(RULES),
    }
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:34} {value}")


def write_messages(spark: SparkSession, folder: Path, rows: int) -> None:
    """Orders as raw rows, one in a hundred of them with a bad currency, in ten files: ten batches of the stream."""
    spark.range(rows, numPartitions=10).selectExpr(
        "'shop.orders' AS topic",
        "0 AS partition",
        "id AS offset",
        "timestamp_millis(1772323201000 + id * 50) AS received_at",
        """cast(to_json(named_struct('order_id', concat('o-', id), 'customer_id', id % 5000,
             'country', element_at(array('DE', 'FR', 'NL', ' de', 'it'), cast(id % 5 AS int) + 1),
             'amount', format_number(cast(id % 90000 AS double) / 100, 2),
             'currency', if(id % 100 = 7, 'DOGE', element_at(array('EUR', 'usd'), cast(id % 2 AS int) + 1)),
             'ordered_at', date_format(timestamp_millis(1772323200000 + id * 50), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))) AS binary) AS value""",
    ).write.parquet(str(folder))


def with_rules(rules: list[dict[str, Any]]) -> Pipeline:
    pipeline = load_named(ROOT / "pipelines", "shop")
    orders = pipeline.streams["orders"].model_copy(update={"expectations": [Expectation.model_validate(rule) for rule in rules]})
    return pipeline.model_copy(update={"streams": pipeline.streams | {"orders": orders}})


def cost_of_rules(spark: SparkSession, room: Path, options: argparse.Namespace) -> dict[str, float]:
    times: dict[str, list[float]] = {"none": [], "twelve": []}
    declared = {"none": with_rules([]), "twelve": with_rules(RULES)}
    for number in range(options.rounds + 1):
        for name in ("none", "twelve") if number % 2 else ("twelve", "none"):
            seconds = stream_seconds(spark, declared[name], room, f"{name}-{number}")
            if number:  # the first round warms the JVM up
                times[name].append(seconds)
    median = {name: statistics.median(found) for name, found in times.items()}
    return {
        "cost_of_rules": round(median["twelve"] / median["none"], 3),
        "seconds_without_rules": round(median["none"], 2),
        "seconds_with_rules": round(median["twelve"], 2),
    }


def stream_seconds(spark: SparkSession, pipeline: Pipeline, room: Path, name: str) -> float:
    """The speed layer's query over the files; the time of all batches but the first."""
    stream: Stream = pipeline.streams["orders"]
    live = spark.readStream.schema(MESSAGE).option("maxFilesPerTrigger", 1).parquet(str(room / "messages"))
    rows = dedupe_stream(accepted_rows(live, stream), stream)
    cells = compute_view(spark, pipeline, "revenue_per_minute", {"orders": rows})

    def count(frame: DataFrame, batch: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    writer = cells.writeStream.outputMode("update").foreachBatch(count).trigger(availableNow=True)
    began: list[float] = []
    query = writer.option("checkpointLocation", str(room / "checkpoints" / name)).start()
    while query.isActive:
        progress: Any = query.lastProgress
        if not began and progress and progress["batchId"] >= 0:
            began.append(time.monotonic())
        time.sleep(0.05)
    query.awaitTermination()
    return time.monotonic() - began[0]


def verdict_speedup(spark: SparkSession, room: Path, options: argparse.Namespace) -> dict[str, float]:
    stream = with_rules(RULES).streams["orders"]
    decoded = judged_rows(spark.read.parquet(str(room / "messages")), stream).select(*stream.columns)
    decoded.write.parquet(str(room / "decoded"))
    rows = spark.read.parquet(str(room / "decoded"))
    rules = list(map(broken_by, stream.expectations))
    # The rules become columns, and a suite, once; so does what Great Expectations wants to know of its source.
    counts = [F.count(F.when(broken, 1)).alias(rule) for rule, broken in rules]
    breaks_any = ~is_accepted(rules)
    suite = build_suite("bench", stream.expectations)
    whole = quiet_context().data_sources.add_spark("bench").add_dataframe_asset("bench").add_batch_definition_whole_dataframe("bench")

    def by_verdict() -> dict[str, int]:
        (found,) = rows.filter(breaks_any).agg(*counts).collect()
        return dict(found.asDict())

    def by_gx() -> dict[str, int]:
        found = whole.get_batch({"dataframe": rows}).validate(suite, result_format="SUMMARY")
        return {own.expectation_config.meta["rule"]: own.result["unexpected_count"] for own in found.results}

    def by_tuned_gx() -> dict[str, int]:
        return {own.rule: own.unexpected for own in validate(rows, "bench", stream.expectations).results}

    ways = {"verdict": by_verdict, "great_expectations": by_gx, "great_expectations_tuned": by_tuned_gx}
    times: dict[str, list[float]] = {name: [] for name in (*ways, *(f"{name}_adaptive" for name in ways))}
    for number in range(-WARM_UP_ROUNDS, options.rounds):
        told = []
        for adaptive in ("", "_adaptive"):
            spark.conf.set("spark.sql.adaptive.enabled", str(bool(adaptive)).lower())
            for name, count in ways.items():
                began = time.monotonic()
                told.append(count())
                if number >= 0:
                    times[name + adaptive].append(time.monotonic() - began)
                spark.catalog.clearCache()  # by default Great Expectations caches each frame and never releases it
        assert all(own == told[0] for own in told), "all must agree"
    median = {name: statistics.median(found) for name, found in times.items()}
    fastest = {name: min(median[name], median[f"{name}_adaptive"]) for name in ways}
    return {
        "verdict_speedup": round(fastest["great_expectations"] / median["verdict"], 1),
        "verdict_speedup_tuned": round(fastest["great_expectations_tuned"] / median["verdict"], 1),
        **{f"seconds_{name}": round(seconds, 2) for name, seconds in median.items()},
    }


def report_growth(_: SparkSession, room: Path, options: argparse.Namespace) -> dict[str, float]:
    """The part of a micro-batch that could grow with history: the cursor with its days, and the pages of the changed day."""
    pipeline = with_rules(RULES)
    file, site = room / "cursor.json", room / "site"
    began, seconds = datetime(2026, 3, 1, tzinfo=UTC), []
    results = [
        ExpectationResult(expectation=rule.name, rule=rule.rule, arguments={}, severity=rule.severity, success=True, checked=5_000)
        for rule in pipeline.streams["orders"].expectations
    ]
    for batch in range(options.reports):
        received_at = began + timedelta(minutes=5 * batch)
        day = str(received_at.date())
        samples = [Sample(place=f"shop.orders/0/{batch}", received_at=received_at, row={"order_id": "o-1"}, payload="{}")]
        reasons = {"amount:be_between": 3, "currency:be_in_set": 2}
        new = DayQuality(
            stream="orders",
            day=day,
            batches=1,
            rows=5_005,
            accepted=5_000,
            rejected=5,
            reasons=reasons,
            samples=dict.fromkeys(reasons, samples),
        )
        start = time.monotonic()
        cursor = RefineCursor.read(file) or RefineCursor(id="bench")
        days = merge_days(cursor.days, {day: new}, Validation(results))
        cursor = cursor.model_copy(update={"batch": batch, "days": days})
        cursor.write(file)
        write_site(site, pipeline, {"orders": cursor.days}, {}, {("orders", day)})
        seconds.append(time.monotonic() - start)
    first, last = statistics.median(seconds[20:70]), statistics.median(seconds[-50:])  # the first few load the templates
    return {"report_growth": round(last / first, 2), "report_seconds_first": round(first, 3), "report_seconds_last": round(last, 3)}


def memory_growth(spark: SparkSession, room: Path, options: argparse.Namespace) -> dict[str, float]:
    """Validate over and over, as a driver does for weeks."""
    stream = with_rules(RULES).streams["orders"]
    rows = spark.read.parquet(str(room / "decoded")).limit(1_000).localCheckpoint()
    early, used = options.validations // 5, {}
    for number in range(1, options.validations + 1):
        validate(rows, "bench", stream.expectations)
        if number in (early, options.validations):
            used[number] = memory_mb(spark)
    return {"memory_growth": round(used[options.validations] / used[early], 3), "memory_mb_at_the_end": round(used[options.validations])}


def memory_mb(spark: SparkSession) -> float:
    gc.collect()
    jvm = spark._jvm
    assert jvm is not None
    for _ in range(3):
        jvm.System.gc()
        time.sleep(0.5)
    runtime = jvm.Runtime.getRuntime()
    return psutil.Process().memory_info().rss / 1e6 + (runtime.totalMemory() - runtime.freeMemory()) / 1e6


if __name__ == "__main__":
    main()

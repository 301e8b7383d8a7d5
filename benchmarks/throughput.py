"""Events per second of `weir stream` against a bare PySpark query: same SQL, same dedupe, no Weir, in one run.

Both read the same topic in batches of the same size. What counts is the marginal cost between two sizes: the time that the
large size takes beyond the small one, so that start-up and warming up do not count. The order alternates between rounds, and
the ratio is that of the medians: the machine is shared. `--json` prints one object; `ratio_to_bare_spark` is the number to look at.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from weir import stack  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.layout import Home  # noqa: E402
from weir.loader import load_named  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SMALL, LARGE = 200_000, 1_200_000
BATCH = 200_000
"""The batch of `weir stream` by default, for both."""
TOPIC = "shop.orders"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", type=int, default=SMALL)
    parser.add_argument("--large", type=int, default=LARGE)
    parser.add_argument("--part", choices=["fill", "bare", "weir"], help=argparse.SUPPRESS)
    parser.add_argument("--kafka", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        {"fill": fill_topic, "bare": run_bare, "weir": run_weir}[options.part](options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    home = Home(room / "home")
    say = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    try:
        fetch_jars()
        stack.start_kafka(home)
        kafka = stack.bootstrap(home)
        stack.create_topics(kafka, {TOPIC: 2})
        say(f"filling {TOPIC} with {options.large:,} orders")
        run_part("fill", options, kafka, room)
        found: dict[str, list[dict[str, float]]] = {"bare": [], "weir": []}
        for number in range(options.rounds):
            for part in ("bare", "weir") if number % 2 == 0 else ("weir", "bare"):
                found[part].append(run_part(part, options, kafka, room))
                say(f"round {number + 1}, {part}: {found[part][-1]['events_per_second']:,.0f} events/s")
    finally:
        stack.stop_kafka(home)
        shutil.rmtree(room, ignore_errors=True)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> None:
    cores = os.cpu_count() or 1
    median = {part: statistics.median(run["events_per_second"] for run in runs) for part, runs in found.items()}
    result = {
        "ratio_to_bare_spark": round(median["weir"] / median["bare"], 3),
        "weir_events_per_second": round(median["weir"]),
        "bare_events_per_second": round(median["bare"]),
        "weir_events_per_second_and_core": round(median["weir"] / cores),
        "weir_peak_memory_mb": round(max(run["peak_memory_mb"] for run in found["weir"])),
        "bare_peak_memory_mb": round(max(run["peak_memory_mb"] for run in found["bare"])),
        "weir_milliseconds_per_batch": _phases(found["weir"]),
        "bare_milliseconds_per_batch": _phases(found["bare"]),
        "events": [options.small, options.large],
        "batch": BATCH,
        "rounds": options.rounds,
        "cores": cores,
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:34} {value}")


def _phases(runs: list[dict[str, float]]) -> dict[str, int]:
    """Where the time goes: the mean of each phase of a batch over all runs, as Spark reports it."""
    names = sorted({name for run in runs for name in run if name.startswith("ms_")})
    return {name.removeprefix("ms_"): round(statistics.mean(run.get(name, 0) for run in runs)) for name in names}


def run_part(part: str, options: argparse.Namespace, kafka: str, room: Path) -> dict[str, float]:
    """One part in a process of its own, so that neither profits from the other's warm JVM. Its memory is watched from here."""
    folder = room / f"{part}-{time.monotonic_ns()}"
    command = [sys.executable, __file__, "--part", part, "--kafka", kafka, "--folder", str(folder)]
    command += ["--small", str(options.small), "--large", str(options.large)]
    with (room / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | {"WEIR_DRIVER_MEMORY": "4g"})
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, resident_mb(process.pid))
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{part} failed:\n{(room / 'log').read_text()[-3_000:]}")
    lines = [line for line in (process.stdout or []) if line.startswith("{")]
    shutil.rmtree(folder, ignore_errors=True)
    return (json.loads(lines[-1]) if lines else {}) | {"peak_memory_mb": peak}


def resident_mb(pid: int) -> float:
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return sum(member.memory_info().rss for member in family) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


# The parts


def fill_topic(options: argparse.Namespace) -> None:
    """Good orders over a day, 1 % of them twice, made by Spark itself: a million in seconds."""
    from spark_jobs.session import build_session

    spark = build_session("fill")
    orders = spark.range(options.large, numPartitions=2).selectExpr(
        "cast(id AS string) AS key",
        """to_json(named_struct('order_id', concat('o-', if(id % 100 = 1, id - 1, id)), 'customer_id', id % 5000,
             'country', element_at(array('DE', 'FR', 'NL', ' de', 'it'), cast(id % 5 AS int) + 1),
             'amount', format_number(cast(id % 90000 AS double) / 100, 2),
             'currency', element_at(array('EUR', 'usd'), cast(id % 2 AS int) + 1),
             'ordered_at', date_format(timestamp_millis(1772323200000 + cast(id * 86400000D / 1200000 AS bigint)),
                                       "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))) AS value""",
        "timestamp_millis(1772323201000 + cast(id * 86400000D / 1200000 AS bigint)) AS timestamp",
    )
    orders.write.format("kafka").option("kafka.bootstrap.servers", options.kafka).option("topic", TOPIC).save()
    print("{}")


def run_bare(options: argparse.Namespace) -> None:
    """What somebody would write without Weir: from_json, watermark, dedupe, the view's SQL, append to Delta."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from spark_jobs.session import build_session

    spark = build_session("bare")
    told = listen(spark)
    schema = "order_id string, customer_id bigint, country string, amount string, currency string, ordered_at timestamp"
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.kafka).option("subscribe", TOPIC)
    messages = kafka.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH).load()
    orders = messages.select(F.from_json(F.col("value").cast("string"), schema).alias("o")).select("o.*")
    orders = orders.withColumn("amount", F.expr("try_cast(replace(amount, ',', '') AS decimal(12,2))"))
    orders = orders.withColumn("country", F.expr("coalesce(upper(trim(country)), 'ZZ')"))
    orders.withWatermark("ordered_at", "10 minutes").dropDuplicatesWithinWatermark(["order_id"]).createOrReplaceTempView("orders")

    def append(cells: DataFrame, batch: int) -> None:
        cells.write.format("delta").mode("append").save(str(options.folder / "cells"))

    cells = spark.sql(load_named(ROOT / "pipelines", "shop").views["revenue_per_minute"].sql)
    writer = cells.writeStream.outputMode("update").foreachBatch(append).trigger(availableNow=True)
    measure(writer.option("checkpointLocation", str(options.folder / "checkpoint")).start(), told, options)


def run_weir(options: argparse.Namespace) -> None:
    measure(*start_weir(options), options)


def start_weir(options: argparse.Namespace) -> "tuple[StreamingQuery, list[dict[str, Any]]]":
    """The driver of `weir stream` itself, with one view and without the archive: its query, and the progress of its batches."""
    from spark_jobs.entry import Call
    from spark_jobs.session import build_session
    from spark_jobs.stream_job import Driver
    from weir.layout import Lake
    from weir.records.driver import Control
    from weir.supervision import take_lease

    told = listen(build_session("weir"))
    control, lake = Control(options.folder / "control" / "shop"), Lake.at(str(options.folder))
    asked = argparse.Namespace(once=True, views="revenue_per_minute", no_archive=True, trigger_seconds=1, max_batch=BATCH)
    driver = Driver(Call(load_named(ROOT / "pipelines", "shop"), lake, options.kafka, asked), take_lease(control, "bench"), control)
    driver.start()
    (query,) = driver.queries.values()
    return query, told


def listen(spark: "SparkSession") -> list[dict[str, Any]]:
    """A list that fills with the progress of every batch."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    told: list[dict[str, Any]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryIdle(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            told.append(json.loads(event.progress.json))

    spark.streams.addListener(Listener())
    return told


def measure(query: "StreamingQuery", told: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Time what comes after the small size: the batches before it warm the JVM up."""
    query.awaitTermination()
    time.sleep(3)  # the last batches reach the listener a moment later
    batches = [progress for progress in told if progress["numInputRows"]]
    read, counted = 0, []
    for progress in batches:
        if read >= options.small:
            counted.append(progress)
        read += progress["numInputRows"]
    assert read == options.large, f"{read} of {options.large} events were read"
    seconds = sum(progress["durationMs"]["triggerExecution"] for progress in counted) / 1_000
    events = sum(progress["numInputRows"] for progress in counted)
    phases = {name for progress in counted for name in progress["durationMs"]}
    means = {f"ms_{name}": statistics.mean(progress["durationMs"].get(name, 0) for progress in counted) for name in phases}
    print(json.dumps({"events_per_second": events / seconds, **means}))


if __name__ == "__main__":
    main()

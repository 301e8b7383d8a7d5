"""From produced to visible at a steady rate, of Weir and of bare Spark, measured by an independent reader in one run.

Two kinds are measured, each by Weir and by what somebody would write without it: an alert (a row that meets a condition, told to
Kafka; Weir's watch against a bare query in real-time mode, and against one in micro-batches), and a changed cell of a windowed view
(appended to Delta; against the same SQL in bare micro-batches of the same length). Each part has the machine for itself: a process of
its own, a fresh topic, a producer at the given rate, a warm-up that does not count (real-time mode needs more than half a minute), then
a time that does. `--json` prints one object; `alert_to_bare`, `alert_to_microbatch` and `cell_to_bare` are the numbers to look at.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from weir import stack  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.layout import Home, alerts_topic  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.pipeline import Pipeline  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "revenue_per_minute"
PARTITIONS = 2
ALERT, ALERT_SHARE = "amount >= 500", 0.02
SCHEMA = "order_id string, customer_id bigint, country string, amount string, currency string, ordered_at timestamp"
ALERT_PARTS = ("weir_alert", "bare_alert", "bare_alert_in_batches")
CELL_PARTS = ("weir_cell", "bare_cell")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", type=int, default=5_000, help="events a second")
    parser.add_argument("--warm-up", type=int, default=50, help="seconds that do not count")
    parser.add_argument("--seconds", type=int, default=60, help="seconds that count")
    parser.add_argument("--parts", default=",".join((*ALERT_PARTS, *CELL_PARTS)), help="only these")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--kafka", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        PARTS[options.part](options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    home = Home(room / "home")
    say: Callable[[str], None] = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    found: dict[str, list[list[float]]] = {part: [] for part in (*ALERT_PARTS, *CELL_PARTS)}
    try:
        fetch_jars()
        stack.start_kafka(home)
        for number in range(options.rounds):
            for part in options.parts.split(",") if number % 2 == 0 else reversed(options.parts.split(",")):
                delays = measure(part, f"bench.{part}.{number}", options, stack.bootstrap(home), room)
                found[part].append(delays)
                say(f"round {number + 1}, {part}: p50 {percentile(delays, 50):,.0f} ms, p99 {percentile(delays, 99):,.0f} ms")
    finally:
        stack.stop_kafka(home)
        shutil.rmtree(room, ignore_errors=True)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[list[float]]]) -> None:
    def median(part: str, percent: int) -> float:
        return statistics.median(percentile(delays, percent) for delays in found[part])

    found = {part: runs for part, runs in found.items() if runs}
    ratios = {
        "alert_to_bare": ("weir_alert", "bare_alert"),
        "alert_to_microbatch": ("weir_alert", "bare_alert_in_batches"),
        "cell_to_bare": ("weir_cell", "bare_cell"),
    }
    result: dict[str, Any] = {
        **{name: round(median(a, 50) / median(b, 50), 3) for name, (a, b) in ratios.items() if a in found and b in found},
        **{f"{part}_p{percent}_ms": round(median(part, percent), 1) for part in found for percent in (50, 99)},
        "measured": {part: sum(map(len, runs)) for part, runs in found.items()},
        "events_per_second": options.rate,
        "warm_up_seconds": options.warm_up,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:34} {value}")


def percentile(delays: list[float], percent: int) -> float:
    return sorted(delays)[min(len(delays) - 1, len(delays) * percent // 100)]


def measure(part: str, topic: str, options: argparse.Namespace, kafka: str, room: Path) -> list[float]:
    """Milliseconds from produced to visible of what was produced after the warm-up."""
    folder = room / topic
    folder.mkdir()
    alerts = alerts_of(topic)
    stack.create_topics(kafka, {topic: PARTITIONS, alerts: 1})
    shared = ["--kafka", kafka, "--topic", topic, "--folder", str(folder)]
    with (folder / "log").open("w") as log:

        def start(name: str, *more: str) -> subprocess.Popen[str]:
            command = [sys.executable, __file__, "--part", name, *shared, *more]
            return subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)

        query = start(part)
        producer = None
        try:
            wait_until(lambda: (folder / "ready").exists(), 240, query, folder)
            total = options.warm_up + options.seconds
            producer = start("producer", "--rate", str(options.rate), "--seconds", str(total))
            since = time.time() + options.warm_up
            if part in ALERT_PARTS:
                return heard_alerts(kafka, alerts, since, since + options.seconds)
            seen = seen_cells(folder / "cells", total + 10)
            producer.wait(120)
            return delays_of_counts(folder / "produced", seen, since, since + options.seconds)
        finally:
            for process in (producer, query):
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, process: subprocess.Popen[str], folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{folder.name} did not start:\n{(folder / 'log').read_text()[-3_000:]}")
        time.sleep(0.2)


def alerts_of(topic: str) -> str:
    return alerts_topic(topic.replace(".", "_"))


# The readers


def heard_alerts(kafka: str, topic: str, since: float, until: float) -> list[float]:
    """Each alert says when its event was produced."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, bootstrap_servers=kafka, auto_offset_reset="earliest", fetch_max_wait_ms=10)
    delays = []
    try:
        while (now := time.time()) < until + 5:
            for records in consumer.poll(timeout_ms=20).values():
                now = time.time()
                for record in records:
                    produced = datetime.fromisoformat(json.loads(record.value)["received_at"]).timestamp()
                    if since <= produced < until:
                        delays.append((now - produced) * 1_000)
    finally:
        consumer.close()
    if not delays:
        raise SystemExit(f"{topic}: nothing was heard")
    return delays


def seen_cells(table: Path, seconds: float) -> list[tuple[float, int]]:
    """When how many events could be seen in the table's cells: commit by commit, each cell's last word."""
    import pyarrow.parquet as pq

    cells: dict[tuple[Any, Any], int] = {}
    seen, version, deadline = [], 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        commit = table / "_delta_log" / f"{version:020}.json"
        if not commit.exists():
            time.sleep(0.01)
            continue
        now = time.time()
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                if not added["dataChange"]:
                    continue
                file = pq.ParquetFile(table / added["path"].replace("%253A", "%3A"))
                rows = file.read(["minute", "country", "orders"]).to_pydict()
                cells.update(zip(zip(rows["minute"], rows["country"], strict=True), rows["orders"], strict=True))
        seen.append((now, sum(cells.values())))
        version += 1
    return seen


def delays_of_counts(produced: Path, seen: list[tuple[float, int]], since: float, until: float) -> list[float]:
    """The n-th event is visible when n of them can be seen."""
    times = array("d", produced.read_bytes())
    delays, place = [], 0
    for now, count in seen:
        while place < min(count, len(times)):
            if since <= times[place] < until:
                delays.append((now - times[place]) * 1_000)
            place += 1
    if not delays:
        raise SystemExit("no cell was seen")
    return delays


# The parts


def produce(options: argparse.Namespace) -> None:
    """Orders of now at the rate, in steps of ten milliseconds; when each was handed to Kafka is kept."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=options.kafka, linger_ms=0, acks=1)
    times = array("d")
    began = time.time()
    every = round(1 / ALERT_SHARE)
    countries = ("DE", "FR", "NL", "IT", "ES")
    while (now := time.time()) < began + options.seconds:
        due = int((now - began) * options.rate)
        stamp = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        while len(times) < due:
            number = len(times)
            amount = "512.00" if number % every == 0 else f"{number % 9000 / 100:.2f}"
            value = (
                f'{{"order_id":"o-{number}","customer_id":{number % 5000},"country":"{countries[number % 5]}","amount":"{amount}",'
                f'"currency":"EUR","ordered_at":"{stamp}"}}'
            )
            moment = time.time()
            producer.send(options.topic, value.encode(), partition=number % PARTITIONS, timestamp_ms=int(moment * 1_000))
            times.append(moment)
        time.sleep(0.01)
    producer.flush()
    (options.folder / "produced").write_bytes(times.tobytes())
    late = (time.time() - began) - options.seconds
    if late > 2:
        print(f"the producer could not hold the rate: {late:.1f} s behind", flush=True)


def declared(options: argparse.Namespace) -> Pipeline:
    """The shop with orders on the part's topic, and nothing else."""
    shop = load_named(ROOT / "pipelines", "shop").model_dump(mode="json", by_alias=True)
    orders = shop["streams"]["orders"] | {"topic": options.topic, "partitions": PARTITIONS}
    return Pipeline.model_validate(
        {
            "pipeline": options.topic.replace(".", "_"),
            "streams": {"orders": orders},
            "views": {VIEW: shop["views"][VIEW]},
            "watch": {"orders": {"alerts": {"big_order": ALERT}}},
        }
    )


def run_weir(options: argparse.Namespace, views: bool) -> None:
    """The driver of `weir stream`, with one watch or one view."""
    from spark_jobs.entry import Call
    from spark_jobs.stream_job import Driver
    from weir.layout import Lake
    from weir.records.driver import Control
    from weir.supervision import take_lease

    pipeline = declared(options)
    pipeline = pipeline.model_copy(update={"watch": {}} if views else {"views": {}})
    lake, control = Lake.at(str(options.folder / "lake")), Control(options.folder / "control")
    asked = argparse.Namespace(once=False, views="", no_archive=True, no_watch=views, trigger_seconds=1, max_batch=200_000)
    driver = Driver(Call(pipeline, lake, options.kafka, asked), take_lease(control, "bench"), control)
    if views:
        table = Path(lake.speed(pipeline.name, VIEW, pipeline.fingerprint(VIEW)))
        table.mkdir(parents=True)
        (options.folder / "cells").symlink_to(table)
    driver.start()
    (options.folder / "ready").touch()
    driver.look_after()


def bare_orders(spark: "SparkSession", options: argparse.Namespace, start: str) -> "DataFrame":
    from pyspark.sql import functions as F

    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.kafka).option("subscribe", options.topic)
    messages = kafka.option("startingOffsets", start).load()
    orders = messages.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("o"), F.col("timestamp").alias("received_at"))
    orders = orders.select("o.*", "received_at")
    orders = orders.withColumn("amount", F.expr("try_cast(replace(amount, ',', '') AS decimal(12,2))"))
    return orders.withColumn("country", F.expr("coalesce(upper(trim(country)), 'ZZ')"))


def run_bare_alert(options: argparse.Namespace, real_time: bool) -> None:
    """from_json, a condition, to_json, to Kafka."""
    from spark_jobs.session import build_session
    from spark_jobs.watch import CHECKPOINT_SECONDS

    spark = build_session("bare", occupied=PARTITIONS if real_time else 0)
    orders = bare_orders(spark, options, "latest").filter(ALERT)
    told = orders.selectExpr("order_id AS key", "to_json(struct(*)) AS value")
    writer = told.writeStream.format("kafka").outputMode("update").option("kafka.bootstrap.servers", options.kafka)
    writer = writer.option("kafka.linger.ms", 0).option("topic", alerts_of(options.topic))
    writer = writer.option("checkpointLocation", str(options.folder / "checkpoint"))
    query = (writer.trigger(realTime=f"{CHECKPOINT_SECONDS} seconds") if real_time else writer).start()  # type: ignore[call-overload]
    (options.folder / "ready").touch()
    query.awaitTermination()


def run_bare_cell(options: argparse.Namespace) -> None:
    """from_json, watermark, dedupe, the view's SQL, append to Delta, every second."""
    from pyspark.sql import DataFrame

    from spark_jobs.session import build_session

    spark = build_session("bare")
    orders = bare_orders(spark, options, "earliest")
    orders.withWatermark("ordered_at", "10 minutes").dropDuplicatesWithinWatermark(["order_id"]).createOrReplaceTempView("orders")

    def append(cells: DataFrame, batch: int) -> None:
        cells.write.format("delta").mode("append").save(str(options.folder / "cells"))

    cells = spark.sql(declared(options).views[VIEW].sql)
    writer = cells.writeStream.outputMode("update").foreachBatch(append).trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", str(options.folder / "checkpoint")).start()
    (options.folder / "ready").touch()
    query.awaitTermination()


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "producer": produce,
    "weir_alert": lambda options: run_weir(options, views=False),
    "weir_cell": lambda options: run_weir(options, views=True),
    "bare_alert": lambda options: run_bare_alert(options, real_time=True),
    "bare_alert_in_batches": lambda options: run_bare_alert(options, real_time=False),
    "bare_cell": run_bare_cell,
}


if __name__ == "__main__":
    main()

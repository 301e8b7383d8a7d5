"""What one event and one cell of the shop cost here, and what that means for other rates, with the arithmetic.

The whole shop is run twice, over a small and over a large number of events of one day: stream (archive, table and seven views, no
watch), micro-batch and night, each as a process of its own, as people run them. The difference of two runs, by the difference of their
events, is what an event costs; what a run costs before its first event drops out. Core time is that of the process and all of its
children. What a view remembers of one identity is measured alone: the state of a million of them. `--json` prints one object.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyspark.sql import DataFrame  # noqa: E402

from spark_jobs.session import build_session  # noqa: E402
from spark_jobs.transform import dedupe_stream  # noqa: E402
from weir import stack  # noqa: E402
from weir.event_time import utc_now  # noqa: E402
from weir.generator import Shares, load_produce  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.jobs import Job  # noqa: E402
from weir.layout import Home  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.produce import Event, plan_events, send_events  # noqa: E402
from weir.records.night import NightlyReport  # noqa: E402

JOBS = ("stream", "refine", "nightly")
SIZED = ("message_bytes", "log_bytes", "raw_bytes", "accepted_bytes", "cell_bytes", "cells_per_event")
SIZES = (100_000, 1_000_000)
RATES = (10_000, 100_000, 1_000_000)
BUSY = 0.6
"""Of a core, on average: the rest is for peaks, and for catching up after a restart."""
PARTITION_RATE = 5_000
"""Events a second that one partition should carry, so that one core can read it and catch up."""
NIGHT_HOURS = 4
IDENTITIES = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, nargs=2, default=SIZES, help="of the small and of the large run")
    options = parser.parse_args()
    say: Callable[[str], None] = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    measured = measure(options.events, say)
    if options.json:
        print(json.dumps(measured))
        return
    for name, value in measured.items():
        print(f"{name:24} {value}")
    print()
    for line in arithmetic(measured):
        print(line)


def measure(sizes: tuple[int, int], say: Callable[[str], None]) -> dict[str, Any]:
    os.environ["WEIR_PIPELINES"] = str(ROOT / "pipelines")
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        fetch_jars()
        small, large = (run_shop(Home(room / str(size)), size, say) for size in sizes)
        return {
            **{f"{name}_core_us": round(1e6 * (large[name] - small[name]) / (sizes[1] - sizes[0]), 1) for name in JOBS},
            **{name: large[name] for name in SIZED},
            "identity_bytes": identity_bytes(room / "identities"),
            "reads_per_event": reads_per_event(),
            "events": list(sizes),
            "core_seconds": {name: [round(own[name]) for own in (small, large)] for name in JOBS},
            "cores": os.cpu_count(),
        }
    finally:
        shutil.rmtree(room, ignore_errors=True)


def run_shop(home: Home, events: int, say: Callable[[str], None]) -> dict[str, float]:
    """Core seconds of each job over so many events, and what they leave on disk; in a home of its own, because a stream that has seen
    the day's end holds all that follows for late, and late events cost a view nothing."""
    lake, shop, day = home.lake, load_named(home.pipelines, "shop"), utc_now().date() - timedelta(days=2)
    jobs = {"stream": ["--once"], "refine": [], "nightly": ["--day", str(day)]}
    try:
        stack.start_kafka(home)
        stack.create_topics(stack.bootstrap(home), shop.partitions)
        say(f"sending {events:,} events")
        sent = send(home, day, events)
        own: dict[str, float] = {}
        for name in JOBS:
            own[name] = core_seconds(Job(home, f"{name}_job", "shop", stack.bootstrap(home), jobs[name]))
            say(f"{name} over {events:,} events: {own[name]:.0f} core seconds")
    finally:
        stack.stop_kafka(home)
    report = NightlyReport.read(lake.nightly_report("shop", str(day)))
    assert report is not None
    cells = sum(view.compared for view in report.views)
    assert sum(view.equal for view in report.views) > cells / 2, "the stream has left most of the day out: its cost says nothing"
    batch = sum(size_of(Path(lake.batch("shop", view.view, view.fingerprint))) for view in report.views)
    return {
        **own,
        "message_bytes": round(sent / events),
        "log_bytes": round(size_of(home.kafka, "0*.log") / events),
        "raw_bytes": round(size_of(Path(lake.raw("shop"))) / events),
        "accepted_bytes": round(sum(size_of(Path(lake.accepted("shop", name))) for name in shop.sources) / events),
        "cell_bytes": round(batch / cells, 1),
        "cells_per_event": round(cells / events, 3),
    }


def send(home: Home, day: date, events: int) -> int:
    """Send a day's events; the bytes of their messages, before the producer packs them."""
    shop = load_named(home.pipelines, "shop")
    planned = plan_events(shop, load_produce(home.pipelines / "shop", shop), day, events, 1, Shares(), None, None, utc_now())
    total = 0

    def weighed() -> Iterator[Event]:
        nonlocal total
        for event in planned:
            total += len(event.key) + len(event.value or b"")
            yield event

    send_events(stack.bootstrap(home), weighed(), home.sent("shop", str(day), 1), None, lambda _: None)
    return total


def core_seconds(job: Job) -> float:
    """Of the job's process and all that it starts, until its end."""
    spent: dict[int, float] = {}
    own = psutil.Process(job.process.pid)
    while job.process.poll() is None:
        try:
            for process in (own, *own.children(recursive=True)):
                used = process.cpu_times()
                spent[process.pid] = used.user + used.system
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.1)
    job.outcome()
    return sum(spent.values())


def identity_bytes(room: Path) -> float:
    """What the state of a view holds for one identity, on disk, when it is written as a whole."""
    spark = build_session("sizing")
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "false")
    ids = spark.range(IDENTITIES).selectExpr(
        "concat('o-', lower(hex(xxhash64(id)))) AS order_id", "timestamp '2026-03-01 12:00' AS ordered_at"
    )
    ids.write.parquet(str(room / "ids"))
    orders = load_named(ROOT / "pipelines", "shop").streams["orders"]
    first = dedupe_stream(spark.readStream.schema(ids.schema).parquet(str(room / "ids")), orders)

    def pass_on(frame: DataFrame, batch: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    writer = first.writeStream.foreachBatch(pass_on).option("checkpointLocation", str(room / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    held = max(own["stateOperators"][0]["customMetrics"]["rocksdbSstFileSize"] for own in query.recentProgress if own["stateOperators"])
    spark.stop()
    return round(float(held) / IDENTITIES, 1)


def size_of(folder: Path, files: str = "*") -> int:
    """Of these files in it; Kafka's indexes are sparse, and left out."""
    return sum(file.stat().st_size for file in folder.rglob(files) if file.is_file())


def reads_per_event() -> float:
    """How many views of the shop read an event, on average: each of them remembers its identity."""
    shop = load_named(ROOT / "pipelines", "shop")
    weights = {name: source.weight for name, source in load_produce(ROOT / "pipelines" / "shop", shop).sources.items()}
    return round(sum(weights[name] for view in shop.views for name in shop.streams_of(view)) / sum(weights.values()), 2)


def arithmetic(own: dict[str, Any]) -> list[str]:
    """A row for each rate, in Markdown."""
    lines = [
        f"| events/s | partitions | cores, all day | core hours of a night | cores of a night of {NIGHT_HOURS} h | state | messages, a day "
        "| archive, a day | accepted, a day | cells, a day |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    # The watermark lags by the lateness, and an identity is forgotten when it has reached the event's time and the lateness again.
    remembered = 2 * load_named(ROOT / "pipelines", "shop").streams["orders"].lateness.total_seconds()
    for rate in RATES:
        a_day = rate * 86_400
        night = a_day * own["nightly_core_us"] / 1e6 / 3_600
        sizes = [own["message_bytes"], own["raw_bytes"], own["accepted_bytes"], own["cell_bytes"] * own["cells_per_event"]]
        row = [
            f"{rate:,}",
            f"{rate // PARTITION_RATE:,}",
            f"{rate * (own['stream_core_us'] + own['refine_core_us']) / 1e6 / BUSY:,.0f}",
            f"{night:,.0f}",
            f"{night / NIGHT_HOURS:,.0f}",
            f"{rate * remembered * own['reads_per_event'] * own['identity_bytes'] / 1e9:,.1f} GB",
            *(f"{a_day * size / 1e9:,.0f} GB" for size in sizes),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


if __name__ == "__main__":
    main()

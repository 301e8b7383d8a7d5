"""What more executors and more events do, on a Spark cluster of this machine's processes, as ratios in one run.

speedup_2_executors  events a second of `weir stream` on two executors of one core each, against one: the same topic, the same view
cost_growth          what an event costs after four million of them, against what it costs after one million: 1 is linear
drain_growth         a backlog of five million, drained by one driver of 2 GB on this machine: the time of an event of the last million
                     against that of the second
drain_memory         the memory of that driver at most in its second half, against its first

The executors share the machine's cores with the broker and the driver. `--json` prints one object; the first batches of each run warm
the JVMs up and do not count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from throughput import BATCH, TOPIC, resident_mb, start_weir

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from weir import spark_cluster, stack  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.layout import Home  # noqa: E402

SIZES = (1_000_000, 2_000_000, 4_000_000)
BACKLOG = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=BACKLOG, help="how large the backlog is")
    parser.add_argument("--part", choices=["run"], help=argparse.SUPPRESS)
    parser.add_argument("--kafka", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    run_weir(options) if options.part else compare(options)


def compare(options: argparse.Namespace) -> None:
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    home = Home(room / "home")
    say: Callable[[str], None] = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    sizes = [size for size in SIZES if size <= options.events]
    costs: dict[int, dict[int, float]] = {}
    try:
        fetch_jars()
        stack.start_kafka(home)
        kafka = stack.bootstrap(home)
        stack.create_topics(kafka, {TOPIC: 2})
        say(f"filling {TOPIC} with {options.events:,} orders")
        fill = [sys.executable, str(ROOT / "benchmarks" / "throughput.py"), "--part", "fill", "--kafka", kafka]
        subprocess.run([*fill, "--large", str(options.events)], check=True, capture_output=True)
        spark_cluster.start_cluster(home, 2, say=say)
        for executors in (1, 2):
            costs[executors] = run_part(home, kafka, room, executors, options, sizes)
            told = ", ".join(f"{cost:.1f} µs an event at {size:,}" for size, cost in costs[executors].items())
            say(f"{executors} executors: {told}")
        spark_cluster.stop_cluster(home)
        say("draining the backlog on this machine")
        drained = drain(kafka, room, options)
    finally:
        spark_cluster.stop_cluster(home)
        stack.stop_kafka(home)
        shutil.rmtree(room, ignore_errors=True)
    first, last = sizes[0], sizes[-1]
    result: dict[str, Any] = {
        "speedup_2_executors": round(costs[1][last] / costs[2][last], 2),
        "cost_growth": round(costs[2][last] / costs[2][first], 3),
        **drained,
        "microseconds_per_event": {f"{n} executors": {f"{size:,}": round(c, 1) for size, c in own.items()} for n, own in costs.items()},
        "events_per_second": {f"{n} executors": round(1e6 / own[last]) for n, own in costs.items()},
        "events": sizes,
        "cores": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value}")


def run_part(home: Home, kafka: str, room: Path, executors: int, options: argparse.Namespace, sizes: list[int]) -> dict[int, float]:
    """One driver in a process of its own, on so many executors of one core."""
    environment = spark_cluster.spark_environment(home)
    settings = room / f"conf-{executors}"
    shutil.copytree(environment["SPARK_CONF_DIR"], settings)
    with (settings / "spark-defaults.conf").open("a") as f:
        f.write(f"\nspark.cores.max {executors}\nspark.executor.cores 1\n")
    folder = room / f"run-{executors}"
    batches, _ = run_apart(folder, kafka, options.events, environment | {"SPARK_CONF_DIR": str(settings)})
    return {size: cost_until(batches, size) for size in sizes}


def drain(kafka: str, room: Path, options: argparse.Namespace) -> dict[str, float]:
    batches, memory = run_apart(room / "drain", kafka, options.events, {"WEIR_DRIVER_MEMORY": "2g"})
    half = len(memory) // 2
    first, last = cost_until(batches, 2_000_000), cost_until(batches, options.events)
    return {
        "drain_growth": round(last / first, 3),
        "drain_memory": round(max(memory[half:]) / max(memory[:half]), 3),
        "drain_memory_mb": round(max(memory)),
        "drain_events_per_second": round(1e6 / last),
        "drain_largest_batch": max(rows for rows, _ in batches),
    }


def run_apart(folder: Path, kafka: str, events: int, environment: dict[str, str]) -> tuple[list[tuple[int, float]], list[float]]:
    """The batches of a driver in a process of its own, and its memory every half second."""
    command = [sys.executable, __file__, "--part", "run", "--kafka", kafka, "--folder", str(folder), "--events", str(events)]
    memory: list[float] = []
    log_file = folder.with_suffix(".log")
    with log_file.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment)
        while process.poll() is None:
            memory.append(resident_mb(process.pid))
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"the driver failed:\n{log_file.read_text()[-3_000:]}")
    assert process.stdout
    return json.loads(process.stdout.read().splitlines()[-1]), memory


def cost_until(batches: list[tuple[int, float]], size: int) -> float:
    """Microseconds an event of the last million before this size; of the first million, without the batches that warm up."""
    read, events, seconds = 0, 0, 0.0
    for rows, took in batches:
        read += rows
        if max(3 * BATCH, size - 1_000_000) < read <= size:
            events, seconds = events + rows, seconds + took
    return 1e6 * seconds / events


def run_weir(options: argparse.Namespace) -> None:
    query, told = start_weir(options)
    query.awaitTermination()
    wait_for_last(told, options.events)
    print(json.dumps([(own["numInputRows"], own["durationMs"]["triggerExecution"] / 1_000) for own in told if own["numInputRows"]]))


def wait_for_last(told: list[dict[str, Any]], events: int) -> None:
    """The last batches reach the listener a moment later."""
    deadline = time.monotonic() + 30
    while sum(own["numInputRows"] for own in told) < events:
        if time.monotonic() > deadline:
            raise SystemExit(f"{sum(own['numInputRows'] for own in told):,} of {events:,} events were read")
        time.sleep(0.2)


if __name__ == "__main__":
    main()

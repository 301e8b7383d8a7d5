"""All views of the shop in one driver: the steady rate that they hold with bounded lag, its memory, and the state of each view.

`weir stream` as it is started by default (archive, intake, all views, watch) reads events of now, of all streams, at a rate that
rises step by step. A step is held when in its last third no query is further behind than in its middle third, give or take, and none
by more than the given seconds. `--json` prints one object: `steady_events_per_second` is the highest step that was held; lag, memory and
state are those of that step.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from weir import stack  # noqa: E402
from weir.generator import load_produce  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.jobs import start_stream, stop_stream, wait_until_running  # noqa: E402
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, Home, view_query  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.produce import plan_events, send_events  # noqa: E402
from weir.records.driver import Control, Heartbeat  # noqa: E402

GROWTH = 1.3


@dataclass
class Step:
    """What was seen while one rate was sent."""

    rate: int
    lags: list[dict[str, float]] = field(default_factory=list)
    """At each beat: by query how many seconds it was behind."""
    memory_mb: float = 0
    beat: Heartbeat | None = None

    def lag(self, third: int) -> float:
        """The median of the worst query's lag in a third of the step."""
        size = max(1, len(self.lags) // 3)
        part = self.lags[third * size : (third + 1) * size] or self.lags[-1:]
        return statistics.median(max(own.values(), default=0) for own in part)

    def is_held(self, seconds: float) -> bool:
        return bool(self.lags) and self.lag(2) <= seconds and self.lag(2) <= max(GROWTH * self.lag(1), seconds / 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rates", default="250,500,1000,2000,4000", help="events a second, over all streams")
    parser.add_argument("--seconds", type=int, default=90, help="of each step")
    parser.add_argument("--lag", type=float, default=30, help="seconds by which a query may be behind")
    parser.add_argument("--send", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(*options.send)
    else:
        climb(options)


def climb(options: argparse.Namespace) -> None:
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    os.environ["WEIR_PIPELINES"] = str(ROOT / "pipelines")
    home = Home(room / "home")
    say = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    shop, steps = load_named(home.pipelines, "shop"), []
    try:
        fetch_jars()
        stack.start_kafka(home)
        kafka = stack.bootstrap(home)
        stack.create_topics(kafka, shop.partitions)
        job = start_stream(home, "shop", kafka, [])
        wait_until_running(home, "shop", job)
        run(home, 100, 45, 0)  # until all is compiled
        for number, rate in enumerate(int(own) for own in options.rates.split(",")):
            steps.append(run(home, rate, options.seconds, number + 1))
            held = steps[-1].is_held(options.lag)
            say(f"{rate:,} events/s: {steps[-1].lag(2):.1f} s behind, {'held' if held else 'not held'}")
            if not held:
                break
    finally:
        stop_stream(home, "shop", "benchmark")
        stack.stop_kafka(home)
        shutil.rmtree(room, ignore_errors=True)
    report(options, steps)


def run(home: Home, rate: int, seconds: int, seed: int) -> Step:
    """Send at this rate, from a process of its own, and look at the heartbeat meanwhile."""
    step, control = Step(rate), Control(home.lake.control("shop"))
    command = [sys.executable, __file__, "--send", str(home.root), str(rate), str(seconds), str(seed)]
    sender = subprocess.Popen(command, env=os.environ)
    peak = threading.Thread(target=_watch_memory, args=(step, control, sender), daemon=True)
    peak.start()
    shares, last = shares_of_the_events(home), None
    while sender.poll() is None:
        beat = control.heartbeat()
        if beat and beat.state == "running" and beat.written_at != last:
            last = beat.written_at
            step.lags.append({name: own.behind / (rate * shares[name]) for name, own in beat.queries.items() if name in shares})
            step.beat = beat
        time.sleep(0.5)
    peak.join(5)
    if sender.returncode:
        raise SystemExit("the events could not be sent")
    return step


def shares_of_the_events(home: Home) -> dict[str, float]:
    """By query which part of all events it reads."""
    shop = load_named(home.pipelines, "shop")
    weights = {name: source.weight for name, source in load_produce(home.pipelines / "shop", shop).sources.items()}
    whole = sum(weights.values())
    views = {view_query(view): sum(weights[name] for name in shop.streams_of(view)) / whole for view in shop.views}
    return views | {INTAKE_QUERY: 1.0, ARCHIVE_QUERY: 1.0}


def _watch_memory(step: Step, control: Control, sender: "subprocess.Popen[bytes]") -> None:
    while sender.poll() is None:
        lease = control.lease()
        try:
            family = [psutil.Process(lease.holder.pid)] if lease else []
            family += [child for own in family for child in own.children(recursive=True)]
            step.memory_mb = max(step.memory_mb, sum(own.memory_info().rss for own in family) / 1e6)
        except psutil.NoSuchProcess:
            pass
        time.sleep(1)


def send(home: str, rate: str, seconds: str, seed: str) -> None:
    """Events of all streams that happen from now on, each about when it happens."""
    place = Home(Path(home))
    shop = load_named(place.pipelines, "shop")
    now = datetime.now(UTC)
    end = min(now + timedelta(seconds=int(seconds)), now.replace(hour=23, minute=59, second=59))
    declaration = load_produce(place.pipelines / "shop", shop)
    events = int(rate) * int(seconds)
    planned = plan_events(shop, declaration, now.date(), events, int(seed), None, now.time(), end.time(), end)
    send_events(stack.bootstrap(place), planned, place.sent("shop", str(now.date()), int(seed)), float(rate), lambda _: None)


def report(options: argparse.Namespace, steps: list[Step]) -> None:
    held = [step for step in steps if step.is_held(options.lag)]
    best = held[-1] if held else None
    beat = best.beat if best else None
    result: dict[str, Any] = {
        "steady_events_per_second": best.rate if best else 0,
        "lag_seconds": round(best.lag(2), 1) if best else None,
        "memory_mb": round(best.memory_mb) if best else None,
        "state_bytes": {name: own.state_bytes for name, own in sorted(beat.queries.items())} if beat else {},
        "queries": len(beat.queries) if beat else 0,
        "steps": {step.rate: round(step.lag(2), 1) for step in steps},
        "seconds": options.seconds,
        "cores": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()

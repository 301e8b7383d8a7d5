"""How old a view is while events arrive at a steady rate: the whole shop in one driver, as `weir stream` starts it.

Staleness is the age of the oldest message that a view's cells do not reflect yet, from produced to visible, sampled twice a second: what
the broker has, and when, against what each view has read when its cells are committed. A view that gives closed cells only (sessions,
joins) reflects a message as soon as it has taken it in.

staleness_p95_100, staleness_p95_2000   of the worst view that the intake computes (counts, sums, minima, maxima)
any_p95_100, any_p95_2000               of the worst view of all
state_growth                            at 2,000 events/s: the batch time of the last five minutes by that of minutes five to ten

`--json` prints one object. `--quick` runs two minutes at 100 events/s only.
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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from deltalake import DeltaTable  # noqa: E402

from spark_jobs.arrow_tables import ArrowTable  # noqa: E402
from spark_jobs.intake.journal import BatchNote  # noqa: E402
from spark_jobs.journal_source import journal_batches  # noqa: E402
from spark_jobs.streaming.checkpoint import committed_batch  # noqa: E402
from weir import stack  # noqa: E402
from weir.jars import fetch_jars  # noqa: E402
from weir.jobs import start_stream, stop_stream, wait_until_running  # noqa: E402
from weir.layout import INTAKE_QUERY, Home, app_id, view_query  # noqa: E402
from weir.loader import load_named  # noqa: E402
from weir.pipeline import Pipeline  # noqa: E402
from weir.records.driver import Control  # noqa: E402
from weir.records.night import ViewVersion  # noqa: E402

SAMPLE_SECONDS = 0.5
WARM_UP_SECONDS = 60
RATES = (100, 2_000)


@dataclass
class Samples:
    """What was seen at one rate."""

    staleness: dict[str, list[float]] = field(default_factory=dict)
    """By view, in seconds."""
    batch_seconds: list[tuple[float, float]] = field(default_factory=list)
    """When, and how long the last batch of the intake and of the slowest view took together."""


class Watcher:
    """Knows what the broker had when, and what each view reflects now."""

    def __init__(self, home: Home, shop: Pipeline) -> None:
        self.home, self.shop, self.lake = home, shop, home.lake
        self.kafka = stack.bootstrap(home)
        self.control = Control(self.lake.control("shop"))
        self._ends: deque[tuple[float, dict[str, int]]] = deque(maxlen=20_000)
        self._journal: ArrowTable | None = None
        self._notes: dict[int, dict[str, int]] = {}
        self._contracts = {name: shop.contract_fingerprint(name) for name in shop.sources}
        self._tables: dict[str, DeltaTable] = {}

    def is_aggregate(self, view: str) -> bool:
        version = ViewVersion.read(self.lake.view_version("shop", view, self.shop.fingerprint(view)))
        return version is not None and version.is_aggregate

    def sample(self, samples: Samples) -> None:
        now = time.time()
        self._ends.append((now, stack.end_offsets(self.kafka, list(self.shop.topics))))
        self._read_notes()
        for view in self.shop.views:
            if (until := self._until(view)) is not None:
                samples.staleness.setdefault(view, []).append(self._age(until, view, now))
        beat = self.control.heartbeat()
        if beat and beat.state == "running" and INTAKE_QUERY in beat.queries:
            views = [own.batch_seconds or 0 for name, own in beat.queries.items() if name.startswith(view_query(""))]
            samples.batch_seconds.append((now, (beat.queries[INTAKE_QUERY].batch_seconds or 0) + max(views, default=0)))

    def _read_notes(self) -> None:
        """How far each batch of the journal had read."""
        self._journal = self._journal or ArrowTable(self.lake.journal("shop"))
        for commit in self._journal.table().history(30):
            if "weir" in commit:
                note = BatchNote.of(json.loads(commit["weir"]))
                self._notes.setdefault(note.batch, note.until_of(self._contracts))
        for old in sorted(self._notes)[:-5_000]:
            del self._notes[old]

    def _until(self, view: str) -> dict[str, int] | None:
        fingerprint = self.shop.fingerprint(view)
        if self.is_aggregate(view):
            table = self._tables.get(view) or DeltaTable(self.lake.speed("shop", view, fingerprint))
            table.update_incremental()
            self._tables[view] = table
            batch = table.transaction_version(app_id("shop", "cells", f"{view}-{fingerprint}"))
        else:
            checkpoint = self.lake.view_checkpoint("shop", view, fingerprint)
            last = committed_batch(checkpoint)
            batch = min(journal_batches(checkpoint, last).values()) if last >= 0 else None
        if batch is None:
            return None
        # A batch without rows of the view's streams leaves it as it is: then it reflects all batches up to the next with such rows.
        return self._notes.get(int(batch))

    def _age(self, until: dict[str, int], view: str, now: float) -> float:
        topics = {topic for stream in self.shop.streams_of(view) for topic in self.shop.streams[stream].topics}
        for at, ends in self._ends:
            if any(end > until.get(place, 0) for place, end in ends.items() if place.rpartition("/")[0] in topics):
                return now - at
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two minutes at 100 events/s only")
    parser.add_argument("--seconds", type=int, default=300, help="of each rate")
    parser.add_argument("--growth-minutes", type=int, default=45, help="of the run in which state grows; 0 for none")
    options = parser.parse_args()
    say: Callable[[str], None] = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    found = measure(options, say)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    os.environ["WEIR_PIPELINES"] = str(ROOT / "pipelines")
    home = Home(room / "home")
    shop = load_named(home.pipelines, "shop")
    found: dict[str, Any] = {}
    try:
        fetch_jars()
        stack.start_kafka(home)
        stack.create_topics(stack.bootstrap(home), shop.partitions)
        wait_until_running(home, "shop", start_stream(home, "shop", stack.bootstrap(home), []))
        watcher, seed = Watcher(home, shop), 1
        run(home, watcher, 100, WARM_UP_SECONDS, 0)
        for rate in RATES[:1] if options.quick else RATES:
            samples = run(home, watcher, rate, 120 if options.quick else options.seconds, seed)
            found |= summarise(watcher, samples, rate)
            say(f"{rate:,} events/s: {found[f'views_{rate}']}")
            seed += 1
        if not options.quick and options.growth_minutes:
            samples = run(home, watcher, RATES[-1], 60 * options.growth_minutes, seed)
            found["state_growth"] = growth(samples)
    finally:
        stop_stream(home, "shop", "benchmark")
        stack.stop_kafka(home)
        shutil.rmtree(room, ignore_errors=True)
    return found | {"cores": os.cpu_count(), "seconds": 120 if options.quick else options.seconds}


def run(home: Home, watcher: Watcher, rate: int, seconds: int, seed: int) -> Samples:
    """Send at this rate from a process of its own, and sample meanwhile; the first samples, of the rate before, do not count."""
    command = [sys.executable, str(ROOT / "benchmarks" / "views.py"), "--send", str(home.root), str(rate), str(seconds), str(seed)]
    sender = subprocess.Popen(command, env=os.environ)
    warm, samples, began = Samples(), Samples(), time.time()
    try:
        while sender.poll() is None:
            watcher.sample(samples if time.time() - began > min(30, seconds / 4) else warm)
            time.sleep(SAMPLE_SECONDS)
    finally:
        if sender.poll() is None:
            sender.terminate()
    if sender.returncode:
        raise SystemExit("the events could not be sent")
    return samples


def summarise(watcher: Watcher, samples: Samples, rate: int) -> dict[str, Any]:
    views = {view: (percentile(own, 50), percentile(own, 95)) for view, own in samples.staleness.items()}
    aggregates = {view: own for view, own in views.items() if watcher.is_aggregate(view)}
    return {
        f"staleness_p50_{rate}": max(own[0] for own in aggregates.values()),
        f"staleness_p95_{rate}": max(own[1] for own in aggregates.values()),
        f"best_p95_{rate}": min(own[1] for own in views.values()),
        f"any_p95_{rate}": max(own[1] for own in views.values()),
        f"views_{rate}": {view: {"p50": own[0], "p95": own[1]} for view, own in sorted(views.items())},
    }


def percentile(values: list[float], percent: int) -> float:
    return round(statistics.quantiles(values, n=100)[percent - 1], 1) if len(values) > 1 else values[0]


def growth(samples: Samples) -> float:
    """The mean batch time of the last five minutes by that of the fifth to the tenth minute."""
    began, ended = samples.batch_seconds[0][0], samples.batch_seconds[-1][0]
    early = [seconds for at, seconds in samples.batch_seconds if 300 <= at - began < 600]
    late = [seconds for at, seconds in samples.batch_seconds if ended - at < 300]
    return round(statistics.mean(late) / statistics.mean(early), 3)


if __name__ == "__main__":
    main()

"""Says what a Spark cluster lacks for a pipeline, before anything runs on it. The pipeline stays as it is; only connections change.

1. the master can be reached, and gives executors
2. they have the driver's Python and its packages
3. they see the lake that the driver sees, and may write to it
4. they reach the brokers
5. their clocks agree with the driver's, and there are slots enough for a stream
"""

import argparse
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.session import build_session, chosen_master
from weir.lake_files import lake_path, write_whole
from weir.pipeline import Pipeline
from weir.records.jobs import Outcome
from weir.refusal import Refusal

EXECUTOR_SECONDS = 90
CLOCK_SECONDS = 5
OTHER_SLOTS = 2
"""For archive and views, which take turns."""
PACKAGES = ("weir", "spark_jobs", "pandas", "pyarrow")
"""What a pattern's state needs on an executor."""

Probe = dict[str, Any]


def look(lake: str, mark: str, kafka: str) -> Probe:
    """What one executor finds. It may lack every package of ours, so that it only uses the standard library."""
    import importlib.util
    import os

    found: Probe = {"host": socket.gethostname(), "clock": time.time(), "wrong": []}
    found["wrong"] += [f"the package {name} is not there" for name in PACKAGES if importlib.util.find_spec(name) is None]
    if "://" in lake:
        found["wrong"] += _wrong_with_store(lake, mark)
    elif not (seen := Path(lake, mark)).is_file():
        found["wrong"].append(f"the lake {lake} is not the driver's: share one folder, or use an object store")
    elif not os.access(seen.parent, os.W_OK):
        found["wrong"].append(f"may not write to the lake {lake} (user {os.getuid()})")
    for broker in filter(None, kafka.split(",")):
        host, _, port = broker.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            found["wrong"].append(f"cannot reach the broker {broker} ({error})")
    return found


def _wrong_with_store(lake: str, mark: str) -> Iterator[str]:
    try:
        from weir.lake_files import lake_path

        if not lake_path(f"{lake}/{mark}").is_file():
            yield f"the lake {lake} is not the driver's: name the same store (AWS_ENDPOINT_URL)"
            return
        own = lake_path(f"{lake}/{mark}-{secrets.token_hex(4)}")
        own.write_bytes(b"")
        own.unlink()
    except Exception as error:  # whatever it is: a name that is not known, a key that is missing or may not
        yield f"cannot use the lake {lake} ({error}): give it the driver's AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"


def unreachable(master: str) -> str | None:
    """Why nobody answers at a standalone master; Spark itself would try for a minute, and end its JVM."""
    where = urlsplit(master)
    if where.scheme != "spark":
        return None
    try:
        socket.create_connection((where.hostname, where.port or 7077), timeout=5).close()
    except OSError as error:
        return f"nobody answers at {master} ({error}): is it the master's address, and does it run?"
    return None


def complaints(probes: list[Probe], pipeline: Pipeline, slots: int, began: float, ended: float) -> Iterator[str]:
    """What is wrong, each thing once for each host."""
    told = dict.fromkeys(f"executor on {probe['host']}: {wrong}" for probe in probes for wrong in probe["wrong"])
    yield from told
    for host, clock in {probe["host"]: probe["clock"] for probe in probes}.items():
        if not began - CLOCK_SECONDS <= clock <= ended + CLOCK_SECONDS:
            yield f"the clock of {host} differs from the driver's by {abs(clock - began):.0f} s: run NTP on both"
    if (needed := pipeline.watched_partitions + OTHER_SLOTS) > slots:
        yield f"a stream of {pipeline.name} needs {needed} task slots, {slots} were given: raise spark.cores.max, or add workers"


def within(seconds: float, act: Callable[[], Any]) -> Any:
    """What the act gives; None when it takes too long, and the act is left behind."""
    given: list[Any] = []

    def run() -> None:
        try:
            given.append(act())
        except Exception as error:
            given.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if given and isinstance(given[0], Exception):
        raise given[0]
    return given[0] if given else None


def check_cluster(call: Call) -> Outcome:
    master = chosen_master()
    if wrong := unreachable(master):
        raise Refusal(wrong)
    lake, mark = call.lake.root, f".weir-{secrets.token_hex(4)}"
    spark = build_session(f"weir {call.pipeline.name} check", occupied=call.pipeline.watched_partitions)
    context, kafka = spark.sparkContext, call.kafka
    marked = lake_path(f"{lake}/{mark}")
    if not call.lake.is_remote:
        Path(lake).mkdir(parents=True, exist_ok=True)  # as others may enter it: records are for their owner only
    write_whole(marked, "")
    began = time.time()
    try:
        tasks = 4 * (call.pipeline.watched_partitions + OTHER_SLOTS)
        probes = within(EXECUTOR_SECONDS, lambda: context.parallelize(range(tasks), tasks).map(lambda _: look(lake, mark, kafka)).collect())
    except Exception as error:
        raise Refusal(f"executors of {master} cannot run Python: {one_line(error)}") from None
    finally:
        marked.unlink()
    if probes is None:
        raise Refusal(f"{master} gave no executor within {EXECUTOR_SECONDS} s: are slots and memory of its workers free?")
    slots = context.defaultParallelism
    if found := list(complaints(probes, call.pipeline, slots, began, time.time())):
        raise Refusal("\n".join(found))
    hosts = sorted({probe["host"] for probe in probes})
    return Outcome(lines=[f"{master}: {slots} task slots on {', '.join(hosts)}; packages, lake, brokers and clocks are in order"])


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


if __name__ == "__main__":
    run_job(check_cluster, add_options)

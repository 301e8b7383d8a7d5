"""A whole Weir of its own for one test: a home, a real broker, real drivers; all of it gone afterwards, also on failure."""

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable
from oracle import Cells, Message

from weir import stack
from weir.generator import Shares, load_produce
from weir.jobs import Job, start_stream, stop_stream
from weir.layout import Home, Lake, journal_writer
from weir.loader import load_named, read_yaml
from weir.pipeline import Pipeline
from weir.produce import Event, plan_events, send_events
from weir.records.driver import Control
from weir.records.jobs import Outcome
from weir.records.night import NightlyReport
from weir.records.quality import ReplayReport
from weir.serving import answer_query
from weir.sql_text import relations_in

ROOT = Path(__file__).resolve().parent.parent
DAY = date(2026, 3, 1)


@dataclass
class Sent:
    """One acknowledged message, as the sent file has it."""

    stream: str
    message: Message
    wrong: str


class Workplace:
    def __init__(self, folder: Path, only: tuple[str, ...] = (), brokers: int = 1) -> None:
        """With `only`, the shop is reduced to these streams and the views over them: its drivers start faster."""
        shutil.copytree(ROOT / "pipelines", folder / "pipelines")
        if only:
            self._reduce(folder / "pipelines" / "shop", only)
        os.environ["WEIR_PIPELINES"] = str(folder / "pipelines")
        self.home = Home(folder / "home")
        self.pipeline: Pipeline = load_named(self.home.pipelines, "shop")
        self.control = Control(self.home.lake.control("shop"))
        self._jobs: list[Job] = []
        stack.start_kafka(self.home, brokers=brokers)
        stack.create_topics(stack.bootstrap(self.home), self.pipeline.partitions)

    @staticmethod
    def _reduce(folder: Path, only: tuple[str, ...]) -> None:
        declared, _ = read_yaml(folder / "pipeline.yaml")
        produced, _ = read_yaml(folder / "produce.yaml")
        declared["streams"] = {name: stream for name, stream in declared["streams"].items() if name in only}
        declared["views"] = {name: view for name, view in declared["views"].items() if _reads(folder, name, view) <= set(only)}
        declared["serve"] = [name for name in declared["serve"] if _reads(folder, name, {}) <= set(declared["views"])]
        declared["tables"] = {name: table for name, table in declared["tables"].items() if name in only}
        declared.pop("watch", None)
        produced["sources"] = {name: source for name, source in produced["sources"].items() if name in only}
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
        (folder / "produce.yaml").write_text(yaml.safe_dump(produced, sort_keys=False))

    def close(self) -> None:
        for job in self._jobs:
            if job.process.poll() is None:
                os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
        stack.stop_kafka(self.home)
        os.environ.pop("WEIR_PIPELINES", None)

    # Acting

    def produce(self, events: int, shares: Shares, seed: int = 1, rate: float | None = None) -> list[Sent]:
        """Send events of the day; gives all that was ever acknowledged under this seed."""
        declaration = load_produce(self.home.pipelines / "shop", self.pipeline)
        planned = plan_events(self.pipeline, declaration, DAY, events, seed, shares, None, None, datetime(2026, 3, 3, tzinfo=UTC))
        file = self.home.sent("shop", str(DAY), seed)
        send_events(stack.bootstrap(self.home), planned, file, rate, lambda _: None)
        return read_sent(file)

    def send(self, events: list[Event], seed: int = 1) -> list[Sent]:
        """Send these events beside those that were produced under this seed."""
        file = self.home.sent("shop", str(DAY), seed)
        send_events(stack.bootstrap(self.home), events, file, None, lambda _: None)
        return read_sent(file)

    def start(self, *options: str, fault: str = "") -> Job:
        os.environ["WEIR_FAULT"] = fault
        try:
            job = start_stream(self.home, "shop", stack.bootstrap(self.home), list(options))
        finally:
            del os.environ["WEIR_FAULT"]
        self._jobs.append(job)
        return job

    def stream_once(self, *options: str) -> None:
        """Read what is there, with a driver in this process: its JVM is warm."""
        from spark_jobs import stream_job  # only tests of the whole need Spark here

        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            assert self._run_here(stream_job.stream, stream_job.add_options, "--once", *options).failure is None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        stop_stream(self.home, "shop", "test")

    def nightly(self, day: date = DAY) -> NightlyReport:
        """Prove a day, in this process."""
        from spark_jobs import nightly_job

        report = self._run_here(nightly_job.nightly, nightly_job.add_options, "--day", str(day)).report
        assert report is not None
        return report

    def refine(self) -> None:
        from spark_jobs import refine_job

        assert self._run_here(refine_job.refine, refine_job.add_options).failure is None

    def replay(self, stream: str) -> ReplayReport:
        """Judge the quarantined rows of a stream by the declaration as it is now, and release those that pass."""
        from spark_jobs import quarantine_job

        options = ["--act", "replay", "--stream", stream, "--apply"]
        replayed = self._run_here(quarantine_job.act, quarantine_job.add_options, *options).replayed
        assert replayed is not None
        return replayed

    def rewrite(self, file: str, old: str, new: str) -> None:
        """Change a file of the declaration, as its author would."""
        path = self.home.pipelines / "shop" / file
        text = path.read_text()
        assert old in text, f"{old!r} is not in {file}"
        path.write_text(text.replace(old, new))
        self.pipeline = load_named(self.home.pipelines, "shop")

    def _run_here(self, act: Callable[[Any], Outcome], add_options: Callable[[Any], None], *options: str) -> Outcome:
        """A job's act, as its command line would call it, without a process and a JVM of its own."""
        from spark_jobs.session import build_session

        try:
            return run_act(act, add_options, self.pipeline, self.home.lake, stack.bootstrap(self.home), *options)
        finally:
            build_session("weir tests").catalog.clearCache()

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        weir = [sys.executable, "-m", "weir.cli", *arguments]
        env = os.environ | {"WEIR_HOME": str(self.home.root)} | environment
        return subprocess.run(weir, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)

    # Reading back

    def raw(self, stream: str) -> Counter[tuple[Any, ...]]:
        """The archive as a multiset of (partition, offset, received_at in ms, value)."""
        columns = ["partition", "offset", "received_at", "value"]
        rows = DeltaTable(self.home.lake.raw("shop")).to_pyarrow_table([("stream", "=", stream)], columns=columns).to_pylist()
        return Counter((r["partition"], r["offset"], round(r["received_at"].timestamp() * 1_000), r["value"]) for r in rows)

    def journal(self, stream: str, every_contract: bool = False) -> list[dict[str, Any]]:
        """The journal's rows of a stream, judged by its present contract, in the order of the intake."""
        columns = ["partition", "offset", "received_at", "identity", "occurred_at", "fate", "late", "reasons", "batch", "contract"]
        wanted = pc.field("stream") == stream
        if not every_contract:
            wanted &= pc.field("contract") == self.pipeline.contract_fingerprint(stream)
        rows = DeltaTable(self.home.lake.journal("shop")).to_pyarrow_dataset().to_table(columns=columns, filter=wanted).to_pylist()
        return sorted(rows, key=lambda row: (row["batch"], row["received_at"], row["partition"], row["offset"]))

    def last_journal_batch(self) -> int:
        """The number of the last batch in the journal, or -1."""
        if not DeltaTable.is_deltatable(path := self.home.lake.journal("shop")):
            return -1
        last = DeltaTable(path).transaction_version(journal_writer("shop"))
        return -1 if last is None else int(last)

    def quarantined(self, stream: str) -> Counter[tuple[int, int]]:
        """The messages in quarantine as a multiset of (partition, offset)."""
        if not DeltaTable.is_deltatable(path := self.home.lake.quarantined("shop")):
            return Counter()
        rows = DeltaTable(path).to_pyarrow_table([("stream", "=", stream)], columns=["partition", "offset"]).to_pylist()
        return Counter((row["partition"], row["offset"]) for row in rows)

    def messages_read(self, query: str) -> int:
        """Up to where the running driver has read, as it tells."""
        beat = self.control.heartbeat()
        return sum(beat.queries[query].until.values()) if beat and query in beat.queries else 0

    def cells(self, view: str, form: str = "") -> Cells:
        """The served cells of a view, or those of one layer."""
        declared = self.pipeline.views[view]
        answer = answer_query(self.home.lake, [self.pipeline], f"SELECT * FROM {view}{form}")
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        cells: Cells = {}
        for row in rows:
            row.pop("status", None)
            values = {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}
            grain = tuple(values.pop(column) for column in declared.grain)
            assert grain not in cells, f"two rows of one cell: {grain}"
            cells[grain] = tuple(values.values())
        return cells


def run_act(
    act: Callable[[Any], Outcome], add_options: Callable[[Any], None], pipeline: Pipeline, lake: Lake, kafka: str, *options: str
) -> Outcome:
    """A job's act, as its command line would call it, in this process."""
    from spark_jobs.entry import Call

    parser = argparse.ArgumentParser()
    add_options(parser)
    return act(Call(pipeline, lake, kafka, parser.parse_args(options)))


def fill_archive(spark: Any, lake: Lake, stream: str, messages: list[Message]) -> None:
    """Append messages to the shop's raw table, as the archive query would."""
    from spark_jobs.transform import MESSAGE

    rows = [(m.topic, m.partition, m.offset, m.received_at, m.value) for m in messages]
    frame = spark.createDataFrame(rows, MESSAGE).coalesce(1)
    frame = frame.selectExpr("*", f"'{stream}' AS stream", "to_date(received_at) AS received_on")
    frame.write.format("delta").mode("append").partitionBy("stream", "received_on").save(lake.raw("shop"))


def archive_of(sent: list[Sent], stream: str) -> Counter[tuple[Any, ...]]:
    """What raw must hold, according to the sent file."""
    own = [s.message for s in sent if s.stream == stream]
    return Counter((m.partition, m.offset, round(m.received_at.timestamp() * 1_000), m.value) for m in own)


def messages_of(sent: list[Sent], stream: str) -> list[Message]:
    return [s.message for s in sent if s.stream == stream]


def read_sent(file: Path) -> list[Sent]:
    found = []
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        text, coded = entry.get("value"), entry.get("value_base64")
        value = base64.b64decode(coded) if coded is not None else None if text is None else text.encode()
        received_at = datetime.fromisoformat(entry["received_at"])
        message = Message(entry["topic"], entry["partition"], entry["offset"], received_at, value)
        found.append(Sent(entry["stream"], message, entry["wrong"]))
    return found


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def _reads(folder: Path, name: str, view: dict[str, Any]) -> set[str]:
    """What a declared view or served query reads."""
    if pattern := view.get("pattern"):
        return {pattern["of"], *(step.get("of", pattern["of"]) for step in pattern["steps"])}
    return {*relations_in((folder / f"{name}.sql").read_text()), *view.get("as_of", {})}

"""The main job in one go, on a stack of its own: send a day, stream it, recompute it, compare."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from weir import screens, stack
from weir.event_time import utc_now
from weir.generator import load_produce
from weir.jobs import Job, JobFailed, start_stream, stop_stream, wait_until_running
from weir.layout import Home
from weir.loader import load_named
from weir.produce import plan_events, send_events
from weir.records import Control, NightlyReport, QueryPulse
from weir.serving import Answer, answer_query

PIPELINE = "shop"
CATCH_UP_SECONDS = 180
MAX_BATCH = 800
"""Small batches, so that the watermark moves while the day is read: with one large batch nothing could be late."""


def run_demo(out: Console, err: Console, events: int, rate: float, seed: int, quiet: bool) -> dict[str, Any]:
    """Run everything and report. The demo's home is emptied first and kept afterwards, for looking around."""
    home = Home(Home.from_environment().root / "demo")
    pipeline = load_named(home.pipelines, PIPELINE)
    day = utc_now().date() - timedelta(days=1)
    topics = {source.topic: source.partitions for source in pipeline.sources.values()}
    began = time.monotonic()
    with _own_lake(home), _step(err, "starting Kafka") as step:
        _empty(home)
        stack.fetch_jars(say=step.update)
        stack.start_kafka(home, say=step.update)
        try:
            kafka = stack.bootstrap(home)
            stack.create_topics(kafka, topics)
            step.update("starting the stream: archive and views in one Spark driver")
            job = start_stream(home, PIPELINE, kafka, ["--max-batch", str(MAX_BATCH)])
            wait_until_running(home, PIPELINE, job)
            declaration = load_produce(home.pipelines / PIPELINE, pipeline)
            planned = list(plan_events(pipeline, declaration, day, events, seed, declaration.shares, None, None, utc_now()))
            step.update(f"sending {len(planned):,} events of {day} at {rate:,.0f} a second, while the stream reads them")
            file = home.sent(PIPELINE, str(day), seed)
            sent = send_events(kafka, planned, file, rate, lambda _: None)
            step.update("waiting until the stream has read them all")
            _wait_until_read(home, job, stack.end_offsets(kafka, topics))
            step.update("stopping the stream at a batch border")
            stop_stream(home, PIPELINE, "the demo is over")
            step.update(f"recomputing {day} from the archive and comparing")
            report = Job(home, "nightly_job", PIPELINE, options=["--day", str(day)]).wait().report
            assert report is not None
        finally:
            _stop_all(home)
        sql = "SELECT country, sum(orders) AS orders, sum(revenue) AS revenue FROM revenue_per_minute GROUP BY 1 ORDER BY 3 DESC LIMIT 5"
        answer = answer_query(home.lake, [pipeline], sql)
    seconds = round(time.monotonic() - began)
    if not quiet:
        _show(out, home, sent, report, sql, answer, seconds)
    return {
        "seconds": seconds,
        "day": str(day),
        "sent": sum(sent.values()),
        "archived": sum(stream.archived for stream in report.streams),
        "report": report.model_dump(mode="json"),
    }


def _show(out: Console, home: Home, sent: Counter[tuple[str, str]], report: NightlyReport, sql: str, answer: Answer, seconds: int) -> None:
    screens.show_sent(out, sent)
    screens.show_nightly(out, report)
    out.print(f'[bold]weir query "{sql}"[/]')
    screens.show_answer(out, answer)
    where = os.path.relpath(home.root)
    out.print(f"Done in {seconds} s. Cells may differ where events came late: the stream does not wait for them, the night counts them.")
    out.print(
        f"Nothing is left running. Look around with WEIR_HOME={where} weir query …; the Spark logs are in {where}/logs.", soft_wrap=True
    )


@contextmanager
def _own_lake(home: Home) -> Iterator[None]:
    """Leave a lake and brokers that the environment names alone: the demo has its own."""
    kept = {name: os.environ.pop(name, None) for name in ("WEIR_LAKE", "WEIR_KAFKA")}
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})


@contextmanager
def _step(err: Console, first: str) -> Iterator[Status]:
    with err.status(first) as status:
        if not err.is_terminal:  # a log wants lines, a person a spinner
            began = time.monotonic()
            status.update = lambda text, **_: err.print(f"{time.monotonic() - began:4.0f} s  {text}", soft_wrap=True)  # type: ignore[method-assign]
        yield status


def _empty(home: Home) -> None:
    """Remove what an earlier demo left, after stopping what it may have left running."""
    _stop_all(home)
    for part in (home.kafka, Path(home.lake.root), home.sent("x", "y", 0).parent, home.log("x").parent):
        shutil.rmtree(part, ignore_errors=True)


def _stop_all(home: Home) -> None:
    with suppress(JobFailed):
        stop_stream(home, PIPELINE, "the demo ends")
    stack.stop_kafka(home)


def _has_read(pulse: QueryPulse, ends: dict[str, int]) -> bool:
    return bool(pulse.until) and all(offset >= ends[place] for place, offset in pulse.until.items())


def _wait_until_read(home: Home, job: Job, ends: dict[str, int]) -> None:
    """Wait until archive and views have committed all offsets."""
    control = Control(home.lake.control(PIPELINE))
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < deadline:
        beat = control.heartbeat()
        if beat and beat.queries and all(_has_read(pulse, ends) for pulse in beat.queries.values()):
            return
        if job.process.poll() is not None:
            job.outcome()
            raise JobFailed(f"the stream ended before it had read everything; see {job.log}")
        time.sleep(0.5)
    raise JobFailed(f"the stream had not read everything after {CATCH_UP_SECONDS} s; see {job.log}")

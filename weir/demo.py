"""The main job in one go, on a stack of its own: Airflow streams a day, validates it, recomputes it, compares."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as dt_time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from weir import embedded_airflow, screens, stack
from weir.event_time import utc_now
from weir.generator import load_produce
from weir.jars import fetch_jars
from weir.jobs import JobFailed, stop_stream
from weir.layout import MICROBATCH, NIGHTLY, STREAM, Home, dag_id
from weir.loader import load_named
from weir.produce import Event, plan_events, send_events
from weir.records.driver import Control
from weir.records.night import NightlyReport

PIPELINE = "shop"
CATCH_UP_SECONDS = 240
DAGS_SECONDS = 120
MAX_BATCH = 2_000
"""Small batches, so that the watermark moves while the day is read: with one large batch nothing could be late."""
SENT_AGAIN = 25


def run_demo(out: Console, err: Console, events: int, rate: float, seed: int, quiet: bool) -> dict[str, Any]:
    """Run everything as Airflow runs it, and report. The demo's home is emptied first and kept afterwards, for looking around."""
    home = Home(Home.from_environment().root / "demo")
    pipeline = load_named(home.pipelines, PIPELINE)
    day = last_night(pipeline.schedule.nightly_at, utc_now())
    topics = pipeline.partitions
    began = time.monotonic()
    with _own_settings(), _step(err, "starting Kafka") as step:
        _empty(home)
        fetch_jars(say=step.update)
        stack.start_kafka(home, say=step.update)
        try:
            kafka = stack.bootstrap(home)
            stack.create_topics(kafka, topics)
            airflow = embedded_airflow.start_airflow(home, say=step.update)
            api = embedded_airflow.AirflowApi(home)
            step.update(f"{airflow.address}: the stream DAG starts archive and views in one Spark driver")
            await_dags(api, [dag_id(PIPELINE, part) for part in (STREAM, MICROBATCH, NIGHTLY)])
            api.unpause(dag_id(PIPELINE, STREAM))
            declaration = load_produce(home.pipelines / PIPELINE, pipeline)
            planned = list(plan_events(pipeline, declaration, day, events, seed, declaration.shares, None, None, utc_now()))
            planned += sent_again(planned)
            _await_driver(home)
            step.update(f"sending {len(planned):,} events of {day} at {rate:,.0f} a second, while the stream reads them")
            file = home.sent(PIPELINE, str(day), seed)
            sent = send_events(kafka, planned, file, rate, lambda _: None)
            step.update("waiting until the stream has read them all")
            _wait_until_read(home, stack.end_offsets(kafka, topics))
            stream_dag = dag_id(PIPELINE, STREAM)
            runs: list[tuple[str, str, float | None]] = [(stream_dag, run["state"], None) for run in api.runs(stream_dag)]
            step.update("the day is over: the stream stops at a batch border, its cores are free for the batch layer")
            api.unpause(dag_id(PIPELINE, STREAM), paused=True)
            stop_stream(home, PIPELINE, "the demo's day is over", hold=True)
            step.update("the micro-batch DAG validates the accepted rows and publishes them")
            runs.append(_run_dag(api, dag_id(PIPELINE, MICROBATCH)))
            step.update(f"the nightly DAG judges {day} again, recomputes it and compares")
            runs.append(_run_dag(api, dag_id(PIPELINE, NIGHTLY)))
            report = NightlyReport.read(home.lake.nightly_report(PIPELINE, str(day)))
            assert report is not None
            step.update("stopping everything")
        finally:
            _stop_all(home)
    seconds = round(time.monotonic() - began)
    if not quiet:
        screens.show_sent(out, sent)
        screens.show_runs(out, runs)
        screens.show_story(out, report)
        _say_goodbye(out, home, seconds)
    return {
        "seconds": seconds,
        "day": str(day),
        "sent": sum(sent.values()),
        "archived": sum(stream.archived for stream in report.streams),
        "set_aside": sum(stream.rejected + stream.undecodable for stream in report.streams),
        "runs": [{"dag": dag, "state": state} for dag, state, _ in runs],
        "report": report.model_dump(mode="json"),
    }


def _say_goodbye(out: Console, home: Home, seconds: int) -> None:
    where = os.path.relpath(home.root)
    out.print(f"Done in {seconds} s. Served from now on: the recomputed cells. Look: `weir query`, `weir explain <view>`, `weir ledger`.")
    out.print(f"The night's page: {os.path.relpath(home.lake.nights_site(PIPELINE))}/index.html", soft_wrap=True)
    out.print(f"The quality reports: {os.path.relpath(home.lake.quality_site(PIPELINE))}/index.html", soft_wrap=True)
    out.print(
        f"Nothing is left running. Look around with WEIR_HOME={where} weir query …; the Spark logs are in {where}/logs.", soft_wrap=True
    )


def await_dags(api: embedded_airflow.AirflowApi, wanted: list[str]) -> None:
    """Airflow reads its folder of DAGs in its own time."""
    deadline = time.monotonic() + DAGS_SECONDS
    while set(wanted) - api.dag_ids():
        if time.monotonic() > deadline:
            raise JobFailed(f"Airflow does not know {', '.join(wanted)} after {DAGS_SECONDS} s: {api.import_errors() or 'no errors told'}")
        time.sleep(0.5)


def sent_again(planned: list[Event]) -> list[Event]:
    """Copies of the morning's orders at the end of the day, as from a source that sends an old file again: too old to be remembered."""
    morning = [event for event in planned if event.stream == "orders" and not event.wrong][:SENT_AGAIN]
    return [event._replace(arrives_at=planned[-1].arrives_at, wrong="sent again") for event in morning]


def _run_dag(api: embedded_airflow.AirflowApi, name: str) -> tuple[str, str, float | None]:
    """Switch a DAG on and wait until the run that was due has ended; a red one is an error with its log's last line."""
    began = time.monotonic()
    api.unpause(name)
    while (first := next(iter(api.runs(name)), None)) is None or first["state"] not in ("success", "failed"):
        time.sleep(1)
    api.unpause(name, paused=True)
    if first["state"] == "failed":
        tasks = api.tasks(name, first["dag_run_id"])
        task = next(task for task, found in tasks.items() if found == "failed")
        raise JobFailed(f"{name}: {task} failed: {api.log_lines(name, first['dag_run_id'], task)[-1]}")
    return name, str(first["state"]), time.monotonic() - began


def last_night(nightly_at: str, now: datetime) -> date:
    """The day that the nightly which was due last recomputes."""
    due = datetime.combine(now.date(), dt_time.fromisoformat(nightly_at), UTC)
    return (due if now >= due else due - timedelta(days=1)).date() - timedelta(days=1)


@contextmanager
def _own_settings() -> Iterator[None]:
    """Leave a lake, brokers and a Spark that the environment names alone: the demo has its own, and small batches."""
    names = ("WEIR_LAKE", "WEIR_KAFKA", "WEIR_SPARK_MASTER", "WEIR_MAX_BATCH")
    kept = {name: os.environ.pop(name, None) for name in names}
    own = {"WEIR_MAX_BATCH": str(MAX_BATCH)} | ({} if "JAVA_TOOL_OPTIONS" in os.environ else {"JAVA_TOOL_OPTIONS": stack.QUICK_JAVA})
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
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
    for part in (home.airflow, home.kafka, Path(home.lake.root), home.sent("x", "y", 0).parent, home.log("x").parent):
        shutil.rmtree(part, ignore_errors=True)


def _stop_all(home: Home) -> None:
    embedded_airflow.stop_airflow(home)  # first: it would start the stream again
    with suppress(JobFailed):
        stop_stream(home, PIPELINE, "the demo ends")
    stack.stop_kafka(home)


def _await_driver(home: Home) -> None:
    control = Control(home.lake.control(PIPELINE))
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while (beat := control.heartbeat()) is None or beat.state != "running":
        if beat and beat.error:
            raise JobFailed(beat.error)
        if time.monotonic() > deadline:
            raise JobFailed(f"the driver was not running after {CATCH_UP_SECONDS} s; the logs are in {home.log('x').parent}")
        time.sleep(0.5)


def _wait_until_read(home: Home, ends: dict[str, int]) -> None:
    """Wait until archive and views have committed all offsets."""
    control = Control(home.lake.control(PIPELINE))
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < deadline:
        beat = control.heartbeat()
        if beat and beat.has_read(ends):
            return
        time.sleep(0.5)
    raise JobFailed(f"the stream had not read everything after {CATCH_UP_SECONDS} s; the logs are in {home.log('x').parent}")

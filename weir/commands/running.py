"""Commands that run things: jars, topics, up, down, status, produce, stream, demo."""

import os
import signal
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weir import embedded_airflow, screens, spark_cluster, stack
from weir.commands.terminal import AsJson, Day, PipelineName, Workers, chosen_day, err, out, print_json
from weir.event_time import utc_now
from weir.generator import Shares, load_produce
from weir.jars import fetch_jars, fetch_store
from weir.jobs import start_stream, stop_stream, wait_until_running
from weir.layout import Home
from weir.loader import load_named, load_pipelines
from weir.overview import stream_overview
from weir.pipeline import Pipeline
from weir.produce import plan_events, send_events
from weir.records.driver import Control
from weir.refusal import Refusal

KafkaPort = Annotated[int | None, typer.Option("--kafka-port", help="default: the last one, or any free port")]


def jars(store: Annotated[bool, typer.Option("--store", help="also an object store, for tests and containers")] = False) -> None:
    """Fetch the jars of ivy.xml, once, into the cache."""
    with err.status("fetching the jars of ivy.xml") as status:
        folder = fetch_jars(say=status.update)
        if store:
            fetch_store(say=status.update)
    out.print(f"{sum(1 for _ in folder.rglob('*.jar'))} jars in {folder}", soft_wrap=True)


def topics(as_json: AsJson = False) -> None:
    """Create those topics of all pipelines that are missing on the brokers (WEIR_KAFKA, else the one of `weir up`)."""
    home = Home.from_environment()
    pipelines = load_pipelines(home.pipelines)
    if not pipelines:
        raise Refusal(f"{home.pipelines}: holds no pipeline (a folder with a pipeline.yaml)")
    bootstrap = stack.bootstrap(home)
    created = [topic for pipeline in pipelines.values() for topic in _create_topics(bootstrap, pipeline)]
    declared = {topic for pipeline in pipelines.values() for topic in pipeline.topics}
    existing = sorted(declared - set(created))
    if as_json:
        print_json({"brokers": bootstrap, "created": created, "existing": existing})
        return
    for word, found in (("created", created), ("already there", existing)):
        if found:
            out.print(f"{word} on {bootstrap}: {', '.join(found)}", markup=False, soft_wrap=True)


def up(
    kafka_port: KafkaPort = None,
    airflow_port: Annotated[int | None, typer.Option(help="default: a free one, kept", min=1, max=65_535)] = None,
    no_airflow: Annotated[bool, typer.Option("--no-airflow", help="only Kafka")] = False,
    brokers: Annotated[
        int | None, typer.Option(help="of Kafka: 1, or 3 that hold every message thrice; default: as before, else 1")
    ] = None,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Start Kafka, with the topics of all pipelines, and Airflow on this machine, and leave them running. With --workers Spark, too."""
    home = Home.from_environment()
    pipelines = load_pipelines(home.pipelines)
    if brokers not in (None, 1, 3):
        raise Refusal(f"--brokers {brokers}: one broker, or three: of two or four no more may die than of one or three")
    if workers and embedded_airflow.airflow_state(home).running and not spark_cluster.cluster_state(home).running:
        raise Refusal("Airflow already runs, and does not know Spark's secret: stop it with `weir down`, then start both")
    began = time.monotonic()
    with err.status("starting Kafka") as spinner:

        def say(what: str) -> None:
            spinner.update(f"{what} ({time.monotonic() - began:.0f} s)")

        fetch_jars(say=say)
        kafka = stack.start_kafka(home, kafka_port, brokers, say=say)
        for pipeline in pipelines.values():
            _create_topics(kafka.address, pipeline)
        if workers:
            spark_cluster.start_cluster(home, workers, say=say)
        if not no_airflow:
            embedded_airflow.start_airflow(home, airflow_port, say=say)
    _show_status(home, as_json)


def down() -> None:
    """Stop what `weir up` and `weir stream` started here, and nothing else. The data stays."""
    home = Home.from_environment()
    with err.status("stopping Airflow") as spinner:  # first: it would start again what is stopped below
        if embedded_airflow.stop_airflow(home, say=spinner.update):
            out.print("stopped Airflow")
    for name in load_pipelines(home.pipelines):
        with err.status(f"stopping the stream of {name}"):
            if stop_stream(home, name, "weir down"):
                out.print(f"stopped the stream of {name}")
    with err.status("stopping Spark") as spinner:
        if spark_cluster.stop_cluster(home, say=spinner.update):
            out.print("stopped Spark")
    with err.status("stopping Kafka") as spinner:
        stopped = stack.stop_kafka(home, say=spinner.update)
    out.print("stopped Kafka" if stopped else "Kafka was not running")


def status(as_json: AsJson = False) -> None:
    """Show the parts that run here: Kafka, Airflow, and each pipeline's stream."""
    _show_status(Home.from_environment(), as_json)


def _show_status(home: Home, as_json: bool) -> None:
    kafka, airflow, now = stack.kafka_state(home), embedded_airflow.airflow_state(home), utc_now()
    cluster = spark_cluster.cluster_state(home)
    streams = {name: stream_overview(home, pipeline, now) for name, pipeline in load_pipelines(home.pipelines).items()}
    if as_json:
        parts = {
            "kafka": kafka.model_dump(mode="json"),
            "airflow": airflow.model_dump(mode="json"),
            "spark": cluster.model_dump(mode="json"),
        }
        print_json(parts | {"streams": {name: own.model_dump(mode="json") for name, own in streams.items()}, "lake": home.lake.root})
        return
    rows = [_kafka_row(kafka), *_cluster_rows(cluster), *_airflow_rows(home, airflow), ("lake", home.lake.root)]
    told = {name: f"{own.state}: {own.reason}" if own.reason else own.state for name, own in streams.items()}
    out.print(screens.pairs_table("", [*rows, *((f"stream {name}", state) for name, state in told.items())]))
    for name, own in streams.items():
        if own.is_running and (beat := Control(home.lake.control(name)).heartbeat()):
            out.print(screens.heartbeat_table(name, beat))
        for level in own.levels:
            if level.is_breached:
                out.print(f"{name}: {level.line}", markup=False, soft_wrap=True, style="red")
        for waiting in own.dirty_days:
            out.print(
                f"{name}: {waiting.day} waits for `weir nightly {name} --day {waiting.day}`: {waiting.reason}", markup=False, soft_wrap=True
            )


def _kafka_row(kafka: stack.KafkaState) -> tuple[str, str]:
    if kafka.elsewhere:
        word = "broker answers" if kafka.alive == 1 else "brokers answer"
        return "Kafka", f"{kafka.alive or 'no'} {word} at {kafka.address} (WEIR_KAFKA)"
    where = f"{kafka.address}, process {kafka.pid}" if kafka.running else "run `weir up`"
    if kafka.running and kafka.brokers > 1:
        where = f"{kafka.alive} of {kafka.brokers} brokers at {kafka.address}"
    ill = "not whole" if kafka.alive < kafka.brokers else "not answering"
    word = "stopped" if not kafka.running else "running" if kafka.healthy else ill
    return "Kafka", f"{word} ({where})"


def _cluster_rows(cluster: spark_cluster.ClusterState) -> list[tuple[str, str]]:
    if not cluster.running:
        return []
    jobs = f": {', '.join(cluster.applications)}" if cluster.applications else ""
    return [("Spark", f"{cluster.workers} workers at {cluster.address}, {cluster.cores_used} of {cluster.cores} slots used{jobs}")]


def _airflow_rows(home: Home, airflow: embedded_airflow.AirflowState) -> list[tuple[str, str]]:
    if not airflow.running:
        elsewhere = os.environ.get("AIRFLOW__API__BASE_URL")  # as in a container of Airflow's
        return [("Airflow", f"of this environment, at {elsewhere}" if elsewhere else "stopped (run `weir up`)")]
    ill = [f"{part} {state}" for part, state in airflow.parts.items() if state != "healthy"]
    word = "running" if airflow.healthy else ", ".join(ill) or "not answering"
    restarts = ", ".join(f"{part} {count} times" for part, count in airflow.restarts.items() if count)
    rows = [("Airflow", f"{word} ({airflow.address}{f'; started again: {restarts}' if restarts else ''})")]
    return [*rows, ("login", f"{' or '.join(embedded_airflow.USERS)}, passwords in {home.airflow / 'passwords.json'}")]


def produce(
    pipeline: PipelineName = "shop",
    day: Day = None,
    events: Annotated[int, typer.Option(help="how many, duplicates come on top", min=1)] = 20_000,
    rate: Annotated[float | None, typer.Option(help="events a second, default as fast as possible")] = None,
    seed: Annotated[int, typer.Option(help="the same seed gives the same events")] = 1,
    dirty: Annotated[float | None, typer.Option(help="share of dirty messages", min=0, max=1)] = None,
    late: Annotated[float | None, typer.Option(help="share of late ones", min=0, max=1)] = None,
    duplicate: Annotated[float | None, typer.Option(help="share of duplicates", min=0, max=1)] = None,
    out_of_order: Annotated[float | None, typer.Option(help="share out of order, but in time", min=0, max=1)] = None,
    skewed: Annotated[float | None, typer.Option(help="share with a wrong clock", min=0, max=1)] = None,
    future: Annotated[float | None, typer.Option(help="share from the future", min=0, max=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Send simulated events of a day, and keep a file of what was acknowledged."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    given = {"dirty": dirty, "late": late, "duplicate": duplicate, "out_of_order": out_of_order, "skewed": skewed, "future": future}
    shares = {kind: share for kind, share in given.items() if share is not None}
    sent, file = _produce(home, declared, chosen_day(day), events, rate, seed, shares)
    if as_json:
        by_stream: dict[str, dict[str, int]] = {}
        for (stream, kind), count in sorted(sent.items()):
            by_stream.setdefault(stream, {})[kind or "good"] = count
        print_json({"sent": by_stream, "total": sum(sent.values()), "file": str(file)})
        return
    screens.show_sent(out, sent)
    out.print(f"What was acknowledged is in {file}", soft_wrap=True)


def _produce(
    home: Home, pipeline: Pipeline, day: date, events: int, rate: float | None, seed: int, shares: dict[str, float]
) -> tuple[Counter[tuple[str, str]], Path]:
    bootstrap = stack.bootstrap(home)
    _create_topics(bootstrap, pipeline)
    declaration = load_produce(home.pipelines / pipeline.name, pipeline)
    try:
        merged = Shares.model_validate(declaration.shares.model_dump() | shares)
    except ValidationError as error:
        raise Refusal(f"these shares cannot be: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    file = home.sent(pipeline.name, str(day), seed)
    with err.status("planning the events"):
        planned = plan_events(pipeline, declaration, day, events, seed, merged, None, None, utc_now())
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("sending", total=round(events * (1 + merged.duplicate)))
        sent = send_events(bootstrap, planned, file, rate, lambda count: bar.advance(task, count))
    return sent, file


def stream(
    pipeline: PipelineName = "shop",
    detach: Annotated[bool, typer.Option("--detach", help="return when it runs, and leave it running")] = False,
    once: Annotated[bool, typer.Option("--once", help="read what is there, then stop")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="stop the running one at a batch border")] = False,
) -> None:
    """Run the speed layer: archive every message and keep the views up to date. Ctrl-C stops it at a batch border."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    if stop:
        with err.status("waiting for the batch border"):
            last = stop_stream(home, pipeline, "weir stream --stop")
        out.print(f"{pipeline}: {last.state}" if last else f"{pipeline} has no running stream")
        return
    job = start_stream(home, pipeline, stack.bootstrap(home), ["--once"] if once else [])
    if detach:
        with err.status("starting the driver"):
            beat = wait_until_running(home, pipeline, job)
        out.print(f"{pipeline} runs as process {beat.holder.pid}; stop it with `weir stream {pipeline} --stop`")
        return
    control = Control(home.lake.control(pipeline))
    with Live(console=err, refresh_per_second=2, transient=True) as live:

        def show() -> None:
            beat = control.heartbeat()
            if beat and beat.holder.pid == job.process.pid:
                live.update(screens.heartbeat_table(pipeline, beat))

        try:
            job.wait(show)
        except KeyboardInterrupt:
            job.process.send_signal(signal.SIGTERM)
            job.wait(show)
    out.print(f"{pipeline}: stopped")


def demo(
    events: Annotated[int, typer.Option(help="how many, duplicates come on top", min=100)] = 12_000,
    rate: Annotated[float, typer.Option(help="events a second")] = 2_000,
    seed: Annotated[int, typer.Option(help="the same seed gives the same events")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the shop for a day on parts of its own: Kafka, the stream, the night, the comparison. Leaves nothing running."""
    from weir.demo import run_demo

    found = run_demo(out, err, events, rate, seed, quiet=as_json)
    if as_json:
        print_json(found)


def _create_topics(bootstrap: str, pipeline: Pipeline) -> list[str]:
    """Which of the pipeline's topics were missing."""
    return stack.create_topics(bootstrap, pipeline.partitions)

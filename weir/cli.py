"""The `weir` command. Each command prints for people and, with --json, for programs; a refusal is one line and exit code 2."""

import getpass
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weir import embedded_airflow, screens, settling, stack
from weir.cases import load_cases
from weir.event_time import utc_now
from weir.generator import Shares, load_produce
from weir.jobs import Job, JobFailed, start_stream, stop_stream, wait_until_running
from weir.layout import Home, alerts_topic
from weir.loader import load_named, load_pipelines
from weir.masking import MASK, shown_cell, shown_payload
from weir.pipeline import Pipeline, nearest
from weir.produce import plan_events, send_events
from weir.records import (
    FATES,
    Control,
    DirtyDay,
    LedgerLine,
    NightlyReport,
    Outcome,
    ReplayReport,
    Search,
    Searches,
    Settlement,
)
from weir.refusal import Refusal
from weir.serving import QuarantineFilter, answer_query, differences, ledger_lines, quarantine_groups, quarantine_rows

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
FILE_WIDTH = 116
"""A file or pipe has no width of its own: wide enough for every table."""
out = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
err = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object for programs")]
PipelineName = Annotated[str, typer.Argument(help="the pipeline's name: its folder below pipelines/")]
Day = Annotated[datetime | None, typer.Option("--day", formats=["%Y-%m-%d"], help="the day (UTC), default yesterday")]
KafkaPort = Annotated[int | None, typer.Option("--kafka-port", help="default: the last one, or any free port")]


def main() -> None:
    try:
        app()
    except Refusal as refusal:
        err.print(f"weir: {refusal}", markup=False, soft_wrap=True)
        sys.exit(2)
    except JobFailed as failure:
        err.print(f"weir: {failure}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def check(
    pipeline: Annotated[str | None, typer.Argument(help="one pipeline, default all")] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="only the declaration, not what Spark says of its SQL")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with the declarations, before anything runs."""
    home = Home.from_environment()
    pipelines = {pipeline: load_named(home.pipelines, pipeline)} if pipeline else load_pipelines(home.pipelines)
    if not pipelines:
        raise Refusal(f"{home.pipelines}: holds no pipeline (a folder with a pipeline.yaml)")
    lines: dict[str, list[str]] = {}
    for name in pipelines:
        lines[name] = [] if no_spark else _run(Job(home, "check_job", name), f"Spark reads {name}").lines
    if as_json:
        _print_json({name: {"ok": True, "views": found} for name, found in lines.items()})
        return
    for name, found in lines.items():
        declared = pipelines[name]
        out.print(f"[green]✓[/] {name}: {len(declared.streams)} streams, {len(declared.tables)} tables, {len(declared.views)} views")
        for line in found:
            out.print(f"    {line}", markup=False, soft_wrap=True)


@app.command()
def test(
    pipeline: Annotated[str, typer.Argument(help="whose cases (<name>_test.yaml) to run")],
    case: Annotated[str, typer.Option(help="only cases with this in their name")] = "",
    as_json: AsJson = False,
) -> None:
    """Run a pipeline's test cases: rows in, cells out; as a batch, as a stream cut at random, and with a crash in between."""
    home = Home.from_environment()
    load_cases(home.pipelines / pipeline, load_named(home.pipelines, pipeline))  # mistakes are said before Spark starts
    told = _run(Job(home, "cases_job", pipeline, options=["--case", case]), f"Spark runs the cases of {pipeline}")
    if as_json:
        _print_json([result.model_dump() | {"passed": result.passed} for result in told.cases])
    else:
        screens.show_cases(out, told.cases, told.lines)
    if not all(result.passed for result in told.cases):
        raise typer.Exit(1)


search = typer.Typer(help="Conditions that people save, to be told of each row that meets one, at once.", no_args_is_help=True)
app.add_typer(search, name="search")


@search.command("add")
def search_add(
    pipeline: Annotated[str, typer.Argument()],
    stream: Annotated[str, typer.Argument(help="a stream that the declaration watches")],
    name: Annotated[str, typer.Argument(help="how alerts call it; one that is there is replaced")],
    when: Annotated[str, typer.Argument(help="a condition in Spark SQL, for example \"amount > 500 AND country = 'DE'\"")],
) -> None:
    """Save a condition: rows that meet it are told to <pipeline>.alerts from now on. The views are not disturbed."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    if stream not in declared.watch:
        hint = nearest(stream, declared.watch) if declared.watch else ""
        raise Refusal(f"'{stream}' is not watched: name it below `watch:` in the declaration of {pipeline}{hint}")
    if name in declared.watch[stream].alerts:
        raise Refusal(f"'{name}' is an alert of the declaration: choose another name")
    _run(Job(home, "check_job", pipeline, options=["--search", stream, when]), "Spark reads the condition")
    file = home.lake.searches(pipeline)
    others = [own for own in (Searches.read(file) or Searches()).saved if own.name != name]
    Searches(saved=[*others, Search(name=name, stream=stream, when=when, added_at=utc_now())]).write(file)
    out.print(f"'{name}' is heard of on {alerts_topic(pipeline)} as soon as the driver has read it", markup=False, soft_wrap=True)


@search.command("list")
def search_list(pipeline: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """The saved conditions."""
    home = Home.from_environment()
    saved = (Searches.read(home.lake.searches(load_named(home.pipelines, pipeline).name)) or Searches()).saved
    if as_json:
        _print_json([own.model_dump(mode="json") for own in saved])
    else:
        screens.show_searches(out, saved)


@search.command("drop")
def search_drop(pipeline: Annotated[str, typer.Argument()], name: Annotated[str, typer.Argument()]) -> None:
    """Forget a saved condition."""
    file = Home.from_environment().lake.searches(pipeline)
    saved = (Searches.read(file) or Searches()).saved
    if name not in [own.name for own in saved]:
        raise Refusal(f"there is no search '{name}'{nearest(name, [own.name for own in saved]) if saved else ''}")
    Searches(saved=[own for own in saved if own.name != name]).write(file)
    out.print(f"'{name}' is forgotten", markup=False)


@app.command()
def jars() -> None:
    """Fetch the jars of ivy.xml, once, into the cache."""
    with err.status("fetching the jars of ivy.xml") as status:
        folder = stack.fetch_jars(say=status.update)
    out.print(f"{sum(1 for _ in folder.rglob('*.jar'))} jars in {folder}", soft_wrap=True)


@app.command()
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
        _print_json({"brokers": bootstrap, "created": created, "existing": existing})
        return
    for word, found in (("created", created), ("already there", existing)):
        if found:
            out.print(f"{word} on {bootstrap}: {', '.join(found)}", markup=False, soft_wrap=True)


@app.command()
def up(
    kafka_port: KafkaPort = None,
    airflow_port: Annotated[int | None, typer.Option(help="default: a free one, kept", min=1, max=65_535)] = None,
    no_airflow: Annotated[bool, typer.Option("--no-airflow", help="only Kafka")] = False,
    as_json: AsJson = False,
) -> None:
    """Start Kafka, with the topics of all pipelines, and Airflow on this machine, and leave them running."""
    home = Home.from_environment()
    pipelines = load_pipelines(home.pipelines)
    began = time.monotonic()
    with err.status("starting Kafka") as spinner:

        def say(what: str) -> None:
            spinner.update(f"{what} ({time.monotonic() - began:.0f} s)")

        stack.fetch_jars(say=say)
        kafka = stack.start_kafka(home, kafka_port, say=say)
        for pipeline in pipelines.values():
            _create_topics(kafka.address, pipeline)
        if not no_airflow:
            embedded_airflow.start_airflow(home, airflow_port, say=say)
    _show_status(home, as_json)


@app.command()
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
    with err.status("stopping Kafka") as spinner:
        stopped = stack.stop_kafka(home, say=spinner.update)
    out.print("stopped Kafka" if stopped else "Kafka was not running")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the parts that run here: Kafka, Airflow, and each pipeline's stream."""
    _show_status(Home.from_environment(), as_json)


def _show_status(home: Home, as_json: bool) -> None:
    kafka, airflow = stack.kafka_state(home), embedded_airflow.airflow_state(home)
    beats = {name: Control(home.lake.control(name)).heartbeat() for name in load_pipelines(home.pipelines)}
    states = {name: _stream_state(home, name) for name in beats}
    if as_json:
        dirty = {name: [found.model_dump(mode="json") for found in _dirty_days(home, name)] for name in beats}
        streams = {
            name: {"state": states[name], "heartbeat": beat and beat.model_dump(mode="json"), "dirty_days": dirty[name]}
            for name, beat in beats.items()
        }
        parts = {"kafka": kafka.model_dump(mode="json"), "airflow": airflow.model_dump(mode="json")}
        _print_json(parts | {"streams": streams, "lake": home.lake.root})
        return
    where = f"127.0.0.1:{kafka.port}, process {kafka.pid}" if kafka.running else "run `weir up`"
    word = "running" if kafka.healthy else "not answering" if kafka.running else "stopped"
    rows = [("Kafka", f"{word} ({where})"), *_airflow_rows(home, airflow), ("lake", home.lake.root)]
    out.print(screens.pairs_table("", [*rows, *((f"stream {name}", state) for name, state in states.items())]))
    for name, beat in beats.items():
        if beat and states[name] == "running":
            out.print(screens.heartbeat_table(name, beat))
        for waiting in _dirty_days(home, name):
            out.print(
                f"{name}: {waiting.day} waits for `weir nightly {name} --day {waiting.day}`: {waiting.reason}", markup=False, soft_wrap=True
            )


def _airflow_rows(home: Home, airflow: embedded_airflow.AirflowState) -> list[tuple[str, str]]:
    if not airflow.running:
        return [("Airflow", "stopped (run `weir up`)")]
    ill = [f"{part} {state}" for part, state in airflow.parts.items() if state != "healthy"]
    word = "running" if airflow.healthy else ", ".join(ill) or "not answering"
    restarts = ", ".join(f"{part} {count} times" for part, count in airflow.restarts.items() if count)
    rows = [("Airflow", f"{word} ({airflow.address}{f'; started again: {restarts}' if restarts else ''})")]
    return [*rows, ("login", f"{embedded_airflow.ADMIN}, password in {home.airflow / 'passwords.json'}")]


def _dirty_days(home: Home, pipeline: str) -> list[DirtyDay]:
    return [found for file in sorted(home.lake.dirty_days(pipeline).glob("*.json")) if (found := DirtyDay.read(file))]


def _stream_state(home: Home, pipeline: str) -> str:
    """The state that the driver last told; one that died without a word is dead."""
    beat = Control(home.lake.control(pipeline)).heartbeat()
    if beat is None:
        return "never started"
    is_over = beat.state in ("stopped", "failed")
    if not is_over and beat.holder.is_known_dead():
        return f"dead (process {beat.holder.pid} is gone; it was {beat.state}): start it again with `weir stream {pipeline}`"
    return f"{beat.state}: {beat.error}" if beat.error else beat.state


@app.command()
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
    sent, file = _produce(home, declared, _day(day), events, rate, seed, shares)
    if as_json:
        by_stream: dict[str, dict[str, int]] = {}
        for (stream, kind), count in sorted(sent.items()):
            by_stream.setdefault(stream, {})[kind or "good"] = count
        _print_json({"sent": by_stream, "total": sum(sent.values()), "file": str(file)})
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


@app.command()
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


@app.command()
def nightly(pipeline: PipelineName = "shop", day: Day = None, as_json: AsJson = False) -> None:
    """Prove a day: recompute it from the archive, account for every event, explain each difference, settle. Dirty days come along."""
    home = Home.from_environment()
    job = Job(home, "nightly_job", pipeline, stack.running_bootstrap(home), ["--day", str(_day(day))])
    _run_and_show(job, f"proving {_day(day)}", lambda outcome: outcome.report, screens.show_nightly, as_json)


ViewName = Annotated[str | None, typer.Option("--view", help="one view, default all")]


@app.command()
def reconcile(
    pipeline: PipelineName = "shop",
    day: Annotated[datetime | None, typer.Option("--day", formats=["%Y-%m-%d"], help="what the night found of this day")] = None,
    view: ViewName = None,
    accept: Annotated[
        str | None, typer.Option("--accept", help="settle --view of --day although cells are unexplained, for this reason")
    ] = None,
    revert: Annotated[bool, typer.Option("--revert", help="take the settlement of --view from --day on back")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the nights have proved, and how far each view is settled; accept or revert what a person knows better."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    if view is not None and view not in declared.views:
        raise Refusal(f"'{view}' is no view of {pipeline}{nearest(view, declared.views)}")
    if accept is not None or revert:
        if view is None or day is None or (accept is not None and revert):
            raise Refusal("say which: --view and --day, and either --accept or --revert")
        _accept(home, declared, view, day.date(), accept) if accept is not None else _revert(home, declared, view, day.date())
    settled = [
        Settlement.read(home.lake.settlement(pipeline, name, declared.fingerprint(name)))
        or Settlement(view=name, fingerprint=declared.fingerprint(name))
        for name in declared.views
        if view in (None, name)
    ]
    report = None
    if day and accept is None and not revert:
        report = NightlyReport.read(home.lake.nightly_report(pipeline, str(day.date())))
        if report is None:
            raise Refusal(f"{day.date()} was not proved yet: run `weir nightly {pipeline} --day {day.date()}`")
    if as_json:
        _print_json((report.model_dump(mode="json") if report else {}) | {"settlements": [own.model_dump(mode="json") for own in settled]})
    elif report:
        screens.show_nightly(out, report)
    else:
        screens.show_settlements(out, settled)


def _accept(home: Home, pipeline: Pipeline, view: str, day: date, reason: str) -> None:
    file = home.lake.settlement(pipeline.name, view, pipeline.fingerprint(view))
    settled, report = Settlement.read(file), NightlyReport.read(home.lake.nightly_report(pipeline.name, str(day)))
    found = next((own for own in report.views if own.view == view), None) if report else None
    if settled is None or found is None:
        raise Refusal(f"{view} of {day} was not proved yet: run `weir nightly {pipeline.name} --day {day}`")
    settling.accept(settled, found, day, reason, getpass.getuser(), utc_now()).write(file)
    what = f"{found.unexplained:,} unexplained cells of {view} are accepted"
    out.print(f"{what}; settle them with `weir nightly {pipeline.name} --day {day}`")


def _revert(home: Home, pipeline: Pipeline, view: str, day: date) -> None:
    file = home.lake.settlement(pipeline.name, view, pipeline.fingerprint(view))
    reverted = settling.revert(Settlement.read(file) or Settlement(view=view, fingerprint=pipeline.fingerprint(view)), day)
    reverted.write(file)
    out.print(f"{view}: speed is served from {day} on, until `weir nightly {pipeline.name} --day {day}` settles it again")


@app.command()
def explain(
    view: Annotated[str, typer.Argument(help="the view")],
    day: Day = None,
    cell: Annotated[str | None, typer.Option("--cell", help="only cells with these values: country=DE,minute=2026-03-01 10:15:00")] = None,
    pipeline: Annotated[str | None, typer.Option(help="the pipeline, where several have such a view")] = None,
    version: Annotated[str | None, typer.Option("--version", help="what this earlier declaration had streamed (its fingerprint)")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Say of each cell that differed why: which events make the difference between what was streamed and what is true."""
    home = Home.from_environment()
    pipelines = [load_named(home.pipelines, pipeline)] if pipeline else list(load_pipelines(home.pipelines).values())
    having = [own for own in pipelines if view in own.views]
    if not having:
        raise Refusal(f"no pipeline has a view '{view}'{nearest(view, [name for own in pipelines for name in own.views])}")
    if len(having) > 1:
        raise Refusal(f"{', '.join(own.name for own in having)} have a view '{view}': say which with --pipeline")
    declared, asked = having[0], _asked_cell(having[0].views[view].grain, cell)
    if NightlyReport.read(home.lake.nightly_report(declared.name, str(_day(day)))) is None:
        raise Refusal(f"{_day(day)} was not proved yet: run `weir nightly {declared.name} --day {_day(day)}`")
    cells = differences(home.lake, declared, view, _day(day), version)
    cells = [own for own in cells if all(own.grain[column].startswith(value) for column, value in asked.items())]
    cells = [shown_cell(declared, view, own) for own in cells]
    if as_json:
        _print_json({"view": view, "day": str(_day(day)), "cells": [own.model_dump(mode="json") for own in cells]})
    else:
        screens.show_explained(out, view, str(_day(day)), cells, limit)


def _asked_cell(grain: list[str], text: str | None) -> dict[str, str]:
    """'country=DE,minute=2026-03-01 10' → the columns and how their values begin."""
    asked = {}
    for part in text.split(",") if text else []:
        column, equals, value = part.partition("=")
        if not equals or column.strip() not in grain:
            raise Refusal(f"--cell wants column=value, and the columns are {', '.join(grain)}{nearest(column.strip(), grain)}")
        asked[column.strip()] = value.strip()
    return asked


@app.command()
def ledger(
    pipeline: PipelineName = "shop",
    day: Day = None,
    view: ViewName = None,
    as_json: AsJson = False,
) -> None:
    """Show the books of a day of arrival: per view, stream and partition every offset of the log, by its fate."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    rows = ledger_lines(home.lake, declared, _day(day), view)
    if not rows:
        raise Refusal(f"there are no books of {_day(day)}: run `weir nightly {pipeline} --day {_day(day)}`")
    lines = [
        LedgerLine(
            fates={fate: row[fate] for fate in FATES}, day=str(row["_day"]), **{k: v for k, v in row.items() if k not in (*FATES, "_day")}
        )
        for row in rows
    ]
    if as_json:
        _print_json([line.model_dump(mode="json") for line in lines])
    else:
        screens.show_ledger(out, str(_day(day)), lines, by_partition=True)


@app.command()
def advise(pipeline: PipelineName = "shop", day: Day = None, as_json: AsJson = False) -> None:
    """Say what another lateness would have cost and gained on a day: events waited for, freshness, state."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    report = NightlyReport.read(home.lake.nightly_report(pipeline, str(_day(day))))
    if report is None:
        raise Refusal(f"{_day(day)} was not proved yet: run `weir nightly {pipeline} --day {_day(day)}`")
    if as_json:
        lateness = {view.view: {name: [c.model_dump() for c in own] for name, own in view.lateness.items()} for view in report.views}
        _print_json({"day": report.day, "lateness": lateness})
        return
    for view in report.views:
        for name, choices in view.lateness.items():
            screens.show_lateness(out, declared.views[view.view], view.view, name, declared.streams[name], choices)


@app.command()
def refine(
    pipeline: PipelineName = "shop",
    streams: Annotated[str, typer.Option(help="only these, separated by commas")] = "",
    as_json: AsJson = False,
) -> None:
    """Validate what was archived since the last time: good rows go to accepted tables, bad ones into quarantine."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    job = Job(home, "refine_job", pipeline, options=["--streams", streams])
    _run_and_show(job, f"refining {pipeline}", lambda outcome: outcome.refined, screens.show_refined, as_json)


@app.command()
def housekeep(pipeline: PipelineName = "shop", as_json: AsJson = False) -> None:
    """Merge small files, drop raw that is older than declared, mark expired quarantined rows, remove old reports."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    job = Job(home, "housekeeping_job", pipeline)
    _run_and_show(job, f"keeping {pipeline} tidy", lambda outcome: outcome.housekept, screens.show_housekept, as_json)


quarantine = typer.Typer(no_args_is_help=True, help="Rows that were set aside: list, show, replay, discard.", rich_markup_mode=None)
app.add_typer(quarantine, name="quarantine")

OfStream = Annotated[str | None, typer.Option("--stream", help="only this stream or table")]
TheStream = Annotated[str, typer.Option("--stream", help="the stream or table")]
OfRule = Annotated[str | None, typer.Option("--rule", help="only rows with this reason, for example amount:be_between")]
Since = Annotated[datetime | None, typer.Option("--since", formats=["%Y-%m-%d"], help="first day of arrival (UTC)")]
Until = Annotated[datetime | None, typer.Option("--until", formats=["%Y-%m-%d"], help="last day of arrival (UTC)")]
Yes = Annotated[bool, typer.Option("--yes", help="do it without asking")]


def _asked(stream: str | None, rule: str | None, since: datetime | None, until: datetime | None) -> QuarantineFilter:
    return QuarantineFilter(stream, rule, since.date() if since else None, until.date() if until else None)


@quarantine.command("list")
def list_quarantine(
    pipeline: PipelineName = "shop",
    stream: OfStream = None,
    rule: OfRule = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """What is in quarantine, by stream and reason."""
    home = Home.from_environment()
    groups = quarantine_groups(home.lake, load_named(home.pipelines, pipeline), _asked(stream, rule, since, until))
    if as_json:
        _print_json([vars(group) for group in groups])
    else:
        screens.show_quarantine(out, pipeline, groups)


@quarantine.command("show")
def show_quarantine(
    pipeline: PipelineName = "shop",
    stream: OfStream = None,
    rule: OfRule = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(help="at most so many rows", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Rows in quarantine with their payloads; private fields are masked."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    rows = _masked(declared, quarantine_rows(home.lake, declared, _asked(stream, rule, since, until), limit))
    if as_json:
        _print_json(rows)
    else:
        screens.show_quarantined_rows(out, rows, limit)


def _masked(pipeline: Pipeline, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown = []
    for row in rows:
        contract = pipeline.sources.get(row["stream"])
        hidden = contract is None or contract.columns[contract.identity].private
        payload = shown_payload(contract, row["payload"]) if contract else "(not shown: the stream is no longer declared)"
        shown.append(row | {"payload": payload, "identity": MASK if hidden and row["identity"] else row["identity"]})
    return shown


@quarantine.command("replay")
def replay_quarantine(
    stream: TheStream,
    pipeline: PipelineName = "shop",
    rule: OfRule = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send rows through the transform again. Shows what would change, then asks."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    found = _replay(home, pipeline, stream, rule, since, until, apply=yes)
    if as_json:
        _print_json(found.model_dump(mode="json"))
        return
    screens.show_replay(out, found)
    if found.applied or not (found.released or found.duplicates) or found.blocked:
        return
    if sys.stdin.isatty() and typer.confirm(f"Replay these {found.released + found.duplicates:,} rows?"):
        screens.show_replay(out, _replay(home, pipeline, stream, rule, since, until, apply=True))
    else:
        out.print("Nothing was changed. `--yes` does it.")


def _replay(
    home: Home, pipeline: str, stream: str, rule: str | None, since: datetime | None, until: datetime | None, apply: bool
) -> ReplayReport:
    options = ["--act", "replay", *_quarantine_options(stream, rule, since, until), *(["--apply"] if apply else [])]
    found = _run(Job(home, "quarantine_job", pipeline, options=options), f"judging {stream} again").replayed
    assert found is not None
    return found


def _quarantine_options(stream: str, rule: str | None, since: datetime | None, until: datetime | None) -> list[str]:
    days = {"--since": since, "--until": until}
    given = [part for name, day in days.items() if day for part in (name, f"{day:%Y-%m-%d}")]
    return ["--stream", stream, *(["--rule", rule] if rule else []), *given]


@quarantine.command("discard")
def discard_quarantine(
    stream: TheStream,
    note: Annotated[str, typer.Option(help="why: it is kept beside the rows")],
    pipeline: PipelineName = "shop",
    rule: OfRule = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
) -> None:
    """Mark rows as not to be replayed. Shows them first; they stay in the table, and in the archive."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    asked = _asked(stream, rule, since, until)
    groups = quarantine_groups(home.lake, declared, asked)
    screens.show_quarantine(out, pipeline, groups)
    if not groups:
        return
    screens.show_quarantined_rows(out, _masked(declared, quarantine_rows(home.lake, declared, asked, 10)), 10)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Discard these rows?")):
        out.print("Nothing was changed. `--yes` does it.")
        return
    options = ["--act", "discard", "--note", note, *_quarantine_options(stream, rule, since, until)]
    (count,) = _run(Job(home, "quarantine_job", pipeline, options=options), f"discarding rows of {stream}").lines
    out.print(f"{int(count):,} rows of {stream} discarded: {note}", markup=False)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="a SELECT over views; <view>__speed and <view>__batch are its layers")],
    pipeline: Annotated[str | None, typer.Option(help="only the views of this one")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the served views by SQL (DuckDB's), without starting Spark."""
    home = Home.from_environment()
    pipelines = [load_named(home.pipelines, pipeline)] if pipeline else list(load_pipelines(home.pipelines).values())
    answer = answer_query(home.lake, pipelines, sql)
    if as_json:
        _print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        screens.show_answer(out, answer)


@app.command()
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
        _print_json(found)


@app.command()
def drill(
    events: Annotated[int, typer.Option(help="how many", min=2_000)] = 20_000,
    seed: Annotated[int, typer.Option(help="the same seed injects the same faults")] = 1,
    as_json: AsJson = False,
) -> None:
    """Send a day with a known number of every fault, kill, lose and tamper, and show whether the night names and repairs each."""
    from weir.drill import run_drill

    with err.status("starting") as spinner:
        began = time.monotonic()

        def say(what: str) -> None:
            told = f"{time.monotonic() - began:4.0f} s  {what}"
            spinner.update(told) if err.is_terminal else err.print(told, markup=False, soft_wrap=True)

        home, drilled = run_drill(events, seed, say)
    if as_json:
        faults = {own.fault: {"injected": own.injected, "named": own.named, "repaired": own.repaired} for own in drilled.faults}
        told = {"passed": drilled.passed, "events": drilled.events, "day": drilled.day, "seconds": drilled.seconds, "faults": faults}
        _print_json(told | {"unexplained": drilled.unexplained, "blocked": drilled.blocked, "served": drilled.served_is_recomputed})
    else:
        screens.show_drill(out, drilled, home)
    if not drilled.passed:
        raise JobFailed(f"the drill was not passed; look around with WEIR_HOME={home.root}")


def _run(job: Job, what: str, raises: bool = True) -> Outcome:
    began = time.monotonic()
    with err.status(what) as spinner:
        return job.wait(lambda: spinner.update(f"{what} ({time.monotonic() - began:.0f} s)"), raises)


def _run_and_show(job: Job, what: str, report_of: Callable[[Outcome], Any], show: Callable[[Console, Any], None], as_json: bool) -> None:
    """Run a job whose report is shown also when its gate blocked: then the report says why, and the command fails."""
    outcome = _run(job, what, raises=False)
    if (report := report_of(outcome)) is None:
        job.outcome()
    elif as_json:
        _print_json(report.model_dump(mode="json"))
    else:
        show(out, report)
    if outcome.failure:
        raise JobFailed(outcome.failure)


def _create_topics(bootstrap: str, pipeline: Pipeline) -> list[str]:
    """Which of the pipeline's topics were missing."""
    return stack.create_topics(bootstrap, pipeline.partitions)


def _day(given: datetime | None) -> date:
    return given.date() if given else utc_now().date() - timedelta(days=1)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


if __name__ == "__main__":
    main()

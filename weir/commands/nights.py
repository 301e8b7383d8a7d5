"""Commands of the nightly proof: nightly, reconcile, explain, ledger, advise, drill."""

import getpass
import time
from datetime import date, datetime
from typing import Annotated

import typer

from weir import screens, stack
from weir.commands.terminal import AsJson, Day, PipelineName, Workers, chosen_day, err, out, print_json, run_and_show
from weir.jobs import Job, JobFailed
from weir.layout import Home
from weir.loader import load_named, load_pipelines
from weir.masking import shown_cell
from weir.pipeline import Pipeline, nearest
from weir.records.night import FATES, LedgerLine, NightlyReport
from weir.refusal import Refusal
from weir.serving import differences, ledger_lines
from weir.settlements import accept_cells, revert_settlement, settlements_of

ViewName = Annotated[str | None, typer.Option("--view", help="one view, default all")]


def nightly(pipeline: PipelineName = "shop", day: Day = None, as_json: AsJson = False) -> None:
    """Prove a day: recompute it from the archive, account for every event, explain each difference, settle. Dirty days come along."""
    home = Home.from_environment()
    job = Job(home, "nightly_job", pipeline, stack.running_bootstrap(home), ["--day", str(chosen_day(day))])
    run_and_show(job, f"proving {chosen_day(day)}", lambda outcome: outcome.report, screens.show_nightly, as_json)


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
    settled = [own for name, own in settlements_of(home.lake, declared).items() if view in (None, name)]
    report = None
    if day and accept is None and not revert:
        report = NightlyReport.read(home.lake.nightly_report(pipeline, str(day.date())))
        if report is None:
            raise Refusal(f"{day.date()} was not proved yet: run `weir nightly {pipeline} --day {day.date()}`")
    if as_json:
        print_json((report.model_dump(mode="json") if report else {}) | {"settlements": [own.model_dump(mode="json") for own in settled]})
    elif report:
        screens.show_nightly(out, report)
    else:
        screens.show_settlements(out, settled)


def _accept(home: Home, pipeline: Pipeline, view: str, day: date, reason: str) -> None:
    cells = accept_cells(home.lake, pipeline, view, day, reason, getpass.getuser())
    out.print(f"{cells:,} unexplained cells of {view} are accepted; settle them with `weir nightly {pipeline.name} --day {day}`")


def _revert(home: Home, pipeline: Pipeline, view: str, day: date) -> None:
    revert_settlement(home.lake, pipeline, view, day)
    out.print(f"{view}: speed is served from {day} on, until `weir nightly {pipeline.name} --day {day}` settles it again")


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
    if NightlyReport.read(home.lake.nightly_report(declared.name, str(chosen_day(day)))) is None:
        raise Refusal(f"{chosen_day(day)} was not proved yet: run `weir nightly {declared.name} --day {chosen_day(day)}`")
    cells = differences(home.lake, declared, view, chosen_day(day), version)
    cells = [own for own in cells if all(own.grain[column].startswith(value) for column, value in asked.items())]
    cells = [shown_cell(declared, view, own) for own in cells]
    if as_json:
        print_json({"view": view, "day": str(chosen_day(day)), "cells": [own.model_dump(mode="json") for own in cells]})
    else:
        screens.show_explained(out, view, str(chosen_day(day)), cells, limit)


def _asked_cell(grain: list[str], text: str | None) -> dict[str, str]:
    """'country=DE,minute=2026-03-01 10' → the columns and how their values begin."""
    asked = {}
    for part in text.split(",") if text else []:
        column, equals, value = part.partition("=")
        if not equals or column.strip() not in grain:
            raise Refusal(f"--cell wants column=value, and the columns are {', '.join(grain)}{nearest(column.strip(), grain)}")
        asked[column.strip()] = value.strip()
    return asked


def ledger(
    pipeline: PipelineName = "shop",
    day: Day = None,
    view: ViewName = None,
    as_json: AsJson = False,
) -> None:
    """Show the books of a day of arrival: per view, stream and partition every offset of the log, by its fate."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    rows = ledger_lines(home.lake, declared, chosen_day(day), view)
    if not rows:
        raise Refusal(f"there are no books of {chosen_day(day)}: run `weir nightly {pipeline} --day {chosen_day(day)}`")
    lines = [
        LedgerLine(
            fates={fate: row[fate] for fate in FATES}, day=str(row["_day"]), **{k: v for k, v in row.items() if k not in (*FATES, "_day")}
        )
        for row in rows
    ]
    if as_json:
        print_json([line.model_dump(mode="json") for line in lines])
    else:
        screens.show_ledger(out, str(chosen_day(day)), lines, by_partition=True)


def advise(pipeline: PipelineName = "shop", day: Day = None, as_json: AsJson = False) -> None:
    """Say what another lateness would have cost and gained on a day: events waited for, freshness, state."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    report = NightlyReport.read(home.lake.nightly_report(pipeline, str(chosen_day(day))))
    if report is None:
        raise Refusal(f"{chosen_day(day)} was not proved yet: run `weir nightly {pipeline} --day {chosen_day(day)}`")
    if as_json:
        lateness = {view.view: {name: [c.model_dump() for c in own] for name, own in view.lateness.items()} for view in report.views}
        print_json({"day": report.day, "lateness": lateness})
        return
    for view in report.views:
        for name, choices in view.lateness.items():
            screens.show_lateness(out, declared.views[view.view], view.view, name, declared.streams[name], choices)


def drill(
    events: Annotated[int, typer.Option(help="how many", min=2_000)] = 20_000,
    seed: Annotated[int, typer.Option(help="the same seed injects the same faults")] = 1,
    workers: Workers = 0,
    connected: Annotated[
        bool,
        typer.Option(
            "--connected", help="on the brokers, the Spark master and the lake that WEIR_KAFKA, WEIR_SPARK_MASTER, WEIR_LAKE name"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send a day with a known number of every fault, kill, lose and tamper, and show whether the night names and repairs each."""
    from weir.drill import run_drill

    with err.status("starting") as spinner:
        began = time.monotonic()

        def say(what: str) -> None:
            told = f"{time.monotonic() - began:4.0f} s  {what}"
            spinner.update(told) if err.is_terminal else err.print(told, markup=False, soft_wrap=True)

        home, drilled = run_drill(events, seed, workers, connected, say)
    if as_json:
        faults = {own.fault: {"injected": own.injected, "named": own.named, "repaired": own.repaired} for own in drilled.faults}
        told = {"passed": drilled.passed, "events": drilled.events, "day": drilled.day, "seconds": drilled.seconds, "faults": faults}
        print_json(told | {"unexplained": drilled.unexplained, "blocked": drilled.blocked, "served": drilled.served_is_recomputed})
    else:
        screens.show_drill(out, drilled, home)
    if not drilled.passed:
        raise JobFailed(f"the drill was not passed; look around with WEIR_HOME={home.root}")

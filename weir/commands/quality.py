"""Commands of the micro-batch and what it sets aside: refine, quarantine, housekeep."""

import sys
from datetime import datetime
from typing import Annotated, Any

import typer

from weir import screens
from weir.commands.terminal import AsJson, PipelineName, out, print_json, run, run_and_show
from weir.jobs import Job
from weir.layout import Home
from weir.loader import load_named
from weir.masking import shown_quarantined
from weir.pipeline import Pipeline
from weir.quarantine import QuarantineAct, QuarantineFilter
from weir.records.quality import ReplayReport
from weir.serving import quarantine_groups, quarantine_rows


def refine(
    pipeline: PipelineName = "shop",
    streams: Annotated[str, typer.Option(help="only these, separated by commas")] = "",
    as_json: AsJson = False,
) -> None:
    """Validate what was archived since the last time: good rows go to accepted tables, bad ones into quarantine."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    job = Job(home, "refine_job", pipeline, options=["--streams", streams])
    run_and_show(job, f"refining {pipeline}", lambda outcome: outcome.refined, screens.show_refined, as_json)


def housekeep(pipeline: PipelineName = "shop", as_json: AsJson = False) -> None:
    """Merge small files, drop raw that is older than declared, mark expired quarantined rows, remove old reports."""
    home = Home.from_environment()
    load_named(home.pipelines, pipeline)
    job = Job(home, "housekeeping_job", pipeline)
    run_and_show(job, f"keeping {pipeline} tidy", lambda outcome: outcome.housekept, screens.show_housekept, as_json)


quarantine = typer.Typer(no_args_is_help=True, help="Rows that were set aside: list, show, replay, discard.", rich_markup_mode=None)


OfStream = Annotated[str | None, typer.Option("--stream", help="only this stream or table")]
TheStream = Annotated[str, typer.Option("--stream", help="the stream or table")]
OfRule = Annotated[str | None, typer.Option("--rule", help="only rows with this reason, for example amount:be_between")]
Since = Annotated[datetime | None, typer.Option("--since", formats=["%Y-%m-%d"], help="first day of arrival (UTC)")]
Until = Annotated[datetime | None, typer.Option("--until", formats=["%Y-%m-%d"], help="last day of arrival (UTC)")]
Yes = Annotated[bool, typer.Option("--yes", help="do it without asking")]


def _asked(stream: str | None, rule: str | None, since: datetime | None, until: datetime | None) -> QuarantineFilter:
    return QuarantineFilter(stream, rule, since.date() if since else None, until.date() if until else None)


def _shown(pipeline: Pipeline, asked: QuarantineFilter, home: Home, at_most: int) -> list[dict[str, Any]]:
    return [shown_quarantined(pipeline, row) for row in quarantine_rows(home.lake, pipeline, asked, at_most)]


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
        print_json([vars(group) for group in groups])
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
    rows = _shown(declared, _asked(stream, rule, since, until), home, limit)
    if as_json:
        print_json(rows)
    else:
        screens.show_quarantined_rows(out, rows, limit)


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
    asked = _asked(stream, rule, since, until)
    found = _replay(home, asked, pipeline, apply=yes)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    screens.show_replay(out, found)
    if found.applied or not (found.released or found.duplicates) or found.blocked:
        return
    if sys.stdin.isatty() and typer.confirm(f"Replay these {found.released + found.duplicates:,} rows?"):
        screens.show_replay(out, _replay(home, asked, pipeline, apply=True))
    else:
        out.print("Nothing was changed. `--yes` does it.")


def _replay(home: Home, asked: QuarantineFilter, pipeline: str, apply: bool) -> ReplayReport:
    act = QuarantineAct.of(vars(asked) | {"act": "replay" if apply else "preview"})
    found = run(Job(home, "quarantine_job", pipeline, options=act.job_options()), f"judging {act.stream} again").replayed
    assert found is not None
    return found


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
    act = QuarantineAct.of(vars(asked) | {"act": "discard", "note": note})
    groups = quarantine_groups(home.lake, declared, asked)
    screens.show_quarantine(out, pipeline, groups)
    if not groups:
        return
    screens.show_quarantined_rows(out, _shown(declared, asked, home, 10), 10)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Discard these rows?")):
        out.print("Nothing was changed. `--yes` does it.")
        return
    (count,) = run(Job(home, "quarantine_job", pipeline, options=act.job_options()), f"discarding rows of {stream}").lines
    out.print(f"{int(count):,} rows of {stream} discarded: {note}", markup=False)

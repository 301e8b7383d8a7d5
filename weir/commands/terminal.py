"""What all commands share: the two consoles, options that several have, and running a job with a spinner."""

import json
import sys
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.event_time import utc_now
from weir.jobs import Job, JobFailed
from weir.records.jobs import Outcome

FILE_WIDTH = 116
"""A file or pipe has no width of its own: wide enough for every table."""
out = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
err = Console(stderr=True, highlight=False)
Workers = Annotated[int, typer.Option("--workers", help="run the Spark jobs on so many worker processes of this machine", min=0, max=64)]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object for programs")]
PipelineName = Annotated[str, typer.Argument(help="the pipeline's name: its folder below pipelines/")]
Day = Annotated[datetime | None, typer.Option("--day", formats=["%Y-%m-%d"], help="the day (UTC), default yesterday")]


def run(job: Job, what: str, raises: bool = True) -> Outcome:
    began = time.monotonic()
    with err.status(what) as spinner:
        return job.wait(lambda: spinner.update(f"{what} ({time.monotonic() - began:.0f} s)"), raises)


def run_and_show(job: Job, what: str, report_of: Callable[[Outcome], Any], show: Callable[[Console, Any], None], as_json: bool) -> None:
    """Run a job whose report is shown also when its gate blocked: then the report says why, and the command fails."""
    outcome = run(job, what, raises=False)
    if (report := report_of(outcome)) is None:
        job.outcome()
    elif as_json:
        print_json(report.model_dump(mode="json"))
    else:
        show(out, report)
    if outcome.failure:
        raise JobFailed(outcome.failure)


def chosen_day(given: datetime | None) -> date:
    return given.date() if given else utc_now().date() - timedelta(days=1)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))

"""A person's word on what the nights have found: accept what no cause explains, or take a settlement back. Kept in the records."""

from datetime import date
from pathlib import Path

from weir import settling
from weir.event_time import utc_now
from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.records.night import NightlyReport, Settlement
from weir.refusal import Refusal


def settlements_of(lake: Lake, pipeline: Pipeline) -> dict[str, Settlement]:
    """How far each view is settled."""
    return {view: _read(lake, pipeline, view) or Settlement(view=view, fingerprint=pipeline.fingerprint(view)) for view in pipeline.views}


def accept_cells(lake: Lake, pipeline: Pipeline, view: str, day: date, reason: str, who: str) -> int:
    """Accept the cells of a day that are unexplained now; how many. The next night of the day settles it."""
    settled, report = _read(lake, pipeline, view), NightlyReport.read(lake.nightly_report(pipeline.name, str(day)))
    found = next((own for own in report.views if own.view == view), None) if report else None
    if settled is None or found is None:
        raise Refusal(f"{view} of {day} was not proved yet: run `weir nightly {pipeline.name} --day {day}`")
    settling.accept(settled, found, day, reason, who, utc_now()).write(_file(lake, pipeline, view))
    return found.unexplained


def revert_settlement(lake: Lake, pipeline: Pipeline, view: str, day: date) -> None:
    """Serve speed again from this day on."""
    settled = _read(lake, pipeline, view) or Settlement(view=view, fingerprint=pipeline.fingerprint(view))
    settling.revert(settled, day).write(_file(lake, pipeline, view))


def _file(lake: Lake, pipeline: Pipeline, view: str) -> Path:
    return lake.settlement(pipeline.name, view, pipeline.fingerprint(view))


def _read(lake: Lake, pipeline: Pipeline, view: str) -> Settlement | None:
    return Settlement.read(_file(lake, pipeline, view))

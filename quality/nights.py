"""The pages of the nights: what was proved of each day, why numbers differed, and how far each view is settled.

Made from reports alone, in the way of reports.py: static, escaped, bounded.
"""

import re
from pathlib import Path

from quality.reports import render
from weir.lake_files import write_whole
from weir.look.nights import ALARM, night_context
from weir.pipeline import Pipeline
from weir.records.night import NightlyReport
from weir.summaries import NightSummary

_PAGE_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.html")


def write_nights(folder: Path, pipeline: Pipeline, reports: list[NightlyReport], summary: NightSummary) -> None:
    """Write the pages of the reports' days and the index over the days of the summary; pages of days that are not in it go."""
    days = {night.day for night in summary.nights}
    for file in folder.glob("*.html") if folder.is_dir() else ():
        if (name := _PAGE_NAME.fullmatch(file.name)) and name.group(1) not in days:
            file.unlink(missing_ok=True)
    for report in reports:
        if report.day in days:
            write_whole(folder / f"{report.day}.html", render("night.html", **night_context(pipeline, report)))
    write_whole(folder / "index.html", render("nights.html", pipeline=pipeline.name, nights=summary.nights[::-1], alarm=ALARM))

"""The pages of the nights: what was proved of each day, why numbers differed, and how far each view is settled.

Made from a NightlyReport alone, in the way of reports.py: static, escaped, bounded.
"""

import re
from datetime import date
from pathlib import Path
from typing import Any

from quality.reports import DAYS_KEPT, render
from weir.masking import shown_cell
from weir.pipeline import Pipeline
from weir.records import FATES, LedgerLine, NightlyReport, ViewComparison, write_whole
from weir.wording import LOST, WHY

_PAGE_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.html")
WORST_CELLS = 20


def write_night(folder: Path, pipeline: Pipeline, report: NightlyReport, others: dict[str, NightlyReport]) -> Path:
    """Write the page of the report's day and the index over the last month. `others` are the reports of the days before."""
    days = dict(sorted((others | {report.day: report}).items())[-DAYS_KEPT:])
    for file in folder.glob("*.html") if folder.is_dir() else ():
        if (name := _PAGE_NAME.fullmatch(file.name)) and name.group(1) not in days:
            file.unlink(missing_ok=True)
    page = folder / f"{report.day}.html"
    write_whole(page, _day_page(pipeline, report))
    write_whole(folder / "index.html", render("nights.html", pipeline=pipeline.name, nights=[_row(own) for own in reversed(days.values())]))
    return page


def last_reports(files: list[Path]) -> dict[str, NightlyReport]:
    """The reports of the last month. One in an older form is left out."""
    found = {}
    for file in sorted(files)[-DAYS_KEPT:]:
        try:
            report = NightlyReport.read(file)
        except ValueError:
            continue
        if report:
            date.fromisoformat(report.day)  # it names a page
            found[report.day] = report
    return found


def _row(report: NightlyReport) -> dict[str, Any]:
    """A day in the index."""
    return {
        "day": report.day,
        "views": [{"name": view.view, "word": _word(view), "alarm": _alarm(view), "view": view} for view in report.views],
        "causes": _sum_causes(report),
        "cells": sum(view.compared for view in report.views),
        "equal": sum(view.equal for view in report.views),
        "differing": sum(view.differing for view in report.views),
        "unexplained": sum(view.unexplained for view in report.views),
        "offsets": sum(line.offsets for line in report.ledger),
        "lost": sum(line.fates.get("lost", 0) for line in report.ledger),
        "seconds": report.seconds,
    }


def _day_page(pipeline: Pipeline, report: NightlyReport) -> str:
    views = [
        {
            "view": view,
            "word": _word(view),
            "alarm": _alarm(view),
            "causes": [(cause, cells, WHY[cause]) for cause, cells in view.causes.items()],
            "most": max([1, *view.causes.values()]),
            "cells": [shown_cell(pipeline, view.view, cell) for cell in view.examples[:WORST_CELLS]],
            "columns": list(dict.fromkeys(name for cell in view.examples for side in (cell.speed, cell.batch) for name in side or {})),
        }
        for view in report.views
    ]
    return render(
        "night.html",
        pipeline=pipeline.name,
        report=report,
        views=views,
        ledger=[_sum_lines(name, lines) for name, lines in _by_view(report.ledger).items()],
        fates=FATES,
        lost=[(line, own, LOST[own.reason]) for line in _once(report.ledger) for own in line.lost_ranges][:WORST_CELLS],
    )


def _by_view(lines: list[LedgerLine]) -> dict[tuple[str, str], list[LedgerLine]]:
    found: dict[tuple[str, str], list[LedgerLine]] = {}
    for line in lines:
        found.setdefault((line.view, line.stream), []).append(line)
    return found


def _once(lines: list[LedgerLine]) -> list[LedgerLine]:
    """A lost range stands in the lines of every view of its stream."""
    return list({(line.topic, line.partition): line for line in lines}.values())


def _sum_lines(name: tuple[str, str], lines: list[LedgerLine]) -> dict[str, Any]:
    offsets = sum(line.offsets for line in lines)
    counts = {fate: sum(line.fates.get(fate, 0) for line in lines) for fate in FATES}
    parts, at = [], 0.0
    for fate, count in counts.items():
        width = 1000 * count / offsets if offsets else 0.0
        parts.append({"kind": fate, "x": at, "width": width, "rows": count})
        at += width
    wrong = [text for line in lines for text in line.wrong]
    return {"view": name[0], "stream": name[1], "offsets": offsets, "counts": counts, "parts": parts, "wrong": wrong}


def _sum_causes(report: NightlyReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for view in report.views:
        for cause, cells in view.causes.items():
            found[cause] = found.get(cause, 0) + cells
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _word(view: ViewComparison) -> str:
    if view.decision == "BLOCK":
        return "blocked"
    if view.settled_until is None:
        return "not settled"
    return "proved" if not view.differing else "repaired"


def _alarm(view: ViewComparison) -> str:
    return "bad" if view.decision == "BLOCK" else "warn" if view.decision == "WARN" else "good"

"""A proved day as a page shows it, static or served: numbers side by side, causes, the cells that matter most, the ledger."""

from typing import Any

from weir.masking import shown_cell
from weir.pipeline import Pipeline
from weir.records.night import FATES, LedgerLine, NightlyReport
from weir.records.quality import Decision
from weir.summaries import word_of
from weir.wording import LOST, WHY

WORST_CELLS = 20
ALARM: dict[Decision, str] = {"BLOCK": "bad", "WARN": "warn", "PASS": "good"}


def night_context(pipeline: Pipeline, report: NightlyReport) -> dict[str, Any]:
    """What night_body.html needs."""
    views = [
        {
            "view": view,
            "word": word_of(view),
            "alarm": ALARM[view.decision],
            "causes": [(cause, cells, WHY[cause]) for cause, cells in view.causes.items()],
            "most": max([1, *view.causes.values()]),
            "cells": [shown_cell(pipeline, view.view, cell) for cell in view.examples[:WORST_CELLS]]
            if view.view in pipeline.views
            else [],  # which of its values are private is no longer known
            "columns": list(dict.fromkeys(name for cell in view.examples for side in (cell.speed, cell.batch) for name in side or {})),
        }
        for view in report.views
    ]
    return {
        "pipeline": pipeline.name,
        "report": report,
        "views": views,
        "ledger": [_sum_lines(name, lines) for name, lines in _by_view(report.ledger).items()],
        "fates": FATES,
        "lost": [(line, own, LOST[own.reason]) for line in _once(report.ledger) for own in line.lost_ranges][:WORST_CELLS],
    }


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

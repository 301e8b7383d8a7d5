"""Reconciliation: the nights of each pipeline, down to one cell and its events; accept or revert for those who may."""

from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, HTTPException
from fastapi.responses import HTMLResponse, Response

from weir.layout import NIGHTLY, dag_id
from weir.look.nights import ALARM, night_context
from weir.masking import shown_cell
from weir.records.night import CAUSES, Cell, NightlyReport
from weir.records.record import read_once
from weir.serving import differences
from weir.settlements import revert_settlement, settlements_of
from weir.summaries import NightRow, NightSummary
from weir.wording import WHY
from weir_airflow import acts
from weir_airflow.access import refuse_other_sites
from weir_airflow.pages.book import Book, BookDep, PageNumber, cut_page

router = APIRouter()
CELLS_PER_PAGE = 50


@router.get("/reconciliation")
def show_reconciliation(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    found, place = book.some_pipelines(page)
    pipelines = []
    for name, pipeline, wrong in found:
        nights = _nights(book, name)
        pipelines.append(
            {"name": name, "wrong": wrong, "views": len(pipeline.views) if pipeline else 0, "last": nights[-1] if nights else None}
        )
    return book.show("reconciliation.html", "reconciliation", pipelines=pipelines, place=place, alarm=ALARM, bar=_bar)


@router.get("/reconciliation/{pipeline}")
def show_nights(book: BookDep, pipeline: str) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    return book.show(
        "nights.html",
        "reconciliation",
        pipeline=pipeline,
        nights=_nights(book, pipeline)[::-1],
        settlements=settlements_of(book.home.lake, declared),
        dag=dag_id(pipeline, NIGHTLY),
        may_act=book.visitor.may(pipeline, NIGHTLY),
        alarm=ALARM,
        bar=_bar,
        causes=CAUSES,
    )


@router.get("/reconciliation/{pipeline}/{day}")
def show_night(book: BookDep, pipeline: str, day: date) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    return book.show(
        "night.html",
        "reconciliation",
        day=str(day),
        may_act=book.visitor.may(pipeline, NIGHTLY),
        cells_href=f"{book.request.scope.get('root_path', '')}/reconciliation/{pipeline}/{day}/",
        **night_context(declared, _report(book, pipeline, day)),
    )


@router.get("/reconciliation/{pipeline}/{day}/{view}")
def show_cells(book: BookDep, pipeline: str, day: date, view: str, page: PageNumber = 1, cause: str = "") -> HTMLResponse:
    """All differing cells of a view."""
    declared = book.visitor.load_with(pipeline, view)
    cells = differences(book.home.lake, declared, view, day, proved_version(_report(book, pipeline, day), view))
    counted = {own: sum(any(why.cause == own for why in cell.causes) for cell in cells) for own in CAUSES}
    some = [cell for cell in cells if not cause or any(why.cause == cause for why in cell.causes)]
    shown, place = cut_page(some, page, CELLS_PER_PAGE)
    return book.show(
        "cells.html",
        "reconciliation",
        pipeline=pipeline,
        day=str(day),
        view=view,
        cells=[shown_cell(declared, view, cell) for cell in shown],
        columns=_columns(shown),
        place=place,
        cause=cause,
        counted={own: count for own, count in counted.items() if count},
    )


@router.get("/reconciliation/{pipeline}/{day}/{view}/cell")
def show_cell(book: BookDep, pipeline: str, day: date, view: str) -> HTMLResponse:
    """One cell: what was streamed, what is true, why, and the events responsible. The query names its grain."""
    declared = book.visitor.load_with(pipeline, view)
    asked = {name: book.request.query_params.get(name, "") for name in declared.views[view].grain}
    found = differences(book.home.lake, declared, view, day, proved_version(_report(book, pipeline, day), view))
    cells = [shown_cell(declared, view, own) for own in found]
    cell = next((own for own in cells if own.grain == asked), None)
    if cell is None:
        raise HTTPException(404, "No such cell differed on this day.")
    return book.show(
        "cell.html", "reconciliation", pipeline=pipeline, day=str(day), view=view, cell=cell, columns=_columns([cell]), why=WHY
    )


@router.post("/reconciliation/{pipeline}/{day}/{view}/accept", dependencies=[Depends(refuse_other_sites)])
def accept(book: BookDep, pipeline: str, day: date, view: str, reason: Annotated[str, Form(min_length=1, max_length=500)]) -> Response:
    """Accept what is unexplained, and start the night that settles it."""
    book.visitor.must_act(pipeline, NIGHTLY)
    told = acts.accept(book.home, book.visitor.load_with(pipeline, view), view, day, reason, book.visitor.user.get_name())
    return book.go(f"/reconciliation/{pipeline}/{day}", told)


@router.post("/reconciliation/{pipeline}/{day}/{view}/revert", dependencies=[Depends(refuse_other_sites)])
def revert(book: BookDep, pipeline: str, day: date, view: str) -> Response:
    book.visitor.must_act(pipeline, NIGHTLY)
    revert_settlement(book.home.lake, book.visitor.load_with(pipeline, view), view, day)
    return book.go(f"/reconciliation/{pipeline}", f"{view}: speed is served from {day} on, until a night settles it again")


@router.post("/reconciliation/{pipeline}/prove", dependencies=[Depends(refuse_other_sites)])
def prove(book: BookDep, pipeline: str, day: Annotated[date, Form()]) -> Response:
    """Start a night for one day."""
    book.visitor.must_act(pipeline, NIGHTLY)
    acts.start_night(pipeline, day, book.visitor.user.get_name())
    return book.go(f"/reconciliation/{pipeline}", f"{dag_id(pipeline, NIGHTLY)} was started for {day}")


def _nights(book: Book, pipeline: str) -> list[NightRow]:
    summary = read_once(NightSummary, book.home.lake.nights_summary(pipeline))
    return summary.nights if summary else []


def _report(book: Book, pipeline: str, day: date) -> NightlyReport:
    report = NightlyReport.read(book.home.lake.nightly_report(pipeline, str(day)))
    if report is None:
        raise HTTPException(404, f"{day} was not proved yet: a run of {dag_id(pipeline, NIGHTLY)} proves it.")
    return report


def proved_version(report: NightlyReport, view: str) -> str | None:
    """The fingerprint by which the night has proved the view: the declaration may be another one since."""
    return next((own.fingerprint for own in report.views if own.view == view), None)


def _columns(cells: list[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for side in (cell.speed, cell.batch) for name in side or {}))


def _bar(night: NightRow) -> list[dict[str, Any]]:
    """The differing cells of a night by cause, as parts of a bar 1,000 wide."""
    causes, x = night.causes(), 0.0
    parts = []
    for cause in CAUSES:
        width = 1000 * causes.get(cause, 0) / max(1, sum(causes.values()))
        parts.append({"kind": f"cause-{cause}", "rows": causes.get(cause, 0), "x": x, "width": width, "name": cause})
        x += width
    return parts

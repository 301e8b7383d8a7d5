"""Quarantine: what is set aside and why, the rows themselves; preview, replay and discard for those who may. Each act is a DAG run."""

from datetime import date
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, HTTPException
from fastapi.responses import HTMLResponse, Response

from weir.layout import QUARANTINE, dag_id
from weir.masking import shown_quarantined
from weir.pipeline import Pipeline
from weir.quarantine import MOST_NOTE_CHARACTERS, QuarantineAct, QuarantineFilter, QuarantineSummary
from weir.records.record import read_once
from weir.serving import EXPIRY_WARNING_DAYS, count_quarantined, quarantine_groups, quarantine_rows
from weir_airflow import acts
from weir_airflow.access import refuse_other_sites
from weir_airflow.pages.book import Book, BookDep, PageNumber
from weir_airflow.runs import QuarantineRun, last_quarantine_runs, quarantine_run

router = APIRouter()
ROWS_PER_PAGE = 25
MOST_ROWS_PAGED = 10_000
"""Nobody turns so many pages; who looks for more narrows the search."""
SHOWN_RUNS = 10
SHOWN_OF_DISCARD = 10
ALARM = {"success": "good", "failed": "bad", "running": "warn", "queued": "dull"}
FormText = Annotated[str, Form(max_length=1_000)]


@router.get("/quarantine")
def show_quarantine(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    """As the jobs have last counted it: a hundred pipelines cost a hundred small files."""
    found, place = book.some_pipelines(page)
    counted = {name: read_once(QuarantineSummary, book.home.lake.quarantine_summary(name)) for name, _, _ in found}
    pipelines = [{"name": name, "wrong": wrong, "summary": counted[name]} for name, _, wrong in found]
    most = max([1, *(own.rows for own in counted.values() if own)])
    return book.show("quarantine.html", "quarantine", pipelines=pipelines, place=place, most_rows=most, days=EXPIRY_WARNING_DAYS)


@router.get("/quarantine/{pipeline}")
def show_quarantine_of(
    book: BookDep, pipeline: str, stream: str = "", rule: str = "", since: str = "", until: str = "", page: PageNumber = 1
) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    asked = _asked(declared, stream, rule, since, until)
    counted = count_quarantined(book.home.lake, declared, asked)
    rows = sum(own.rows for own in counted.values())
    place = _place(rows, page)
    behind = (place["page"] - 1) * ROWS_PER_PAGE
    return book.show(
        "quarantine_of.html",
        "quarantine",
        pipeline=pipeline,
        sources=list(declared.sources),
        asked=asked,
        search=_search(asked),
        rows=rows,
        oldest=min((own.oldest for own in counted.values()), default=None),
        expiring=sum(own.expiring for own in counted.values()),
        groups=quarantine_groups(book.home.lake, declared, asked) if rows else [],
        shown=_shown(book, declared, asked, ROWS_PER_PAGE, behind) if rows else [],
        place=place,
        runs=last_quarantine_runs(pipeline, SHOWN_RUNS),
        **_frame(book, pipeline),
    )


@router.get("/quarantine/{pipeline}/discard")
def show_discard(book: BookDep, pipeline: str, stream: str, rule: str = "", since: str = "", until: str = "") -> HTMLResponse:
    """What would be discarded, and the question why."""
    book.visitor.must_act(pipeline, QUARANTINE)
    declared = book.visitor.load(pipeline)
    asked = _asked(declared, stream, rule, since, until)
    return book.show(
        "quarantine_discard.html",
        "quarantine",
        pipeline=pipeline,
        asked=asked,
        search=_search(asked),
        rows=sum(own.rows for own in count_quarantined(book.home.lake, declared, asked).values()),
        groups=quarantine_groups(book.home.lake, declared, asked),
        shown=_shown(book, declared, asked, SHOWN_OF_DISCARD),
        most_note=MOST_NOTE_CHARACTERS,
        **_frame(book, pipeline),
    )


@router.get("/quarantine/{pipeline}/runs/{run_id}")
def show_quarantine_run(book: BookDep, pipeline: str, run_id: str) -> HTMLResponse:
    """One act, live: how it stands, and at its end what it would change or has changed."""
    book.visitor.must_see(pipeline)
    run = _run(pipeline, run_id)
    search = _search(run.asked.asking()) if run.asked else ""
    return book.show("quarantine_run.html", "quarantine", pipeline=pipeline, run=run, search=search, **_frame(book, pipeline))


@router.post("/quarantine/{pipeline}/preview", dependencies=[Depends(refuse_other_sites)])
def preview(
    book: BookDep, pipeline: str, stream: FormText = "", rule: FormText = "", since: FormText = "", until: FormText = ""
) -> Response:
    return _start(book, pipeline, {"act": "preview", "stream": stream, "rule": rule, "since": since, "until": until})


@router.post("/quarantine/{pipeline}/discard", dependencies=[Depends(refuse_other_sites)])
def discard(
    book: BookDep,
    pipeline: str,
    stream: FormText = "",
    rule: FormText = "",
    since: FormText = "",
    until: FormText = "",
    note: FormText = "",
) -> Response:
    return _start(book, pipeline, {"act": "discard", "stream": stream, "rule": rule, "since": since, "until": until, "note": note})


@router.post("/quarantine/{pipeline}/runs/{run_id}/replay", dependencies=[Depends(refuse_other_sites)])
def replay(book: BookDep, pipeline: str, run_id: str) -> Response:
    """Replay what a preview has shown: by the very filter of that run, whatever a form may say."""
    book.visitor.must_act(pipeline, QUARANTINE)
    run = _run(pipeline, run_id)
    if run.asked is None or not run.may_be_replayed:
        raise HTTPException(409, "Only a preview that has found rows to release can be replayed.")
    return _start(book, pipeline, run.asked.settings() | {"act": "replay"})


def _start(book: Book, pipeline: str, settings: dict[str, str]) -> Response:
    book.visitor.must_act(pipeline, QUARANTINE)
    declared = book.visitor.load(pipeline)
    act = QuarantineAct.of(settings)
    if act.stream not in declared.sources:
        raise HTTPException(404, "There is no such stream.")
    run_id = acts.start_run(dag_id(pipeline, QUARANTINE), book.visitor.user.get_name(), act.settings())
    return book.go(f"/quarantine/{pipeline}/runs/{quote(run_id, safe='')}")


def _run(pipeline: str, run_id: str) -> QuarantineRun:
    run = quarantine_run(pipeline, run_id)
    if run is None:
        raise HTTPException(404, "The quarantine of this pipeline has no such run.")
    return run


def _asked(pipeline: Pipeline, stream: str, rule: str, since: str, until: str) -> QuarantineFilter:
    if stream and stream not in pipeline.sources:
        raise HTTPException(404, "There is no such stream.")
    return QuarantineFilter(stream or None, rule or None, _day(since), _day(until))


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise HTTPException(422, "A day is written like 2026-03-01.") from None


def _search(asked: QuarantineFilter) -> str:
    """The filter as the end of an address."""
    return urlencode({name: str(value) for name, value in vars(asked).items() if value is not None})


def _shown(book: Book, pipeline: Pipeline, asked: QuarantineFilter, at_most: int, behind: int = 0) -> list[dict[str, Any]]:
    return [shown_quarantined(pipeline, row) for row in quarantine_rows(book.home.lake, pipeline, asked, at_most, behind)]


def _place(rows: int, page: int) -> dict[str, int]:
    pages = max(1, -(-min(rows, MOST_ROWS_PAGED) // ROWS_PER_PAGE))
    return {"page": min(page, pages), "pages": pages, "all": rows, "each": ROWS_PER_PAGE, "most": MOST_ROWS_PAGED}


def _frame(book: Book, pipeline: str) -> dict[str, Any]:
    dag = dag_id(pipeline, QUARANTINE)
    return {
        "dag": dag,
        "paused": acts.is_paused(dag),
        "may_act": book.visitor.may(pipeline, QUARANTINE),
        "alarm": ALARM,
        "days": EXPIRY_WARNING_DAYS,
    }

"""Views: how each is made and how far it is settled, the lineage as one picture, and a box for questions in SQL."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse, Response

from weir.answers import NUMBER, PlainAnswer, csv_lines, plain_answer
from weir.asking import DOWNLOAD, MOST_CHARACTERS, PAGE, Limits
from weir.asking_process import AskingProcesses
from weir.layout import Home
from weir.loader import declared_folders
from weir.look.answers import choose, colours_of, draw
from weir.look.lineage import lineage_of
from weir.pipeline import Pipeline
from weir.refusal import Refusal
from weir.serving import last_cells, settled_cells
from weir.view_reading import first_question, told_expectation, view_overview, view_overviews
from weir.wording import pattern_words
from weir_airflow.pages.book import Book, BookDep, PageNumber, headers, render

router = APIRouter()
LAST_DAYS, LAST_ROWS = 7, 25
_ASKING = AskingProcesses()

Sql = Annotated[str, Query(max_length=MOST_CHARACTERS)]
Word = Annotated[str, Query(max_length=200)]


@router.get("/views")
def show_views(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    found, place = book.some_pipelines(page)
    pipelines = [
        {"name": name, "wrong": wrong, "views": view_overviews(book.home.lake, pipeline) if pipeline else [], "declared": pipeline}
        for name, pipeline, wrong in found
    ]
    return book.show("views.html", "views", pipelines=pipelines, place=place)


@router.get("/views/{pipeline}")
def show_views_of(book: BookDep, pipeline: str) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    views = view_overviews(book.home.lake, declared)
    return book.show("views_of.html", "views", pipeline=pipeline, declared=declared, views=views, lineage=lineage_of(declared))


@router.get("/views/{pipeline}/query")
def ask(book: BookDep, pipeline: str, sql: Sql = "", x: Word = "", y: Word = "", colour: Word = "", format: Word = "") -> Response:
    """The answer as a table and a picture, or as CSV."""
    declared = book.visitor.load(pipeline)
    if not sql and "query" in declared.views:
        return show_view(book, pipeline, "query")
    if format == "csv":
        return _csv(book, pipeline, sql)
    told: dict[str, Any] = {"pipeline": pipeline, "declared": declared, "sql": sql, "limits": PAGE, "most_rows": DOWNLOAD.rows}
    if not sql:
        _ASKING.prepare()
        names = list(declared.views)
        sql = first_question(book.home.lake, declared, names[0]) if names else ""
        return book.show("query.html", "views", answer=None, wrong="", **told | {"sql": sql})
    try:
        found = answer(book.home, pipeline, sql, PAGE)
    except Refusal as refusal:
        return render(book.request, "query.html", "views", 400, answer=None, wrong=str(refusal), **told)
    choice = choose(found, x, y, colour)
    picture = draw(found, choice) if choice else None
    return book.show(
        "query.html",
        "views",
        answer=found,
        wrong="",
        choice=choice,
        picture=picture,
        numbers=found.of_kind(NUMBER),
        colours=colours_of(found),
        asked={"x": x, "y": y, "colour": colour},
        **told,
    )


@router.get("/views/{pipeline}/{view}")
def show_view(book: BookDep, pipeline: str, view: str) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    if view not in declared.views:
        raise HTTPException(404, "There is no such view.")
    _ASKING.prepare()
    own, lake, wrong, last = declared.views[view], book.home.lake, "", None
    try:
        last = last_cells(lake, declared, view, LAST_DAYS, LAST_ROWS)
    except Refusal as refusal:
        wrong = str(refusal)
    return book.show(
        "view.html",
        "views",
        pipeline=pipeline,
        view=own,
        overview=view_overview(lake, declared, view),
        pattern=pattern_words(own.pattern) if own.pattern else None,
        checks=[(rule.name, told_expectation(rule), rule.severity) for rule in own.expectations],
        last=last,
        rows=plain_answer(last.cells.columns, last.cells.types, last.cells.rows) if last else None,
        wrong=wrong,
        settled=settled_cells(lake, declared, view),
        readers=_readers(declared, view),
        sql=first_question(lake, declared, view),
    )


def answer(home: Home, pipeline: str, sql: str, limits: Limits) -> PlainAnswer:
    """What the served views of the pipeline say to this."""
    folder = next(own for own in declared_folders(home.pipelines) if own.name == pipeline)
    return _ASKING.ask(home.lake.root, folder.resolve(), sql, limits)


def _csv(book: Book, pipeline: str, sql: str) -> Response:
    try:
        found = answer(book.home, pipeline, sql, DOWNLOAD)
    except Refusal as refusal:
        raise HTTPException(400, str(refusal)) from None
    named = {"Content-Disposition": f'attachment; filename="{pipeline}.csv"', "X-Weir-Cut": "yes" if found.is_cut else "no"}
    return Response("".join(csv_lines(found)), media_type="text/csv; charset=utf-8", headers=headers() | named)


def _readers(declared: Pipeline, view: str) -> list[str]:
    """The served queries that read it themselves."""
    ends = [edge.end for edge in lineage_of(declared).edges if edge.start == f"view {view}"]
    return [end.removeprefix("query ") for end in ends]

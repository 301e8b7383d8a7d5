"""Pipelines: the declarations, and what is wrong with those that cannot be loaded."""

from fastapi import APIRouter, HTTPException
from fastapi.responses import HTMLResponse

from weir.layout import MICROBATCH, NIGHTLY, QUARANTINE, STREAM, dag_id
from weir.loader import declared_folders
from weir.refusal import Refusal
from weir_airflow.pages.book import BookDep, PageNumber

router = APIRouter()
MOST_CHARACTERS = 200_000
"""Of one file: a declaration is written by hand."""


@router.get("/pipelines")
def show_pipelines(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    found, place = book.some_pipelines(page)
    return book.show("pipelines.html", "pipelines", pipelines=found, place=place)


@router.get("/pipelines/{pipeline}")
def show_pipeline(book: BookDep, pipeline: str) -> HTMLResponse:
    book.visitor.must_see(pipeline)
    folder = next((own for own in declared_folders(book.home.pipelines) if own.name == pipeline), None)
    if folder is None:
        raise HTTPException(404, "There is no such pipeline.")
    declared, wrong = None, ""
    try:
        declared = book.visitor.declared(pipeline)
    except Refusal as refusal:
        wrong = str(refusal)
    files = [
        (file.name, file.read_text(encoding="utf-8", errors="replace")[:MOST_CHARACTERS])
        for file in sorted(folder.iterdir(), key=lambda own: (own.name != "pipeline.yaml", own.name))
        if file.is_file() and not file.is_symlink() and file.suffix in (".yaml", ".sql")
    ]
    dags = [dag_id(pipeline, part) for part in (STREAM, MICROBATCH, NIGHTLY, QUARANTINE)]
    return book.show("pipeline.html", "pipelines", pipeline=pipeline, declared=declared, wrong=wrong, files=files, dags=dags)

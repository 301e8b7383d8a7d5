"""The reports that jobs have written, page by page. Files are served by a route, never as a mounted folder."""

from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse

from weir.lake_files import read_whole
from weir_airflow.access import VisitorDep
from weir_airflow.pages.book import headers, theme

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
"""Reports carry their own style and pictures and need nothing else: no script, no other host."""

router = APIRouter()


@router.get("/reports/{pipeline}/quality/{page:path}")
def show_quality_report(request: Request, visitor: VisitorDep, pipeline: str, page: str) -> HTMLResponse:
    """A page of a pipeline's quality reports."""
    visitor.must_see(pipeline)
    return _show(request, visitor.home.lake.quality_site(pipeline), page, "micro-batch")


@router.get("/reports/{pipeline}/nights/{page:path}")
def show_night_report(request: Request, visitor: VisitorDep, pipeline: str, page: str) -> HTMLResponse:
    """A page of what the nights have proved."""
    visitor.must_see(pipeline)
    return _show(request, visitor.home.lake.nights_site(pipeline), page, "night")


def _show(request: Request, site: Path, page: str, writer: str) -> HTMLResponse:
    file = find_page(site, page or "index.html")
    if file is None:
        raise HTTPException(404, f"There is no such report yet: it is written by the first {writer}.")
    html = read_whole(file).decode()
    if said := theme(request):
        html = html.replace('<html lang="en">', f'<html lang="en" data-theme="{said}">', 1)
    return HTMLResponse(html, headers=headers(REPORT_POLICY))


def find_page(site: Path, page: str) -> Path | None:
    """The file of this page, which must be an HTML file below the site, whatever the name says."""
    if "\0" in page or not page.endswith(".html"):
        return None
    file = (site / page).resolve()
    return file if file.is_relative_to(site.resolve()) and file.is_file() else None

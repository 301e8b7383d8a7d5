"""What Weir shows inside Airflow: the reports, behind Airflow's own login. Files are served by a route, never as a mounted folder."""

from pathlib import Path

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from weir.layout import Home
from weir.loader import declared_folders

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
"""Reports carry their own style and pictures and need nothing else: no script, no other host."""

app = FastAPI(title="Weir", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(requires_authenticated())])


@app.get("/{pipeline}/quality/{page:path}")
def show_quality(pipeline: str, page: str) -> HTMLResponse:
    """A page of a pipeline's quality reports."""
    return _show(pipeline, Home.from_environment().lake.quality_site(pipeline), page, "micro-batch")


@app.get("/{pipeline}/nights/{page:path}")
def show_night(pipeline: str, page: str) -> HTMLResponse:
    """A page of what the nights have proved."""
    return _show(pipeline, Home.from_environment().lake.nights_site(pipeline), page, "night")


def _show(pipeline: str, site: Path, page: str, writer: str) -> HTMLResponse:
    if pipeline not in {folder.name for folder in declared_folders(Home.from_environment().pipelines)}:
        raise HTTPException(404, "There is no such pipeline.")
    file = find_page(site, page or "index.html")
    if file is None:
        raise HTTPException(404, f"There is no such report yet: it is written by the first {writer}.")
    return HTMLResponse(file.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})


def find_page(site: Path, page: str) -> Path | None:
    """The file of this page, which must be an HTML file below the site, whatever the name says."""
    if "\0" in page or not page.endswith(".html"):
        return None
    file = (site / page).resolve()
    return file if file.is_relative_to(site.resolve()) and file.is_file() else None

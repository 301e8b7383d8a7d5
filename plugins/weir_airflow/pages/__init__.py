"""What Weir shows inside Airflow: pages behind Airflow's own login, rendered here, with little script; and the same as REST."""

import mimetypes

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.base import RequestResponseEndpoint

from weir.lake_files import store_trouble
from weir.layout import MICROBATCH, NIGHTLY, QUARANTINE, STREAM
from weir.look import style
from weir.refusal import Refusal
from weir_airflow.pages import metrics, nights, pipelines, quality, quarantine, reports, rest, streams, views
from weir_airflow.pages.book import HERE, BookDep, headers, render

app = FastAPI(title="Weir", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(requires_authenticated())])


@app.exception_handler(AnyHTTPException)
async def show_error(request: Request, error: AnyHTTPException) -> Response:
    """A page with one line where a browser asks, JSON for programs."""
    if "text/html" not in request.headers.get("accept", "") or "/api/" in request.url.path:
        return await http_exception_handler(request, error)
    return render(request, "error.html", "", error.status_code, code=error.status_code, line=str(error.detail))


@app.exception_handler(Refusal)
async def show_refusal(request: Request, refusal: Refusal) -> Response:
    return await show_error(request, AnyHTTPException(409, str(refusal)))


@app.middleware("http")
async def tell_trouble(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """A lake that is away is no fault of a page."""
    try:
        return await call_next(request)
    except Exception as error:
        if (line := store_trouble(error)) is None:
            raise
        return await show_error(request, AnyHTTPException(503, line))


@app.get("/")
def show_start(book: BookDep) -> Response:
    return book.go("/streams")


@app.get("/dag/{dag}")
def show_of_dag(book: BookDep, dag: str) -> Response:
    """From a DAG's page to what Weir has to say about it."""
    pipeline, _, part = dag.rpartition("__")
    place = {STREAM: "streams", MICROBATCH: "quality", NIGHTLY: "reconciliation", QUARANTINE: "quarantine"}.get(part)
    if place is None or pipeline not in book.visitor.pipelines():
        raise HTTPException(404, "This DAG belongs to none of Weir's pipelines.")
    return book.go(f"/{place}/{pipeline}")


@app.get("/static/{file}")
def show_static(file: str) -> Response:
    """The style and the script: by a route, so that they ask for a login like all the rest."""
    if file == "style.css":
        content = style()
    elif file in {own.name for own in (HERE / "static").iterdir()}:
        content = (HERE / "static" / file).read_text(encoding="utf-8")
    else:
        raise HTTPException(404, "There is no such file.")
    kept = headers() | {"Cache-Control": "private, max-age=300"}
    return Response(content, media_type=mimetypes.guess_type(file)[0] or "text/plain", headers=kept)


for room in (streams, quality, quarantine, nights, views, pipelines, reports, metrics, rest):
    app.include_router(room.router)

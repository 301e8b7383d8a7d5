"""How a page is made: its frame, its headers, light or dark as Airflow is, and where an act leads back to."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment

from weir.event_time import utc_now
from weir.look import page_environment
from weir.pipeline import Pipeline
from weir.refusal import Refusal
from weir_airflow.access import VisitorDep

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""Everything comes from here; what a message holds can load and run nothing."""
PER_PAGE = 12
"""Pipelines on a page: what fits a screen."""
TABS = ("streams", "quality", "quarantine", "reconciliation", "views", "pipelines")

PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000)]
Item = TypeVar("Item")


@cache
def environment() -> Environment:
    return page_environment(HERE / "templates")


def theme(request: Request) -> str:
    """As the script last told it; where it has not yet, the browser's own wish holds."""
    said = request.cookies.get("weir_theme", "")
    return said if said in ("light", "dark") else ""


def headers(policy: str = POLICY) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def render(request: Request, template: str, tab: str, status: int = 200, **values: Any) -> HTMLResponse:
    """The whole page, or only the part of it that changes where its script asks for that."""
    root = str(request.scope.get("root_path", ""))
    frame = {
        "layout": "bare.html" if request.query_params.get("live") == "1" else "layout.html",
        "root": root,
        "airflow": root.removesuffix("/weir"),
        "tabs": TABS,
        "tab": tab,
        "theme": theme(request),
        "now": utc_now(),
        "told": request.query_params.get("told", "")[:300],
    }
    html = environment().get_template(template).render(**frame | values)
    return HTMLResponse(html, status, headers=headers())


class Book:
    """The pages as they are for one visitor."""

    def __init__(self, request: Request, visitor: VisitorDep) -> None:
        self.request, self.visitor, self.home = request, visitor, visitor.home
        self.now = utc_now()

    def show(self, template: str, tab: str, **values: Any) -> HTMLResponse:
        return render(self.request, template, tab, **values)

    def go(self, path: str, told: str = "") -> Response:
        """To another page; after an act, which then says what was done."""
        root = str(self.request.scope.get("root_path", ""))
        mark = "&" if "?" in path else "?"
        return RedirectResponse(f"{root}{path}{f'{mark}told={quote(told)}' if told else ''}", 303)

    def some_pipelines(self, page: int) -> tuple[list[tuple[str, Pipeline | None, str]], dict[str, int]]:
        """The pipelines on this page of the list, each with what is wrong where it cannot be loaded; and which page of how many."""
        names, place = cut_page(self.visitor.pipelines(), page)
        found: list[tuple[str, Pipeline | None, str]] = []
        for name in names:
            try:
                found.append((name, self.visitor.declared(name), ""))
            except Refusal as refusal:
                found.append((name, None, str(refusal)))
        return found, place


BookDep = Annotated[Book, Depends()]


def cut_page(items: Sequence[Item], page: int, each: int = PER_PAGE) -> tuple[list[Item], dict[str, int]]:
    """One page of a list, and which of how many it is."""
    pages = max(1, -(-len(items) // each))
    page = min(page, pages)
    return list(items[(page - 1) * each : page * each]), {"page": page, "pages": pages, "all": len(items)}

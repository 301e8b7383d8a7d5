"""Reports behind Airflow's login: nothing but the site's own pages can be had by any name."""

from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi.routing import APIRoute

from weir_airflow.pages import POLICY, app, find_page


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "secret.html").write_text("secret")
    site = tmp_path / "site"
    (site / "orders").mkdir(parents=True)
    for page in ("index.html", "orders/2026-03-01.html"):
        (site / page).write_text(page)
    (site / "data.json").write_text("{}")
    (site / "out.html").symlink_to(tmp_path / "secret.html")
    return site


@pytest.mark.parametrize("page", ["index.html", "orders/2026-03-01.html"])
def test_the_pages_of_the_site_are_found(site: Path, page: str) -> None:
    found = find_page(site, page)
    assert found and found.read_text() == page


@pytest.mark.parametrize(
    "page",
    [
        "../secret.html",
        "orders/../../secret.html",
        "/etc/passwd",
        "out.html",
        "data.json",
        "orders",
        "",
        "no.html",
        "index.html\0",
        "%2e%2e/secret.html",
    ],
)
def test_nothing_else_is(site: Path, page: str) -> None:
    assert find_page(site, page) is None


def test_every_route_asks_for_a_login() -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert routes and len(routes) == len(app.routes), "no docs, no mounted files"
    assert [dependency.dependency.__qualname__ for dependency in app.router.dependencies] == [requires_authenticated().__qualname__]
    assert all(route.methods == {"GET"} for route in routes), "nothing can be changed here"


def test_pages_may_load_nothing() -> None:
    assert "default-src 'none'" in POLICY and "script" not in POLICY

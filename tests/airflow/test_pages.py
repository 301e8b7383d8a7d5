"""Reports behind Airflow's login: nothing but the site's own pages can be had by any name."""

from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi.routing import APIRoute

from weir_airflow.access import refuse_other_sites
from weir_airflow.pages import app
from weir_airflow.pages.book import POLICY
from weir_airflow.pages.reports import REPORT_POLICY, find_page


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
    for route in routes:
        assert route.methods in ({"GET"}, {"POST"}), route.path
        is_act = refuse_other_sites in [own.call for own in route.dependant.dependencies]
        assert is_act == (route.methods == {"POST"}), f"{route.path}: what changes something comes by POST, and not from other sites"


def test_pages_may_load_nothing_from_elsewhere() -> None:
    assert "default-src 'none'" in REPORT_POLICY and "script" not in REPORT_POLICY
    assert "default-src 'none'" in POLICY and "script-src 'self';" in POLICY and "://" not in POLICY

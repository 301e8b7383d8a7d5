"""Who sees and does what: every route of the plugin asked without a login, as a viewer, from another site, for another's pipeline."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from beats import NOW, beat, pulse
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from quarantined import aside, set_aside

from weir.layout import Home
from weir.processes import choose_port
from weir.records.driver import Control
from weir_airflow.pages import app

ROOT = Path(__file__).resolve().parents[2]
OWN_SITE = {"sec-fetch-site": "same-origin"}
Visit = Callable[..., TestClient]


@pytest.fixture(scope="module")
def database() -> None:
    """Airflow's own, empty."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def visit(database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    """A client of the plugin's own application: as somebody with a role, or as nobody."""
    monkeypatch.setenv("WEIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WEIR_PIPELINES", str(ROOT / "pipelines"))
    create_auth_manager()

    def as_(role: str | None = "admin", **headers: str) -> TestClient:
        app.dependency_overrides = {get_user: lambda: SimpleAuthManagerUser(username=f"the {role}", role=role)} if role else {}
        return TestClient(app, headers={"accept": "text/html", **headers}, follow_redirects=False)

    yield as_
    app.dependency_overrides = {}


def routes() -> list[tuple[str, str]]:
    """Every route of the plugin, with names that exist in its path."""
    known = {"pipeline": "shop", "view": "revenue_per_minute", "day": "2026-03-01", "file": "pages.js", "dag": "shop__stream"}
    known |= {"act": "stop", "page:path": "index.html", "run": "page__1", "run_id": "page__1"}
    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is no plain route: it would be served without a login"
        path = re.sub(r"\{([\w:]+)\}", lambda name: known[name.group(1)], route.path)
        found += [(method, path) for method in sorted(route.methods)]
    return found


@pytest.mark.parametrize(("method", "path"), routes())
def test_nothing_is_had_without_a_login(visit: Visit, method: str, path: str) -> None:
    answer = visit(None).request(method, path, headers=OWN_SITE)
    assert answer.status_code == 401, (method, path, answer.text[:200])
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/static/", "/static/../book.py", "/static/%2e%2e/book.py"])
def test_what_is_not_there_is_not_there(visit: Visit, path: str) -> None:
    assert visit().get(path).status_code == 404


@pytest.mark.parametrize(("method", "path"), [own for own in routes() if own[0] == "POST"])
def test_a_viewer_changes_nothing(visit: Visit, method: str, path: str) -> None:
    body = (
        {"json": {"day": "2026-03-01", "reason": "r"}}
        if "/api/" in path
        else {"data": {"day": "2026-03-01", "reason": "r", "note": "n", "stream": "orders"}}
    )
    answer = visit("viewer").post(path, headers=OWN_SITE, **body)
    assert answer.status_code == 403, (path, answer.text[:300])


@pytest.mark.parametrize(
    "headers",
    [{}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}, {"origin": "null"}],
)
@pytest.mark.parametrize("path", [path for method, path in routes() if method == "POST"])
def test_another_site_changes_nothing(visit: Visit, path: str, headers: dict[str, str]) -> None:
    assert visit("admin").post(path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", sorted({path for method, path in routes() if method == "POST"} - {p for m, p in routes() if m == "GET"}))
def test_nothing_is_changed_by_get(visit: Visit, path: str) -> None:
    assert visit("admin").get(path, headers=OWN_SITE).status_code in (404, 405, 422)


def test_a_program_with_a_token_is_no_other_site(visit: Visit) -> None:
    answer = visit("admin").post("/api/v1/streams/shop/stop", headers={"authorization": "Bearer x"})
    assert answer.status_code == 409 and "no running driver" in answer.json()["detail"]


def test_a_pipeline_that_may_not_be_seen_is_not_shown(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, details=None, **__: bool(details) and "shop" not in details.id)
    client = visit("admin")
    assert "shop" not in client.get("/streams").text and "shop" not in client.get("/metrics").text
    assert client.get("/api/v1/pipelines").json()["items"] == []
    for method, path in routes():
        if "shop" in path and "/dag/" not in path:
            assert client.request(method, path, headers=OWN_SITE, data={"day": "2026-03-01"}).status_code in (403, 422), path


@pytest.mark.parametrize("name", ["../shop", "Shop", "shop%00", "no_such", "x" * 100, "%2e%2e"])
@pytest.mark.parametrize(
    "path", ["/streams/{}", "/quality/{}", "/reconciliation/{}", "/pipelines/{}", "/api/v1/streams/{}", "/reports/{}/quality/index.html"]
)
def test_a_name_that_is_none_is_refused(visit: Visit, path: str, name: str) -> None:
    assert visit().get(path.format(name)).status_code in (404, 405)


def test_errors_are_one_line_for_people_and_json_for_programs(visit: Visit) -> None:
    for_people = visit().get("/streams/no_such")
    assert for_people.status_code == 404 and "There is no such pipeline." in for_people.text and "<nav" in for_people.text
    assert visit().get("/api/v1/streams/no_such").json() == {"detail": "There is no such pipeline."}


def test_what_the_driver_says_is_shown_and_told(visit: Visit) -> None:
    hostile = "<script>alert(1)</script>"
    own = beat(7_200, archive=pulse(read=1_234, caught_up=0), view_revenue_per_minute=pulse(behind=77, caught_up=0)).model_copy(
        update={"state": "failed", "error": hostile, "written_at": NOW}
    )
    Control(Home.from_environment().lake.control("shop")).beat(own)
    client = visit("viewer")
    for path in ("/streams", "/streams/shop"):
        page = client.get(path)
        assert page.status_code == 200 and hostile not in page.text and "failed" in page.text and "77" in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "<form" not in page.text, "a viewer is offered no act"
    told = client.get("/api/v1/streams/shop").json()
    assert (told["state"], told["reason"], told["behind"]) == ("failed", hostile, 77)
    metrics = client.get("/metrics").text
    assert 'weir_query_behind_messages{pipeline="shop",query="revenue_per_minute",kind="view"} 77' in metrics
    assert 'weir_stream_up{pipeline="shop"} 0' in metrics
    live = client.get("/streams?live=1").text
    assert "<html" not in live and "shop" in live, "the part that changes comes alone"


def test_every_page_has_its_words_when_there_is_nothing(visit: Visit) -> None:
    client = visit("admin")
    for path, words in {
        "/streams": "never started",
        "/streams/shop": "Nothing was measured",
        "/quality": "No micro-batch has run yet",
        "/quality/shop": "No micro-batch has run yet",
        "/reconciliation": "No day was proved yet",
        "/reconciliation/shop": "No day was proved yet",
        "/pipelines": "loads",
        "/pipelines/shop": "revenue_per_minute.sql",
    }.items():
        page = client.get(path)
        assert page.status_code == 200 and words in page.text, path
    assert client.get("/reconciliation/shop/2026-03-01").status_code == 404
    assert client.get("/reconciliation/shop/yesterday").status_code == 422


def test_rest_is_described_paged_and_bounded(visit: Visit) -> None:
    client = visit("viewer")
    described = client.get("/api/v1/openapi.json").json()
    assert described["info"]["version"] == "1" and "/api/v1/nights/{pipeline}/{day}/{view}" in described["paths"]
    assert all(own["summary"] or own["description"] for path in described["paths"].values() for own in path.values())
    listed = client.get("/api/v1/pipelines?page=99").json()
    assert (listed["page"], listed["pages"], listed["all"]) == (1, 1, 1) and listed["items"][0]["views"]
    assert client.get("/api/v1/pipelines?each=100000").status_code == 422
    assert client.get("/api/v1/streams").json()["items"][0]["state"] == "never started"
    assert client.get("/api/v1/settlements/shop").json()["visits"]["until"] is None


def test_quarantined_rows_are_had_by_programs_masked_and_in_pages(visit: Visit) -> None:
    lake = Home.from_environment().lake
    rows = [aside(number, ["email:match_regex"], {"customer_id": 1, "email": "secret@x.example"}, "customers") for number in range(5)]
    set_aside(lake, *rows, aside(9, ["amount:be_between"], {"amount": "-1"}))
    client = visit("viewer")
    groups = client.get("/api/v1/quarantine/shop").json()
    assert [(own["stream"], own["reason"], own["rows"]) for own in groups["items"]] == [
        ("customers", "email:match_regex", 5),
        ("orders", "amount:be_between", 1),
    ]
    some = client.get("/api/v1/quarantine/shop/rows?stream=customers&each=2&page=3").json()
    assert (some["all"], some["pages"], len(some["items"])) == (5, 3, 1) and "secret" not in str(some)
    assert client.get("/api/v1/quarantine/shop/runs/none").status_code == 404
    refused = visit("admin").post("/api/v1/quarantine/shop", json={"act": "discard", "stream": "orders"}, headers=OWN_SITE)
    assert refused.status_code == 409 and "says why" in refused.json()["detail"]


@pytest.mark.parametrize("path", ["/streams", "/api/v1/streams"])
def test_a_lake_that_is_away_is_told_in_one_line(visit: Visit, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """An object store that nobody runs."""
    away = {"WEIR_LAKE": "s3://weir/lake", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{choose_port(None, None, '')}", "AWS_REGION": "us-east-1"}
    for name, value in (away | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}).items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        answer = visit().get(path)
    finally:
        fsspec.filesystem("s3").clear_instance_cache()
    assert answer.status_code == 503 and "the lake&#39;s object store" in answer.text.replace("'", "&#39;"), answer.text

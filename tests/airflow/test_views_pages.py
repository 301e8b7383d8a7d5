"""The Views pages as a browser asks for them: what comes out of messages and declarations is text, what may not be seen is not."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from deltalake import write_deltalake
from fastapi.testclient import TestClient
from pages import Page

from weir.layout import Lake
from weir.loader import load_pipeline
from weir_airflow.pages import app, views

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\u202e"
YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns: {order_id: string, country: string, email: {type: string, private: true}, ordered_at: timestamp}
views:
  counted:
    grain: [minute, country]
    expectations: [{expect_column_values_to_be_in_set: {column: country, value_set: ["<script>"], severity: warning}}]
  twice: {pattern: {of: orders, by: country, within: 5 minutes, steps: [{when: "country = '<script>'", times: 2}]}}
serve:
  best: {sql: "SELECT country, sum(orders) AS orders FROM counted GROUP BY country ORDER BY 2 DESC"}
"""
SQL = """-- <script>alert(2)</script>
SELECT window(ordered_at, '1 minute').start AS minute, country, max(email) AS email, count(*) AS orders FROM orders
GROUP BY window(ordered_at, '1 minute'), country"""


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Somebody who may see everything, in front of a pipeline with three minutes of cells; and a declaration that cannot be loaded."""
    folder = tmp_path / "pipelines" / "tiny"
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(YAML)
    (folder / "counted.sql").write_text(SQL)
    (tmp_path / "pipelines" / "wrong").mkdir()
    (tmp_path / "pipelines" / "wrong" / "pipeline.yaml").write_text(f"pipeline: '{EVIL}'")
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    monkeypatch.setenv("WEIR_PIPELINES", str(tmp_path / "pipelines"))
    lake, pipeline = Lake.at(str(tmp_path / "lake")), load_pipeline(folder)
    countries = ["DE", "FR", EVIL, "=1+1"]
    cells = pa.table(
        {
            "minute": pa.array([NOON + timedelta(minutes=place // 4) for place in range(12)], pa.timestamp("us", "UTC")),
            "country": [countries[place % 4] for place in range(12)],
            "email": ["ann@example.org"] * 12,
            "orders": pa.array(range(12), pa.int64()),
            "_day": pa.array([NOON.date()] * 12),
            "_generation": pa.array([1] * 12, pa.int64()),
            "_batch": pa.array([1] * 12, pa.int64()),
        }
    )
    write_deltalake(lake.speed("tiny", "counted", pipeline.fingerprint("counted")), cells, partition_by=["_day"])
    create_auth_manager()
    _log_in("viewer")
    with TestClient(app, headers={"Accept": "text/html"}, raise_server_exceptions=True) as client:
        yield client
    app.dependency_overrides.clear()
    views._ASKING.end()


def _log_in(role: str | None) -> None:
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role=role)


def _read(browser: TestClient, path: str, status: int = 200) -> Page:
    """A page that holds no script but our own, and nothing that what it shows could have put there."""
    answer = browser.get(path)
    assert answer.status_code == status, answer.text[:500]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Page(answer.text)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [own.get("src") for own in scripts] == ["/static/pages.js"] and "\u202e" not in answer.text
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert "ann@example.org" not in answer.text
    return page


def _ask(sql: str, **more: str) -> str:
    return f"/views/tiny/query?sql={quote(sql)}" + "".join(f"&{name}={quote(value)}" for name, value in more.items())


def test_lists_and_lineage(browser: TestClient) -> None:
    page = _read(browser, "/views")
    assert "counted" in page.words and "not settled yet" in page.words and "cannot be loaded" in page.words
    page = _read(browser, "/views/tiny")
    assert "/views/tiny/counted" in page.links() and "tiny.orders" in page.words and "/views/tiny/query?sql=FROM+best" in page.links()
    assert _read(browser, "/views/wrong", 409).words


def test_a_view_with_its_last_cells_masked_and_as_text(browser: TestClient) -> None:
    page = _read(browser, "/views/tiny/counted")
    assert "<script>alert(1)</script>\\u202e" in page.text and "•••" in page.text and "<script>alert(2)</script>" in page.text
    assert "expect_column_values_to_be_in_set" in page.words and "12 provisional" in page.words
    page = _read(browser, "/views/tiny/twice")
    assert "By country, within 300 seconds" in page.words and "country = '<script>' in orders, 2 times" in page.words
    assert "It has no cells yet" in page.words


def test_an_answer_as_table_picture_and_csv(browser: TestClient) -> None:
    page = _read(browser, _ask("SELECT minute, country, email, orders FROM counted ORDER BY ALL"))
    assert sum(tag == "polyline" for tag, _ in page.tags) == 4, "one line for each country"
    assert sum(tag == "tr" for tag, _ in page.tags) == 13 and "<script>alert(1)</script>\\u202e" in page.text
    page = _read(browser, _ask("SELECT minute, country, orders FROM counted", colour="-"))
    assert sum(tag == "polyline" for tag, _ in page.tags) == 1
    page = _read(browser, _ask("FROM best", x="country"))
    assert sum(tag == "rect" and own.get("class") == "bar" for tag, own in page.tags) == 4
    answer = browser.get(_ask("SELECT DISTINCT country, email FROM counted ORDER BY ALL", format="csv"))
    assert answer.status_code == 200 and answer.headers["content-disposition"] == 'attachment; filename="tiny.csv"'
    assert answer.headers["content-type"].startswith("text/csv") and "'=1+1,•••\r\n" in answer.text
    assert "SELECT *" in _read(browser, "/views/tiny/query").text, "a good question to begin with"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' cannot be asked"),
        ("COPY counted TO '/tmp/x'", "only one SELECT can be asked"),
        ("SELECT 1; SELECT 2", "ask one thing at a time"),
        ("SELECT * FROM _counted_speed", "there is no view"),
        ('SELECT "<script>alert(3)</script>" FROM counted', "<script>alert(3)</script>"),
        ('FROM "<script>alert(3)</script>"', "there is no view, table or served query '<script>alert(3)</script>'"),
    ],
)
def test_hostile_sql_is_refused_in_one_line(browser: TestClient, sql: str, said: str) -> None:
    page = _read(browser, _ask(sql), 400)
    assert said in page.text and sql in page.text, "it can be corrected"
    assert browser.get(_ask(sql, format="csv")).status_code == 400


def test_a_question_that_takes_too_long_is_ended(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE", replace(views.PAGE, seconds=1))
    page = _read(browser, _ask("SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"), 400)
    assert "took longer than 1 s" in page.words
    _read(browser, _ask("SELECT 1 AS one"))


def test_who_may_see_what(browser: TestClient) -> None:
    for path in ("/views/nope", "/views/nope/query?sql=SELECT%201", "/views/tiny/nope", "/views/..%2Ftiny", "/views/tiny/counted%00"):
        assert browser.get(path).status_code == 404, path
    _log_in(None)
    for path in ("/views/tiny", "/views/tiny/counted", _ask("FROM counted"), _ask("FROM counted", format="csv")):
        assert browser.get(path).status_code == 403, path
    assert "tiny" not in Page(browser.get("/views").text).words.split()
    app.dependency_overrides.clear()
    for path in ("/views", "/views/tiny", "/views/tiny/counted", _ask("FROM counted")):
        assert browser.get(path).status_code == 401, path

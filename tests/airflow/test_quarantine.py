"""The pages of the quarantine on a real Airflow database: what is shown, who may act, and which run each act becomes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType
from events import NOON, order
from quarantined import aside, set_aside
from sqlalchemy import select, update
from visiting import Browser

from weir.loader import load_named
from weir.records.quality import ReplayReport
from weir.serving import summarise_quarantine
from weir_airflow.operators import TOLD

ROOT = Path(__file__).resolve().parent.parent.parent
DAG = "shop__quarantine"
SCRIPT = "<script>alert('gone')</script>"


@pytest.fixture
def filled(browser: Browser) -> Browser:
    """60 rows of orders, one with a script in all that it has, and a customer with a private field."""
    rows = [aside(n, ["amount:be_between"], order(f"o-{n}"), received_at=NOON + timedelta(minutes=n)) for n in range(60)]
    rows.append(aside(60, [SCRIPT, "a&b"], SCRIPT.encode(), identity=SCRIPT, received_at=NOON + timedelta(days=1)))
    rows.append(aside(61, ["email:match_regex"], {"customer_id": 7, "email": "ann@example.org"}, stream="customers"))
    set_aside(browser.home.lake, *rows)
    return browser


def runs() -> list[DagRun]:
    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == DAG).order_by(DagRun.id)))


def end_run(run_id: str, told: dict[str, Any] | None, state: DagRunState = DagRunState.SUCCESS) -> None:
    """As the scheduler and the task would have left it."""
    with create_session() as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == DAG, DagRun.run_id == run_id))
        assert run is not None
        run.state = state
        if told is not None:
            XComModel.set(key=TOLD, value=told, task_id="act", dag_id=DAG, run_id=run_id, session=session)


def report(**changed: Any) -> dict[str, Any]:
    base = {"pipeline": "shop", "source": "orders", "applied": False, "rows": 60, "released": 57, "duplicates": 1}
    rest = {"remaining": {SCRIPT: 2}, "days": {"2026-03-01": 57}, "views": ["revenue_per_minute"]}
    return {"replayed": ReplayReport.model_validate(base | rest | changed).model_dump(mode="json")}


def test_nothing_is_said_in_words(browser: Browser) -> None:
    assert "Not counted yet: its next micro-batch does it." in browser.get("/quarantine").words
    page = browser.get("/quarantine/shop").words
    assert "Nothing is set aside" in page and "Nobody has acted on quarantined rows of shop from here yet." in page
    assert "No open row is like that." in browser.get("/quarantine/shop?stream=orders&rule=no:such").words
    summarise_quarantine(browser.home.lake, load_named(browser.home.pipelines, "shop")).write(browser.home.lake.quarantine_summary("shop"))
    assert "Nothing is set aside." in browser.get("/quarantine").words


def test_the_overview_shows_what_the_jobs_have_counted(filled: Browser) -> None:
    lake, shop = filled.home.lake, load_named(filled.home.pipelines, "shop")
    summarise_quarantine(lake, shop).write(lake.quarantine_summary("shop"))
    page = filled.get("/quarantine")
    assert "orders 61" in page.words and "customers 1" in page.words and "/quarantine/shop?stream=orders" in page.links()


def test_rows_are_text_masked_and_in_pages(filled: Browser) -> None:
    page = filled.get("/quarantine/shop")
    assert "ann@example.org" not in page.text and "•••" in page.text
    assert "shop.orders/0/24" not in page.text and "1 of 3 · 62 rows" in page.words, "a page has 25 rows"
    last = filled.get("/quarantine/shop?page=3")
    assert page.text.count(SCRIPT) == 1, "a line of reasons"
    assert last.text.count(SCRIPT) == 4, "reasons above, and reason, identity and message of the row"
    assert [attributes for tag, attributes in last.tags if tag == "script"] == [{"src": "/static/pages.js", "defer": ""}]
    assert filled.get("/quarantine/shop?page=999").words.count("3 of 3") == 1


def test_a_search_is_an_address(filled: Browser) -> None:
    page = filled.get("/quarantine/shop?stream=orders&rule=amount:be_between&since=2026-03-01&until=2026-03-01")
    assert "60 open rows, by this search" in page.words and "customers/" not in page.text
    assert "1 open rows" in filled.get("/quarantine/shop?since=2026-03-02").words
    assert "1 open rows" in filled.get(f"/quarantine/shop?rule={SCRIPT}").words
    hidden = {a["name"]: a["value"] for tag, a in page.tags if tag == "input" and a.get("type") == "hidden"}
    assert hidden == {"stream": "orders", "rule": "amount:be_between", "since": "2026-03-01", "until": "2026-03-01"}
    next_page = next(link for link in page.links() if "page=2" in link)
    assert "2 of 3 · 60 rows" in filled.get(next_page).words


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/quarantine/no_such", 404),
        ("/quarantine/..%2f..%2fetc", 404),
        ("/quarantine/shop?stream=no_such", 404),
        ("/quarantine/shop?stream=../orders", 404),
        ("/quarantine/shop?since=yesterday", 422),
        ("/quarantine/shop/discard?stream=no_such", 404),
        ("/quarantine/shop/runs/no_such", 404),
        ("/quarantine/no_such/runs/no_such", 404),
    ],
)
def test_unknown_names_are_not_there(filled: Browser, path: str, status: int) -> None:
    filled.get(path, status)


def test_a_preview_becomes_a_run_and_its_replay_another_with_the_same_filter(filled: Browser) -> None:
    place = filled.post("/quarantine/shop/preview", stream="orders", rule="amount:be_between", since="2026-03-01", until="")
    (preview,) = runs()
    assert place == f"/quarantine/shop/runs/{preview.run_id}"
    assert preview.conf == {"act": "preview", "stream": "orders", "rule": "amount:be_between", "since": "2026-03-01"}
    assert preview.triggering_user_name == "ann"
    waiting = filled.get(place)
    assert "queued" in waiting.words and "It waits for Airflow" in waiting.words and "Replay these" not in waiting.words
    assert ("div", {"id": "live", "data-live": "2"}) in waiting.tags
    filled.post(f"{place}/replay", 409)

    end_run(preview.run_id, report())
    page = filled.get(place)
    assert "Replay these 58 rows" in page.words and page.text.count(SCRIPT) == 1 and "revenue_per_minute" in page.words
    assert "/quarantine/shop?stream=orders&rule=%3Cscript%3Ealert%28%27gone%27%29%3C/script%3E" in page.links()
    filled.post(f"{place}/replay", stream="customers")
    replay = runs()[-1]
    assert replay.conf == preview.conf | {"act": "replay"}, "whatever the form says"
    end_run(replay.run_id, report(applied=True))
    done = filled.get(f"/quarantine/shop/runs/{replay.run_id}")
    assert "What has changed" in done.words and "Replay these" not in done.words
    listed = filled.get("/quarantine/shop").words
    assert "57 of 60 would pass" in listed and "57 of 60 released" in listed


def test_a_discard_is_shown_first_and_needs_its_reason(filled: Browser) -> None:
    page = filled.get("/quarantine/shop/discard?stream=orders&since=2026-03-02")
    assert "Discard 1 row?" in page.words and page.text.count(SCRIPT) == 4
    assert "says why" in filled.post("/quarantine/shop/discard", 409, stream="orders", note="  ")
    assert runs() == []
    place = filled.post("/quarantine/shop/discard", stream="orders", since="2026-03-02", note=f"--apply {SCRIPT}")
    (run,) = runs()
    assert run.conf == {"act": "discard", "stream": "orders", "since": "2026-03-02", "note": f"--apply {SCRIPT}"}
    end_run(run.run_id, {"discarded": 1})
    assert "1 row discarded." in filled.get(place).words and filled.get(place).text.count(SCRIPT) == 1


@pytest.mark.parametrize("told", [{"trouble": f"refused: {SCRIPT}"}, None, "garbage", {"replayed": {"a": 1}}])
def test_a_run_that_failed_says_why(filled: Browser, told: Any) -> None:
    place = filled.post("/quarantine/shop/preview", stream="orders")
    end_run(runs()[0].run_id, told, DagRunState.FAILED)
    words = filled.get(place).words
    assert (f"refused: {SCRIPT}" if isinstance(told, dict) and "trouble" in told else "It ended without a word") in words


def test_a_viewer_sees_all_and_does_nothing(filled: Browser) -> None:
    filled.post("/quarantine/shop/preview", stream="orders")
    (run,) = runs()
    end_run(run.run_id, report())
    filled.role = "viewer"
    page, of_run = filled.get("/quarantine/shop?stream=orders"), filled.get(f"/quarantine/shop/runs/{run.run_id}")
    for seen in (page, of_run):
        assert "post" not in [attributes.get("method") for tag, attributes in seen.tags if tag == "form"]
    assert not [link for link in page.links() if "/discard" in link]
    filled.get("/quarantine/shop/discard?stream=orders", 403)
    for path in ("preview", "discard", f"runs/{run.run_id}/replay"):
        assert "You may not start runs of shop__quarantine" in filled.post(f"/quarantine/shop/{path}", 403, stream="orders", note="x")
    assert len(runs()) == 1


@pytest.mark.parametrize("path", ["preview", "discard", "runs/page__1/replay"])
def test_other_sites_start_nothing(filled: Browser, path: str) -> None:
    for headers in ({}, {"sec-fetch-site": "cross-site"}, {"origin": "https://elsewhere.example"}):
        filled.post(f"/quarantine/shop/{path}", 403, headers, stream="orders", note="x")
    assert runs() == []


@pytest.mark.parametrize("value", ["--apply", "{{ 1 }}", "a\nb", "x" * 400])
def test_a_hostile_form_starts_nothing(filled: Browser, value: str) -> None:
    for name in ("rule", "since", "until"):
        filled.post("/quarantine/shop/preview", 409, **{"stream": "orders", name: value})
    filled.post("/quarantine/shop/preview", 409 if value != "no_such" else 404, stream=value)
    filled.post("/quarantine/shop/preview", 404, stream="no_such")
    assert runs() == []


def test_runs_of_other_dags_are_not_there(filled: Browser) -> None:
    trigger_dag("shop__nightly", triggered_by=DagRunTriggeredByType.UI, run_id="page__night", conf={"act": "preview", "stream": "orders"})
    filled.get("/quarantine/shop/runs/page__night", 404)
    filled.post("/quarantine/shop/runs/page__night/replay", 404)
    assert "Nobody has acted" in filled.get("/quarantine/shop").words and runs() == []


@pytest.mark.parametrize(("changed", "said"), [({"is_paused": True}, "is off"), ({"is_stale": True}, "does not know")])
def test_a_dag_that_cannot_run_is_said_before_anybody_waits(filled: Browser, changed: dict[str, bool], said: str) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == DAG).values(**changed))
    try:
        page = filled.get("/quarantine/shop?stream=orders").words
        assert said in page and "Preview a replay" not in page
        assert said in filled.post("/quarantine/shop/preview", 409, stream="orders") and runs() == []
    finally:
        with create_session() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == DAG).values(is_paused=False, is_stale=False))

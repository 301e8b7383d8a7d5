"""What people do about nights, on a page and over REST, on a real Airflow database."""

from datetime import UTC, date, datetime

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select, update
from visiting import OWN_SITE, Browser

from weir.loader import load_named
from weir.records.night import NightlyReport, Settlement, ViewComparison

DAG, VIEW, DAY = "shop__nightly", "revenue_per_minute", date(2026, 3, 1)
NOW = datetime(2026, 3, 2, 1, tzinfo=UTC)
ACCEPT = {"page": f"/reconciliation/shop/{DAY}/{VIEW}/accept", "rest": f"/api/v1/settlements/shop/{VIEW}/{DAY}/accept"}


@pytest.fixture
def blocked(browser: Browser) -> Browser:
    """A day with one cell that nobody can explain."""
    shop, lake = load_named(browser.home.pipelines, "shop"), browser.home.lake
    view = ViewComparison(
        view=VIEW,
        fingerprint=shop.fingerprint(VIEW),
        compared=9,
        equal=8,
        different=1,
        only_speed=0,
        only_batch=0,
        pending=0,
        causes={"unexplained": 1},
        unexplained=1,
        unexplained_digest="d1",
        examples=[],
        decision="BLOCK",
    )
    report = NightlyReport(pipeline="shop", day=str(DAY), written_at=NOW, seconds=1, streams=[], views=[view])
    report.write(lake.nightly_report("shop", str(DAY)))
    Settlement(view=VIEW, fingerprint=view.fingerprint).write(lake.settlement("shop", VIEW, view.fingerprint))
    return browser


def switch(paused: bool) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == DAG).values(is_paused=paused))


def runs() -> list[DagRun]:
    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == DAG)))


def accept(browser: Browser, way: str, reason: str = "the till was mended") -> str:
    body = {"data": {"reason": reason}} if way == "page" else {"json": {"reason": reason}}
    answer = browser.client.post(ACCEPT[way], headers=OWN_SITE, **body)
    assert answer.status_code == (303 if way == "page" else 200), answer.text[-500:]
    return str(answer.headers.get("location") or answer.json()["done"])


def words(browser: Browser) -> list[tuple[str, str, str]]:
    shop = load_named(browser.home.pipelines, "shop")
    settled = Settlement.read(browser.home.lake.settlement("shop", VIEW, shop.fingerprint(VIEW)))
    assert settled is not None
    return [(own.digest, own.reason, own.who) for own in settled.acceptances]


@pytest.mark.parametrize("way", list(ACCEPT))
def test_what_is_accepted_is_kept_and_settled_by_a_night(blocked: Browser, way: str) -> None:
    switch(paused=False)
    told = accept(blocked, way)
    assert words(blocked) == [("d1", "the till was mended", "ann")]
    (run,) = runs()
    assert run.conf == {"day": str(DAY)} and run.run_id in told


@pytest.mark.parametrize("way", list(ACCEPT))
def test_where_the_nights_are_off_the_word_is_kept_for_the_next(blocked: Browser, way: str) -> None:
    switch(paused=True)
    told = accept(blocked, way).replace("%20", " ")
    assert words(blocked) == [("d1", "the till was mended", "ann")] and not runs()
    assert "is off" in told and "the next night" in told


@pytest.mark.parametrize("way", list(ACCEPT))
def test_nothing_is_accepted_without_a_reason(blocked: Browser, way: str) -> None:
    switch(paused=False)
    body = {"data": {"reason": " "}} if way == "page" else {"json": {"reason": " "}}
    assert blocked.client.post(ACCEPT[way], headers=OWN_SITE, **body).status_code == 409
    assert words(blocked) == [] and not runs()

"""The pages as people use them: a real browser, inside a real Airflow, over a real stream; what is done there is read back.

One place for all tests of the file, in their order: a stream is started, watched and stopped; a query is drawn; a red gate is followed to
its report, and rows are replayed; a night is followed down to the events of a cell; a viewer is refused.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser import log_in, open_browser
from events import order
from harness import DAY, ROOT, Sent, wait_for
from playwright.sync_api import Browser, FrameLocator, Page, expect
from station import MAY_TAKE_SECONDS, REFINES, SHIFTS, Station

from weir import embedded_airflow, stack
from weir.drill import Drill, own_settings
from weir.embedded_airflow import VIEWER
from weir.event_time import utc_now
from weir.generator import Shares
from weir.layout import Home
from weir.loader import read_yaml
from weir.produce import Event, encode
from weir.records.driver import Control

pytestmark = pytest.mark.timeout(1_800)
expect.set_options(timeout=60_000)
WITH_ALL = Shares(dirty=0.02, late=0.06, duplicate=0.03, out_of_order=0.1, skewed=0, future=0.01)
VIEW = "revenue_per_minute"
HOURLY = f"SELECT date_trunc('hour', minute) AS hour, country, sum(revenue) AS revenue FROM {VIEW} GROUP BY ALL ORDER BY hour, country"
LONG_MS = MAY_TAKE_SECONDS * 1_000


class Shown:
    """A station with a day behind it, and a browser before it."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self.station, self.browser = Station(folder, shift="1 hour"), browser
        self.home = self.station.home
        self.sent: list[Sent] = self.station.produce(1_500, WITH_ALL)
        self.again = [own for own in self.sent if own.stream == "orders" and not own.wrong][:5]
        self.station.stream_once("--max-batch", "150")
        copies = [self._copy(own, number) for number, own in enumerate(self.again)]
        self.sent = self.station.send([*(self._foreign(number) for number in range(5)), *copies])
        self.station.stream_once()
        self.night = self.station.nightly()
        self.page = log_in(browser, self.home)

    @staticmethod
    def _foreign(number: int) -> Event:
        """An order that only a mended rule accepts."""
        at = datetime(2026, 3, 1, 12, number, tzinfo=UTC)
        name = f"o-foreign-{number}"
        value = encode(order(name, at, currency="BTC"))
        return Event("orders", "shop.orders", b"k", value, name, at, at + timedelta(seconds=1), "dirty")

    @staticmethod
    def _copy(sent: Sent, number: int) -> Event:
        """A morning's order that is sent again at the end of the day: the stream has forgotten it, and counts it twice."""
        document = json.loads(sent.message.value or b"{}")
        at = datetime(2026, 3, 1, 23, 59, number, tzinfo=UTC)
        return Event("orders", "shop.orders", b"k", sent.message.value, document["order_id"], sent.message.received_at, at, "duplicate")

    def expectations(self, change: Any) -> None:
        """Change what is expected of orders, as the pipeline's author would."""
        declared, _ = read_yaml(self.home.pipelines / "shop" / "pipeline.yaml")
        orders = declared["streams"]["orders"]
        orders["expectations"] = change(orders["expectations"])
        self.station.declare(streams=declared["streams"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with open_browser() as browser:
        station: Station | None = None
        try:
            found = Shown(tmp_path_factory.mktemp("pages"), browser)
            station = found.station
            yield found
        finally:
            if station is not None:
                station.close()


def inside(page: Page) -> FrameLocator:
    """Weir's page within Airflow's."""
    return page.frame_locator("iframe")


def test_a_stream_is_started_watched_and_stopped(shown: Shown) -> None:
    page = shown.page
    page.goto("/")
    page.get_by_role("link", name="Weir").first.click()
    frame = inside(page)
    frame.get_by_role("link", name="shop", exact=True).click()
    expect(frame.locator("h1 .word")).to_have_text("stopped")
    frame.get_by_role("button", name="Start").click()
    expect(frame.get_by_role("status")).to_contain_text("is on")
    expect(frame.locator("h1 .word")).to_have_text("running", timeout=LONG_MS)

    # Nothing is loaded anew: the numbers move by themselves.
    frame.locator("body").evaluate("body => { body.dataset.mark = 'the same page' }")
    archived = frame.locator("tr", has_text="archive").locator("td").nth(1)
    expect(archived).to_have_text(re.compile(r"\d"), timeout=LONG_MS)
    before = archived.inner_text()
    shown.station.produce(600, WITH_ALL, seed=2, rate=40)
    expect(archived).not_to_have_text(before, timeout=LONG_MS)
    expect(frame.locator("#arriving")).to_have_text(re.compile(r"[1-9]"), timeout=LONG_MS)
    assert frame.locator("body").get_attribute("data-mark") == "the same page"

    # A press asks, the second one does it.
    stop = frame.get_by_role("button", name="Stop")
    stop.click()
    frame.get_by_role("button", name="Stop the driver of shop?").click()
    expect(frame.locator("h1 .word")).to_have_text("stopped", timeout=LONG_MS)
    wait_for(lambda: shown.station.is_paused(SHIFTS), MAY_TAKE_SECONDS, "the DAG is switched off")
    heartbeat = shown.station.control.heartbeat()
    assert heartbeat and heartbeat.state == "stopped"
    said = shown.station.logs()
    assert "stopped by admin on its page" in said


def test_a_query_is_answered_drawn_and_downloaded(shown: Shown) -> None:
    page = shown.page
    page.goto(f"/weir/views/shop/{VIEW}")
    expect(page.locator("body")).to_contain_text("window(ordered_at")
    page.goto("/weir/views/shop/query")
    page.locator("textarea[name=sql]").fill(HOURLY)
    page.get_by_role("button", name=re.compile("Run|Ask")).click()
    expect(page.locator("svg[role=img]").first).to_be_visible()
    rows = page.locator("table tbody tr").count()
    assert rows > 10
    with page.expect_download() as download:
        page.get_by_text("CSV", exact=True).click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "hour,country,revenue" and len(lines) > rows
    page.locator("textarea[name=sql]").fill("SELECT * FROM read_csv('/etc/passwd')")
    page.get_by_role("button", name=re.compile("Run|Ask")).click()
    expect(page.locator("body")).not_to_contain_text("root:")


def test_a_red_gate_leads_to_its_report(shown: Shown) -> None:
    page, station = shown.page, shown.station
    rule = {"expect_column_mean_to_be_between": {"column": "amount", "min_value": 1_000_000}}
    shown.expectations(lambda rules: [*rules, rule])
    station.api.unpause(REFINES)
    wait_for(lambda: station.runs(REFINES), MAY_TAKE_SECONDS, "a micro-batch is due")
    run = station.runs(REFINES)[-1]["dag_run_id"]
    assert station.await_run(REFINES, run) == {"refine": "success", "gate": "failed"}
    page.goto(f"/dags/{REFINES}/runs/{run}/tasks/gate/details")
    page.get_by_role("link", name="Report").first.click()
    page.wait_for_url("**/weir/quality/shop")
    expect(page.get_by_role("alert")).to_contain_text("BLOCKED")
    expect(page.get_by_role("alert")).to_contain_text("mean")

    # Mended: the next micro-batch publishes, and sets the bad rows aside.
    shown.expectations(lambda rules: [own for own in rules if own != rule])
    station.api.trigger(REFINES, "mended")
    assert station.await_run(REFINES, "mended") == {"refine": "success", "gate": "success"}
    station.api.unpause(REFINES, paused=True)
    page.goto("/weir/quality/shop")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.locator("tr", has_text="orders").get_by_role("link", name=str(DAY)).first.click()
    expect(page.locator("body")).to_contain_text("currency:be_in_set")


def test_quarantined_rows_are_previewed_and_replayed(shown: Shown) -> None:
    page = shown.page
    page.goto("/weir/quarantine/shop?stream=orders&rule=currency:be_in_set")
    expect(page.locator("body")).to_contain_text("BTC")
    before = page.locator("body").inner_text()

    def accept_bitcoin(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return json.loads(json.dumps(rules).replace('"GBP"', '"GBP", "BTC"'))  # type: ignore[no-any-return]

    shown.expectations(accept_bitcoin)
    page.get_by_role("button", name=re.compile("Preview")).click()
    replay = page.get_by_role("button", name="Replay these 5 rows")
    expect(replay).to_be_visible(timeout=LONG_MS)
    expect(page.locator("body")).to_contain_text("What would change")
    replay.click()
    expect(page.locator("body")).to_contain_text("passed, and are accepted now", timeout=LONG_MS)
    page.goto("/weir/quarantine/shop?stream=orders&rule=currency:be_in_set")
    expect(page.locator("body")).not_to_contain_text("BTC")
    assert "BTC" in before
    page.goto("/weir/streams/shop")
    expect(page.locator("body")).to_contain_text("dirty")


def test_a_night_leads_down_to_the_events_of_a_cell_that_differs(shown: Shown) -> None:
    page = shown.page
    (view,) = [own for own in shown.night.views if own.view == VIEW]
    assert view.causes["duplicate"] > 0
    page.goto("/plugin/weir")
    frame = inside(page)
    frame.get_by_role("link", name="Reconciliation").click()
    frame.get_by_role("link", name="shop", exact=True).click()
    frame.get_by_role("link", name=str(DAY)).first.click()
    expect(frame.locator("body")).to_contain_text("balanced")
    frame.locator("section", has_text=VIEW).locator("tr", has_text="duplicate").first.get_by_role("link").first.click()
    expect(frame.locator("h2", has_text="duplicate")).to_contain_text("counted a copy")
    named = frame.locator(".identities code").all_inner_texts()
    copied = {json.loads(own.message.value or b"{}").get("order_id") for own in shown.again}
    assert named and set(named) <= copied


def test_a_viewer_looks_and_does_nothing(shown: Shown) -> None:
    page = log_in(shown.browser, shown.home, VIEWER)
    for path in ("/weir/streams/shop", "/weir/reconciliation/shop", "/weir/quarantine/shop"):
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("form[method=post]").count() == 0, path
    own = {"sec-fetch-site": "same-origin"}
    assert page.request.post("/weir/streams/shop/start", headers=own).status == 403
    assert page.request.post("/weir/reconciliation/shop/prove", headers=own, form={"day": str(DAY)}).status == 403
    assert shown.station.is_paused(SHIFTS)
    page.context.close()


# Pictures for the docs


PICTURES = {
    "streams": "/weir/streams",
    "stream": "/weir/streams/shop",
    "quality": "/weir/quality/shop",
    "quarantine": "/weir/quarantine/shop",
    "reconciliation": "/weir/reconciliation/shop",
    "night": "/weir/reconciliation/shop/{day}",
    "views": "/weir/views/shop",
    "view": "/weir/views/shop/revenue_per_minute",
    "query": f"/weir/views/shop/query?sql={quote(HOURLY)}",
    "pipeline": "/weir/pipelines/shop",
}


def take_pictures(browser: Browser, home: Home, day: str, folder: Path) -> None:
    """Every page within Airflow, light and dark; each must fit its width, also on a narrow screen."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        page = log_in(browser, home, scheme=scheme)  # type: ignore[arg-type]
        for name, path in PICTURES.items():
            page.goto("/plugin/weir" + path.format(day=day))
            expect(inside(page).locator("main h1")).to_be_visible()
            page.wait_for_timeout(1_500)
            page.screenshot(path=folder / f"{name}-{scheme}.png")
        page.context.close()
    narrow = log_in(browser, home, width=420)
    for name, path in PICTURES.items():
        narrow.goto(path.format(day=day))
        expect(narrow.locator("main h1")).to_be_visible()
        wide = narrow.evaluate("document.documentElement.scrollWidth")
        assert wide <= 420, f"{name} is {wide} px wide on a narrow screen"
    narrow.context.close()


@contextmanager
def a_living_stream(home: Home) -> Iterator[None]:
    """Kafka and Airflow over the home of a drill, with its stream running and events arriving."""
    stack.start_kafka(home)
    embedded_airflow.start_airflow(home)
    control = Control(home.lake.control("shop"))
    producing = None
    try:
        api = embedded_airflow.AirflowApi(home)
        wait_for(lambda: SHIFTS in api.dag_ids(), MAY_TAKE_SECONDS, "the DAGs are there")
        api.unpause(SHIFTS)
        wait_for(lambda: (beat := control.heartbeat()) and beat.is_of_a_runner, MAY_TAKE_SECONDS, "the driver runs")
        asked = ["produce", "shop", "--events", "60000", "--rate", "60", "--seed", "7", "--day", str(utc_now().date() - timedelta(days=1))]
        producing = subprocess.Popen([sys.executable, "-m", "weir.cli", *asked], cwd=ROOT, env=os.environ | {"WEIR_HOME": str(home.root)})
        wait_for(lambda: (beat := control.heartbeat()) and (beat.arriving or 0) > 10, MAY_TAKE_SECONDS, "events arrive")
        time.sleep(180)  # for pictures that have something to show
        yield
    finally:
        if producing is not None:
            producing.kill()
            producing.wait()
        embedded_airflow.stop_airflow(home)
        if (lease := control.lease()) and lease.holder.is_alive():
            os.killpg(os.getpgid(lease.holder.pid), signal.SIGKILL)
        stack.stop_kafka(home)


@pytest.mark.soak
def test_pictures_of_a_drill(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with own_settings(home, ROOT / "pipelines"), open_browser() as browser:
        day = utc_now().date() - timedelta(days=2)
        assert Drill(home, day, 20_000, 1, print).run().passed
        with a_living_stream(home):
            take_pictures(browser, home, str(day), ROOT / "docs" / "pictures")

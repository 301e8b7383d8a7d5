"""Airflow supervises for real: its own processes, a real driver, real kills. Nothing is lost or doubled whatever dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from harness import archive_of, messages_of, wait_for
from station import MAY_TAKE_SECONDS, NIGHTS, REFINES, SHIFTS, Station

from weir.generator import Shares
from weir.jobs import start_stream
from weir.refusal import Refusal
from weir.stack import bootstrap

IN_TIME = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    place = Station(tmp_path)
    yield place
    place.close()


def kill_driver(place: Station) -> None:
    os.killpg(os.getpgid(place.driver().holder.pid), signal.SIGKILL)


@pytest.mark.timeout(1_800)
@pytest.mark.soak  # test_pages.py starts and stops a stream through Airflow; every decision is in tests/pure/test_supervision.py
def test_airflow_starts_restarts_adopts_and_stops_one_driver(station: Station) -> None:
    """Start, crash, an Airflow that dies, a second driver, a person's stop: one story, one stack."""
    place = station
    assert place.is_paused(), "a stream is started by a person"
    place.api.unpause(SHIFTS)
    first = place.await_driver(1)
    place.await_pool(running=0, deferred=1)
    assert os.getpgid(first.holder.pid) != os.getpgid(0)
    sent = place.produce(2_000, IN_TIME)

    # The driver dies: it is started again, after a wait, and the log says why.
    kill_driver(place)
    second = place.await_driver(2)
    assert "restart: the driver ended (died), 1. time in a row" in place.logs()

    # Every part of Airflow dies at once: the driver does not care, and is adopted.
    for part in ("scheduler", "triggerer", "api-server", "dag-processor"):
        place.kill_part(part)
    place.await_health()
    place.await_shifts(2)
    assert place.driver() == second and place.drivers() == 1
    assert f"adopt: process {second.holder.pid} on" in place.logs()

    # A second driver is refused before it does anything, however the lake is spelt.
    with pytest.raises(Refusal, match="shop already has a driver"):
        start_stream(place.home, "shop", bootstrap(place.home), []).wait()

    # Marked failed: stopped at a batch border, and no new shift comes.
    place.await_caught_up(len(messages_of(sent, "orders")))
    place.mark_shift(place.await_fresh_shift(), "failed")
    place.await_stopped()
    wait_for(place.is_paused, MAY_TAKE_SECONDS, "the DAG is paused")
    assert place.raw("orders") == archive_of(sent, "orders"), "every acknowledged message, once"
    failed = [run for run in place.runs() if run["state"] == "failed"]
    assert len(failed) == 1, f"only the one that a person failed: {failed}"


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_day_under_airflow(station: Station) -> None:
    """What people do in a day: let go, stop, go on; the micro-batch and the night as DAG runs, their report behind a login."""
    place = station
    place.api.unpause(SHIFTS)
    first = place.await_driver(1)
    sent = place.produce(2_000, IN_TIME)

    # Marked success: let go, and adopted by the next shift.
    place.mark_shift(place.await_fresh_shift(), "success")
    place.await_shifts(1)
    assert place.driver() == first

    # Marked failed: stopped at a batch border, and no new shift comes.
    place.mark_shift(place.await_fresh_shift(), "failed")
    place.await_stopped()
    wait_for(place.is_paused, MAY_TAKE_SECONDS, "the DAG is paused")
    before = len(place.runs())
    sent = place.produce(4_000, IN_TIME, seed=1)

    # Unpaused: it goes on where it stopped.
    place.api.unpause(SHIFTS)
    second = place.await_driver(2)
    place.await_caught_up(len(messages_of(sent, "orders")))
    assert len(place.runs()) > before and place.drivers() == 1 and second.generation == 2

    # The micro-batch and the night as DAG runs.
    place.api.unpause(REFINES)
    wait_for(lambda: place.runs(REFINES), MAY_TAKE_SECONDS, "a micro-batch is due")
    run = place.runs(REFINES)[-1]["dag_run_id"]
    assert place.await_run(REFINES, run) == {"refine": "success", "gate": "success"}
    place.api.unpause(REFINES, paused=True)
    page = f"{place.api.root}/weir/reports/shop/quality/index.html"
    assert requests.get(page, timeout=30).status_code == 401, "nobody reads a report without a login"
    report = requests.get(page, headers=place.api._headers, timeout=30)
    assert report.status_code == 200 and "orders" in report.text and "default-src 'none'" in report.headers["content-security-policy"]
    place.api.unpause(NIGHTS)
    wait_for(lambda: place.runs(NIGHTS), MAY_TAKE_SECONDS, "a night is due")
    assert place.await_run(NIGHTS, place.runs(NIGHTS)[0]["dag_run_id"]) == {"recompute": "success", "gate": "success"}

    assert place.driver() == second
    assert place.raw("orders") == archive_of(sent, "orders"), "every acknowledged message, once"
    failed = [run for run in place.runs() if run["state"] == "failed"]
    assert len(failed) == 1, "only the one that a person failed"

"""Airflow supervises for real: its own processes, a real driver, real kills. Nothing is lost or doubled whatever dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from harness import archive_of, messages_of, wait_for
from station import NIGHTS, REFINES, SHIFTS, Station

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
def test_a_day_under_airflow(station: Station) -> None:
    """Start, crash, an Airflow that dies, a second driver, a person's acts, the micro-batch and the night: one story, one stack."""
    place = station
    assert place.is_paused(), "a stream is started by a person"
    place.api.unpause(SHIFTS)
    first = place.await_driver(1)
    place.await_shift("deferred")
    pool = place.api.call("GET", "pools/default_pool")
    assert (pool["running_slots"], pool["deferred_slots"]) == (0, 1), "a shift that waits holds no slot"
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

    # Marked success: let go, and adopted by the next shift.
    place.mark_shift(place.await_fresh_shift(), "success")
    place.await_shifts(1)
    assert place.driver() == second

    # Marked failed: stopped at a batch border, and no new shift comes.
    place.mark_shift(place.await_fresh_shift(), "failed")
    wait_for(lambda: (beat := place.control.heartbeat()) and beat.state == "stopped", 120, "the driver has stopped")
    wait_for(place.is_paused, 60, "the DAG is paused")
    before = len(place.runs())
    sent = place.produce(4_000, IN_TIME, seed=1)

    # Unpaused: it goes on where it stopped.
    place.api.unpause(SHIFTS)
    third = place.await_driver(3)
    place.await_caught_up(len(messages_of(sent, "orders")))
    assert len(place.runs()) > before and place.drivers() == 1 and third.generation == 3

    # The micro-batch and the night as DAG runs.
    place.api.unpause(REFINES)
    wait_for(lambda: place.runs(REFINES), 60, "a micro-batch is due")
    run = place.runs(REFINES)[-1]["dag_run_id"]
    assert place.await_run(REFINES, run) == {"refine": "success", "gate": "success"}
    place.api.unpause(REFINES, paused=True)
    page = f"{place.api.root}/weir/shop/quality/index.html"
    assert requests.get(page, timeout=30).status_code == 401, "nobody reads a report without a login"
    report = requests.get(page, headers=place.api._headers, timeout=30)
    assert report.status_code == 200 and "orders" in report.text and "default-src 'none'" in report.headers["content-security-policy"]
    place.api.unpause(NIGHTS)
    wait_for(lambda: place.runs(NIGHTS), 60, "a night is due")
    assert place.await_run(NIGHTS, place.runs(NIGHTS)[0]["dag_run_id"]) == {"recompute": "success", "gate": "success"}

    assert place.driver() == third
    assert place.raw("orders") == archive_of(sent, "orders"), "every acknowledged message, once"
    failed = [run for run in place.runs() if run["state"] == "failed"]
    assert len(failed) == 1, "only the one that a person failed"

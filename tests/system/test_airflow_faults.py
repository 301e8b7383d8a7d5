"""Airflow and the driver under faults: whatever dies, freezes or is away, there is one driver, and nothing is lost or doubled."""

import email
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import oracle
import pytest
from harness import DAY, ROOT, Sent, archive_of, messages_of, read_sent, wait_for
from station import MAY_TAKE_SECONDS, NIGHTS, REFINES, SHIFTS, Station

from weir import embedded_airflow, stack
from weir.embedded_airflow import AirflowRecord, PartsRecord, environment
from weir.generator import Shares
from weir.jars import fetch_jars
from weir.layout import HOUSEKEEPING_DAG, SHIFT_TASK, jars_folder

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2_400)]

IN_TIME = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """One for all: a start takes a minute. Its jars are its own, so that one can be lost."""
    jars = tmp_path_factory.mktemp("jars")
    shutil.copytree(fetch_jars(), jars, copy_function=os.symlink, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_JARS", str(jars))
        place = Station(tmp_path_factory.mktemp("station"))
        yield place
        place.close()


@pytest.fixture
def running(station: Station) -> Station:
    """The station, healthy, with a stream that runs and has read something."""
    station.await_health()
    station.api.unpause(SHIFTS)
    station.await_driver(1)
    assert_whole(station)
    return station


def assert_whole(place: Station) -> None:
    """Send more, and find every acknowledged message once."""
    sent = place.produce(500, IN_TIME)
    place.await_caught_up(len(messages_of(sent, "orders")))
    wait_for(lambda: place.raw("orders") == archive_of(sent, "orders"), 60, "every acknowledged message, once")
    wait_for(lambda: place.drivers() == 1, 60, "one driver")


def failed_runs(place: Station) -> int:
    return sum(run["state"] == "failed" for run in place.runs())


@contextmanager
def away(place: Station, part: str) -> Iterator[None]:
    """A part of Airflow that is killed and stays dead for a while: its watcher is asleep meanwhile."""
    watcher = AirflowRecord.read(place.home.airflow_record)
    assert watcher
    os.kill(watcher.watcher.pid, signal.SIGSTOP)
    place.kill_part(part)
    try:
        yield
    finally:
        os.kill(watcher.watcher.pid, signal.SIGCONT)
        place.await_health()


def test_twenty_shifts_leave_one_driver(running: Station) -> None:
    driver = running.driver()
    ended = sum(run["state"] == "success" for run in running.runs())
    wait_for(lambda: sum(run["state"] == "success" for run in running.runs()) >= ended + 20, 1_200, "twenty shifts")
    assert running.driver() == driver and running.drivers() == 1 and failed_runs(running) == 0

    def pool() -> dict[str, int]:
        found: dict[str, int] = running.api.call("GET", "pools/default_pool")
        return found

    wait_for(lambda: pool()["deferred_slots"] == 1 and pool()["occupied_slots"] == 0, 60, "a shift that waits and holds no slot")
    zombies = subprocess.run(["ps", "-eo", "stat,ppid,cmd"], capture_output=True, text=True, check=True).stdout
    parts = PartsRecord.read(running.home.airflow_parts)
    assert parts and not [
        line for line in zombies.splitlines() if line.startswith("Z") and line.split()[1] in {str(p.pid) for p in parts.parts.values()}
    ]
    assert_whole(running)


def test_a_frozen_driver_is_replaced_and_does_nothing_when_it_wakes(running: Station) -> None:
    frozen, failed = running.driver(), failed_runs(running)
    group = os.getpgid(frozen.holder.pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        second = running.await_driver(frozen.generation + 1)
    finally:
        os.killpg(group, signal.SIGCONT)
    assert failed_runs(running) == failed
    assert "fell silent" in running.logs()
    wait_for(lambda: not frozen.holder.is_alive(), 120, "the woken driver has ended")
    assert running.driver() == second
    assert_whole(running)


@pytest.mark.parametrize(("part", "seconds"), [("scheduler", 360), ("triggerer", 600), ("api-server", 120)])
def test_a_part_of_airflow_may_be_away(running: Station, part: str, seconds: float) -> None:
    driver, failed = running.driver(), failed_runs(running)
    with away(running, part):
        time.sleep(seconds)
        assert running.driver() == driver, "the stream does not care"
    running.await_shifts(2)
    assert running.driver() == driver
    assert failed_runs(running) == failed
    assert_whole(running)


def test_a_scheduler_that_is_asked_to_end_comes_back(running: Station) -> None:
    driver, before = running.driver(), PartsRecord.read(running.home.airflow_parts)
    assert before
    running.kill_part("scheduler", signal.SIGTERM)
    wait_for(
        lambda: (parts := PartsRecord.read(running.home.airflow_parts)) and parts.restarts["scheduler"] > before.restarts["scheduler"],
        120,
        "it is started again",
    )
    running.await_health()
    running.await_shifts(2)
    assert running.driver() == driver
    assert_whole(running)


def test_a_run_that_is_marked_failed_stays_stopped(running: Station) -> None:
    driver = running.driver()
    run = running.await_fresh_shift(with_trigger=True)
    running.api.call("PATCH", f"dags/{SHIFTS}/dagRuns/{run}", {"state": "failed"})
    running.await_stopped()
    wait_for(running.is_paused, 120, "the DAG is paused")
    time.sleep(20)
    beat = running.control.heartbeat()
    assert beat and (beat.generation, beat.state) == (driver.generation, "stopped"), "nothing has started it again"
    time.sleep(45)
    running.api.unpause(SHIFTS)
    running.await_driver(driver.generation + 1)
    assert_whole(running)


def test_a_cleared_shift_restarts_the_driver(running: Station) -> None:
    driver = running.driver()
    run = running.await_fresh_shift(with_trigger=True)
    body = {"dry_run": False, "dag_run_id": run, "task_ids": [SHIFT_TASK], "only_failed": False, "reset_dag_runs": True}
    running.api.call("POST", f"dags/{SHIFTS}/clearTaskInstances", body)
    running.await_driver(driver.generation + 1)
    assert "was stopped: its task was cleared in Airflow" in running.logs()
    assert_whole(running)


def test_a_paused_dag_has_no_new_shift_and_the_driver_runs_on(running: Station) -> None:
    driver = running.driver()
    running.api.unpause(SHIFTS, paused=True)
    time.sleep(30)
    before = len(running.runs())
    time.sleep(30)
    assert len(running.runs()) == before and running.driver() == driver
    running.api.unpause(SHIFTS)
    running.await_shifts(2)
    assert running.driver() == driver
    assert_whole(running)


def test_a_task_that_dies_before_it_stored_the_driver_is_followed_by_one_that_finds_it(running: Station) -> None:
    station, before = running, running.driver()
    station.mark_shift(station.await_fresh_shift(), "failed")
    wait_for(station.is_paused, 180, "the DAG is paused")
    wait_for(lambda: not before.holder.is_alive(), 60, "the driver has stopped")
    stored = station.control.launch()
    program = (
        "from pathlib import Path; from weir.records import Control; from weir_airflow.operators import launch_driver; "
        f"launch_driver('shop', 'spark_default', Control(Path({str(station.control.folder)!r})))"
    )
    env = environment(station.home) | {
        "WEIR_FAULT": "after_submit_before_store:0:kill9",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
        "PYTHONPATH": f"{ROOT}/plugins",
    }
    died = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert station.control.launch() == stored, "it died before it could store anything"
    station.api.unpause(SHIFTS)
    first = station.await_driver(before.generation + 1)
    station.await_shifts(2)
    assert station.driver() == first and station.drivers() == 1
    assert_whole(station)


def test_after_a_power_cut_everything_comes_up_without_hands(running: Station) -> None:
    record, parts, driver = AirflowRecord.read(running.home.airflow_record), PartsRecord.read(running.home.airflow_parts), running.driver()
    kafka = stack.kafka_state(running.home)
    assert record and parts and kafka.pid
    os.kill(record.watcher.pid, signal.SIGKILL)
    for part in parts.parts.values():
        os.killpg(part.pid, signal.SIGKILL)
    os.killpg(os.getpgid(driver.holder.pid), signal.SIGKILL)
    os.kill(kafka.pid, signal.SIGKILL)
    wait_for(lambda: not driver.holder.is_alive(), 30, "the driver is dead")
    stack.start_kafka(running.home)
    embedded_airflow.start_airflow(running.home)
    running.await_health()
    running.await_driver(driver.generation + 1)
    assert_whole(running)


def test_three_days_are_backfilled_in_order_each_once(running: Station) -> None:
    running.api.unpause(NIGHTS)
    last = DAY.replace(day=DAY.day + 2)
    body = {"dag_id": NIGHTS, "from_date": f"{DAY}T00:00:00Z", "to_date": f"{last}T23:59:59Z", "max_active_runs": 1}
    running.api.call("POST", "backfills", body)

    def nights() -> list[dict[str, str]]:
        return [run for run in running.runs(NIGHTS) if run["run_type"] == "backfill"]

    wait_for(lambda: len([n for n in nights() if n["state"] in ("success", "failed")]) == 3, 900, "three nights")
    assert [night["state"] for night in nights()] == ["success"] * 3
    by_start = sorted(nights(), key=lambda night: night["start_date"])
    assert [night["data_interval_start"][:10] for night in by_start] == [str(DAY.replace(day=DAY.day + n)) for n in range(3)]
    assert all(earlier["end_date"] <= later["start_date"] for earlier, later in itertools.pairwise(by_start))
    sent = read_sent(running.home.sent("shop", str(DAY), 1))
    assert running.cells("revenue_per_minute", "__batch") == oracle.truth("revenue_per_minute", lambda stream: messages_of(sent, stream))
    for number in range(3):
        assert running.home.lake.nightly_report("shop", str(DAY.replace(day=DAY.day + number))).exists()


def test_what_is_wrong_is_said_in_one_line_and_the_others_go_on(running: Station) -> None:
    driver = running.driver()

    # A connection that is not there.
    running.api.call("DELETE", "connections/spark_default")
    running.api.unpause(REFINES)
    running.api.trigger(REFINES, "no_connection")
    assert running.await_run(REFINES, "no_connection")["refine"] == "failed"
    assert "there is no connection 'spark_default': add it with" in "\n".join(running.api.log_lines(REFINES, "no_connection", "refine"))
    running.api.call("POST", "connections", {"connection_id": "spark_default", "conn_type": "spark", "host": "local[*]"})

    # A gate that blocks.
    rule = {"expect_column_mean_to_be_between": {"column": "amount", "min_value": 1_000_000}}
    from weir.loader import read_yaml

    declared, _ = read_yaml(running.home.pipelines / "shop" / "pipeline.yaml")
    declared["streams"]["orders"]["expectations"].append(rule)
    running.declare(streams=declared["streams"])
    running.api.trigger(REFINES, "blocked")
    assert running.await_run(REFINES, "blocked") == {"refine": "success", "gate": "failed"}
    said = "\n".join(running.api.log_lines(REFINES, "blocked", "gate"))
    assert "blocked: orders: " in said and "amount" in said and "Report: /weir/quality/shop" in said

    # A declaration with a mistake.
    broken = running.home.pipelines / "broken"
    broken.mkdir()
    (broken / "pipeline.yaml").write_text("pipeline: broken\nstreems: {}\n")
    wait_for(lambda: "broken__stream" in running.dags(), MAY_TAKE_SECONDS, "the broken one is shown")
    assert "pipeline.yaml:1: the pipeline needs 'streams'" in running.dags()["broken__stream"]["description"]
    assert running.driver() == driver


def test_a_jar_that_is_lost_is_named_and_the_stream_comes_back_with_it(running: Station) -> None:
    jar = next(jar for jar in jars_folder().glob("spark/*.jar") if "delta-spark" in jar.name)
    line = f"spark/{jar.name} is not in {jars_folder()}: run `weir jars`"
    kept = jar.readlink()
    jar.unlink()
    running.api.unpause(REFINES)
    running.api.trigger(REFINES, "no_jar")
    assert running.await_run(REFINES, "no_jar")["refine"] == "failed"
    assert line in "\n".join(running.api.log_lines(REFINES, "no_jar", "refine"))

    driver = running.driver()
    os.killpg(os.getpgid(driver.holder.pid), signal.SIGKILL)
    wait_for(running.is_paused, MAY_TAKE_SECONDS, "a stream that cannot start is given up")
    assert line in running.shift_log(running.runs()[-1]["dag_run_id"])
    jar.symlink_to(kept)
    running.api.unpause(SHIFTS)
    running.await_driver(driver.generation + 1)
    assert_whole(running)


def test_people_and_their_dags_hear(running: Station) -> None:
    """A late night by web hook and mail, a red gate as well; an asset starts a DAG of somebody else; the shift tells whom it watches."""
    running.api.unpause(REFINES, paused=True)
    follower = """
from airflow.sdk import DAG, Asset, task

with DAG("follower", schedule=[Asset(name="shop.orders", uri="weir://shop/accepted/orders")]):

    @task
    def follow(): ...

    follow()
"""
    (running.home.airflow / "dags" / "follower.py").write_text(follower)
    with listening() as (hook, mail, heard):
        to = {"to_email": "ops@example.com", "from_email": "weir@example.com", "disable_ssl": True, "disable_tls": True}
        there = {"host": "127.0.0.1", "conn_type": "http"}
        running.api.call("POST", "connections", there | {"connection_id": "ops", "schema": "http", "port": hook})
        told = {"connection_id": "mail", "conn_type": "smtp", "port": mail, "extra": json.dumps(to)}
        running.api.call("POST", "connections", there | told)
        running.declare(schedule={"shift": "15 seconds", "owner": "told", "notify": ["ops", "mail"], "nightly_within": "2 seconds"})
        wait_for(lambda: running.dags()[NIGHTS]["owners"] == ["told"], MAY_TAKE_SECONDS, "the declaration is read")
        wait_for(lambda: "follower" in running.dags(), MAY_TAKE_SECONDS, "the other DAG is there")
        running.api.unpause("follower")

        running.api.unpause(NIGHTS)
        unproved = DAY.replace(day=DAY.day + 9)  # a day has one run: the first ones are backfilled
        running.api.call("POST", f"dags/{NIGHTS}/dagRuns", {"dag_run_id": "late", "logical_date": f"{unproved}T02:00:00Z"})
        wait_for(lambda: all(any("night of shop is late" in t for t in told) for told in heard.values()), MAY_TAKE_SECONDS, "it is late")
        running.await_run(NIGHTS, "late")

        await_archived(running, running.produce(500, IN_TIME, seed=8))  # a mean of a few rows is outside its bounds now and then
        running.api.unpause(REFINES)
        running.api.trigger(REFINES, "told")
        assert running.await_run(REFINES, "told") == {"refine": "success", "gate": "success"}
        wait_for(lambda: [run["state"] for run in running.runs("follower")][:1] == ["success"], MAY_TAKE_SECONDS, "the other DAG has run")

        from weir.loader import read_yaml

        declared, _ = read_yaml(running.home.pipelines / "shop" / "pipeline.yaml")
        rule = {"expect_column_mean_to_be_between": {"column": "amount", "min_value": 1_000_000}}
        declared["streams"]["orders"]["expectations"].append(rule)
        running.declare(streams=declared["streams"])
        await_archived(running, running.produce(500, IN_TIME, seed=9))
        running.api.trigger(REFINES, "red")
        assert running.await_run(REFINES, "red")["gate"] == "failed"
        wait_for(lambda: all(any(f"{REFINES} failed" in t for t in told) for told in heard.values()), MAY_TAKE_SECONDS, "the gate is red")

    run = running.await_fresh_shift(with_trigger=True)
    kept = running.api.call("GET", f"dags/{SHIFTS}/dagRuns/{run}/taskInstances/{SHIFT_TASK}/state-store/driver")
    assert kept["value"]["pid"] == running.driver().holder.pid


def await_archived(station: Station, sent: list[Sent]) -> None:
    wait_for(lambda: archive_of(sent, "orders") <= station.raw("orders"), MAY_TAKE_SECONDS, "what was sent is archived")


@contextmanager
def listening() -> Iterator[tuple[int, int, dict[str, list[str]]]]:
    """A web hook and a mail server on this machine: their ports, and what each has heard."""
    heard: dict[str, list[str]] = {"hook": [], "mail": []}

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard["hook"].append(f"{said['subject']}: {said['text']}")
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Mail(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            while line := self.rfile.readline():
                word = line[:4].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    body = b"".join(iter(self.rfile.readline, b".\r\n"))
                    message = email.message_from_bytes(body)
                    parts = [str(part.get_payload(decode=True), "utf-8") for part in message.walk() if not part.is_multipart()]
                    heard["mail"].append(f"{message['to']} {message['subject']}: {' '.join(parts)}")
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    servers = [ThreadingTCPServer(("127.0.0.1", 0), handler) for handler in (Hook, Mail)]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield servers[0].server_address[1], servers[1].server_address[1], heard
    finally:
        for server in servers:
            server.shutdown()


def test_housekeeping_runs_beside_the_stream(running: Station) -> None:
    driver = running.driver()
    running.api.unpause(HOUSEKEEPING_DAG)
    wait_for(lambda: running.runs(HOUSEKEEPING_DAG), 60, "housekeeping is due")
    assert running.await_run(HOUSEKEEPING_DAG, running.runs(HOUSEKEEPING_DAG)[0]["dag_run_id"]) == {"shop": "success"}
    assert running.driver() == driver
    assert_whole(running)

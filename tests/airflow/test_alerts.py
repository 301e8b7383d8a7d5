"""Who hears of trouble: a real web hook gets the line, a dead one keeps nobody else from hearing."""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from beats import beat, pulse
from botocore.exceptions import EndpointConnectionError

from weir.event_time import utc_now
from weir.records.driver import Control
from weir.supervision import Seen, observe
from weir_airflow import triggers
from weir_airflow.alerts import TellConnections, tell_of_late_night
from weir_airflow.triggers import HeartbeatTrigger

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a web hook on this machine is told; the connection `ops` leads to it, `gone` to nobody."""
    found: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append(json.loads(body) | {"login": self.headers.get("Authorization")})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there = {"conn_type": "http", "host": "127.0.0.1", "schema": "http", "port": server.server_port, "password": "canary"}
    monkeypatch.setenv("AIRFLOW_CONN_OPS", json.dumps(there))
    monkeypatch.setenv("AIRFLOW_CONN_GONE", json.dumps(there | {"port": 1}))
    yield found
    server.shutdown()


def test_a_red_run_is_told_to_every_connection_that_answers(heard: list[dict[str, Any]]) -> None:
    class Run:
        dag_id, run_id = "shop__nightly", "scheduled__1"

    context: Any = {"dag_run": Run(), "exception": ValueError("blocked: orders: mean is 3")}
    TellConnections("shop", ["gone", "no_such_connection", "ops"]).notify(context)
    (said,) = heard
    assert said["subject"] == "Weir: shop__nightly failed" and "blocked: orders: mean is 3" in said["text"]
    assert said["login"] == "Bearer canary"


def test_a_late_night_is_told(heard: list[dict[str, Any]]) -> None:
    asyncio.run(tell_of_late_night("shop", ["ops"], context={"dag_run": {"dag_run_id": "scheduled__2"}}))
    assert [said["text"] for said in heard] == ["The night of shop has not ended in time (scheduled__2)"]


def test_a_broken_service_level_is_told_once_and_so_is_its_end(
    heard: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the trigger that waits beside the driver; a trigger of the next shift does not tell it again."""
    monkeypatch.setenv("WEIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WEIR_PIPELINES", str(tmp_path / "pipelines"))
    shutil.copytree(ROOT / "pipelines" / "shop", tmp_path / "pipelines" / "shop")
    file = tmp_path / "pipelines" / "shop" / "pipeline.yaml"
    file.write_text(file.read_text().replace("pipeline: shop\n", "pipeline: shop\nschedule: {notify: [ops]}\n", 1))

    def look(behind: int) -> None:
        trigger = HeartbeatTrigger("shop", "shop__stream", "r", "shift", utc_now().isoformat(), None)
        trigger._tell_of_levels(beat(archive=pulse(behind=behind)))

    for behind in (5, 100_001, 100_002):
        look(behind)
    (said,) = heard
    assert said["subject"] == "Weir: shop orders behind is not met"
    assert said["text"] == "orders is behind by 100,001 messages (promised: at most 100,000 messages)"
    look(7)
    look(7)
    assert [own["subject"] for own in heard[1:]] == ["Weir: shop orders behind is met again"]
    file.write_text("pipeline: [")
    look(100_003)  # a declaration that is being edited ends no trigger
    assert len(heard) == 2


def test_a_store_that_is_away_for_a_moment_ends_no_trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    answers = [EndpointConnectionError(endpoint_url="store"), EndpointConnectionError(endpoint_url="store"), None]
    asked: list[Exception | None] = []

    def observe_in_turn(control: Control) -> Seen:
        asked.append(answers[len(asked)])
        if (error := asked[-1]) is not None:
            raise error
        return observe(control)

    monkeypatch.setattr(triggers, "observe", observe_in_turn)
    monkeypatch.setattr(triggers, "BEAT_SECONDS", 0.01)
    trigger = HeartbeatTrigger("shop", "shop__stream", "r", "shift", (utc_now() + timedelta(hours=1)).isoformat(), None)

    async def first() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(first()).payload["what"] and len(asked) == 3

"""Who hears of trouble: a real web hook gets the line, a dead one keeps nobody else from hearing."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from weir_airflow.alerts import TellConnections, tell_of_late_night


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

"""A real object store for a test, on this machine only, with a bucket that is empty."""

import http.client
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from weir.jars import fetch_store
from weir.layout import PROJECT
from weir.processes import HOST, choose_port

BUCKET = "weir"


@contextmanager
def running_store(folder: Path) -> Iterator[dict[str, str]]:
    """What the environment has to say for a lake in it."""
    fetch_store()
    port = choose_port(None, None, "")
    said = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "only-for-tests",
        "AWS_REGION": "us-east-1",
    }
    command = [
        sys.executable,
        str(PROJECT / "docker" / "object_store.py"),
        "--folder",
        str(folder),
        "--bucket",
        BUCKET,
        "--port",
        str(port),
    ]
    with (folder / "store.log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | said, stdout=log, stderr=log)
    try:
        _wait(process, said["AWS_ENDPOINT_URL"], folder / "store.log")
        yield said
    finally:
        process.kill()
        process.wait()


CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Another is just being written.</Message></Error>"


class Unsteady:
    """Stands before a store. Of the objects that are to be created, the first's answer gets lost, the second's is that another is just
    being written (409, as Amazon's S3 may say), the third's comes as it is, and so on; what is sent again goes through."""

    def __init__(self, store: str) -> None:
        self.done: Counter[str] = Counter()
        """What was done to requests, by its name."""
        self._met: set[str] = set()
        self._lock = threading.Lock()
        host = urlsplit(store).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(handler) -> None:
                body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                fault = self._fault(handler.path) if handler.headers.get("If-None-Match") else ""
                if fault == "conflict":
                    handler.answer(409, {"Content-Type": "application/xml", "Content-Length": str(len(CONFLICT))}, CONFLICT)
                    return
                there = http.client.HTTPConnection(host, timeout=60)
                headers = {name: value for name, value in handler.headers.items() if name.lower() != "expect"}
                there.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    there.putheader(name, value)
                there.endheaders(body)
                told = there.getresponse()
                text = told.read()
                there.close()
                if fault == "lost":
                    handler.close_connection = True
                    return
                kept = {name: value for name, value in told.getheaders() if name.lower() not in ("transfer-encoding", "connection")}
                if handler.command != "HEAD" and told.status != 204:
                    kept = {name: value for name, value in kept.items() if name.lower() != "content-length"} | {
                        "Content-Length": str(len(text))
                    }
                handler.answer(told.status, kept, text)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on

            def answer(handler, status: int, headers: dict[str, str], text: bytes) -> None:
                handler.send_response_only(status)
                for name, value in headers.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(text)

            def log_message(handler, *_: object) -> None:
                """It stays silent."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.address = f"http://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _fault(self, path: str) -> str:
        with self._lock:
            if path in self._met:
                self.done["again"] += 1
                return ""
            fault = ("lost", "conflict", "")[len(self._met) % 3]
            self._met.add(path)
            self.done[fault] += 1
            return fault

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            requests.get(url, timeout=2)
            return
        except requests.RequestException:
            time.sleep(0.2)
    pytest.fail(f"the object store did not start: {log.read_text(errors='replace')[-500:]}")

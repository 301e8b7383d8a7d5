"""A real object store for a test, on this machine only, with a bucket that is empty."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            requests.get(url, timeout=2)
            return
        except requests.RequestException:
            time.sleep(0.2)
    pytest.fail(f"the object store did not start: {log.read_text(errors='replace')[-500:]}")

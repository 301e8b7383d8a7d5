"""Starting and ending processes of this machine: Java, ports, logs, one starter at a time. Knows nothing of what they are."""

import errno
import fcntl
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from weir.layout import Home
from weir.records.driver import Identity
from weir.refusal import Refusal

Say = Callable[[str], None]

JAVA_VERSIONS = ("17", "21")
"""What Spark 4.2 and Kafka 4.2 both run on."""

HOST = "127.0.0.1"
"""What is started here listens here only: the broker has no password, and of the others no page is for strangers."""

PORTS = range(20_000, 30_000)
"""Below the range that systems give to outgoing connections: a port from there could be in use by chance at the next start."""

STOP_SECONDS = 40
"""How long a process may take to end before it is killed."""


def say_nothing(_: str) -> None:
    pass


def find_java() -> str:
    """The java of JAVA_HOME, else of PATH, known to be of a version that fits."""
    advice = "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    java_home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{java_home}/bin") if java_home else None) or shutil.which("java")
    if java is None:
        raise Refusal(f"Java 17 or 21 is needed and none was found: {advice}")
    answer = subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    version = match[1] if match else "of an unknown version"
    if version not in JAVA_VERSIONS:
        raise Refusal(f"Java {version} was found at {java}; Java 17 or 21 is needed: {advice}")
    return java


def pyspark_folder() -> Path:
    """Where PySpark is, looked up without importing it, which takes a second."""
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise Refusal("PySpark is not installed: install Weir with its dependencies, `pip install .`")
    return Path(pyspark.origin).parent


def choose_port(last: int | None, wanted: int | None, option: str) -> int:
    """The wanted port or none; without a wish the last one where it is free."""
    if wanted is not None and (obstacle := _find_obstacle(wanted)):
        raise Refusal(f"port {wanted} on {HOST} {obstacle}: stop what listens there or choose another with {option}")
    candidates = [*([last] if last else []), *random.sample(PORTS, 100)]
    return wanted or next(candidate for candidate in candidates if not _find_obstacle(candidate))


def _find_obstacle(port: int) -> str | None:
    """Why nothing can listen on this port now, or None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            return "is taken" if getattr(error, "errno", None) == errno.EADDRINUSE else f"cannot be used ({error})"
    return None


def end_processes(identities: list[Identity]) -> None:
    """Ask these processes to end; kill the group of one that has not by the deadline."""
    for identity in identities:
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for identity in identities:
        killed = False
        while identity.is_alive():
            if not killed and time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(identity.pid, signal.SIGKILL)
                killed = True
            time.sleep(0.1)


def open_log(log: Path) -> IO[bytes]:
    """A new log; the one before it is kept beside it."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileNotFoundError):
        log.replace(log.with_suffix(".previous.log"))
    return log.open("wb")


@contextmanager
def lock_stack(home: Home, say: Say) -> Iterator[None]:
    """Only one process at a time starts or stops the stack of a home; the others wait."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (home.root / "stack.lock").open("a")
    except OSError as error:
        raise Refusal(f"{home.root} cannot be written ({error.strerror}): choose another folder with WEIR_HOME") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another `weir` that starts or stops the stack")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield

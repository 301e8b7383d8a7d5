"""Starts Spark jobs as processes of their own and reads how they ended. The JVM's talk goes to a log file."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from weir.event_time import utc_now
from weir.layout import Home
from weir.records.driver import Control, Heartbeat
from weir.records.jobs import Outcome
from weir.refusal import Refusal
from weir.spark_cluster import spark_environment

KEPT_LOGS = 20
"""Of each job of a pipeline: enough to look back at a bad night, and nothing that grows for ever."""


class JobFailed(Exception):
    """The job broke: one line, with the log to look into."""


def job_arguments(home: Home, pipeline: str, kafka: str, outcome: Path, options: list[str]) -> list[str]:
    """What every job is told, whoever starts it."""
    return [
        *("--pipeline", pipeline, "--pipelines", str(home.pipelines.resolve())),
        *("--lake", home.lake.root, "--kafka", kafka, "--outcome", str(outcome), *options),
    ]


def make_room_for_log(log: Path, kind: str) -> None:
    """Keep the last logs of this kind, and of their outcomes, and drop the older ones."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(log.parent.glob(f"{kind}-*.log"))[:-KEPT_LOGS]:
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


class Job:
    """One started job. It lives in a session of its own: what ends its starter does not end it."""

    def __init__(self, home: Home, module: str, pipeline: str, kafka: str = "", options: list[str] | None = None) -> None:
        name = f"{pipeline}-{module}-{utc_now():%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self.log = home.log(name)
        self._outcome = self.log.with_suffix(".json")
        make_room_for_log(self.log, f"{pipeline}-{module}")
        arguments = job_arguments(home, pipeline, kafka, self._outcome, options or [])
        command = [sys.executable, "-m", f"spark_jobs.{module}", *arguments]
        with self.log.open("wb") as log:
            environment = os.environ | spark_environment(home)
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, while_waiting: Callable[[], None] = lambda: None, raises: bool = True) -> Outcome:
        """Wait for the end and give the outcome; a refusal or failure is raised as its one line, unless the caller wants it."""
        while self.process.poll() is None:
            while_waiting()
            time.sleep(0.2)
        return self.outcome(raises)

    def outcome(self, raises: bool = True) -> Outcome:
        outcome = Outcome.read(self._outcome)
        if outcome is None:
            raise JobFailed(f"the job ended with code {self.process.returncode} and without a word; see {self.log}")
        if not raises:
            return outcome
        if outcome.refusal:
            raise Refusal(outcome.refusal)
        if outcome.failure:
            raise JobFailed(f"{outcome.failure} (log: {self.log})")
        return outcome


def start_stream(home: Home, pipeline: str, kafka: str, options: list[str]) -> Job:
    """Start the pipeline's driver. It may still be refused: see wait_until_running."""
    return Job(home, "stream_job", pipeline, kafka, options)


def wait_until_running(home: Home, pipeline: str, job: Job, deadline_seconds: float = 120) -> Heartbeat:
    """The first heartbeat of this very driver that says running; its refusal or failure is raised."""
    control = Control(home.lake.control(pipeline))
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        heartbeat = control.heartbeat()
        if heartbeat and heartbeat.holder.pid == job.process.pid and heartbeat.state == "running":
            return heartbeat
        if job.process.poll() is not None:
            job.outcome()
            raise JobFailed(f"the driver ended before it ran; see {job.log}")
        time.sleep(0.2)
    raise JobFailed(f"the driver was not running after {deadline_seconds:.0f} s; see {job.log}")


def stop_stream(home: Home, pipeline: str, reason: str, deadline_seconds: float = 120, hold: bool = False) -> Heartbeat | None:
    """Ask the pipeline's driver to stop at a batch border and wait for its last word. None when none is running."""
    control = Control(home.lake.control(pipeline))
    lease, heartbeat = control.lease(), control.heartbeat()
    if lease is None or heartbeat is None or heartbeat.state in ("stopped", "failed") or lease.holder.is_known_dead():
        return None
    control.request_stop(lease.generation, reason, hold)
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        heartbeat = control.heartbeat()
        if heartbeat and heartbeat.generation >= lease.generation and heartbeat.state in ("stopped", "failed"):
            return heartbeat
        if lease.holder.is_known_dead():
            raise JobFailed(f"the driver (process {lease.holder.pid}) died while stopping")
        time.sleep(0.2)
    raise JobFailed(f"the driver (process {lease.holder.pid}) did not stop within {deadline_seconds:.0f} s")


def stop_or_kill(home: Home, pipeline: str, reason: str, deadline_seconds: float, hold: bool = False) -> str:
    """Stop the pipeline's driver, and kill it with its JVM when it has not by the deadline; how that went, for people."""
    try:
        last = stop_stream(home, pipeline, reason, deadline_seconds, hold)
    except JobFailed as failed:
        lease = Control(home.lake.control(pipeline)).lease()
        if lease is None or not lease.holder.is_alive():  # one on another host is replaced by its lease
            return str(failed)
        os.killpg(os.getpgid(lease.holder.pid), signal.SIGKILL)
        return f"{failed}: it was killed"
    return f"the driver has {last.state}" if last else "no driver runs"

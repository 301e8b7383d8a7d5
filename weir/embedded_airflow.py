"""The embedded Airflow: its four parts on this machine only, watched and started again, with a password of their own.

`weir` starts a watcher (this file run as a program), the watcher starts the parts. What it started stands in records, so that whoever
comes after a crash ends what is left of it and nothing else.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import requests
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_fixed

from weir.event_time import utc_now
from weir.lake_files import write_whole
from weir.layout import PROJECT, SPARK_CONNECTION, Home
from weir.processes import HOST, Say, choose_port, end_processes, lock_stack, open_log, say_nothing
from weir.records.driver import Identity
from weir.records.record import Record
from weir.refusal import Refusal
from weir.spark_cluster import spark_environment

PARTS: dict[str, list[str]] = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
"""Without their log servers, which would listen to everybody: all parts read the same folder."""

START_SECONDS = 180
MIN_LIFE_SECONDS = 5
ADMIN, VIEWER = "admin", "viewer"
LOCAL = "local[*]"
USERS = (ADMIN, VIEWER)
"""Each has the role of its name: the viewer sees everything and changes nothing."""
BUSY_SECONDS = 30
"""While Airflow answers 'not now' it is asked again: on SQLite a backfill meets a locked database when the scheduler writes beside it."""

SETTINGS = """\
# Written by Weir at every start. Secrets are made once and kept.
[core]
dags_folder = {project}/dags
plugins_folder = {project}/plugins
load_examples = False
executor = LocalExecutor
parallelism = 4
simple_auth_manager_users = {users}
simple_auth_manager_passwords_file = {folder}/passwords.json
execution_api_server_url = http://{host}:{port}/execution/
fernet_key = {fernet_key}

[dag_processor]
dag_bundle_config_list = {bundles}
# How long a new file waits until it is seen; Airflow's own is five minutes.
refresh_interval = 30

[database]
sql_alchemy_conn = sqlite:///{folder}/airflow.db

[api]
host = {host}
port = {port}
base_url = http://{host}:{port}
workers = 1
secret_key = {secret_key}
instance_name = Weir
expose_config = False

[api_auth]
jwt_secret = {jwt_secret}

[logging]
base_log_folder = {folder}/logs

[triggerer]
# A driver stops at a batch border; it is killed when it has not found one by then.
on_kill_timeout = 120

[usage_data_collection]
enabled = False
"""


def _bundle(name: str, folder: Path) -> dict[str, Any]:
    return {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(folder)}}


class AirflowRecord(Record):
    """Which process watches the parts of a home's Airflow, and where it answers."""

    watcher: Identity
    port: int
    started_at: datetime

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return self.watcher.is_alive()


class PartsRecord(Record):
    """The parts that the watcher has started last."""

    parts: dict[str, Identity]
    restarts: dict[str, int]


class AirflowState(Record):
    """How the Airflow of a home is now; each part as Airflow itself tells it."""

    running: bool
    healthy: bool
    address: str | None
    parts: dict[str, str]
    restarts: dict[str, int]


class Secrets(Record):
    """Made once for a home: sessions and encrypted connections outlive a restart."""

    fernet_key: str
    secret_key: str
    jwt_secret: str


def start_airflow(home: Home, port: int | None = None, say: Say = say_nothing) -> AirflowRecord:
    """An Airflow whose four parts are healthy: the one that already runs, or a new one on what the last has kept."""
    with lock_stack(home, say):
        record = AirflowRecord.read(home.airflow_record)
        if record is None or not record.is_alive():
            record = _launch(home, record, port, say)
        elif port not in (None, record.port):
            raise Refusal(f"Airflow already runs on port {record.port}: stop it with `weir down`, or leave out --airflow-port")
        _await_health(home, record, say)
    _add_spark_connection(home)
    return record


def stop_airflow(home: Home, say: Say = say_nothing) -> bool:
    """Stop the watcher and the parts of this home and nothing else; whether there were any. Drivers run on: they are nobody's child."""
    record = AirflowRecord.read(home.airflow_record)
    if record is None:
        return False
    with lock_stack(home, say):
        found = record.is_alive()
        if found:
            say("stopping Airflow")
            end_processes([record.watcher])
        return _end_leftovers(home) or found


def airflow_state(home: Home) -> AirflowState:
    """How Airflow is, asked anew; waits a few seconds at most."""
    record, parts = AirflowRecord.read(home.airflow_record), PartsRecord.read(home.airflow_parts)
    restarts = parts.restarts if parts else {}
    if record is None or not record.is_alive():
        return AirflowState(running=False, healthy=False, address=None, parts={}, restarts=restarts)
    found = _health(record)
    return AirflowState(running=True, healthy=_is_healthy(found), address=record.address, parts=found, restarts=restarts)


def password(home: Home, user: str = ADMIN) -> str:
    return str(json.loads((home.airflow / "passwords.json").read_text())[user])


def _is_busy(answer: requests.Response) -> bool:
    """Whether it says 'not now', or that its database could not be written just then."""
    return answer.status_code == requests.codes.service_unavailable or (
        answer.status_code == requests.codes.server_error and "Database error" in answer.text
    )


def _last_answer(tries: RetryCallState) -> Any:
    return tries.outcome.result() if tries.outcome else None


class AirflowApi:
    """Airflow's REST, as its administrator: what `weir` itself needs of it."""

    def __init__(self, home: Home) -> None:
        record = AirflowRecord.read(home.airflow_record)
        if record is None or not record.is_alive():
            raise Refusal("Airflow is not running: run `weir up`")
        self.root = record.address
        self._headers: dict[str, str] = {}
        login = self._ask("POST", f"{self.root}/auth/token", {"username": ADMIN, "password": password(home)})
        if not login.ok:
            raise Refusal(f"Airflow refused the login of {ADMIN}: its password file is {home.airflow / 'passwords.json'}")
        self._headers = {"Authorization": f"Bearer {login.json()['access_token']}"}

    def _ask(self, method: str, address: str, body: dict[str, Any] | None) -> requests.Response:
        try:
            return requests.request(method, address, json=body, headers=self._headers, timeout=60)
        except requests.RequestException:
            raise Refusal(f"Airflow does not answer at {self.root}: see `weir status`") from None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, may_be: tuple[int, ...] = ()) -> Any:
        """The answer's JSON. An error is raised with Airflow's own words, unless the caller expects its status."""
        is_busy = retry_if_result(_is_busy)
        patient = Retrying(stop=stop_after_delay(BUSY_SECONDS), wait=wait_fixed(1), retry=is_busy, retry_error_callback=_last_answer)
        answer = patient(self._ask, method, f"{self.root}/api/v2/{path}", body)
        if not answer.ok and answer.status_code not in may_be:
            raise Refusal(f"Airflow refused {method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None

    def unpause(self, dag_id: str, paused: bool = False) -> None:
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": paused})

    def trigger(self, dag_id: str, run_id: str) -> None:
        self.call("POST", f"dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None})

    def dag_ids(self) -> set[str]:
        return {dag["dag_id"] for dag in self.call("GET", "dags?limit=100")["dags"]}

    def import_errors(self) -> list[str]:
        return [error["stack_trace"].strip().splitlines()[-1] for error in self.call("GET", "importErrors")["import_errors"]]

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The last hundred runs, first to last."""
        return list(reversed(self.call("GET", f"dags/{dag_id}/dagRuns?order_by=-run_after&limit=100")["dag_runs"]))

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.call("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        found = self.call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def log_lines(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> list[str]:
        found = self.call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}?full_content=true")["content"]
        return [str(line.get("event", "")) + (f" {line['error_detail']}" if line.get("error_detail") else "") for line in found]


# --- Starting and ending


def _launch(home: Home, last: AirflowRecord | None, wanted_port: int | None, say: Say) -> AirflowRecord:
    _end_leftovers(home)
    port = choose_port(last.port if last else None, wanted_port, "--airflow-port")
    _write_settings(home, port)
    with open_log(home.log("airflow")) as log:
        if not (home.airflow / "airflow.db").exists():
            say("making Airflow's database")
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        if subprocess.run(command, env=environment(home), stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
            raise Refusal(f"Airflow's database could not be made; log: {home.log('airflow')}")
        say(f"starting Airflow on http://{HOST}:{port}")
        watcher = subprocess.Popen(
            [sys.executable, "-m", "weir.embedded_airflow"],
            env=environment(home),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = AirflowRecord(watcher=Identity.of(watcher.pid), port=port, started_at=utc_now())
    record.write(home.airflow_record)
    return record


def environment(home: Home) -> dict[str, str]:
    """What Airflow's parts, and the jobs that they start, have to know. Nothing here is secret."""
    own = {
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW_CONFIG": str(home.airflow / "airflow.cfg"),
        "WEIR_HOME": str(home.root),
        "WEIR_LAKE": home.lake.root,
        "WEIR_PIPELINES": str(home.pipelines.resolve()),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "NO_PROXY": f"{HOST},localhost",
    }
    inherited = {name: setting for name, setting in os.environ.items() if not name.startswith("AIRFLOW")}
    return inherited | spark_environment(home) | own


def _write_settings(home: Home, port: int) -> None:
    kept = Secrets.read(home.airflow / "secrets.json")
    if kept is None:
        fernet_key = urlsafe_b64encode(secrets.token_bytes(32)).decode()
        kept = Secrets(fernet_key=fernet_key, secret_key=secrets.token_urlsafe(32), jwt_secret=secrets.token_urlsafe(48))
        kept.write(home.airflow / "secrets.json")
    file = home.airflow / "passwords.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    write_whole(file, json.dumps({user: known.get(user) or secrets.token_urlsafe(12) for user in USERS}))
    (home.airflow / "dags").mkdir(exist_ok=True)  # for DAGs of the user's own, that follow Weir's assets
    bundles = json.dumps([_bundle("dags-folder", PROJECT / "dags"), _bundle("own", home.airflow / "dags")])
    users = ",".join(f"{user}:{user}" for user in USERS)
    settings = SETTINGS.format(
        project=PROJECT, bundles=bundles, users=users, folder=home.airflow, host=HOST, port=port, **kept.model_dump()
    )
    write_whole(home.airflow / "airflow.cfg", settings)


def _await_health(home: Home, record: AirflowRecord, say: Say) -> None:
    deadline, told = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline:
        if not record.is_alive():
            raise Refusal(f"Airflow ended while starting; log: {home.log('airflow')}")
        found = _health(record)
        if _is_healthy(found):
            return
        if (news := ", ".join(f"{part} {state}" for part, state in found.items())) and news != told:
            say(f"Airflow: {news}")
            told = news
        time.sleep(0.5)
    raise Refusal(f"Airflow is not healthy after {START_SECONDS} s: wait on with `weir up`; log: {home.log('airflow')}")


def _health(record: AirflowRecord) -> dict[str, str]:
    """Each part's state by Airflow's own word; nothing where it does not answer."""
    try:
        found = requests.get(f"{record.address}/api/v2/monitor/health", timeout=5).json()
        return {part: str((found[part] or {}).get("status")) for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")}
    except (requests.RequestException, ValueError, KeyError):
        return {}


def _is_healthy(found: dict[str, str]) -> bool:
    return bool(found) and set(found.values()) == {"healthy"}


def _add_spark_connection(home: Home) -> None:
    """The connection that says where Spark is: this machine, or its cluster. One that a person has changed stays as it is."""
    master = environment(home).get("WEIR_SPARK_MASTER", LOCAL)
    body = {"connection_id": SPARK_CONNECTION, "conn_type": "spark", "host": master}
    api = AirflowApi(home)
    api.call("POST", "connections", body, may_be=(409,))
    there = str(api.call("GET", f"connections/{SPARK_CONNECTION}")["host"])
    if there != master and (there == LOCAL or there.startswith(f"spark://{HOST}:")):
        api.call("PATCH", f"connections/{SPARK_CONNECTION}", body)


def _end_leftovers(home: Home) -> bool:
    """End parts whose watcher is gone; whether there were any."""
    parts = PartsRecord.read(home.airflow_parts)
    alive = [part for part in parts.parts.values() if part.is_alive()] if parts else []
    end_processes(alive)
    return bool(alive)


# --- The watcher


class Watcher:
    """Starts the parts, and starts again what ends, but none more often than every few seconds."""

    def __init__(self, home: Home) -> None:
        self.home, self.is_ending = home, False
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = dict.fromkeys(PARTS, 0)
        self.started: dict[str, float] = {}

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "is_ending", True))
        for name in PARTS:
            self._start(name)
        while not self.is_ending:
            for name, part in list(self.parts.items()):
                if part.poll() is not None and time.monotonic() >= self.started[name] + MIN_LIFE_SECONDS:
                    print(f"{utc_now():%H:%M:%S} {name} ended with code {part.returncode}: starting it again", flush=True)
                    _kill_group(part.pid)
                    self.restarts[name] += 1
                    self._start(name)
            time.sleep(0.5)
        end_processes([Identity.of(part.pid) for part in self.parts.values() if part.poll() is None])

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "airflow", *PARTS[name]]
        self.started[name] = time.monotonic()
        with open_log(self.home.log(f"airflow-{name}")) as log:
            self.parts[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        alive = {}
        for started, part in self.parts.items():
            with suppress(psutil.NoSuchProcess):
                alive[started] = Identity.of(part.pid)
        PartsRecord(parts=alive, restarts=self.restarts).write(self.home.airflow_parts)


def _kill_group(pid: int) -> None:
    """A part that died may leave children, such as the API server's worker, which holds the port."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    Watcher(Home.from_environment()).run()

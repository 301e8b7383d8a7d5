"""A Spark standalone cluster of this machine's own processes, a master and workers: jobs run as on a cluster, with executors of their own.

Who outgrows one machine names another master (WEIR_SPARK_MASTER, or the Airflow connection); pipelines stay as they are.
"""

import json
import os
import secrets
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from weir.event_time import utc_now
from weir.lake_files import write_whole
from weir.layout import Home
from weir.processes import HOST, Say, choose_port, end_processes, find_java, lock_stack, open_log, pyspark_folder, say_nothing
from weir.records.driver import Identity
from weir.records.record import Record
from weir.refusal import Refusal

START_SECONDS = 60
WORKER_CORES, WORKER_MEMORY = 6, "3g"
"""What one worker offers. Slots, not cores: a stream that watches holds one for each partition and does little with it."""

SETTINGS = """# Written by `weir up --workers`. For the master, the workers and every job on them.
spark.authenticate                          true
spark.authenticate.secret                   {secret}
spark.driver.host                           {host}
spark.driver.bindAddress                    {host}
spark.executor.memory                       1g
# A job that may take every slot starves those beside it: the stream never ends.
spark.cores.max                             2
spark.sql.shuffle.partitions                4
spark.databricks.delta.snapshotPartitions   2
spark.ui.killEnabled                        false
# What executors have fetched and logged goes an hour after their job.
spark.worker.cleanup.enabled                true
spark.worker.cleanup.interval               600
spark.worker.cleanup.appDataTtl             3600
"""


class ClusterRecord(Record):
    """Which processes are the cluster of a home. It outlives them: the next start takes the same ports."""

    port: int
    pages_port: int
    master: Identity
    workers: list[Identity]
    started_at: datetime

    @property
    def address(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return self.master.is_alive()


class ClusterState(Record):
    """How the cluster of a home is now, by its master's word."""

    running: bool
    address: str | None
    workers: int
    cores: int
    cores_used: int
    applications: list[str]


def start_cluster(home: Home, workers: int, say: Say = say_nothing) -> ClusterRecord:
    """A master that knows so many living workers: those that already run, and new ones where they are too few."""
    with lock_stack(home, say):
        record = ClusterRecord.read(home.spark_record)
        if record is None or not record.is_alive():
            record = _launch_master(home, record, say)
        alive = [worker for worker in record.workers if worker.is_alive()]
        say(f"starting {workers - len(alive)} Spark workers")
        new = [_launch(home, f"spark-worker-{number}", _worker(home, record)) for number in range(len(alive), workers)]
        record = record.model_copy(update={"workers": [*alive, *new]})
        record.write(home.spark_record)
        _await_workers(home, record, len(record.workers))
        return record


def stop_cluster(home: Home, say: Say = say_nothing) -> bool:
    """Stop the master and the workers of this home and nothing else; whether there were any."""
    record = ClusterRecord.read(home.spark_record)
    if record is None:
        return False
    with lock_stack(home, say):
        alive = [own for own in (*record.workers, record.master) if own.is_alive()]
        if alive:
            say("stopping Spark")
        end_processes(alive)
        return bool(alive)


def cluster_state(home: Home) -> ClusterState:
    record = ClusterRecord.read(home.spark_record)
    if record is None or not record.is_alive():
        return ClusterState(running=False, address=None, workers=0, cores=0, cores_used=0, applications=[])
    told = _ask_master(record)
    return ClusterState(
        running=bool(told),
        address=record.address,
        workers=told.get("aliveworkers", 0),
        cores=told.get("cores", 0),
        cores_used=told.get("coresused", 0),
        applications=[own["name"] for own in told.get("activeapps", [])],
    )


def spark_environment(home: Home) -> dict[str, str]:
    """What a job has to know to run on the cluster of this home; nothing where there is none, or where another one is named."""
    record = ClusterRecord.read(home.spark_record)
    if "WEIR_SPARK_MASTER" in os.environ or record is None or not record.is_alive():
        return {}
    return {"WEIR_SPARK_MASTER": record.address, "SPARK_CONF_DIR": str(_settings_folder(home)), "SPARK_LOCAL_IP": HOST}


def _launch_master(home: Home, last: ClusterRecord | None, say: Say) -> ClusterRecord:
    find_java()
    folder = _settings_folder(home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Whoever can submit a job can run anything: other users of this machine do not know the secret.
    write_whole(folder / "spark-defaults.conf", SETTINGS.format(secret=secrets.token_urlsafe(32), host=HOST))
    port = choose_port(last.port if last else None, None, "")
    while (pages_port := choose_port(last.pages_port if last and last.pages_port != port else None, None, "")) == port:
        pass
    say(f"starting Spark on {HOST}:{port}")
    command = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(pages_port)]
    identity = _launch(home, "spark-master", command)
    record = ClusterRecord(port=port, pages_port=pages_port, master=identity, workers=[], started_at=utc_now())
    record.write(home.spark_record)
    _await_workers(home, record, 0)
    return record


def _worker(home: Home, record: ClusterRecord) -> list[str]:
    room = ["--work-dir", str(home.spark / "work"), "--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY]
    return ["org.apache.spark.deploy.worker.Worker", "--host", HOST, "--webui-port", "0", *room, record.address]


def _launch(home: Home, name: str, command: list[str]) -> Identity:
    environment = os.environ | {
        "SPARK_CONF_DIR": str(_settings_folder(home)),
        "SPARK_LOCAL_IP": HOST,  # also where their pages listen
        "SPARK_DAEMON_MEMORY": "512m",
    }
    with open_log(home.log(name)) as log:
        process = subprocess.Popen(
            [str(pyspark_folder() / "bin" / "spark-class"), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Identity.of(process.pid)


def _await_workers(home: Home, record: ClusterRecord, wanted: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = [own for own in (record.master, *record.workers) if not own.is_alive()]
        if ended:
            raise Refusal(f"Spark's master or a worker ended while starting; logs: {home.log('spark-master').parent}")
        told = _ask_master(record)
        if told and told["aliveworkers"] >= wanted:
            return
        time.sleep(0.3)
    raise Refusal(f"Spark has no {wanted} workers after {START_SECONDS} s; logs: {home.log('spark-master').parent}")


def _ask_master(record: ClusterRecord) -> dict[str, Any]:
    try:
        with build_opener(ProxyHandler({})).open(f"http://{HOST}:{record.pages_port}/json/", timeout=5) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return {}


def _settings_folder(home: Home) -> Path:
    return home.spark / "conf"

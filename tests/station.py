"""A Workplace with an Airflow of its own: real scheduler, triggerer, DAG processor and API server; a reduced shop with short shifts."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from harness import Workplace, wait_for

from weir import embedded_airflow
from weir.embedded_airflow import AirflowApi, PartsRecord
from weir.layout import MICROBATCH, NIGHTLY, SHIFT_TASK, STREAM, dag_id
from weir.loader import load_named, read_yaml
from weir.records.driver import Heartbeat, Lease

SHIFTS, REFINES, NIGHTS = dag_id("shop", STREAM), dag_id("shop", MICROBATCH), dag_id("shop", NIGHTLY)
MAY_TAKE_SECONDS = 240
"""A driver starts in half a minute on an idle machine."""


class Station(Workplace):
    def __init__(self, folder: Path, shift: str = "15 seconds") -> None:
        super().__init__(folder, ("orders",))
        self.declare(schedule={"shift": shift, "owner": "shop-team"})
        self.pipeline = load_named(self.home.pipelines, "shop")
        embedded_airflow.start_airflow(self.home)
        self.api = AirflowApi(self.home)
        wait_for(lambda: SHIFTS in self.dags(), MAY_TAKE_SECONDS, "the DAGs are there")

    def declare(self, **given: Any) -> None:
        """Change the declaration, as its author would."""
        file = self.home.pipelines / "shop" / "pipeline.yaml"
        declared, _ = read_yaml(file)
        file.write_text(yaml.safe_dump(declared | given, sort_keys=False))

    def close(self) -> None:
        embedded_airflow.stop_airflow(self.home)
        if (lease := self.control.lease()) and lease.holder.is_alive() and lease.holder.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(lease.holder.pid), signal.SIGKILL)
        super().close()

    # Seeing

    def dags(self) -> dict[str, dict[str, Any]]:
        return {dag["dag_id"]: dag for dag in self.api.call("GET", "dags?limit=100")["dags"]}

    def is_paused(self, dag: str = SHIFTS) -> bool:
        return bool(self.api.call("GET", f"dags/{dag}")["is_paused"])

    def runs(self, dag: str = SHIFTS) -> list[dict[str, Any]]:
        """The last hundred first to last."""
        return self.api.runs(dag)

    def shift_state(self) -> str | None:
        runs = self.runs()
        return self.api.tasks(SHIFTS, runs[-1]["dag_run_id"])[SHIFT_TASK] if runs else None

    def shift_log(self, run: str) -> str:
        """What all tries of a shift have said: read from the files, because the API forgets tries that were killed."""
        folder = self.home.airflow / "logs" / f"dag_id={SHIFTS}" / f"run_id={run}" / f"task_id={SHIFT_TASK}"
        return "\n".join(file.read_text() for file in sorted(folder.glob("*.log*")))

    def logs(self) -> str:
        """What all shifts have said."""
        return "\n".join(self.shift_log(run["dag_run_id"]) for run in self.runs())

    def driver(self) -> Lease:
        """Who holds the lease, alive and running."""
        lease, beat = self.control.lease(), self.control.heartbeat()
        assert lease and beat and beat.generation == lease.generation and beat.state == "running" and lease.holder.is_alive()
        return lease

    def drivers(self) -> int:
        """How many driver processes of this lake there are."""
        import psutil

        found = 0
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            found += self.home.lake.root in words and any("stream_job" in word for word in words) and "python" in Path(words[0]).name
        return found

    # Waiting

    def await_driver(self, generation: int) -> Lease:
        def runs() -> bool:
            beat = self.control.heartbeat()
            return beat is not None and beat.generation >= generation and beat.state == "running"

        wait_for(runs, MAY_TAKE_SECONDS, f"a driver of generation {generation} runs")
        return self.driver()

    def await_shifts(self, more: int = 1) -> None:
        """Until so many more shifts have ended than now."""
        ended = sum(run["state"] == "success" for run in self.runs())
        wait_for(lambda: sum(r["state"] == "success" for r in self.runs()) >= ended + more, MAY_TAKE_SECONDS, f"{more} more shifts")

    def await_shift(self, state: str) -> str:
        """Until the last shift is in this state; its run."""
        wait_for(lambda: self.shift_state() == state, MAY_TAKE_SECONDS, f"a shift that is {state}")
        return str(self.runs()[-1]["dag_run_id"])

    def await_fresh_shift(self, with_trigger: bool = False) -> str:
        """Until a new shift waits, with most of its time before it; its run. With its trigger running, it hears what a person does."""
        before = self.runs()[-1]["dag_run_id"]
        wait_for(lambda: self.runs()[-1]["dag_run_id"] != before and self.shift_state() == "deferred", MAY_TAKE_SECONDS, "a new shift")
        run = str(self.runs()[-1]["dag_run_id"])
        wait_for(lambda: not with_trigger or "is running; archive" in self.shift_log(run), MAY_TAKE_SECONDS, "its trigger runs")
        return run

    def await_pool(self, running: int, deferred: int) -> None:
        """Until so many tasks hold a slot and so many wait without one; a shift that held a slot while it waits would never show this."""

        def holds() -> bool:
            pool = self.api.call("GET", "pools/default_pool")
            return bool((pool["running_slots"], pool["deferred_slots"]) == (running, deferred))

        wait_for(holds, MAY_TAKE_SECONDS, f"{running} slots are held, {deferred} tasks wait")

    def await_stopped(self) -> None:
        wait_for(lambda: (beat := self.control.heartbeat()) and beat.state == "stopped", MAY_TAKE_SECONDS, "the driver has stopped")

    def await_caught_up(self, messages: int) -> None:
        """Until the archive and the view have read so many messages."""

        def read() -> bool:
            beat: Heartbeat | None = self.control.heartbeat()
            return beat is not None and len(beat.queries) == 3 and all(sum(q.until.values()) >= messages for q in beat.queries.values())

        wait_for(read, MAY_TAKE_SECONDS, f"{messages} messages were read")

    def await_run(self, dag: str, run: str) -> dict[str, str | None]:
        """Until a run has ended; the states of its tasks."""
        wait_for(lambda: self.api.run_state(dag, run) in ("success", "failed"), 3 * MAY_TAKE_SECONDS, f"{dag} {run} ends")
        return self.api.tasks(dag, run)

    # Acting

    def kill_part(self, name: str, number: int = signal.SIGKILL) -> None:
        parts = PartsRecord.read(self.home.airflow_parts)
        assert parts
        os.killpg(parts.parts[name].pid, number)

    def await_health(self) -> None:
        wait_for(lambda: embedded_airflow.airflow_state(self.home).healthy, MAY_TAKE_SECONDS, "Airflow is healthy")
        self.api = AirflowApi(self.home)

    def mark_shift(self, run: str, state: str) -> None:
        self.api.call("PATCH", f"dags/{SHIFTS}/dagRuns/{run}/taskInstances/{SHIFT_TASK}", {"new_state": state})

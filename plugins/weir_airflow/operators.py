"""What Weir's DAGs are made of: a shift over a stream's driver, a Spark job with an outcome, the gate that turns red."""

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, BaseOperatorLink, Connection, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from weir.event_time import utc_now
from weir.faults import fault_point
from weir.jobs import job_arguments, make_room_for_log, stop_or_kill
from weir.layout import NIGHTLY, QUARANTINE, SHIFT_TASK, SPARK_CONNECTION, Home, dag_id, job_script
from weir.quarantine import QuarantineAct
from weir.records.driver import Control, DriverEnd, Identity, Launch
from weir.records.jobs import Outcome
from weir.refusal import Refusal
from weir.supervision import Act, Policy, decide, observe
from weir_airflow.triggers import HeartbeatTrigger

TRIES = "weir_try"
WAIT = ["--wait-seconds", "600"]
"""A micro-batch and an act on what it has set aside take turns: neither is red because the other runs."""
TOLD = "weir_told"
"""What a quarantine run says to its page."""
STOP_SECONDS = 120
"""A driver looks for a batch border for a minute by itself."""


class ReportLink(BaseOperatorLink):
    """From a task to the report of what it judged."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        pipeline = getattr(operator, "pipeline", "")
        if operator.dag_id == dag_id(pipeline, QUARANTINE):
            return f"/weir/quarantine/{pipeline}/runs/{quote(ti_key.run_id, safe='')}" if ti_key else f"/weir/quarantine/{pipeline}"
        site = "reconciliation" if operator.dag_id == dag_id(pipeline, NIGHTLY) else "quality"
        return f"/weir/{site}/{pipeline}"


class StreamLink(BaseOperatorLink):
    """From a shift to the live page of the stream that it looks after."""

    name = "Stream"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return f"/weir/streams/{getattr(operator, 'pipeline', '')}"


class SparkUiLink(BaseOperatorLink):
    """From a shift to Spark's own pages of its driver, where they are switched on."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        assert isinstance(operator, StreamShift)
        beat = operator._control.heartbeat()
        return (beat and beat.spark_ui) or ""


class StreamShift(BaseOperator):
    """Starts the pipeline's driver or adopts the one that runs, and looks after it without a slot; at its end it hands it over alive.

    Known hole: between starting spark-submit and the driver's lease a worker may die. The next try may then start a second one; the
    lease refuses it before it has written anything, and the first is adopted.
    """

    ui_color = "#d5eef2"
    operator_extra_links = (SparkUiLink(), StreamLink())

    def __init__(self, *, pipeline: str, shift_seconds: float, connection: str = SPARK_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline, self.shift_seconds, self.connection = pipeline, shift_seconds, connection

    def execute(self, context: Context) -> None:
        context["ti"].xcom_push(key=TRIES, value=context["ti"].try_number)
        self._look_after(context, utc_now() + timedelta(seconds=self.shift_seconds))

    def resume(self, context: Context, event: dict[str, Any], shift_ends_at: str) -> dict[str, Any] | None:
        ends_at = datetime.fromisoformat(shift_ends_at)
        self.log.info(event["what"])
        if event["what"] == "the shift is over":
            seen = observe(self._control)
            assert seen.lease is not None
            self.log.info("handed over alive: process %s, generation %s", seen.lease.holder.pid, seen.lease.generation)
            return {"generation": seen.lease.generation, "pid": seen.lease.holder.pid, "host": seen.lease.holder.host}
        self._look_after(context, ends_at)
        return None

    @property
    def _control(self) -> Control:
        return Control(Home.from_environment().lake.control(self.pipeline))

    def _look_after(self, context: Context, ends_at: datetime) -> None:
        control = self._control
        seen = observe(control)
        decided = decide(seen, Policy(), utc_now())
        self.log.info("%s: %s", decided.act.value, decided.reason)
        if decided.ended:
            control.note_end(decided.ended)
        if decided.act == Act.GIVE_UP:
            control.note_giving_up()
            raise AirflowFailException(decided.reason)
        if decided.act in (Act.START, Act.RESTART):
            if decided.wait_seconds > 0:
                self.log.info("starting it again in %.0f s", decided.wait_seconds)
                self._defer(context, ends_at, utc_now() + timedelta(seconds=decided.wait_seconds))
            try:
                launched = launch_driver(self.pipeline, self.connection, control)
            except Refusal as refusal:  # an end like any other: waited for, or given up
                control.note_end(DriverEnd(nonce=secrets.token_hex(8), ended_at=utc_now(), lived_seconds=0, error=str(refusal)))
                return self._look_after(context, ends_at)
            self.log.info("started process %s; its log: %s", launched.identity.pid, launched.log)
            _remember(context, {"nonce": launched.nonce, "pid": launched.identity.pid, "host": launched.identity.host})
        elif seen.lease:
            holder = seen.lease.holder
            _remember(context, {"nonce": holder.nonce, "pid": holder.pid, "host": holder.host, "generation": seen.lease.generation})
        return self._defer(context, ends_at, None)

    def _defer(self, context: Context, ends_at: datetime, wake_at: datetime | None) -> None:
        ti = context["ti"]
        told = ends_at.isoformat()
        trigger = HeartbeatTrigger(
            pipeline=self.pipeline,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            shift_ends_at=told,
            wake_at=wake_at.isoformat() if wake_at else None,
        )
        self.defer(trigger=trigger, method_name="resume", kwargs={"shift_ends_at": told})


class Relief(BaseOperator):
    """Runs when a shift has failed, and makes the driver's state what a person expects of that.

    A shift that a person marked failed while its trigger was not running yet has told nobody: here its driver is stopped. One that
    failed by itself, again and again, is Airflow's trouble: the stream goes on, and this says that nobody looks after it.
    """

    def __init__(self, *, pipeline: str, tries: int, **kwargs: Any) -> None:
        super().__init__(trigger_rule="one_failed", **kwargs)
        self.pipeline, self.tries = pipeline, tries

    def execute(self, context: Context) -> None:
        home = Home.from_environment()
        if (context["ti"].xcom_pull(task_ids=SHIFT_TASK, key=TRIES) or 0) > self.tries:
            raise AirflowFailException("the shift failed by itself too often: the driver is left as it is, and nobody looks after it")
        ended = stop_or_kill(home, self.pipeline, "its task was marked failed in Airflow", STOP_SECONDS)
        raise AirflowFailException(f"the shift has failed; {ended}; unpause the DAG to start it again")


def _remember(context: Context, identity: dict[str, Any]) -> None:
    """Put the driver's identity where the task's page shows it and every try finds it. The lease stays the one truth."""
    context["task_state_store"].set("driver", identity)


def launch_driver(pipeline: str, connection: str, control: Control) -> Launch:
    """Start spark-submit in a session of its own: what ends the task does not end it."""
    home, nonce = Home.from_environment(), secrets.token_hex(8)
    name = f"{pipeline}-stream_job-{utc_now():%Y%m%dT%H%M%S}-{nonce[:4]}"
    outcome, log = home.lake.outcome(pipeline, name), home.log(name)
    arguments = job_arguments(home, pipeline, _brokers(home), outcome, ["--launch", nonce])
    hook = SparkSubmitHook(
        conn_id=_checked(connection), name=name, jars=_jars(), conf=_python(), driver_memory=_memory(), application_args=arguments
    )
    command = hook._build_spark_submit_command(str(job_script("stream_job")))
    make_room_for_log(log, f"{pipeline}-stream_job")
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=os.environ | (hook._env or {})
            )
    except FileNotFoundError:
        raise Refusal(f"{command[0]} is not on the PATH of this worker: install PySpark or Spark there") from None
    fault_point("after_submit_before_store", 0)
    launch = Launch(nonce=nonce, identity=Identity.of(process.pid), log=str(log), outcome=str(outcome), launched_at=utc_now())
    control.note_launch(launch)
    return launch


class SparkJob(SparkSubmitOperator):
    """One of Weir's batch jobs as an ordinary Spark task. A gate that blocked is no failure of the job: the task behind it says so."""

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "options")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, pipeline: str, module: str, options: list[str] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("conn_id", SPARK_CONNECTION)
        super().__init__(application=str(job_script(module)), name=f"weir-{pipeline}-{module}", **kwargs)
        self.pipeline, self.options = pipeline, options or []

    def execute(self, context: Context) -> Any:  # the provider's tells nothing
        return self._told(self.run_job(context))

    def run_job(self, context: Context) -> Outcome:
        """Run it to its end, and give what it left behind."""
        home = Home.from_environment()
        outcome_file = home.lake.outcome(self.pipeline, f"{self.task_id}-{context['ti'].id}")
        outcome_file.unlink(missing_ok=True)
        try:
            _checked(self._conn_id)
            self.application_args = job_arguments(home, self.pipeline, _known_brokers(home), outcome_file, self.options)
            self.jars, self.conf, self._driver_memory = _jars(), _python(), _memory()
        except Refusal as refusal:
            raise AirflowFailException(str(refusal)) from None
        try:
            super().execute(context)
        except FileNotFoundError:
            raise AirflowFailException("spark-submit is not on the PATH of this worker: install PySpark or Spark there") from None
        except AirflowException as error:
            if Outcome.read(outcome_file) is None:
                raise AirflowException(f"the job ended without a word; see above. {str(error).splitlines()[-1]}") from None
        try:
            return Outcome.read(outcome_file) or Outcome()
        finally:
            outcome_file.unlink(missing_ok=True)

    def _told(self, outcome: Outcome) -> dict[str, Any]:
        """What the gate has to know; raises what ended the job before there was anything to judge."""
        blocked: list[str] = []
        if outcome.refined:
            for gate in outcome.refined.streams:
                blocked += [f"{gate.stream}: {reason}" for reason in gate.reasons if gate.decision == "BLOCK"]
        if outcome.report:
            for view in outcome.report.views:
                blocked += [f"{view.view}: {reason}" for reason in view.gate if view.decision == "BLOCK"]
            if outcome.failure and not blocked:  # of a dirty day that the night has recomputed beside its own
                blocked = [outcome.failure]
        if outcome.refusal:
            raise AirflowFailException(outcome.refusal)
        if outcome.failure and not blocked:
            raise AirflowException(outcome.failure)
        return {"blocked": blocked}


class QuarantineJob(SparkJob):
    """Previews, replays or discards quarantined rows as the run's configuration asks.

    That comes from anybody who may start runs: Airflow has checked it by the parameters' schema, and here it is checked again, as a
    whole, before each value becomes one element of the job's arguments. What came of it, or why not, stays as XCom for its page.
    Not tried again: a person waits for it, and sees what was done.
    """

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, module="quarantine_job", retries=0, **kwargs)

    def execute(self, context: Context) -> None:
        told: dict[str, Any] = {}
        try:
            self.options = [*QuarantineAct.of(context["params"]).job_options(), *WAIT]
            outcome = self.run_job(context)
            if outcome.replayed:
                told["replayed"] = outcome.replayed.model_dump(mode="json")
            if trouble := outcome.refusal or outcome.failure:
                raise Refusal(trouble)
            if not outcome.replayed:
                told["discarded"] = int(outcome.lines[0])
        except (Refusal, AirflowException) as error:
            told["trouble"] = str(error).splitlines()[0]
            raise AirflowFailException(told["trouble"]) from None
        finally:
            context["ti"].xcom_push(key=TOLD, value=told)


class Gate(BaseOperator):
    """Green when the job's gates let everything pass; else red, with each reason and where the report is."""

    ui_color = "#f2e6d5"
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, pipeline: str, of: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline, self.of = pipeline, of

    def execute(self, context: Context) -> None:
        told = context["ti"].xcom_pull(task_ids=self.of) or {"blocked": [f"{self.of} told nothing"]}
        if told["blocked"]:
            raise AirflowFailException(f"blocked: {'; '.join(told['blocked'])}. Report: {ReportLink().get_link(self, ti_key=None)}")
        self.log.info("passed")


class BrokenDeclaration(BaseOperator):
    """Stands where a task of a declaration that cannot be loaded stood, and says why."""

    def __init__(self, *, line: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.line = line

    def execute(self, context: Context) -> None:
        raise AirflowFailException(self.line)

    def resume(self, context: Context, event: dict[str, Any], **_: Any) -> None:
        raise AirflowFailException(self.line)


def _checked(connection: str) -> str:
    """The Spark hook would take YARN for a connection that is not there."""
    try:
        found = Connection.get(connection)
    except (AirflowException, AirflowRuntimeError):
        raise Refusal(
            f"there is no connection '{connection}': add it with `airflow connections add {connection} --conn-type spark …`"
        ) from None
    if not found.host:
        raise Refusal(f"connection '{connection}' names no master: set its host, for example local[*] or spark://host:7077")
    return connection


def _brokers(home: Home) -> str:
    from weir.stack import bootstrap

    return bootstrap(home)


def _known_brokers(home: Home) -> str:
    from weir.stack import running_bootstrap

    return running_bootstrap(home)


def _jars() -> str:
    from weir.jars import spark_jars

    return ",".join(str(jar) for jar in spark_jars())


def _python() -> dict[str, str]:
    """Spark would start whatever python3 is on the PATH, which may know none of our packages."""
    return {"spark.pyspark.python": sys.executable}


def _memory() -> str:
    return os.environ.get("WEIR_DRIVER_MEMORY", "2g")

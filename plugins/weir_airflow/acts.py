"""What people do about pipelines from the pages and over REST. Each is a record or a DAG run: Airflow shows all that happens."""

import secrets
from collections.abc import Callable
from datetime import date
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType

from weir.event_time import utc_now
from weir.layout import NIGHTLY, STREAM, Home, dag_id
from weir.pipeline import Pipeline
from weir.records.driver import Control
from weir.refusal import Refusal
from weir.settlements import accept_cells


def start_stream(home: Home, pipeline: str, who: str) -> str:
    """Switch the stream DAG on: its next shift starts the driver, or adopts the one that runs."""
    _set_paused(dag_id(pipeline, STREAM), False)
    return f"{dag_id(pipeline, STREAM)} is on: its shift starts the driver within seconds"


def stop_stream(home: Home, pipeline: str, who: str) -> str:
    """Ask the driver to stop at a batch border. The shift that looks after it ends with that, and Airflow switches the DAG off."""
    _request_stop(home, pipeline, f"stopped by {who} on its page", hold=True)
    return "the driver stops at the next batch border; its shift ends, and its DAG is switched off"


def restart_stream(home: Home, pipeline: str, who: str) -> str:
    """Ask the driver to stop; the shift that looks after it starts it again."""
    _request_stop(home, pipeline, f"restarted by {who} on its page", hold=False)
    _set_paused(dag_id(pipeline, STREAM), False)
    return "the driver stops at the next batch border, and its shift starts it again"


STREAM_ACTS: dict[str, Callable[[Home, str, str], str]] = {"start": start_stream, "stop": stop_stream, "restart": restart_stream}


def is_paused(dag: str) -> bool | None:
    """Whether the DAG is off; None where Airflow does not know it yet, or can no longer import it."""
    with create_session() as session:
        found = session.get(DagModel, dag)
        return found.is_paused if found and not found.is_stale else None


def _set_paused(dag: str, paused: bool) -> None:
    with create_session() as session:
        found = session.get(DagModel, dag)
        if found is None:
            raise Refusal(f"Airflow does not know {dag} yet: wait until its DAG processor has read it")
        found.is_paused = paused


def _request_stop(home: Home, pipeline: str, reason: str, hold: bool) -> None:
    control = Control(home.lake.control(pipeline))
    lease, beat = control.lease(), control.heartbeat()
    if lease is None or beat is None or not beat.is_of_a_runner:
        raise Refusal(f"{pipeline} has no running driver")
    control.request_stop(lease.generation, reason, hold)


def start_run(dag: str, who: str, settings: dict[str, Any]) -> str:
    """Start a run of a DAG; its id. The settings are values: the task checks each before it uses it."""
    if (paused := is_paused(dag)) is None:
        raise Refusal(f"Airflow does not know {dag} now: wait until its DAG processor has read it, or look at its import errors")
    if paused:
        raise Refusal(f"{dag} is off: switch it on in Airflow, then try again")
    run_id = f"page__{utc_now():%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"
    try:
        run = trigger_dag(dag, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=who, run_id=run_id, conf=settings)
    except ValueError as error:  # the DAG as Airflow knows it may be older than the declaration
        raise Refusal(f"Airflow did not start {dag}: {str(error).splitlines()[0]}") from None
    if run is None:
        raise Refusal(f"Airflow did not start {dag}")
    return run_id


def accept(home: Home, declared: Pipeline, view: str, day: date, reason: str, who: str) -> str:
    """Accept what is unexplained of a day, and start the night that settles it. Where its DAG is off, the next one will."""
    cells = accept_cells(home.lake, declared, view, day, reason, who)
    them, words = ("it", "cell is") if cells == 1 else ("them", "cells are")
    told = f"{cells:,} unexplained {words} accepted in {view}"
    try:
        return f"{told}; {dag_id(declared.name, NIGHTLY)} settles {day} as {start_night(declared.name, day, who)}"
    except Refusal as refusal:
        return f"{told}; the next night of {day} settles {them} ({refusal})"


def start_night(pipeline: str, day: date, who: str) -> str:
    """Start the night of one day; its run."""
    return start_run(dag_id(pipeline, NIGHTLY), who, {"day": str(day)})

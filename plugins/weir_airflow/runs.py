"""What became of a DAG's runs, from Airflow's own tables. A run is only ever found by its DAG and its id together."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from pydantic import ValidationError
from sqlalchemy import select

from weir.layout import QUARANTINE, QUARANTINE_TASK, dag_id
from weir.quarantine import QuarantineAct
from weir.records.quality import ReplayReport
from weir.refusal import Refusal
from weir_airflow.operators import TOLD


@dataclass(frozen=True)
class QuarantineRun:
    """One run of a pipeline's quarantine DAG: what was asked for, how it stands, what came of it."""

    run_id: str
    state: str
    """Airflow's own word: queued, running, success, failed."""
    asked: QuarantineAct | None
    """None where the configuration makes no sense; the run then says so itself."""
    who: str | None
    asked_at: datetime
    ended_at: datetime | None
    replayed: ReplayReport | None
    """What a replay would change, or has changed."""
    discarded: int | None
    trouble: str | None

    @property
    def has_ended(self) -> bool:
        return self.state in ("success", "failed")

    @property
    def may_be_replayed(self) -> bool:
        """Whether it is a preview of something that a replay would change."""
        is_preview = self.asked is not None and self.asked.act == "preview" and self.state == "success"
        return is_preview and self.replayed is not None and self.replayed.released + self.replayed.duplicates > 0


def last_quarantine_runs(pipeline: str, most: int) -> list[QuarantineRun]:
    """The last runs, the newest first."""
    return _read(pipeline, select(DagRun).where(DagRun.dag_id == dag_id(pipeline, QUARANTINE)).order_by(DagRun.id.desc()).limit(most))


def quarantine_run(pipeline: str, run_id: str) -> QuarantineRun | None:
    """The run of this very pipeline with this id; None where there is none, whatever other DAGs have."""
    found = _read(pipeline, select(DagRun).where(DagRun.dag_id == dag_id(pipeline, QUARANTINE), DagRun.run_id == run_id).limit(1))
    return found[0] if found else None


def _read(pipeline: str, query: Any) -> list[QuarantineRun]:
    with create_session() as session:
        runs: Sequence[DagRun] = session.scalars(query).all()
        own = (XComModel.dag_id == dag_id(pipeline, QUARANTINE), XComModel.task_id == QUARANTINE_TASK, XComModel.key == TOLD)
        told = session.scalars(select(XComModel).where(*own, XComModel.run_id.in_([run.run_id for run in runs]))).all()
        by_run = {own.run_id: XComModel.deserialize_value(own) for own in told}
        return [_overview(run, by_run.get(run.run_id)) for run in runs]


def _overview(run: DagRun, told: Any) -> QuarantineRun:
    told = told if isinstance(told, dict) else {}
    try:
        asked = QuarantineAct.of({"act": "preview"} | (run.conf if isinstance(run.conf, dict) else {}))
    except Refusal:
        asked = None
    try:
        replayed = ReplayReport.model_validate(told["replayed"]) if "replayed" in told else None
    except ValidationError:  # of another version
        replayed = None
    return QuarantineRun(
        run_id=run.run_id,
        state=str(run.state),
        asked=asked,
        who=run.triggering_user_name,
        asked_at=run.queued_at or run.run_after,
        ended_at=run.end_date,
        replayed=replayed,
        discarded=told.get("discarded"),
        trouble=told.get("trouble"),
    )

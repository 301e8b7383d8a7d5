"""Declarations → DAGs. Runs in the DAG processor every few seconds: it imports no engine and reads nothing but declarations.

A declaration that cannot be loaded keeps its DAGs, so that their history stays: each says the line and fails with it. The others go on.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from weir.layout import (
    HOUSEKEEPING_DAG,
    MICROBATCH,
    NIGHTLY,
    QUARANTINE,
    QUARANTINE_TASK,
    RELIEF_TASK,
    SHIFT_TASK,
    STREAM,
    Home,
    accepted_asset,
    dag_id,
    view_asset,
)
from weir.loader import declared_folders, load_pipeline
from weir.pipeline import Pipeline, View
from weir.quarantine import MOST_NOTE_CHARACTERS, NOTE, RULE
from weir.refusal import Refusal
from weir.wording import pattern_words
from weir_airflow.alerts import TellConnections, tell_of_late_night
from weir_airflow.operators import WAIT, BrokenDeclaration, Gate, QuarantineJob, Relief, SparkJob, StreamShift

BEFORE_ALL_DAYS = datetime(2020, 1, 1, tzinfo=UTC)
"""Days before a pipeline's start can be backfilled too."""

TAGS = ["weir"]
SHIFT_RETRIES = 10
PATIENT: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
}
"""A worker that dies, a broker that is away: tried again. What a person has to change fails at once."""


def build_all(home: Home) -> dict[str, DAG]:
    """All DAGs by id."""
    dags: list[DAG] = []
    pipelines: list[str] = []
    for folder in declared_folders(home.pipelines):
        try:
            dags += build_dags(load_pipeline(folder))
            pipelines.append(folder.name)
        except Refusal as refusal:
            dags += [_broken(folder, part, str(refusal)) for part in (STREAM, MICROBATCH, NIGHTLY, QUARANTINE)]
    if pipelines:
        dags.append(_housekeeping(pipelines))
    return {dag.dag_id: dag for dag in dags}


def build_dags(pipeline: Pipeline) -> list[DAG]:
    return [_stream(pipeline), _microbatch(pipeline), _nightly(pipeline), _quarantine(pipeline)]


def _stream(pipeline: Pipeline) -> DAG:
    """One run is one shift; the next begins at once. A failed one pauses the DAG: what failed needs a person."""
    told = _common(pipeline, STREAM, "looks after the driver of the speed layer, one shift after the other")
    with DAG(schedule="@continuous", max_active_runs=1, max_consecutive_failed_dag_runs=1, **told) as dag:
        # A worker that dies is no reason to give the stream up: it is adopted by the next try, soon.
        patient: dict[str, Any] = {"retries": SHIFT_RETRIES, "retry_delay": timedelta(seconds=5)}
        seconds = pipeline.schedule.shift.total_seconds()
        shift = StreamShift(task_id=SHIFT_TASK, pipeline=pipeline.name, shift_seconds=seconds, **patient)
        shift >> Relief(task_id=RELIEF_TASK, pipeline=pipeline.name, tries=SHIFT_RETRIES)
    return dag


def _microbatch(pipeline: Pipeline) -> DAG:
    """Validates and publishes what was archived since the last run."""
    told = _common(pipeline, MICROBATCH, "validates what was archived and publishes it: accepted rows, and those set aside")
    assets = [Asset(name=f"{pipeline.name}.{source}", uri=accepted_asset(pipeline.name, source)) for source in pipeline.sources]
    with DAG(schedule=pipeline.schedule.microbatch, max_active_runs=1, **told) as dag:
        refine = SparkJob(task_id="refine", pipeline=pipeline.name, module="refine_job", options=[*WAIT], **PATIENT)
        refine >> Gate(task_id="gate", pipeline=pipeline.name, of=refine.task_id, outlets=assets)
    return dag


def _nightly(pipeline: Pipeline) -> DAG:
    """Recomputes the day that its data interval begins on; one day at a time, so that a backfill goes in order."""
    told = _common(pipeline, NIGHTLY, "recomputes a day from the archive and compares it with what was streamed")
    schedule, assets = pipeline.schedule, []
    for view in pipeline.views:
        assets.append(Asset(name=f"{pipeline.name}.{view}", uri=view_asset(pipeline.name, view)))
    hour, minute = schedule.nightly_at.split(":")
    told["start_date"] = datetime.combine(schedule.since, datetime.min.time(), UTC) if schedule.since else BEFORE_ALL_DAYS
    late = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=schedule.nightly_within,
        callback=AsyncCallback(tell_of_late_night, {"pipeline": pipeline.name, "connections": schedule.notify}),
    )
    table = CronDataIntervalTimetable(f"{int(minute)} {int(hour)} * * *", timezone="UTC")
    told["catchup"] = schedule.since is not None
    asked = {"day": Param(None, type=["null", "string"], format="date", description="another day than the one of the schedule")}
    with DAG(schedule=table, max_active_runs=1, deadline=late, params=asked, **told) as dag:
        options = ["--day", "{{ params.day or (data_interval_start | ds) }}"]
        # A backfill's runs do not count among the DAG's active ones: the task itself has to wait for the night that runs.
        alone: dict[str, Any] = {"max_active_tis_per_dag": 1}
        recompute = SparkJob(task_id="recompute", pipeline=pipeline.name, module="nightly_job", options=options, **alone, **PATIENT)
        recompute >> Gate(task_id="gate", pipeline=pipeline.name, of=recompute.task_id, outlets=assets)
    return dag


def _quarantine(pipeline: Pipeline) -> DAG:
    """Does nothing by itself, so it is on from the start: a person's act, on its page or here, is one run."""
    told = _common(pipeline, QUARANTINE, "previews a replay of quarantined rows, replays or discards them, when somebody asks")
    day: dict[str, Any] = {"type": ["null", "string"], "format": "date"}
    asked = {
        "act": Param("preview", type="string", enum=["preview", "replay", "discard"], description="a preview changes nothing"),
        "stream": Param(type="string", enum=list(pipeline.sources), description="the stream or table whose rows are meant"),
        "rule": Param(None, type=["null", "string"], pattern=_whole(RULE), description="only rows with this reason: amount:be_between"),
        "since": Param(None, **day, description="the first day of arrival (UTC)"),
        "until": Param(None, **day, description="the last day of arrival (UTC)"),
        "note": Param(
            None,
            type=["null", "string"],
            maxLength=MOST_NOTE_CHARACTERS,
            pattern=_whole(NOTE),
            description="why; who discards rows has to say it",
        ),
    }
    with DAG(schedule=None, max_active_runs=1, params=asked, is_paused_upon_creation=False, **told) as dag:
        QuarantineJob(task_id=QUARANTINE_TASK, pipeline=pipeline.name)
    return dag


def _whole(pattern: str) -> str:
    """Nothing before and behind: Python's own `$` would let a last line break pass."""
    return rf"^{pattern}$(?!\n)"


def _housekeeping(pipelines: list[str]) -> DAG:
    """Keeps the tables small: one task for each pipeline, one after the other."""
    with DAG(
        HOUSEKEEPING_DAG,
        schedule="30 4 * * *",
        description="compacts tables, keeps to the retention, warns of quarantined rows that expire",
        start_date=BEFORE_ALL_DAYS,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=1,
        tags=TAGS,
    ) as dag:
        for pipeline in pipelines:
            SparkJob(task_id=pipeline, pipeline=pipeline, module="housekeeping_job", **PATIENT)
    return dag


def _broken(folder: Path, part: str, line: str) -> DAG:
    tasks = {
        STREAM: [SHIFT_TASK, RELIEF_TASK],
        MICROBATCH: ["refine", "gate"],
        NIGHTLY: ["recompute", "gate"],
        QUARANTINE: [QUARANTINE_TASK],
    }
    first_line = line.splitlines()[0]
    with DAG(
        dag_id(folder.name, part),
        schedule=None,
        description=f"the declaration cannot be loaded: {first_line}",
        doc_md=f"The declaration cannot be loaded:\n\n```\n{line}\n```\n\nThe DAG comes back as soon as it can.",
        start_date=BEFORE_ALL_DAYS,
        tags=[*TAGS, folder.name, "broken"],
    ) as dag:
        for task in tasks[part]:
            BrokenDeclaration(task_id=task, line=line)
    return dag


def _common(pipeline: Pipeline, part: str, does: str) -> dict[str, Any]:
    connections = pipeline.schedule.notify
    return {
        "dag_id": dag_id(pipeline.name, part),
        "description": f"{pipeline.name}: {does}",
        "doc_md": describe(pipeline),
        "start_date": BEFORE_ALL_DAYS,
        "catchup": False,
        "tags": [*TAGS, pipeline.name],
        "default_args": {"owner": pipeline.schedule.owner},
        "on_failure_callback": [TellConnections(pipeline.name, connections)] if connections else None,
    }


def describe(pipeline: Pipeline) -> str:
    """The declaration for people, in Markdown."""
    schedule = pipeline.schedule
    lines = [f"# {pipeline.name}", "", "| stream | topic | identity | event time | waits | rules |", "|---|---|---|---|---|---|"]
    for name, stream in pipeline.streams.items():
        waits = f"{stream.lateness.total_seconds() / 60:g} min"
        told = (
            name,
            _code(stream.topics),
            stream.identity,
            stream.occurred_at,
            waits,
            str(len(stream.expectations)),
        )
        lines.append(f"| {' | '.join(told)} |")
    if pipeline.tables:
        lines += ["", "| table | topic | key | rules |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {_code(table.topics)} | {table.key} | {len(table.expectations)} |" for name, table in pipeline.tables.items()
        ]
    for name, view in pipeline.views.items():
        lines += ["", f"**{name}**, one cell for each {', '.join(view.grain)}:", "", *_how_computed(view)]
    every = f"{schedule.microbatch.total_seconds() / 60:g} minutes"
    lines += ["", f"Micro-batch every {every}; nightly at {schedule.nightly_at} UTC; owner {schedule.owner}."]
    return "\n".join(lines)


def _how_computed(view: View) -> list[str]:
    if view.pattern is None:
        return ["```sql", view.sql.strip(), "```"]
    whole, steps = pattern_words(view.pattern)
    return [whole, "", *(f"{number}. {step}" for number, step in enumerate(steps, 1))]


def _code(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)

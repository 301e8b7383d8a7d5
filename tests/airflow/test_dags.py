"""The DAGs that declarations become: what they are called, when they run, what they tell; and a declaration that is broken."""

import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from weir.layout import Home
from weir.loader import load_named
from weir.pipeline import Pipeline
from weir_airflow.dag_builder import build_all, build_dags, describe
from weir_airflow.operators import TOLD, Gate, ReportLink, SparkJob, StreamLink, StreamShift

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def shop() -> Pipeline:
    return load_named(ROOT / "pipelines", "shop")


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "pipelines" / "shop", tmp_path / "shop")
    monkeypatch.setenv("WEIR_PIPELINES", str(tmp_path))
    return tmp_path


def all_dags() -> dict[str, DAG]:
    return build_all(Home.from_environment())


def test_a_pipeline_becomes_four_dags_and_all_share_the_housekeeping(pipelines: Path) -> None:
    dags = all_dags()
    assert set(dags) == {"shop__stream", "shop__microbatch", "shop__nightly", "shop__quarantine", "weir__housekeeping"}
    assert {dag_id: sorted(dag.task_ids) for dag_id, dag in dags.items()} == {
        "shop__stream": ["relief", "shift"],
        "shop__microbatch": ["gate", "refine"],
        "shop__nightly": ["gate", "recompute"],
        "shop__quarantine": ["act"],
        "weir__housekeeping": ["shop"],
    }
    for dag_id in ("shop__stream", "shop__microbatch", "shop__nightly", "shop__quarantine"):
        assert {"weir", "shop"} <= set(dags[dag_id].tags) and "revenue_per_minute" in (dags[dag_id].doc_md or "")
        assert dags[dag_id].max_active_runs == 1
    assert dags["shop__nightly"].get_task("recompute").max_active_tis_per_dag == 1, "a backfill waits for the night that runs"


def test_the_schedule_is_the_declared_one(shop: Pipeline) -> None:
    given = {"microbatch": "15 minutes", "nightly_at": "03:30", "since": "2026-03-01", "owner": "ann", "shift": "1 hour", "notify": ["ops"]}
    told = shop.model_dump(mode="json", by_alias=True) | {"schedule": given}
    stream, microbatch, nightly, quarantine = build_dags(Pipeline.model_validate(told))
    shift, recompute = stream.get_task("shift"), nightly.get_task("recompute")
    assert isinstance(shift, StreamShift) and shift.shift_seconds == 3_600 and shift.owner == "ann"
    assert microbatch.schedule == timedelta(minutes=15)
    assert nightly.timetable.expression == "30 3 * * *" and nightly.catchup and str(nightly.start_date).startswith("2026-03-01")
    assert isinstance(recompute, SparkJob) and recompute.options == ["--day", "{{ params.day or (data_interval_start | ds) }}"]
    assert nightly.deadline and all(dag.on_failure_callback for dag in (stream, microbatch, nightly, quarantine))
    assert quarantine.schedule is None and quarantine.get_task("act").owner == "ann"
    assert stream.max_consecutive_failed_dag_runs == 1, "what failed needs a person: the next shift must not begin by itself"


def test_others_can_follow_what_is_published(shop: Pipeline) -> None:
    _, microbatch, nightly, _ = build_dags(shop)
    accepted = {asset.uri for asset in microbatch.get_task("gate").outlets}
    views = {asset.uri for asset in nightly.get_task("gate").outlets}
    assert accepted == {f"weir://shop/accepted/{source}" for source in shop.sources}
    assert views == {f"weir://shop/views/{view}" for view in shop.views}


def test_a_broken_declaration_says_its_line_and_the_others_go_on(pipelines: Path) -> None:
    shutil.copytree(pipelines / "shop", pipelines / "other")
    file = pipelines / "other" / "pipeline.yaml"
    file.write_text(file.read_text().replace("pipeline: shop", "pipeline: other").replace("lateness:", "latenes:", 1))
    dags = all_dags()
    assert {"shop__stream", "other__stream", "other__microbatch", "other__nightly", "other__quarantine"} <= set(dags)
    assert dags["other__quarantine"].task_ids == ["act"]
    broken = dags["other__stream"]
    assert "pipeline.yaml:9: unknown word 'latenes' in streams.orders (did you mean 'lateness'?)" in (broken.description or "")
    assert broken.schedule is None and "broken" in broken.tags and "latenes" in (broken.doc_md or "")
    task: Any = broken.get_task("shift")
    for act in (lambda: task.execute({}), lambda: task.resume({}, event={}, shift_ends_at="")):
        with pytest.raises(AirflowFailException, match=r"pipeline\.yaml:\d+: unknown word"):
            act()
    assert dags["weir__housekeeping"].task_ids == ["shop"]


def test_parsing_loads_no_engine(pipelines: Path) -> None:
    """It happens every half a minute, beside the scheduler."""
    program = "import sys, weir_pipelines; print([m for m in sys.modules if m.split('.')[0] in ENGINES])"
    engines = ("pyspark", "delta", "great_expectations", "deltalake", "duckdb", "pandas", "kafka", "spark_jobs", "quality")
    told = subprocess.run(
        [sys.executable, "-c", program.replace("ENGINES", repr(engines))],
        env={"PYTHONPATH": f"{ROOT}/plugins:{ROOT}/dags:{ROOT}", "WEIR_PIPELINES": str(pipelines), "AIRFLOW_HOME": str(pipelines / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines()[-1] == "[]"


def test_the_gate_is_red_with_every_reason(shop: Pipeline) -> None:
    class Ti:
        def __init__(self, told: Any) -> None:
            self.told = told

        def xcom_pull(self, task_ids: str) -> Any:
            assert task_ids == "refine"
            return self.told

    gate = build_dags(shop)[1].get_task("gate")
    assert isinstance(gate, Gate)
    gate.execute({"ti": Ti({"blocked": []})})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowFailException, match=r"orders: mean is 3; payments: 90 % rejected\. Report: /weir/quality/shop"):
        gate.execute({"ti": Ti({"blocked": ["orders: mean is 3", "payments: 90 % rejected"]})})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowFailException, match="refine told nothing"):
        gate.execute({"ti": Ti(None)})  # type: ignore[typeddict-item]


def test_the_docs_of_a_dag_are_the_declaration(shop: Pipeline) -> None:
    text = describe(shop)
    for word in (*shop.streams, *shop.tables, *shop.views, "shop.orders", "02:00 UTC", "every 5 minutes"):
        assert word in text


@pytest.mark.parametrize("module", ["refine_job", "nightly_job"])
def test_missing_jars_are_said_in_one_line(module: str, pipelines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_JARS", str(tmp_path / "none"))
    monkeypatch.setenv("WEIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[*]"}')
    job = SparkJob(task_id="job", pipeline="shop", module=module)
    with pytest.raises(AirflowFailException) as failed:
        job.execute({"ti": SimpleNamespace(id="1")})  # type: ignore[typeddict-item]
    assert str(failed.value) == f"the list of jars is not in {tmp_path / 'none'}: run `weir jars`"


def test_the_night_leads_to_its_own_pages(pipelines: Path) -> None:
    links = {task.task_id: ReportLink().get_link(task, ti_key=None) for task in all_dags()["shop__nightly"].tasks}
    assert set(links.values()) == {"/weir/reconciliation/shop"}
    shift = all_dags()["shop__stream"].get_task("shift")
    assert StreamLink().get_link(shift, ti_key=None) == "/weir/streams/shop"
    act = all_dags()["shop__quarantine"].get_task("act")
    assert ReportLink().get_link(act, ti_key=SimpleNamespace(run_id="manual__a+b/c")) == "/weir/quarantine/shop/runs/manual__a%2Bb%2Fc"
    assert ReportLink().get_link(all_dags()["shop__microbatch"].tasks[0], ti_key=None) == "/weir/quality/shop"


@pytest.fixture
def quarantine(shop: Pipeline) -> DAG:
    return build_dags(shop)[3]


def asked(dag: DAG, **settings: Any) -> dict[str, Any]:
    """The parameters of a run with this configuration, as its task gets them."""
    return process_params(dag, dag.get_task("act"), settings, suppress_exception=False)


def test_the_quarantine_is_on_from_the_start_and_does_nothing_by_itself(quarantine: DAG) -> None:
    assert quarantine.is_paused_upon_creation is False and quarantine.schedule is None
    given = {"act": "preview", "stream": "orders", "rule": None, "since": None, "until": None, "note": None}
    assert asked(quarantine, stream="orders") == given


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stream": "no_such"},
        {"stream": "orders", "act": "drop"},
        {"stream": ["orders"]},
        {"stream": "orders", "rule": "{{ params }}"},
        {"stream": "orders", "rule": "--apply"},
        {"stream": "orders", "rule": "a:b\n"},
        {"stream": "orders", "rule": "x" * 301},
        {"stream": "orders", "since": "yesterday"},
        {"stream": "orders", "until": "2026-03-01; id"},
        {"stream": "orders", "note": "x" * 501},
        {"stream": "orders", "note": "two\nlines"},
        {"stream": "orders", "note": {"a": 1}},
    ],
)
def test_a_run_with_hostile_settings_does_not_start(quarantine: DAG, settings: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        asked(quarantine, **settings)


class Listening:
    """A task instance that keeps what its task says."""

    id, run_id = "1", "page__1"

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.told[key] = value


@pytest.mark.parametrize(
    "settings", [{"act": "discard"}, {"rule": "a b"}, {"since": "2026-03-02", "until": "2026-03-01"}, {"stream": "../x"}]
)
def test_the_task_checks_again_and_says_what_is_wrong(quarantine: DAG, settings: dict[str, Any]) -> None:
    """Whoever starts it past the schema gets no further."""
    ti, task = Listening(), quarantine.get_task("act")
    context: Any = {"ti": ti, "params": {"act": "preview", "stream": "orders"} | settings}
    with pytest.raises(AirflowFailException) as failed:
        task.execute(context)
    assert ti.told == {TOLD: {"trouble": str(failed.value)}} and len(str(failed.value).splitlines()) == 1


def test_what_is_asked_is_rendered_by_no_template(quarantine: DAG) -> None:
    """Options are a template of the night; here they come into being after all templates were rendered."""
    task: Any = quarantine.get_task("act")
    assert task.options == [] and "{{" not in str({name: getattr(task, name, None) for name in task.template_fields})

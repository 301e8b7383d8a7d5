"""Preview, replay and discard through the task of the DAG, with spark-submit, on a small lake: what its page will show is what happened."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from events import order
from quarantined import aside, set_aside

from weir.layout import Home
from weir.loader import load_named
from weir.quarantine import QuarantineFilter, QuarantineSummary
from weir.serving import quarantine_groups

ROOT = Path(__file__).resolve().parent.parent.parent
FILTER = {"act": "preview", "stream": "orders", "rule": None, "since": None, "until": None, "note": None}
NOTE = "--apply $(touch gone) {{ params }} ' \" ;"


class Listening:
    """A task instance that keeps what its task says."""

    id, run_id = "1", "page__1"

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.told[key] = value


@pytest.mark.soak
def test_a_preview_changes_nothing_a_replay_what_it_said_and_a_discard_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    monkeypatch.setenv("WEIR_PIPELINES", str(tmp_path / "pipelines"))
    shutil.copytree(ROOT / "pipelines" / "shop", tmp_path / "pipelines" / "shop")
    from airflow.sdk.exceptions import AirflowFailException

    from weir_airflow.dag_builder import build_all
    from weir_airflow.operators import TOLD

    home = Home.from_environment()
    shop, lake = load_named(home.pipelines, "shop"), home.lake
    # Set aside by a rule that is no longer declared, and by one that still is.
    good = [aside(n, ["amount:be_less"], order(f"o-{n}"), identity=f"o-{n}") for n in range(3)]
    bad = [aside(3, ["currency:be_in_set"], order("o-3", currency="DOGE"), identity="o-3"), aside(4, ["undecodable:not_json"], b"{")]
    set_aside(lake, *good, *bad)

    def act(**settings: Any) -> dict[str, Any]:
        ti = Listening()
        context: Any = {"ti": ti, "params": FILTER | settings}
        try:
            build_all(home)["shop__quarantine"].get_task("act").execute(context)
        except AirflowFailException as failed:
            assert ti.told[TOLD]["trouble"] == str(failed)
        return dict(ti.told[TOLD])

    def left() -> dict[str, int]:
        return {group.reason: group.rows for group in quarantine_groups(lake, shop, QuarantineFilter())}

    before = left()
    preview = act()["replayed"]
    assert (preview["applied"], preview["rows"], preview["released"]) == (False, 5, 3) and preview["days"] == {"2026-03-01": 3}
    assert preview["remaining"] == {"currency:be_in_set": 1, "undecodable:not_json": 1} and "revenue_per_minute" in preview["views"]
    assert left() == before and not Path(lake.accepted("shop", "orders")).exists()

    replay = act(act="replay")["replayed"]
    assert replay == preview | {"applied": True}
    assert sorted(DeltaTable(lake.accepted("shop", "orders")).to_pyarrow_table()["order_id"].to_pylist()) == ["o-0", "o-1", "o-2"]
    assert left() == preview["remaining"] and [file.stem for file in lake.dirty_days("shop").glob("*.json")] == ["2026-03-01"]

    assert act(act="discard", rule="undecodable:not_json", note=NOTE) == {"discarded": 1}
    assert left() == {"currency:be_in_set": 1}
    notes = DeltaTable(lake.quarantine_acts("shop")).to_pyarrow_table().to_pylist()
    assert [row["note"] for row in notes if row["act"] == "discarded"] == [NOTE] and not Path("gone").exists()
    summary = QuarantineSummary.read(lake.quarantine_summary("shop"))
    assert summary is not None and {name: own.rows for name, own in summary.streams.items()} == {"orders": 1}

    assert "clicks" in act(stream="click")["trouble"], "a name that is not declared is refused, with the nearest"

"""Airflow writes its settings into its home as soon as it is imported: here that is a folder of its own."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="weir-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

from airflow.api_fastapi.app import init_auth_manager  # noqa: E402
from airflow.dag_processing.bundles.manager import DagBundlesManager  # noqa: E402
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db  # noqa: E402
from airflow.models.dagrun import DagRun  # noqa: E402
from airflow.utils.db import initdb  # noqa: E402
from airflow.utils.session import create_session  # noqa: E402
from sqlalchemy import delete  # noqa: E402
from visiting import Browser  # noqa: E402

from weir.layout import Home  # noqa: E402
from weir_airflow.pages import app  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the DAGs of the shop in it, as the DAG processor leaves them. Gives the folder of the declarations."""
    pipelines = tmp_path_factory.mktemp("pipelines")
    shutil.copytree(ROOT / "pipelines" / "shop", pipelines / "shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_PIPELINES", str(pipelines))
        initdb()
        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(dag_folder=str(ROOT / "dags"), bundle_name="dags-folder", bundle_path=ROOT / "dags")
        assert not bag.import_errors and {"shop__quarantine", "shop__nightly"} <= set(bag.dags)
        sync_bag_to_db(bag, "dags-folder", None)
        init_auth_manager()
    return pipelines


@pytest.fixture
def browser(airflow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    monkeypatch.setenv("WEIR_PIPELINES", str(airflow))
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    yield Browser(Home.from_environment())
    app.dependency_overrides.clear()
    with create_session() as session:
        session.execute(delete(DagRun))

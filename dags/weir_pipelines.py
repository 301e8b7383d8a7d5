"""The DAGs of every pipeline below pipelines/ (WEIR_PIPELINES). Needs no change when one is added."""

from airflow.sdk import DAG  # noqa: F401 (by this word Airflow knows a file with DAGs)

from weir.layout import Home
from weir_airflow.dag_builder import build_all

globals().update(build_all(Home.from_environment()))

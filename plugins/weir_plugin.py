"""Registers Weir with Airflow: the reports in its navigation."""

from airflow.plugins_manager import AirflowPlugin

from weir_airflow import pages


class WeirPlugin(AirflowPlugin):
    name = "weir"
    fastapi_apps = [{"app": pages.app, "url_prefix": "/weir", "name": "Weir"}]  # noqa: RUF012 (Airflow's own form)

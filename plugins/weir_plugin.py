"""Registers Weir with Airflow."""

from airflow.plugins_manager import AirflowPlugin


class WeirPlugin(AirflowPlugin):
    name = "weir"

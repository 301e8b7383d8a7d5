"""Registers Weir with Airflow: its pages in the navigation and on the pages of its DAGs."""

from airflow.plugins_manager import AirflowPlugin

from weir_airflow import pages

ICONS = {"icon": "/weir/static/icon.svg", "icon_dark_mode": "/weir/static/icon-dark.svg"}


class WeirPlugin(AirflowPlugin):
    name = "weir"
    fastapi_apps = [{"app": pages.app, "url_prefix": "/weir", "name": "Weir"}]  # noqa: RUF012 (Airflow's own form)
    external_views = [  # noqa: RUF012
        {"name": "Weir", "href": "/weir/streams", "destination": "nav", "url_route": "weir", "nav_top_level": True, **ICONS},
        {"name": "Weir", "href": "/weir/dag/{DAG_ID}", "destination": "dag", "url_route": "weir-dag", **ICONS},
    ]

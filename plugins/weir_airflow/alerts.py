"""Who hears of red runs and late nights: the Airflow connections that a declaration names. Mail (smtp) or a web hook (http)."""

import asyncio
import logging
from typing import Any

from airflow.sdk import BaseNotifier, Connection, Context

log = logging.getLogger(__name__)


class TellConnections(BaseNotifier):
    """On failure: which run, and why it is red."""

    def __init__(self, pipeline: str, connections: list[str]) -> None:
        super().__init__()
        self.pipeline, self.connections = pipeline, connections

    def notify(self, context: Context) -> None:
        run = context["dag_run"]
        why = context.get("exception") or context.get("reason") or "see its log"
        tell(self.connections, f"Weir: {run.dag_id} failed", f"{run.dag_id}, run {run.run_id}: {why}")


async def tell_of_late_night(pipeline: str, connections: list[str], context: dict[str, Any] | None = None, **_: Any) -> None:
    """Called by Airflow when the deadline of a night has passed."""
    run = ((context or {}).get("dag_run") or {}).get("dag_run_id", "")
    text = f"The night of {pipeline} has not ended in time{f' ({run})' if run else ''}"
    log.error(text)
    await asyncio.to_thread(tell, connections, f"Weir: the night of {pipeline} is late", text)


def tell(connections: list[str], subject: str, text: str) -> None:
    """Tell each connection. One that cannot be reached does not keep the others from hearing."""
    for name in connections:
        try:
            _tell_one(Connection.get(name), subject, text)
        except Exception as error:
            log.error("connection %s could not be told '%s': %s", name, subject, error)


def _tell_one(connection: Connection, subject: str, text: str) -> None:
    if connection.conn_type == "smtp":
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        with SmtpHook(connection.conn_id) as hook:
            hook.send_email_smtp(to=str(connection.extra_dejson.get("to_email") or connection.login), subject=subject, html_content=text)
        return
    import requests

    url = connection.host if connection.host and "://" in connection.host else f"{connection.schema or 'https'}://{connection.host}"
    url += f":{connection.port}" if connection.port else ""
    headers = {"Authorization": f"Bearer {connection.password}"} if connection.password else {}
    requests.post(url, json={"subject": subject, "text": text}, headers=headers, timeout=10).raise_for_status()

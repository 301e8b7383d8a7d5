"""The health check of every service of Weir's image: exit code 0, or 1 and the reason in one line. The image has no curl."""

import json
import socket
import sys
from typing import Any
from urllib.request import ProxyHandler, build_opener

TIMEOUT_SECONDS = 8


def ask(url: str) -> Any:
    """The JSON that this address answers with, None where it says nothing; an answer that is an error is raised."""
    with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_SECONDS) as answer:
        return json.loads(answer.read() or "null")


def check(service: str) -> str | None:
    """What is wrong with the service, or None."""
    if service == "kafka":
        from weir.stack import missing_topics

        missing_topics(f"{socket.gethostname()}:9092", [])
        return None
    if service == "object-store":
        socket.create_connection(("localhost", 9000), timeout=TIMEOUT_SECONDS).close()
        return None
    if service == "spark-master":
        state = ask("http://spark-master:8081/json/")["status"]
        return None if state == "ALIVE" else f"is {state}"
    if service == "spark-worker":
        return None if ask("http://localhost:8082/json/")["masterurl"] else "has no master"
    if service == "airflow-scheduler":
        ask("http://localhost:8974/health")  # an error when its heartbeat is old
        return None
    # The others have no address of their own: what they wrote into the database last is told by the API server.
    parts = {"airflow-api-server": "metadatabase", "airflow-dag-processor": "dag_processor", "airflow-triggerer": "triggerer"}
    told = ask("http://airflow-api-server:8080/api/v2/monitor/health")[parts[service]]
    return None if told["status"] == "healthy" else f"is {told['status']}"


def main() -> None:
    service = sys.argv[1]
    try:
        wrong = check(service)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        sys.exit(f"{service}: {wrong}")


if __name__ == "__main__":
    main()

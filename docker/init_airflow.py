"""Makes Airflow's database and login ready, and tells it where Spark is. May run again: what a person has changed since is kept."""

import json
import os
import subprocess
from pathlib import Path

from weir.lake_files import write_whole
from weir.layout import SPARK_CONNECTION


def main() -> None:
    airflow("db", "migrate")
    passwords = {"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}
    write_whole(Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]), json.dumps(passwords))
    listed = airflow("connections", "list", "--output", "json", capture_output=True).stdout
    if SPARK_CONNECTION not in {connection["conn_id"] for connection in json.loads(listed)}:
        airflow("connections", "add", SPARK_CONNECTION, "--conn-type", "spark", "--conn-host", os.environ["WEIR_SPARK_MASTER"])


def airflow(*arguments: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["airflow", *arguments], check=True, text=True, stdout=subprocess.PIPE if capture_output else None)


if __name__ == "__main__":
    main()

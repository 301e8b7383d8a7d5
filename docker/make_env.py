"""Write .env, the secrets of docker-compose.yaml, with new random values; one that is there is left as it is.

    python3 docker/make_env.py [--brokers 3] [--object-store] [file]

Runs on a bare Python, so it only uses the standard library.
"""

import argparse
import base64
import os
import secrets
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def make_secrets() -> dict[str, str]:
    """New values, of letters, digits, - and _ (the Fernet key also ends in =): none needs quotes in a URL or an env file."""
    return {
        "AIRFLOW_ADMIN_PASSWORD": secrets.token_urlsafe(16),
        "AIRFLOW_FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW_JWT_SECRET": secrets.token_urlsafe(48),
        "AIRFLOW_SECRET_KEY": secrets.token_urlsafe(32),
        "POSTGRES_PASSWORD": secrets.token_urlsafe(24),
        "SPARK_SECRET": secrets.token_urlsafe(32),
    }


def choose_brokers(brokers: int) -> dict[str, str]:
    """Three brokers hold every message, and two acknowledge it: so one may die."""
    if brokers == 1:
        return {}
    names = ["kafka", *(f"kafka-{number}" for number in range(2, brokers + 1))]
    return {
        "KAFKA_CLUSTER_ID": f"weir{secrets.token_urlsafe(16)[4:]}",
        "KAFKA_BROKERS": ",".join(names),
        "WEIR_KAFKA": ",".join(f"{name}:9092" for name in names),
    }


def choose_lake(object_store: bool) -> dict[str, str]:
    """A volume, or the service object-store."""
    if not object_store:
        return {}
    return {
        "WEIR_LAKE": "s3://weir/lake",
        "AWS_ENDPOINT_URL": "http://object-store:9000",
        "AWS_ACCESS_KEY_ID": f"weir{secrets.token_hex(6)}",
        "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(32),
    }


def choose_profiles(brokers: int, object_store: bool) -> dict[str, str]:
    """The services that are not in the form with one broker and a volume."""
    chosen = ["replicated"] * (brokers > 1) + ["objectstore"] * object_store
    return {"COMPOSE_PROFILES": ",".join(chosen)} if chosen else {}


def write_env(file: Path, brokers: int = 1, object_store: bool = False) -> bool:
    """Whether the file was written. Only its owner may read it; it is never there half, and never written twice."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    values = make_secrets() | choose_profiles(brokers, object_store) | choose_brokers(brokers) | choose_lake(object_store)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as f:
            f.write("# Written once by docker/make_env.py. What is lost here is lost: PostgreSQL and Airflow keep to the first values.\n")
            f.writelines(f"{name}={secret}\n" for name, secret in values.items())
        os.link(new, file)
    except FileExistsError:
        return False
    finally:
        new.unlink()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the secrets of docker-compose.yaml.")
    parser.add_argument("file", type=Path, nargs="?", default=PROJECT / ".env")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="of Kafka")
    parser.add_argument("--object-store", action="store_true", help="for the lake, in place of a volume")
    file = (options := parser.parse_args()).file
    try:
        written = write_env(file, options.brokers, options.object_store)
    except OSError as error:
        sys.exit(f"make_env: {file} cannot be written: {error.strerror}")
    print(f"{file} written: Airflow's user is admin, its password AIRFLOW_ADMIN_PASSWORD" if written else f"{file} is there: left as it is")


if __name__ == "__main__":
    main()

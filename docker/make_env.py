"""Write .env, the secrets of docker-compose.yaml, with new random values; one that is there is left as it is.

Runs on a bare Python, so it only uses the standard library.
"""

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


def write_env(file: Path) -> bool:
    """Whether the file was written. Only its owner may read it; it is never there half, and never written twice."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as f:
            f.write("# Written once by docker/make_env.py. What is lost here is lost: PostgreSQL and Airflow keep to the first values.\n")
            f.writelines(f"{name}={secret}\n" for name, secret in make_secrets().items())
        os.link(new, file)
    except FileExistsError:
        return False
    finally:
        new.unlink()
    return True


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / ".env"
    try:
        written = write_env(file)
    except OSError as error:
        sys.exit(f"make_env: {file} cannot be written: {error.strerror}")
    print(f"{file} written: Airflow's user is admin, its password AIRFLOW_ADMIN_PASSWORD" if written else f"{file} is there: left as it is")


if __name__ == "__main__":
    main()

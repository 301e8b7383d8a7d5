"""Makes the images that Weir's are built on, from Debian's packages, where no image can be pulled: as root, with debootstrap and Docker.

    python3 docker/base_images.py
    BASE_IMAGE=weir-python:bookworm POSTGRES_IMAGE=weir-postgres:15 docker compose build

What this machine trusts (/usr/local/share/ca-certificates) they trust, too. Runs on a bare Python, so it only uses the standard library.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHON, POSTGRES = "weir-python:bookworm", "weir-postgres:15"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ENVIRONMENT = {"PIP_CERT": BUNDLE, "SSL_CERT_FILE": BUNDLE, "REQUESTS_CA_BUNDLE": BUNDLE, "LANG": "C.UTF-8"}
NEEDED = "ca-certificates,python3,python3-venv,python3-pip"

POSTGRES_FILE = f"""
FROM {PYTHON}
RUN apt-get update \\
    && apt-get install -y --no-install-recommends postgresql-15 \\
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \\
    && install -d -o postgres -g postgres /var/lib/postgresql/data
COPY start /usr/local/bin/start
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
USER postgres
CMD ["start"]
"""
START = """#!/bin/sh
# What the official image does with these variables: the first start makes the user, its password and the database.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait --options='-c listen_addresses=' start
    [ "$POSTGRES_DB" = postgres ] || createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --wait stop
fi
exec postgres -c listen_addresses='*'
"""


def main() -> None:
    for tool in ("docker", "debootstrap"):
        if shutil.which(tool) is None:
            sys.exit(f"base_images: {tool} is not installed (Debian: apt-get install docker.io debootstrap)")
    if os.geteuid() != 0:
        sys.exit("base_images: debootstrap needs root")
    with tempfile.TemporaryDirectory(prefix="weir-base-") as folder:
        if not is_there(PYTHON):
            make_python(Path(folder) / "root")
        if not is_there(POSTGRES):
            make_postgres(Path(folder))
    print(f"{PYTHON} and {POSTGRES} are there")


def is_there(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def make_python(root: Path) -> None:
    """Debian with its own Python, and nothing else."""
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={NEEDED}", "bookworm", str(root)], check=True)
    if CERTIFICATES.is_dir():
        shutil.copytree(CERTIFICATES, root / CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
        subprocess.run(["chroot", str(root), "update-ca-certificates"], check=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for litter in (*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")):
        litter.unlink()
    changes = [f"--change=ENV {name}={value}" for name, value in ENVIRONMENT.items()]
    with subprocess.Popen(["tar", "--create", "--directory", str(root), "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", *changes, "-", PYTHON], stdin=packed.stdout, check=True)


def make_postgres(folder: Path) -> None:
    context = folder / "postgres"
    context.mkdir()
    (context / "Dockerfile").write_text(POSTGRES_FILE)
    (context / "start").write_text(START)
    (context / "start").chmod(0o755)
    subprocess.run(["docker", "build", "--network=host", "--tag", POSTGRES, str(context)], check=True)


if __name__ == "__main__":
    main()

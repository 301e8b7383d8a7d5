"""The image is built and the compose file is run, where a Docker engine answers; the base images are made from Debian's packages."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, wait_for

from weir.processes import choose_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5_400)]

IMAGES = {"BASE_IMAGE": "weir-python:bookworm", "POSTGRES_IMAGE": "weir-postgres:15", "WEIR_IMAGE": "weir:test"}
LASTING = 9
"""Services that go on, in the form with one broker."""


class Containers:
    """The services of docker-compose.yaml under a name of their own."""

    def __init__(self, folder: Path) -> None:
        self.env = folder / "env"
        subprocess.run([sys.executable, ROOT / "docker/make_env.py", self.env], check=True)
        ports = {name: choose_port(None, None, "") for name in ("AIRFLOW_PORT", "KAFKA_PORT", "SPARK_PORT")}
        with self.env.open("a") as f:
            f.writelines(f"{name}={value}\n" for name, value in (IMAGES | ports).items())

    def compose(self, *arguments: str, check: bool = True) -> str:
        command = [
            "docker-compose",
            "--project-name",
            "weir-test",
            "--env-file",
            str(self.env),
            "--file",
            str(ROOT / "docker-compose.yaml"),
        ]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout[-2_000:]} {done.stderr[-3_000:]}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """By container how it is: healthy, starting, unhealthy, or how it ended."""
        found = {}
        for own in self.compose("ps", "--quiet", "--all").split():
            told: dict[str, Any] = json.loads(docker("inspect", own))[0]
            state = told["State"]
            word = state.get("Health", {}).get("Status") or f"{state['Status']} {state['ExitCode']}"
            found[told["Name"].removeprefix("/weir-test").strip("_-").rsplit("_", 1)[0]] = word
        return found

    def weir(self, *arguments: str, check: bool = True) -> str:
        return self.compose("exec", "-T", "airflow-scheduler", "weir", *arguments, check=check)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def missing() -> str | None:
    """What is not here that these tests need."""
    for tool in ("docker", "docker-compose", "debootstrap"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "base images are made by root"
    return None if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0 else "no Docker engine answers"


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    if lacking := missing():
        pytest.skip(f"{lacking}: the containers were not run")
    subprocess.run([sys.executable, ROOT / "docker/base_images.py"], check=True)
    build = ["docker", "build", "--network=host", f"--build-arg=BASE={IMAGES['BASE_IMAGE']}", f"--tag={IMAGES['WEIR_IMAGE']}", str(ROOT)]
    subprocess.run(build, check=True)
    place = Containers(tmp_path_factory.mktemp("containers"))
    try:
        place.compose("up", "--detach", check=False)  # those that run once may have to be waited for: `wait_for` below tells
        wait_for(lambda: list(place.states().values()).count("healthy") == LASTING, 600, f"all are healthy: {place.states()}")
        yield place
    finally:
        place.compose("down", "--volumes", "--timeout", "20", check=False)


def test_all_services_become_healthy_and_the_cluster_lacks_nothing(containers: Containers) -> None:
    states = containers.states()
    assert states["topics"] == states["airflow-init"] == "exited 0", states
    containers.weir("check", "shop", "--cluster")


def test_the_drill_says_the_same_here_on_a_cluster_and_in_containers(containers: Containers, tmp_path: Path) -> None:
    asked = ["drill", "--events", "4000", "--json"]
    told = [json.loads(containers.weir(*asked, "--connected"))]
    for form in ([], ["--workers", "2"]):
        environment = os.environ | {"WEIR_HOME": str(tmp_path / f"home{len(form)}"), "WEIR_PIPELINES": str(ROOT / "pipelines")}
        done = subprocess.run(
            [sys.executable, "-m", "weir.cli", *asked, *form], env=environment, capture_output=True, text=True, check=True
        )
        told.append(json.loads(done.stdout))
    inside, here, on_workers = ({name: own[name] for name in ("passed", "faults", "unexplained", "served")} for own in told)
    assert inside["passed"] and inside == here == on_workers


def test_a_worker_that_is_killed_comes_back(containers: Containers) -> None:
    (worker,) = containers.compose("ps", "--quiet", "spark-worker").split()
    docker("exec", worker, "sh", "-c", "kill -9 $(pgrep -f deploy.worker.Worker)")
    wait_for(lambda: int(docker("inspect", "--format", "{{.RestartCount}}", worker)) == 1, 60, "it is started again")
    wait_for(lambda: containers.states()["spark-worker"] == "healthy", 180, "it is healthy again")

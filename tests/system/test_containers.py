"""The image is built and the compose file is run, where a Docker engine answers; the base images are made from Debian's packages."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
from harness import ROOT, wait_for

from weir.event_time import utc_now
from weir.processes import choose_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5_400)]

IMAGES = {"BASE_IMAGE": "weir-python:bookworm", "POSTGRES_IMAGE": "weir-postgres:15", "WEIR_IMAGE": "weir:test"}
DRILL = ["drill", "--events", "4000", "--json"]


class Form(NamedTuple):
    """How many the services are."""

    asked: tuple[str, ...] = ()
    """Of docker/make_env.py."""
    workers: int = 1
    lasting: int = 8
    """Containers that go on."""


SMALL = Form()
LARGE = Form(("--brokers", "3", "--object-store"), workers=2, lasting=12)


class Containers:
    """The services of docker-compose.yaml under a name of their own."""

    def __init__(self, folder: Path, form: Form) -> None:
        self.env, self.form = folder / "env", form
        subprocess.run([sys.executable, ROOT / "docker/make_env.py", *form.asked, self.env], check=True)
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

    def start(self) -> None:
        # Those that run once may have to be waited for: the states tell.
        self.compose("up", "--detach", "--scale", f"spark-worker={self.form.workers}", check=False)
        try:
            wait_for(self.is_up, 600, "all are healthy")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.states()}") from None

    def is_up(self) -> bool:
        return list(self.states().values()).count("healthy") == self.form.lasting

    def states(self) -> dict[str, str]:
        """By container, such as kafka_1, how it is: healthy, starting, unhealthy, or how it ended."""
        found = {}
        for own in self.compose("ps", "--quiet", "--all").split():
            told: dict[str, Any] = json.loads(docker("inspect", own))[0]
            state = told["State"]
            word = state.get("Health", {}).get("Status") or f"{state['Status']} {state['ExitCode']}"
            found[told["Name"].removeprefix("/weir-test").strip("_-")] = word
        return found

    def id(self, service: str) -> str:
        return self.compose("ps", "--quiet", service).split()[0]

    def weir(self, *arguments: str) -> str:
        return self.inside("weir", *arguments)

    def airflow(self, *arguments: str) -> str:
        return self.inside("airflow", *arguments)

    def inside(self, *command: str) -> str:
        return self.compose("exec", "-T", "airflow-scheduler", *command)

    def begin(self, *command: str, stderr: IO[str]) -> subprocess.Popen[str]:
        """Beside the drivers, and not waited for."""
        inside = ["docker", "exec", self.id("airflow-scheduler"), *command]
        return subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def stream(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.weir("status", "--json"))["streams"]["shop"]
        return told

    def runs(self, dag: str) -> set[str]:
        """The states of its runs. Airflow warns before it answers."""
        told = self.airflow("dags", "list-runs", dag, "--output", "json").splitlines()[-1]
        return {run["state"] for run in json.loads(told)} if told.startswith("[") else set()


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
def image() -> None:
    if lacking := missing():
        pytest.skip(f"{lacking}: the containers were not run")
    subprocess.run([sys.executable, ROOT / "docker/base_images.py"], check=True)
    build = ["docker", "build", "--network=host", f"--build-arg=BASE={IMAGES['BASE_IMAGE']}", f"--tag={IMAGES['WEIR_IMAGE']}", str(ROOT)]
    subprocess.run(build, check=True)


@pytest.fixture(scope="module")
def containers(request: pytest.FixtureRequest, image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """One form at a time: pytest runs the tests of one behind each other."""
    place = Containers(tmp_path_factory.mktemp("containers"), request.param)
    try:
        place.start()
        yield place
    finally:
        place.compose("down", "--volumes", "--timeout", "20", check=False)


@pytest.fixture(scope="module")
def drilled_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return drill_here(tmp_path_factory.mktemp("here"))


def drill_here(home: Path, *asked: str) -> dict[str, Any]:
    environment = os.environ | {"WEIR_HOME": str(home), "WEIR_PIPELINES": str(ROOT / "pipelines")}
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli", *DRILL, *asked], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return numbers(done.stdout)


def numbers(drilled: str) -> dict[str, Any]:
    """What has to be the same wherever a drill runs."""
    told = json.loads(drilled)
    return {name: told[name] for name in ("passed", "faults", "unexplained", "served")}


small, large = (
    pytest.mark.parametrize("containers", [form], indirect=True, ids=[name]) for form, name in ((SMALL, "small"), (LARGE, "large"))
)


@small
def test_all_services_become_healthy_and_the_cluster_lacks_nothing(containers: Containers) -> None:
    states = containers.states()
    assert states["topics_1"] == states["airflow-init_1"] == "exited 0", states
    containers.weir("check", "shop", "--cluster")


@small
def test_the_drill_says_the_same_here_on_a_cluster_and_in_containers(
    containers: Containers, drilled_here: dict[str, Any], tmp_path: Path
) -> None:
    inside = numbers(containers.weir(*DRILL, "--connected"))
    assert inside["passed"] and inside == drilled_here == drill_here(tmp_path, "--workers", "2")


@small
def test_airflow_runs_the_stream_and_a_microbatch_on_the_cluster(containers: Containers) -> None:
    containers.airflow("dags", "unpause", "shop__stream")
    wait_for(lambda: containers.stream()["state"] == "running", 300, "the stream runs")
    containers.weir("produce", "shop", "--events", "2000")
    sent_at = utc_now()

    def has_read() -> bool:
        told = containers.stream()
        return datetime.fromisoformat(told["told_at"]) > sent_at + timedelta(seconds=10) and told["behind"] == 0

    wait_for(has_read, 300, "all was read")
    containers.airflow("dags", "unpause", "shop__microbatch")
    wait_for(lambda: "success" in containers.runs("shop__microbatch"), 600, "a micro-batch was published")
    assert "failed" not in containers.runs("shop__stream") | containers.runs("shop__microbatch")
    (told,) = json.loads(containers.weir("query", "SELECT sum(orders) AS orders FROM revenue_per_minute", "--json"))
    assert int(told["orders"]) > 0
    containers.airflow("dags", "pause", "shop__microbatch")
    containers.weir("stream", "--stop")


@small
def test_a_worker_that_is_killed_comes_back(containers: Containers) -> None:
    worker = containers.id("spark-worker")
    docker("exec", worker, "sh", "-c", "kill -9 $(pgrep -f [d]eploy.worker.Worker)")
    wait_for(lambda: int(docker("inspect", "--format", "{{.RestartCount}}", worker)) == 1, 60, "it is started again")
    wait_for(containers.is_up, 180, "it is healthy again")


@large
def test_the_drill_says_the_same_with_three_brokers_two_workers_and_an_object_store(
    containers: Containers, drilled_here: dict[str, Any], tmp_path: Path
) -> None:
    """And one broker dies while the stream reads, and stays dead until the end."""
    said = tmp_path / "said"
    with said.open("w") as told:
        drill = containers.begin("weir", *DRILL, "--connected", stderr=told)
        try:
            wait_for(lambda: "killed in the middle" in said.read_text(), 600, "the stream reads")
            docker("kill", containers.id("kafka-2"))
            answer = drill.communicate(timeout=2_400)[0]
            assert drill.returncode == 0, said.read_text()[-3_000:]
            assert numbers(answer) == drilled_here
        finally:
            drill.kill()
    assert containers.inside("ls", "/var/lib/weir/lake") == "", "the lake is in the object store"
    containers.start()

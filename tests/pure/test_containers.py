"""The containers' files agree with each other, with the code and with what may be published. Needs no Docker."""

import base64
import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from weir.cli import app
from weir.layout import Lake
from weir.refusal import Refusal

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
MAKE_ENV = runpy.run_path(str(ROOT / "docker/make_env.py"))
SECRETS: dict[str, str] = MAKE_ENV["make_secrets"]()

ONCE = {"topics", "airflow-init"}
BROKERS = ("kafka", "kafka-2", "kafka-3")
LASTING = sorted(set(SERVICES) - ONCE)
OWN = sorted(set(SERVICES) - {"postgres"})


def steps(word: str, lines: list[str] = DOCKERFILE) -> list[list[str]]:
    """The arguments of each such instruction."""
    return [line.split()[1:] for line in lines if line.startswith(f"{word} ")]


def last_stage() -> list[str]:
    return DOCKERFILE[max(number for number, line in enumerate(DOCKERFILE) if line.startswith("FROM ")) :]


# --- docker-compose.yaml


def test_all_parts_are_there() -> None:
    airflow = {"airflow-init", "airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
    assert set(SERVICES) == airflow | {*BROKERS, "topics", "object-store", "postgres", "spark-master", "spark-worker"}


def test_all_roles_run_one_image() -> None:
    assert len({SERVICES[name]["image"] for name in OWN}) == 1


def test_every_published_port_is_for_this_machine_only() -> None:
    published = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert [name for name, service in SERVICES.items() if "network_mode" in service] == []


def test_the_host_reaches_kafka_by_the_port_that_it_advertises() -> None:
    port = SERVICES["kafka"]["environment"]["KAFKA_PORT"]
    assert SERVICES["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_three_brokers_know_each_other_by_their_names() -> None:
    chosen = MAKE_ENV["choose_brokers"](3)
    assert chosen["KAFKA_BROKERS"].split(",") == [SERVICES[name]["hostname"] for name in BROKERS]
    assert chosen["WEIR_KAFKA"] == "kafka:9092,kafka-2:9092,kafka-3:9092"
    assert [SERVICES[name].get("profiles") for name in BROKERS] == [None, ["replicated"], ["replicated"]]
    assert MAKE_ENV["choose_profiles"](3, False) == {"COMPOSE_PROFILES": "replicated"} and MAKE_ENV["choose_profiles"](1, False) == {}
    assert len({str(SERVICES[name]["volumes"]) for name in BROKERS}) == 3
    assert MAKE_ENV["choose_brokers"](1) == {}


def test_an_object_store_is_chosen_for_every_service_that_uses_the_lake() -> None:
    chosen, store = MAKE_ENV["choose_lake"](True), SERVICES["object-store"]
    assert MAKE_ENV["choose_profiles"](3, True) == {"COMPOSE_PROFILES": "replicated,objectstore"} and store["profiles"] == ["objectstore"]
    lake = Lake.at(chosen["WEIR_LAKE"])
    assert lake.root == f"s3a://{store['command'][store['command'].index('--bucket') + 1]}/lake"
    assert chosen["AWS_ENDPOINT_URL"] == f"http://object-store:{store['command'][-1]}"
    users = {name for name, service in SERVICES.items() if "lake:/var/lib/weir/lake" in service.get("volumes", [])} | {"object-store"}
    assert {name for name, service in SERVICES.items() if "AWS_SECRET_ACCESS_KEY" in service.get("environment", {})} == users
    for name in users:
        assert {own for own in chosen if own != "WEIR_LAKE"} <= set(SERVICES[name]["environment"]), name
    assert MAKE_ENV["choose_lake"](False) == {}


def test_every_variable_is_a_made_secret_or_has_a_default() -> None:
    used = re.findall(r"\$\{(\w+)(:[-?][^}]*)?\}", COMPOSE_TEXT)
    assert {name for name, rest in used if not rest.startswith(":-")} == set(SECRETS)
    assert [name for name, rest in used if name in SECRETS and not rest.startswith(":?")] == [], "a missing secret must stop the start"
    assert "$" not in re.sub(r"\$\{\w+:[-?][^}]*\}", "", COMPOSE_TEXT)


def test_no_secret_is_written_in_the_file() -> None:
    for service in SERVICES.values():
        for name, setting in service.get("environment", {}).items():
            if re.search("PASSWORD(?!S_FILE)|SECRET|FERNET|SQL_ALCHEMY_CONN", name):
                assert re.search(r"\$\{\w+:(\?|-\})", setting), name
                assert not re.search(r"://\w+:(?!\$\{)[^/]*@", setting), name


def test_only_who_needs_a_secret_is_told_it() -> None:
    told = {name: set(re.findall(r"\$\{(\w+):\?", str(service))) for name, service in SERVICES.items()}
    assert told["kafka"] == told["topics"] == set()
    assert told["spark-master"] == told["spark-worker"] == {"SPARK_SECRET"}
    assert told["postgres"] == {"POSTGRES_PASSWORD"}
    assert {name for name, found in told.items() if "AIRFLOW_ADMIN_PASSWORD" in found} == {"airflow-init"}


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_watched_bounded_and_started_again(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"] and service["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", sorted(ONCE))
def test_what_runs_once_is_not_started_again(name: str) -> None:
    assert SERVICES[name]["restart"] == "no"
    assert SERVICES[name]["mem_limit"]


def test_each_service_waits_for_what_exists_and_can_be_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONCE else "service_healthy"
            assert other in SERVICES and how["condition"] == wanted, f"{name} waits for {other}"


def test_workers_can_be_multiplied() -> None:
    assert not {"container_name", "hostname", "ports"} & set(SERVICES["spark-worker"])


def test_all_that_need_the_lake_share_it() -> None:
    have = {name for name, service in SERVICES.items() if "lake:/var/lib/weir/lake" in service.get("volumes", [])}
    assert have >= {"airflow-scheduler", "airflow-triggerer", "airflow-api-server", "spark-worker"}
    assert {SERVICES[name]["environment"]["WEIR_LAKE"] for name in have} == {"${WEIR_LAKE:-/var/lib/weir/lake}"}


def test_every_named_volume_is_declared_and_its_folder_belongs_to_the_user_of_the_image() -> None:
    mounts = [volume.split(":") for name in OWN for volume in SERVICES[name].get("volumes", [])]
    named = {source: target for source, target, *_ in mounts if not source.startswith(".")}
    assert set(named) | {"postgres"} == set(COMPOSE["volumes"])
    made = " ".join(argument for step in steps("RUN", last_stage()) for argument in step)
    assert [target for target in named.values() if target not in made] == []


def test_commands_run_files_that_the_image_has() -> None:
    commands = [SERVICES[name]["command"] for name in OWN] + [SERVICES[name].get("healthcheck", {}).get("test", []) for name in OWN]
    scripts = {word for command in commands for word in command if word.endswith(".py")}
    assert scripts == {"docker/run_kafka.py", "docker/init_airflow.py", "docker/check_health.py", "docker/object_store.py"}
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_each_health_check_asks_for_its_own_service() -> None:
    asked = {name: SERVICES[name]["healthcheck"]["test"][-1] for name in LASTING if name in OWN}
    assert asked == {name: "kafka" if name in BROKERS else name for name in asked}
    assert [name for name in asked.values() if f'"{name}"' not in (ROOT / "docker/check_health.py").read_text()] == []


# --- Dockerfile and .dockerignore


def test_the_image_runs_as_a_user_of_its_own() -> None:
    (user,) = steps("USER", last_stage())
    assert user not in (["root"], ["0"])
    assert f" {user[0]} " in f" {' '.join(' '.join(step) for step in steps('RUN', last_stage()))} "


def test_every_base_can_be_replaced() -> None:
    stages = {step[2] for step in steps("FROM") if len(step) == 3}
    assert {step[0] for step in steps("FROM")} - stages == {"${BASE}"}
    assert SERVICES["kafka"]["build"]["args"].keys() == {step[0].split("=")[0] for step in steps("ARG")}
    assert SERVICES["kafka"]["build"]["args"]["BASE"].endswith(f":-{steps('ARG')[0][0].removeprefix('BASE=')}}}")


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    copied = {source for step in steps("COPY") if not step[0].startswith("--") for source in step[:-1]}
    assert {"weir", "spark_jobs", "quality", "plugins", "dags", "pipelines", "docker"} <= copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {source.split("/")[0] for source in copied}


def test_packages_are_installed_by_their_hashes() -> None:
    installed = [part for step in steps("RUN") for part in " ".join(step).split("&&") if "pip install" in part]
    assert len(installed) == 3
    assert [part for part in installed if "--require-hashes" not in part and "--no-deps --no-build-isolation -e ." not in part] == []
    lock = (ROOT / "docker/image.lock").read_text()
    pins = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    assert set(pins) == {"asyncpg", "psycopg2-binary", "setuptools", "uv"}
    assert not set(pins) & set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert runpy.run_path(str(ROOT / "prepare.py"))["UV"] in lock, "one installer everywhere"


def test_no_file_names_a_registry() -> None:
    files = ["Dockerfile", "docker-compose.yaml", ".dockerignore", "docker/image.lock", "docs/containers.md"]
    images = [step[0] for step in steps("ARG")] + [service["image"] for service in SERVICES.values()]
    assert [image for image in images if "/" in image] == []
    assert [name for name in files if re.search(r"index-url|find-links|extra-index|docker\.io|https://", (ROOT / name).read_text())] == []


# --- Secrets


def test_secrets_are_made_once_and_only_for_their_owner(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    command = [sys.executable, ROOT / "docker/make_env.py", file]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    written = file.read_text()
    subprocess.run(command, capture_output=True, check=True)
    assert file.read_text() == written
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    made = dict(line.split("=", 1) for line in written.splitlines() if not line.startswith("#"))
    assert made.keys() == SECRETS.keys()
    assert [name for name, secret in made.items() if secret in first.stdout or secret == SECRETS[name]] == []


def test_secrets_are_strong_and_need_no_quotes() -> None:
    assert [name for name, secret in SECRETS.items() if len(secret) < 20 or not re.fullmatch(r"[\w-]+=?", secret)] == []
    assert len(base64.urlsafe_b64decode(SECRETS["AIRFLOW_FERNET_KEY"])) == 32


def test_the_secrets_file_is_never_committed() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


# --- weir topics


def test_the_topics_service_runs_a_command_that_exists() -> None:
    program, command = SERVICES["topics"]["command"]
    assert program == "weir"
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_topics_without_a_broker_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_KAFKA", raising=False)
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    monkeypatch.setenv("WEIR_PIPELINES", str(ROOT / "pipelines"))
    refusal = CliRunner().invoke(app, ["topics"]).exception
    assert isinstance(refusal, Refusal) and "weir up" in str(refusal)

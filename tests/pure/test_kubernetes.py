"""What kubernetes/ holds fits the schemas of Kubernetes, and its parts fit each other, the image and the compose file.

Airflow's own chart is not here: that it takes these values was seen by hand (docs/scaling.md).
"""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "kubernetes"
OBJECTS = [own for file in ("weir.yaml", "executor.yaml") for own in yaml.safe_load_all((FOLDER / file).read_text())]
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "airflow-values.yaml").read_text())
EXECUTOR = OBJECTS[-1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]["airflow-scheduler"]


def named(kind: str) -> set[str]:
    return {own["metadata"]["name"] for own in OBJECTS if own["kind"] == kind}


def spark_defaults() -> dict[str, str]:
    lines = (FOLDER / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#"))


@pytest.mark.parametrize("of", OBJECTS, ids=lambda own: f"{own['kind']} {own['metadata']['name']}")
def test_an_object_fits_its_schema(of: dict[str, Any]) -> None:
    kubernetes_validate.validate(with_image(of), "1.37", strict=True)


def with_image(of: dict[str, Any]) -> dict[str, Any]:
    """As Spark completes the pod of an executor."""
    if of["kind"] != "Pod":
        return of
    containers = [{**own, "image": "weir"} for own in of["spec"]["containers"]]
    return {**of, "spec": {**of["spec"], "containers": containers}}


def test_an_object_that_does_not_fit_is_refused() -> None:
    wrong = {**OBJECTS[1], "spec": {**OBJECTS[1]["spec"], "accessMode": ["ReadWriteMany"]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_what_is_mounted_is_there() -> None:
    for volumes, mounts in (
        (VALUES["volumes"], VALUES["volumeMounts"]),
        (EXECUTOR["spec"]["volumes"], EXECUTOR["spec"]["containers"][0]["volumeMounts"]),
    ):
        assert {own["name"] for own in volumes} == {own["name"] for own in mounts}
        assert {own["persistentVolumeClaim"]["claimName"] for own in volumes if "persistentVolumeClaim" in own} <= named(
            "PersistentVolumeClaim"
        )
    kustomized = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    (made,) = kustomized["configMapGenerator"]
    assert [own["configMap"]["name"] for own in VALUES["volumes"] if "configMap" in own] == [made["name"]]
    assert all((FOLDER / file).exists() for file in made["files"] + kustomized["resources"])
    mounted = {own["name"]: own["mountPath"] for own in VALUES["volumeMounts"]}
    assert spark_defaults()["spark.kubernetes.executor.podTemplateFile"] == f"{mounted['spark']}/executor.yaml"


def test_drivers_and_executors_see_the_lake_under_one_path() -> None:
    environment = {own["name"]: own["value"] for own in VALUES["env"]}
    (mount,) = EXECUTOR["spec"]["containers"][0]["volumeMounts"]
    assert environment["WEIR_LAKE"] == mount["mountPath"] == {own["name"]: own["mountPath"] for own in VALUES["volumeMounts"]}["lake"]


def test_the_image_is_used_as_the_compose_file_uses_it() -> None:
    environment = {own["name"]: own["value"] for own in VALUES["env"]}
    there = COMPOSE["environment"]
    for name in ("WEIR_HOME", "WEIR_PIPELINES"):
        assert environment[name] == there[name]
    for section, name in (("core", "dags_folder"), ("core", "plugins_folder"), ("core", "load_examples"), ("triggerer", "on_kill_timeout")):
        assert VALUES["config"][section][name] == there[f"AIRFLOW__{section}__{name}".upper()]
    assert f"{VALUES['defaultAirflowRepository']}:{VALUES['defaultAirflowTag']}" == environment["WEIR_IMAGE"]
    assert environment["WEIR_IMAGE"] == re.search(r":-(.+)}", COMPOSE["image"])[1]  # type: ignore[index]
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user and VALUES["uid"] == VALUES["gid"] == EXECUTOR["spec"]["securityContext"]["runAsUser"] == int(user[1])
    pins = (ROOT / "pyproject.toml").read_text()
    assert f'"apache-airflow=={VALUES["airflowVersion"]}"' in pins


def test_what_settings_take_from_the_environment_is_there() -> None:
    given = {own["name"] for own in VALUES["env"]} | {own["envName"] for own in VALUES["secret"]}
    given |= {own["name"] for own in yaml.safe_load(VALUES["extraEnv"])}
    assert set(re.findall(r"\$\{env:(\w+)\}", (FOLDER / "spark-defaults.conf").read_text())) <= given


def test_the_drivers_may_have_executors_and_nobody_else_reaches_those() -> None:
    (binding,) = (own for own in OBJECTS if own["kind"] == "RoleBinding")
    assert binding["roleRef"]["name"] in named("Role")
    assert {own["namespace"] for own in binding["subjects"]} == named("Namespace") == {spark_defaults()["spark.kubernetes.namespace"]}
    (policy,) = (own for own in OBJECTS if own["kind"] == "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= EXECUTOR["metadata"]["labels"].items()


def test_the_connection_is_one_that_spark_submit_understands() -> None:
    (connection,) = (json.loads(own["value"]) for own in VALUES["env"] if own["name"] == "AIRFLOW_CONN_SPARK_DEFAULT")
    assert connection["conn_type"] == "spark" and connection["host"].startswith("k8s://https://")

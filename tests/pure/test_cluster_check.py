"""What is said of a cluster, from what its executors have found."""

from pathlib import Path

from spark_jobs.cluster_job import OTHER_SLOTS, Probe, complaints, unreachable
from weir.loader import load_named

SHOP = load_named(Path(__file__).resolve().parents[2] / "pipelines", "shop")
ENOUGH = SHOP.watched_partitions + OTHER_SLOTS


def probe(host: str = "a", clock: float = 100.0, *wrong: str) -> Probe:
    return {"host": host, "clock": clock, "wrong": list(wrong)}


def test_a_cluster_in_order_is_not_complained_of() -> None:
    assert list(complaints([probe(), probe("b", 101.0)], SHOP, ENOUGH, 99.0, 102.0)) == []


def test_each_thing_is_said_once_for_each_host() -> None:
    lacking = [probe("a", 100.0, "the package weir is not there")] * 3 + [probe("b", 100.0, "cannot reach the broker k:1")]
    assert list(complaints(lacking, SHOP, ENOUGH, 99.0, 102.0)) == [
        "executor on a: the package weir is not there",
        "executor on b: cannot reach the broker k:1",
    ]


def test_clocks_and_slots() -> None:
    clock, slots = complaints([probe("a", 160.0)], SHOP, ENOUGH - 1, 100.0, 102.0)
    assert clock == "the clock of a differs from the driver's by 60 s: run NTP on both"
    assert slots.startswith(f"a stream of shop needs {ENOUGH} task slots, {ENOUGH - 1} were given")


def test_only_a_standalone_master_is_asked_first() -> None:
    assert unreachable("local[2]") is None and unreachable("yarn") is None
    assert "nobody answers at spark://127.0.0.1:1" in (unreachable("spark://127.0.0.1:1") or "")

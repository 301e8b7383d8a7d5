"""The same declaration on a Spark standalone cluster: a master and two workers, as processes of this machine."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import oracle
import psutil
import pytest
from harness import DAY, Workplace, archive_of, messages_of, wait_for

from weir.generator import Shares
from weir.layout import view_query
from weir.spark_cluster import cluster_state, start_cluster, stop_cluster

IN_TIME = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)
VIEWS = ("revenue_per_minute", "revenue_per_segment")


def batches_done(place: Workplace, view: str) -> int:
    commits = Path(place.home.lake.checkpoint("shop", view_query(view), place.pipeline.fingerprint(view))) / "commits"
    return sum(file.name.isdigit() for file in commits.glob("*"))


def test_a_cluster_is_checked_before_it_is_used(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    cluster = start_cluster(place.home, 2)
    try:
        state = cluster_state(place.home)
        assert state.running and state.workers == 2
        assert {conn.laddr.ip for conn in psutil.Process(cluster.master.pid).net_connections() if conn.status == "LISTEN"} <= {
            "127.0.0.1",
            "::ffff:127.0.0.1",
        }
        fits = place.cli("check", "shop", "--no-spark", "--cluster")
        assert fits.returncode == 0 and "packages, lake, brokers and clocks are in order" in fits.stdout, fits.stderr
        away = place.cli("check", "shop", "--no-spark", "--cluster", WEIR_SPARK_MASTER="spark://127.0.0.1:1")
        assert away.returncode == 2 and away.stderr.startswith("weir: nobody answers at spark://127.0.0.1:1"), away.stderr
    finally:
        assert stop_cluster(place.home)
    assert not any(own.is_alive() for own in (cluster.master, *cluster.workers))
    assert not cluster_state(place.home).running


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_stream_microbatch_and_night_are_the_same_on_a_cluster_that_loses_a_worker(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "customers")
    cluster = start_cluster(place.home, 2)
    try:
        sent = place.produce(4_000, IN_TIME)
        truth = {view: oracle.truth(view, lambda stream: messages_of(sent, stream)) for view in VIEWS}
        place.start("--max-batch", "400")
        wait_for(lambda: batches_done(place, VIEWS[0]) >= 2, 300, "batches on the cluster")
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        seen = batches_done(place, VIEWS[0])
        wait_for(lambda: batches_done(place, VIEWS[0]) > seen + 1, 300, "batches on the worker that is left")
        assert len([own for own in start_cluster(place.home, 2).workers if own.is_alive()]) == 2
        wait_for(lambda: all(place.cells(view, "__speed") == truth[view] for view in VIEWS), 300, "all cells")
        wait_for(lambda: place.raw("orders") == archive_of(sent, "orders"), 120, "the archive")
        place.stop()
        refined = place.cli("refine", "shop", "--json")
        assert refined.returncode == 0, refined.stderr
        night = place.cli("nightly", "shop", "--day", str(DAY), "--json")
        assert night.returncode == 0, night.stderr
    finally:
        stop_cluster(place.home)
    for view in VIEWS:
        assert place.cells(view) == truth[view]
        day = {grain: cell for grain, cell in truth[view].items() if grain[0].date() == DAY}  # a wrong clock may tell of the next one
        assert place.cells(view, "__batch") == day

"""A lake in an object store: records and leases by the store's own conditional writes, and the whole spine on a real store."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import oracle
import pytest
from deltalake import DeltaTable
from harness import DAY, ROOT, Workplace, archive_of, messages_of
from object_store import BUCKET, Unsteady, running_store

from weir import lake_files
from weir.generator import Shares
from weir.jobs import JobFailed
from weir.lake_files import delta_options, files_below, lake_path, remove_folder, written_at
from weir.layout import Lake
from weir.records.driver import Control, Identity, Search, Searches
from weir.records.night import DirtyDay
from weir.records.record import read_once
from weir.refusal import Refusal

DIRTY = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of a lake in a store that is named by the environment."""
    with running_store(tmp_path_factory.mktemp("store")) as said, pytest.MonkeyPatch.context() as patch:
        for name, value in said.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"
        lake_files._arrow_store.cache_clear()
        lake_files._CHECKED.clear()


def test_of_all_who_take_a_lease_at_once_one_gets_it(store: str) -> None:
    control, me = Control(Lake.at(f"{store}/leases").control("shop")), Identity.of_this_process()
    with ThreadPoolExecutor(12) as pool:
        for generation in range(1, 16):
            start = threading.Barrier(12)

            def take(number: int, generation: int = generation, start: threading.Barrier = start) -> int | None:
                start.wait()
                holder = me.model_copy(update={"nonce": f"{generation}-{number}"})
                return number if control.take_lease(generation, holder) else None

            (winner,) = [number for number in pool.map(take, range(12)) if number is not None]
            lease = control.lease()
            assert lease is not None and lease.holder.nonce == f"{generation}-{winner}" and lease.generation == generation
    assert len(control._leases()) == 11, "old ones go"


def test_a_lease_whose_answer_got_lost_is_still_ones_own(store: str) -> None:
    """The request is sent again, and refused by what it has itself written."""
    file = lake_path(Lake.at(store).root + "/again/1.json")
    assert lake_files.write_new(file, "mine") and lake_files.write_new(file, "mine")
    assert not lake_files.write_new(file, "another's")


def test_records_are_read_as_they_are_now(store: str) -> None:
    lake = Lake.at(f"{store}/records")
    file = lake.searches("shop")
    assert Searches.read(file) is None and read_once(Searches, file) is None
    Searches().write(file)
    first = read_once(Searches, file)
    assert first == Searches() and read_once(Searches, file) is first
    for day in ("2026-03-01", "2026-03-02"):
        DirtyDay(day=day, reason="late", marked_at=datetime.now(UTC)).write(lake.dirty_days("shop") / f"{day}.json")
    assert sorted(own.stem for own in lake.dirty_days("shop").glob("*.json")) == ["2026-03-01", "2026-03-02"]
    (lake.dirty_days("shop") / "2026-03-01.json").unlink()
    assert [own.name for own in lake.dirty_days("shop").glob("*.json")] == ["2026-03-02.json"]
    assert set(files_below(lake.control("shop"))) == {"searches.json", "dirty/2026-03-02.json"}
    assert abs(written_at(lake.dirty_days("shop")) - datetime.now(UTC).timestamp()) < 60
    remove_folder(lake.control("shop"))
    remove_folder(lake.control("shop"))
    assert files_below(lake.control("shop")) == {} and not file.exists()


def test_a_record_is_read_whole_while_it_is_replaced(store: str) -> None:
    """As heartbeats are, all the time."""
    file, ended = Lake.at(f"{store}/replaced").searches("shop"), threading.Event()
    Searches().write(file)

    def replace() -> None:
        number = 0
        while not ended.is_set():
            saved = [Search(name=f"s{n}", stream="orders", when="true", added_at=datetime.now(UTC)) for n in range(number % 7)]
            Searches(saved=saved).write(file)
            number += 1

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(replace)
        try:
            sizes = {len(read.saved) for read in (Searches.read(file) for _ in range(300)) if read is not None}
        finally:
            ended.set()
        writing.result(timeout=30)
    assert len(sizes) > 1, "it was replaced meanwhile"


@pytest.mark.parametrize(
    ("lake", "key", "line"), [("s3://nowhere/lake", None, "bucket nowhere cannot be written"), (f"s3://{BUCKET}/lake", "wrong", "says no")]
)
def test_a_store_that_cannot_be_used_is_told_in_one_line(
    store: str, lake: str, key: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import sys
from weir.lake_files import write_new
from weir.layout import Lake
from weir.refusal import Refusal
try:
    write_new(Lake.at(sys.argv[1]).control("shop") / "x.json", "text")
except Refusal as refusal:
    print(refusal)
"""
    if key:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    told = subprocess.run([sys.executable, "-c", script, lake], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    assert line in told and told.count("\n") == 1, told


def test_a_store_that_overwrites_whatever_it_is_told_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_HEAD(self) -> None:
            self._answer(200)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"<DeleteResult/>")

        def _answer(self, status: int, text: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """It stays silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        with pytest.raises(Refusal, match="it needs conditional writes"):
            Control(Lake.at("s3://careless").control("shop")).take_lease(1, Identity.of_this_process())
    finally:
        server.shutdown()
        server.server_close()
        fsspec.filesystem("s3").clear_instance_cache()


APPENDS = """
import sys
from spark_jobs.session import build_session
from spark_jobs.tables import append_once
spark = build_session("appends")
for number in range(int(sys.argv[3])):
    rows = spark.createDataFrame([(sys.argv[1], number)], "writer string, number int")
    append_once(rows, sys.argv[2], [], sys.argv[1], number, {})
"""


def test_a_store_whose_answers_get_lost_loses_and_doubles_nothing(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before its answer got lost is not written again, and is nobody else's; what was refused for a moment is."""
    between = Unsteady(os.environ["AWS_ENDPOINT_URL"])
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.address)
        fsspec.filesystem("s3").clear_instance_cache()
        control = Control(Lake.at(f"{store}/unsteady").control("shop"))
        taken = [control.take_lease(generation, Identity.of_this_process()) for generation in (1, 2, 3)]
        assert [own.generation if own else None for own in taken] == [1, 2, 3]
        table = f"{Lake.at(store).root}/unsteady/appends"
        environment = os.environ | {"WEIR_LAKE": store}
        subprocess.run([sys.executable, "-c", APPENDS, "a", table, "6"], cwd=ROOT, env=environment, check=True, timeout=300)
        assert min(between.done["lost"], between.done["conflict"]) >= 3 and between.done["again"] >= 6, between.done
    finally:
        between.close()
        monkeypatch.undo()
        fsspec.filesystem("s3").clear_instance_cache()
    rows = DeltaTable(table, storage_options=delta_options(table)).to_pyarrow_table().to_pylist()
    assert Counter((row["writer"], row["number"]) for row in rows) == Counter(("a", n) for n in range(6))


@pytest.mark.soak
def test_two_processes_that_commit_at_once_lose_nothing(store: str) -> None:
    """Delta's own log store for S3 locks within one JVM only."""
    environment = os.environ | {"WEIR_LAKE": store}
    table = f"{Lake.at(store).root}/appends"
    subprocess.run([sys.executable, "-c", APPENDS, "first", table, "15"], cwd=ROOT, env=environment, check=True, timeout=300)
    both = [subprocess.Popen([sys.executable, "-c", APPENDS, name, table, "15"], cwd=ROOT, env=environment) for name in ("a", "b")]
    assert [own.wait(timeout=600) for own in both] == [0, 0]
    rows = DeltaTable(table, storage_options=delta_options(table)).to_pyarrow_table().to_pylist()
    assert Counter((row["writer"], row["number"]) for row in rows) == Counter((w, n) for w in ("first", "a", "b") for n in range(15))


@pytest.mark.soak
def test_the_whole_spine_on_an_object_store(store: str, workplace: Callable[..., Workplace], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream (killed and started again), micro-batch, night, questions and housekeeping: the same numbers as plain Python's."""
    monkeypatch.setenv("WEIR_LAKE", f"{store}/spine")
    place = workplace("orders", "searches", "clicks", "customers")
    sent = place.produce(3_000, DIRTY)
    job = place.start("--once", "--max-batch", "500", fault="view_revenue_per_minute.between:2")
    with pytest.raises(JobFailed):
        job.wait()
    place.start("--once", "--max-batch", "500").wait()
    for command in (["refine", "shop"], ["nightly", "shop", "--day", str(DAY)], ["housekeep", "shop"]):
        done = place.cli(*command)
        assert done.returncode == 0, done.stderr

    raw = place.home.lake.raw("shop")
    rows = DeltaTable(raw, storage_options=delta_options(raw)).to_pyarrow_table().to_pylist()
    for stream in place.pipeline.sources:
        found = Counter(
            (r["partition"], r["offset"], round(r["received_at"].timestamp() * 1_000), r["value"]) for r in rows if r["stream"] == stream
        )
        assert found == archive_of(sent, stream), f"raw/{stream}"
    for view in ("revenue_per_minute", "revenue_per_segment", "visits"):
        truth = oracle.truth(view, lambda stream: messages_of(sent, stream))
        assert place.cells(view) == place.cells(view, "__batch") == truth
    told = json.loads(place.cli("quarantine", "list", "shop", "--json").stdout)
    rejected = sum(oracle.fate_of("orders", message)[0] != "accepted" for message in messages_of(sent, "orders"))
    assert rejected > 0 and told, told
    assert not list(Path(place.home.root).rglob("_delta_log")), "nothing of the lake is on this disk"

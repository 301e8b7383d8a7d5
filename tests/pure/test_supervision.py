"""Who may write: the lease, as data and as files."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from weir.layout import Lake
from weir.records import Control, Heartbeat, Identity, Lease
from weir.refusal import Refusal
from weir.supervision import LEASE_SECONDS, Leave, Take, decide_lease

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOLDER = Identity(host="h", pid=1, started_at=1.0, nonce="n")
LEASE = Lease(generation=3, holder=HOLDER, taken_at=NOW - timedelta(hours=1))


def beat(state: Any = "running", generation: int = 3, seconds_ago: float = 1) -> Heartbeat:
    return Heartbeat(holder=HOLDER, generation=generation, state=state, written_at=NOW - timedelta(seconds=seconds_ago))


@pytest.mark.parametrize(
    ("lease", "heartbeat", "dead", "generation"),
    [
        (None, None, False, 1),
        (LEASE, beat(), False, None),
        (LEASE, beat(), True, 4),
        (LEASE, beat("stopped"), False, 4),
        (LEASE, beat("failed"), False, 4),
        (LEASE, beat(seconds_ago=LEASE_SECONDS + 1), False, 4),
        (LEASE, beat(seconds_ago=LEASE_SECONDS - 1), False, None),
        (LEASE, beat("stopped", generation=2), False, 4),  # an older driver's word says nothing; this one has been silent for an hour
        (LEASE.model_copy(update={"taken_at": NOW}), beat("stopped", generation=2), False, None),  # just taken, not yet beaten
        (LEASE.model_copy(update={"taken_at": NOW}), None, False, None),
        (LEASE, beat(seconds_ago=-300), False, None),  # its clock is ahead: alive
    ],
)
def test_the_lease_is_taken_only_from_the_dead_the_finished_and_the_silent(
    lease: Lease | None, heartbeat: Heartbeat | None, dead: bool, generation: int | None
) -> None:
    decision = decide_lease(lease, heartbeat, dead, NOW)
    assert decision.reason
    assert isinstance(decision, Leave) if generation is None else decision == Take(generation, decision.reason)


def test_of_many_that_take_one_generation_one_gets_it(tmp_path: Path) -> None:
    control = Control(tmp_path)
    holders = [Identity(host="h", pid=n, started_at=1.0, nonce=str(n)) for n in range(40)]
    with ThreadPoolExecutor(16) as pool:
        taken = [lease for lease in pool.map(lambda holder: control.take_lease(1, holder), holders) if lease]
    assert len(taken) == 1 and control.lease() == taken[0]
    assert [file.name for file in (tmp_path / "lease").iterdir()] == ["0000000001.json"]


def test_old_leases_do_not_pile_up(tmp_path: Path) -> None:
    control = Control(tmp_path)
    for generation in range(1, 60):
        assert control.take_lease(generation, HOLDER)
    assert control.lease() is not None and len(list((tmp_path / "lease").iterdir())) <= 11


def test_records_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        control = Control(tmp_path / "lake" / "_control" / "shop")
        control.take_lease(1, HOLDER)
        control.beat(beat())
    finally:
        os.umask(old)
    for path in control.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_process_is_known_by_more_than_its_pid() -> None:
    me = Identity.of_this_process()
    assert me.is_alive() and me.is_on_this_host()
    assert not me.model_copy(update={"started_at": me.started_at - 60}).is_alive()


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "file://{0}", "{0}/../lake", "{1}"])
def test_a_lake_has_one_name_however_it_is_spelt(tmp_path: Path, spelling: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    (tmp_path / "link").symlink_to(lake)
    assert Lake.at(spelling.format(lake, tmp_path / "link")).root == str(lake.resolve())


def test_a_lake_that_is_no_folder_is_refused() -> None:
    with pytest.raises(Refusal, match="only a local folder"):
        Lake.at("s3://bucket/lake")

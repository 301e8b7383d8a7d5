"""Who may write, and what a shift does about a driver: as data and as files."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from weir.layout import Lake
from weir.records.driver import Control, DriverEnd, Heartbeat, Identity, Launch, Lease, StopRequest
from weir.refusal import Refusal
from weir.supervision import HOLD_SECONDS, LEASE_SECONDS, Act, Leave, Policy, Seen, Take, decide, decide_lease, name_incurable

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
    assert not me.model_copy(update={"boot": "another"}).is_alive()
    assert me.model_copy(update={"started_at": me.started_at - 60}).is_known_dead()
    assert not me.model_copy(update={"host": "elsewhere", "started_at": 0}).is_known_dead()


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "file://{0}", "{0}/../lake", "{1}"])
def test_a_lake_has_one_name_however_it_is_spelt(tmp_path: Path, spelling: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    (tmp_path / "link").symlink_to(lake)
    assert Lake.at(spelling.format(lake, tmp_path / "link")).root == str(lake.resolve())


@pytest.mark.parametrize("spelling", ["s3://bucket/lake", "s3a://bucket/lake/", "s3:///bucket/lake//"])
def test_a_lake_in_an_object_store_has_one_name_too(spelling: str) -> None:
    lake = Lake.at(spelling)
    assert lake.is_remote and lake.root == "s3a://bucket/lake"
    assert str(lake.control("shop")) == "s3a://bucket/lake/_control/shop"


@pytest.mark.parametrize("spelling", ["gs://bucket/lake", "s3://", "hdfs://host/lake"])
def test_a_lake_that_is_neither_is_refused(spelling: str) -> None:
    with pytest.raises(Refusal, match="a folder, or s3://bucket/folder"):
        Lake.at(spelling)


# --- What a shift does

POLICY = Policy()


def end(nonce: str = "e", error: str = "died", seconds_ago: float = 0, lived: float = 5, given_up: bool = False) -> DriverEnd:
    return DriverEnd(nonce=nonce, ended_at=NOW - timedelta(seconds=seconds_ago), lived_seconds=lived, error=error, given_up=given_up)


def launch(nonce: str = "l", seconds_ago: float = 3) -> Launch:
    return Launch(nonce=nonce, identity=HOLDER, log="the.log", outcome="", launched_at=NOW - timedelta(seconds=seconds_ago))


def stop(seconds_ago: float, hold: bool = True, generation: int = 3) -> StopRequest:
    return StopRequest(generation=generation, requested_at=NOW - timedelta(seconds=seconds_ago), reason="marked failed", hold=hold)


YOUNG = LEASE.model_copy(update={"taken_at": NOW - timedelta(seconds=9)})
FAILED = beat("failed").model_copy(update={"error": "no Kafka broker answers at h:1"})
TORN = beat("failed").model_copy(update={"error": "view_v: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE] it is gone"})


@pytest.mark.parametrize(
    ("seen", "act", "words"),
    [
        (Seen(), Act.START, "no driver has run yet"),
        (Seen(LEASE, beat()), Act.ADOPT, "is running"),
        (Seen(LEASE, beat("starting")), Act.ADOPT, "is starting"),
        (Seen(LEASE.model_copy(update={"taken_at": NOW})), Act.LEAVE, "is starting"),
        (Seen(launch=launch()), Act.LEAVE, "has not beaten yet"),
        (Seen(launch=launch(), launched_is_dead=True), Act.RESTART, "ended before its first beat; see the.log"),
        (Seen(launch=launch(), launched_is_dead=True, last_words="disk full"), Act.RESTART, "disk full"),
        (Seen(launch=launch(seconds_ago=POLICY.start_seconds + 1)), Act.RESTART, "did not beat within 180 s"),
        # One that was refused because another runs: the other is adopted.
        (Seen(LEASE, beat(), launch=launch(), launched_is_dead=True, last_words="shop already has a driver"), Act.ADOPT, "is running"),
        (Seen(LEASE, beat(), launch=launch()), Act.ADOPT, "is running"),
        (Seen(LEASE, beat(), holder_is_dead=True), Act.RESTART, "died"),
        (Seen(LEASE, beat(seconds_ago=LEASE_SECONDS + 1)), Act.RESTART, "fell silent"),
        (Seen(LEASE, beat(), holder_is_dead=True, launch=launch("n")), Act.RESTART, "died"),
        (Seen(LEASE, FAILED), Act.RESTART, "no Kafka broker answers"),
        (Seen(LEASE, TORN), Act.GIVE_UP, "torn checkpoint"),
        (Seen(LEASE, TORN, history=[end("n", TORN.error or "", given_up=True)]), Act.START, "tried anew"),
        (Seen(LEASE, beat("stopped")), Act.START, "was stopped"),
        (Seen(LEASE, beat("stopped"), stop=stop(5)), Act.GIVE_UP, "marked failed; unpause"),
        (Seen(LEASE, beat("stopped"), stop=stop(HOLD_SECONDS + 1)), Act.GIVE_UP, "marked failed"),  # it took its time to stop
        (Seen(LEASE, beat("stopped", seconds_ago=HOLD_SECONDS + 1), stop=stop(HOLD_SECONDS + 9)), Act.START, "marked failed"),
        (Seen(LEASE, beat("stopped"), stop=stop(5, hold=False)), Act.START, "was stopped"),
        (Seen(LEASE, beat("stopped"), stop=stop(5, generation=2)), Act.START, "was stopped"),
        # An end that is already booked is not booked again.
        (Seen(LEASE, FAILED, history=[end("n")]), Act.RESTART, "1. time in a row"),
        (Seen(YOUNG, beat(), holder_is_dead=True, history=[end(str(n)) for n in range(4)]), Act.GIVE_UP, "crash loop: 5 drivers"),
        (Seen(YOUNG, FAILED, history=[*(end(str(n)) for n in range(4)), end("h", lived=4_000)]), Act.RESTART, "2. time in a row"),
        (Seen(LEASE, FAILED, history=[*(end(str(n)) for n in range(4)), end("g", given_up=True)]), Act.RESTART, "1. time in a row"),
        # A start that was refused counts from where it happened, not from the stop before it.
        (Seen(LEASE, beat("stopped", seconds_ago=9), history=[end("r", "Kafka is not running", 1)]), Act.RESTART, "Kafka is not running"),
        (Seen(LEASE, beat("stopped", seconds_ago=1), history=[end("r", "Kafka is not running", 9)]), Act.START, "was stopped"),
        (Seen(history=[end("r", "there is no connection 'spark_default': add it")]), Act.GIVE_UP, "refused: there is no connection"),
        # Brokers that are away are waited for, however long.
        (Seen(YOUNG, FAILED, history=[end(str(n), "no Kafka broker answers") for n in range(15)]), Act.RESTART, "16. time in a row"),
    ],
)
def test_what_a_shift_does_follows_from_the_records(seen: Seen, act: Act, words: str) -> None:
    verdict = decide(seen, POLICY, NOW)
    assert (verdict.act, words in verdict.reason) == (act, True), verdict


def test_each_crash_in_a_row_is_answered_after_a_longer_wait_with_jitter() -> None:
    waits = [decide(Seen(history=[end(f"{n}-{k}") for k in range(n)]), POLICY, NOW).wait_seconds for n in range(1, 5)]
    for number, wait in enumerate(waits):
        assert 0.8 <= wait / (POLICY.first_wait_seconds * 2**number) <= 1.2
    others = {decide(Seen(history=[end(nonce)]), POLICY, NOW).wait_seconds for nonce in "abcdef"}
    assert len(others) == 6, "all drivers of a crashed machine must not start in the same moment"
    patient = Policy(crashes=100)
    longest = decide(Seen(history=[end(str(n)) for n in range(50)]), patient, NOW).wait_seconds
    assert longest <= patient.longest_wait_seconds * 1.2
    away = decide(Seen(history=[end(str(n), "no Kafka broker answers") for n in range(50)]), POLICY, NOW).wait_seconds
    assert away <= POLICY.longest_wait_away_seconds * 1.2


def test_the_wait_goes_by_and_asking_again_changes_nothing() -> None:
    history = [end("x", seconds_ago=2)]
    first = decide(Seen(history=history), POLICY, NOW)
    again = decide(Seen(history=history), POLICY, NOW + timedelta(seconds=1))
    assert first.wait_seconds - again.wait_seconds == pytest.approx(1)
    assert decide(Seen(history=history), POLICY, NOW + timedelta(minutes=1)).wait_seconds == 0


def test_an_end_is_booked_once_and_the_book_is_short(tmp_path: Path) -> None:
    control = Control(tmp_path)
    for number in range(60):
        control.note_end(end(str(number)))
    assert [booked.nonce for booked in control.history()] == [str(n) for n in range(40, 60)]
    control.note_giving_up()
    assert [booked.given_up for booked in control.history()][-2:] == [False, True]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("view_v: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE] …", "torn checkpoint"),
        ("archive: Incomplete log file: offsets/3", "torn checkpoint"),
        ("archive: Some data may have been lost because they are not available in Kafka any more", "lost offsets"),
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] …", "incompatible state"),
        ("topic shop.orders is not on 127.0.0.1:1: run `weir up`, or create it there", "refused"),
        ("no Kafka broker answers at 127.0.0.1:1: run `weir up`, or correct WEIR_KAFKA", None),
        ("No space left on device", None),
        ("Java heap space", None),
        ("died", None),
        (None, None),
    ],
)
def test_only_what_a_restart_repeats_is_incurable(error: str | None, name: str | None) -> None:
    found = name_incurable(error)
    assert (found.name if found else None) == name

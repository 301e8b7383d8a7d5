"""The whole spine on real parts: Kafka, Spark, Delta, processes that are killed. Compared as multisets with the sent file."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from harness import DAY, Sent, Workplace, archive_of, messages_of, wait_for
from journaled import Judged, as_journaled, as_judged, judge_by_batches, rows_of
from kafka import KafkaAdminClient

from spark_jobs.streaming import catch_up
from spark_jobs.streaming.checkpoint import committed_batch, watermark_millis
from weir import stack
from weir.generator import Shares
from weir.jobs import Job, JobFailed, wait_until_running
from weir.lake_files import lake_path, remove_folder
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, view_query
from weir.records.driver import Losses
from weir.records.night import LedgerLine, ViewComparison
from weir.refusal import Refusal
from weir.serving import answer_query

IN_TIME = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)
WITH_LATE = Shares(dirty=0.02, late=0.08, duplicate=0.05, out_of_order=0.1, skewed=0.02, future=0.01)
VIEW, STATEFUL = "revenue_per_minute", "visits"
VISIT_PAUSE = timedelta(minutes=30)
BAD = ("rejected", "undecodable")


def truth(view: str, sent: list[Sent]) -> oracle.Cells:
    return oracle.truth(view, lambda stream: messages_of(sent, stream))


def judged(place: Workplace, sent: list[Sent], stream: str, breaks_rule: Callable[[oracle.Row], bool] = lambda row: False) -> list[Judged]:
    """What the rule says of each message of a stream, after making sure that the journal has each once and says the same."""
    journal = place.journal(stream)
    found = judge_by_batches(stream, messages_of(sent, stream), journal, place.pipeline.streams[stream].lateness, breaks_rule)
    assert as_journaled(journal) == as_judged(found), f"journal/{stream}"
    return found


def journal_batches(place: Workplace, stream: str) -> Counter[int]:
    """How many messages of a stream each batch of the intake read."""
    return Counter(row["batch"] for row in place.journal(stream))


def told_until(place: Workplace, view: str) -> datetime:
    """The watermark of a view's last batch: what closed before it has been written."""
    checkpoint = place.home.lake.view_checkpoint("shop", view, place.pipeline.fingerprint(view))
    return datetime.fromtimestamp(watermark_millis(checkpoint, committed_batch(checkpoint)) / 1_000, UTC)


def closed_visits(cells: oracle.Cells, watermark: datetime) -> oracle.Cells:
    return {grain: cell for grain, cell in cells.items() if cell[2] + VISIT_PAUSE <= watermark}


def test_the_stream_equals_the_batch_equals_the_oracle(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "searches", "clicks", "customers")
    # Partitions are not read in step: with small batches, ten minutes are not enough for nothing to be late.
    place.rewrite("pipeline.yaml", "lateness: 10 minutes", "lateness: 2 hours")
    sent = place.produce(4_000, IN_TIME)
    place.stream_once("--max-batch", "700")
    report = place.nightly()

    for stream in place.pipeline.sources:
        assert place.raw(stream) == archive_of(sent, stream), f"raw/{stream}"
    for stream in place.pipeline.streams:
        assert len(journal_batches(place, stream)) > 2, "one batch proves nothing"
        assert not any(own.is_late for own in judged(place, sent, stream))
    for view in ("revenue_per_minute", "revenue_per_segment"):
        assert place.cells(view) == place.cells(view, "__batch") == place.cells(view, "__speed") == truth(view, sent)

    # Visits are told when they are closed; those that are not yet are pending, and nothing else is missing.
    visits, closed = truth(STATEFUL, sent), closed_visits(truth(STATEFUL, sent), told_until(place, STATEFUL))
    assert place.cells(STATEFUL, "__batch") == place.cells(STATEFUL) == visits
    assert place.cells(STATEFUL, "__speed") == closed
    compared = {view.view: view for view in report.views}
    assert compared[STATEFUL].pending == len(visits) - len(closed) > 0 < len(closed)
    assert all(view.equal + view.pending == view.compared > 0 for view in report.views)
    assert all(view.settled_until == DAY + timedelta(days=1) and view.decision == "PASS" for view in report.views)

    for counted in report.streams:
        if counted.stream in place.pipeline.streams:
            fates = Counter(oracle.fate_of(counted.stream, m)[0] for m in messages_of(sent, counted.stream))
            assert counted.accepted + counted.duplicates == fates["accepted"]
            assert (counted.rejected, counted.undecodable) == (fates["rejected"], fates["undecodable"])
            assert counted.accepted == len(oracle.first_of_each(counted.stream, messages_of(sent, counted.stream)))
            assert counted.archived == sum(fates.values())

    answer = place.cli("query", f"SELECT count(*) AS cells, sum(orders) AS orders FROM {VIEW}", "--json")
    assert f'"cells": {len(truth(VIEW, sent))}' in answer.stdout, answer.stderr
    refused = place.cli("query", "SELECT * FROM revenue_per_minut")
    assert refused.returncode == 2 and "did you mean 'revenue_per_minute'" in refused.stderr


@pytest.mark.soak
def test_late_events_are_exactly_those_that_the_rule_names(workplace: Callable[..., Workplace]) -> None:
    """Per event, from the journal's batches alone: late is what occurred at or before the watermark of the batches before its own."""
    place = workplace("orders", "searches", "clicks")
    sent = place.produce(4_000, WITH_LATE)
    place.stream_once("--max-batch", "450")
    orders, clicks = judged(place, sent, "orders"), judged(place, sent, "clicks")
    late = [own for own in clicks if own.is_late]
    assert len({own.batch for own in clicks}) > 8 and len({own.batch for own in orders}) > 4
    assert len(late) > 50 and sum(own.is_late for own in orders) > 20
    report = place.nightly()

    # A view that the intake computes counts them.
    full = truth(VIEW, sent)
    assert place.cells(VIEW, "__speed") == place.cells(VIEW, "__batch") == place.cells(VIEW) == full
    compared = {own.view: own for own in report.views}
    assert (compared[VIEW].equal, compared[VIEW].compared, compared[VIEW].causes) == (len(full), len(full), {})
    assert {status for _, _, status in status_of(place)} == {"proved"}

    # A view with state misses them, and nothing else.
    visits, counted = truth(STATEFUL, sent), oracle.visits(rows_of(clicks, with_late=False))
    watermark = told_until(place, STATEFUL)
    streamed = place.cells(STATEFUL, "__speed")
    assert streamed == closed_visits(counted, watermark)
    differing = compare(place, compared[STATEFUL], streamed, visits, counted, watermark)
    assert len(differing) > 20
    assert place.cells(STATEFUL) == place.cells(STATEFUL, "__batch") == visits, "settled: what is served is true"
    assert all(own.unexplained == 0 and own.decision == "PASS" for own in report.views)

    # The books: every offset has the fate that plain Python gives it.
    assert not any(line.wrong for line in report.ledger)
    assert all(line.offsets == sum(line.fates.values()) for line in report.ledger)
    assert booked(report.ledger, VIEW) == fates_of(orders, with_late=False)
    assert booked(report.ledger, STATEFUL) == fates_of(clicks, with_late=True)

    # Each differing cell names the very events that the stream did not wait for.
    cells = json.loads(place.cli("explain", STATEFUL, "--day", str(DAY), "--json").stdout)["cells"]
    named = {_grain_of(cell): cell["causes"] for cell in cells if cell["causes"][0]["cause"] != "pending"}
    assert set(named) == differing
    declared = place.pipeline.views[STATEFUL]
    for (started_at, customer), causes in named.items():
        first, end = started_at - declared.reach, started_at + declared.reach + declared.span
        near = [own.row for own in late if own.row and own.row["customer_id"] == customer and first <= own.row["at"] < end]
        (cause,) = causes
        assert cause["cause"] == "late" and cause["events"] == len(near) > 0
        assert set(cause["identities"]) == {row["identity"] for row in near}


def compare(
    place: Workplace, found: ViewComparison, streamed: oracle.Cells, full: oracle.Cells, counted: oracle.Cells, watermark: datetime
) -> set[tuple[Any, ...]]:
    """The cells that must differ because of late events, after making sure that the night has found these and no others."""
    reach = place.pipeline.views[found.view].reach
    equal = {grain for grain in streamed.keys() | full.keys() | counted.keys() if streamed.get(grain) == full.get(grain)}
    others = (streamed.keys() | full.keys() | counted.keys()) - equal
    explained = {grain for grain in others if streamed.get(grain) == counted.get(grain)}
    pending = others - explained
    assert all(grain not in streamed and grain[0] + reach > watermark for grain in pending)
    assert (found.different, found.only_speed, found.only_batch) == (
        sum(grain in streamed and grain in full for grain in explained),
        sum(grain not in full for grain in explained),
        sum(grain not in streamed for grain in explained),
    )
    assert found.pending == len(pending) and +Counter(found.causes) == +Counter(late=len(explained), pending=len(pending))
    return explained


def booked(ledger: list[LedgerLine], view: str) -> Counter[str]:
    """How many messages have each fate in the books of a view."""
    found: Counter[str] = Counter()
    for line in ledger:
        if line.view == view:
            found.update(line.fates)
    return +found


def fates_of(judged: list[Judged], with_late: bool) -> Counter[str]:
    """The same by the rule, of the messages that arrived on the day."""
    arrived = [own for own in judged if own.message.received_at.date() == DAY]
    return Counter("late" if own.is_late and with_late else "counted" if own.is_accepted else own.fate for own in arrived)


def _grain_of(cell: dict[str, Any]) -> tuple[datetime, int]:
    return datetime.fromisoformat(cell["grain"]["started_at"]).replace(tzinfo=UTC), int(cell["grain"]["customer_id"])


def status_of(place: Workplace) -> list[tuple[Any, ...]]:
    return answer_query(place.home.lake, [place.pipeline], f"SELECT minute, country, status FROM {VIEW}").rows


EVERYWHERE = (
    *(f"before_write.{INTAKE_QUERY}:1", f"judged.{INTAKE_QUERY}", f"journaled.{INTAKE_QUERY}", f"histories.{INTAKE_QUERY}"),
    *(f"quarantined.{INTAKE_QUERY}", f"cells_{VIEW}.{INTAKE_QUERY}", f"cells.{INTAKE_QUERY}", f"after_write.{INTAKE_QUERY}:1"),
    *(f"before_write.{ARCHIVE_QUERY}:0", f"after_write.{ARCHIVE_QUERY}:1"),
    *(f"before_write.{view_query(STATEFUL)}:1", f"after_write.{view_query(STATEFUL)}:2"),
)
"""Every step of every query. Without a number: in the second batch that the driver takes in, by the journal's own number."""
SOME = (f"journaled.{INTAKE_QUERY}", f"after_write.{view_query(STATEFUL)}:1")


@pytest.mark.parametrize(
    "faults", [SOME, pytest.param(EVERYWHERE, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)])], ids=["some", "all"]
)
def test_a_driver_that_is_killed_at_any_step_loses_and_doubles_nothing(
    workplace: Callable[..., Workplace], faults: tuple[str, ...]
) -> None:
    place = workplace("orders", "searches", "clicks")
    sent = place.produce(400 * len(faults), IN_TIME)
    views = ["--views", f"{VIEW},{STATEFUL}"]
    for fault in faults:
        # The archive stays away until it is its turn: beside a query that is killed the other one gets nobody knows how far.
        archives = ["--max-archive-batch", "800"] if ARCHIVE_QUERY in fault else ["--no-archive"]
        point = fault if ":" in fault else f"{fault}:{place.last_journal_batch() + 2}"
        job = place.start("--once", *views, "--max-batch", "150", *archives, fault=f"{point}:kill9")
        with pytest.raises(JobFailed):
            job.wait()
        assert job.process.returncode == -signal.SIGKILL, f"the fault {point} did not strike: {job.log.read_text()[-2000:]}"
    place.stream_once(*views)
    for stream in place.pipeline.streams:
        assert place.raw(stream) == archive_of(sent, stream)
        rejected = [own for own in judged(place, sent, stream) if own.fate in BAD]
        assert place.quarantined(stream) == Counter((own.message.partition, own.message.offset) for own in rejected) != Counter()
    assert place.cells(VIEW) == truth(VIEW, sent)
    counted = oracle.visits(rows_of(judged(place, sent, "clicks"), with_late=False))
    assert place.cells(STATEFUL) == closed_visits(counted, told_until(place, STATEFUL)) != {}


@pytest.mark.soak
def test_kills_at_any_moment_while_events_arrive_lose_and_double_nothing(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent: list[Sent] = []
    for round_ in range(3):
        job = place.start("--trigger-seconds", "0.2")
        before = place.last_journal_batch()
        sent += place.produce(600, IN_TIME, seed=100 + round_)
        wait_for(lambda before=before: place.last_journal_batch() > before, 240, "progress after a kill")  # kill again only after progress
        os.killpg(job.process.pid, signal.SIGKILL) if round_ == 1 else job.process.kill()
        job.process.wait()
    place.stream_once()
    assert place.raw("orders") == archive_of(sent, "orders")
    # The seeds' days overlap, so events of a later round can be late: they are counted like all others.
    assert any(own.is_late for own in judged(place, sent, "orders"))
    assert place.cells(VIEW) == truth(VIEW, sent)


@pytest.mark.soak
def test_what_kafka_has_dropped_is_judged_from_the_archive_when_a_rule_changes(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(1_500, WITH_LATE)
    place.stream_once("--max-batch", "300")
    before = place.journal("orders")
    aside = {(own.message.partition, own.message.offset) for own in judged(place, sent, "orders") if own.fate in BAD}

    # The author changes a rule, and Kafka still has the last 20 messages of each partition.
    place.rewrite("pipeline.yaml", "max_value: 100000", "max_value: 60")
    ends = stack.end_offsets(stack.bootstrap(place.home), ["shop.orders"])
    stack.drop_messages(stack.bootstrap(place.home), {partition: end - 20 for partition, end in ends.items()})
    sent += place.produce(300, WITH_LATE, seed=2)

    def is_too_much(row: oracle.Row) -> bool:
        return bool(row["amount"] > 60)

    # Killed when the first batch from the archive is in the journal and nothing was derived from it.
    job = place.start("--once", "--no-archive", fault=f"journaled.{INTAKE_QUERY}:{place.last_journal_batch() + 1}:kill9")
    with pytest.raises(JobFailed):
        job.wait()
    assert "offsets are read from the archive" in job.log.read_text()
    for _ in range(2):  # the second start has nothing left to do
        place.stream_once()
        found = judged(place, sent, "orders", is_too_much)
        assert [row for row in place.journal("orders", every_contract=True) if row["batch"] <= before[-1]["batch"]] == before
        assert len(place.journal("orders", every_contract=True)) == len(before) + len(sent)
        assert place.cells(VIEW) == oracle.revenue_per_minute(rows_of(found))
        assert place.raw("orders") == archive_of(sent, "orders")
        assert Losses.read(place.home.lake.losses("shop")) is None, "nothing is lost"
        # What the earlier contract had accepted, the micro-batch takes back and quarantines.
        new = {(own.message.partition, own.message.offset) for own in found if own.fate in BAD}
        new = {(partition, offset) for partition, offset in new if offset >= ends[f"shop.orders/{partition}"]}
        assert place.quarantined("orders") == Counter(aside | new)
    assert sum(own.fate == "rejected" for own in found) > 100
    report = place.nightly()
    assert all(view.decision == "PASS" and view.unexplained == 0 for view in report.views)
    assert not any(line.wrong or line.fates["lost"] for line in report.ledger)
    assert place.cells(VIEW) == place.cells(VIEW, "__batch") == oracle.revenue_per_minute(rows_of(found))


@pytest.mark.soak
def test_the_archive_is_read_in_several_batches(workplace: Callable[..., Workplace], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a long stop, or in a lake whose journal is younger than its archive."""
    place = workplace("orders", "searches", "clicks")
    sent = place.produce(4_000, WITH_LATE)
    place.stream_once("--views", VIEW)
    ends = stack.end_offsets(stack.bootstrap(place.home), place.pipeline.topics)
    stack.drop_messages(stack.bootstrap(place.home), ends)
    for name in ("journal", "quarantined", "views"):
        remove_folder(lake_path(f"{place.home.lake.root}/shop/{name}"))
    monkeypatch.setattr(catch_up, "BATCH_MESSAGES", 500)
    place.stream_once("--views", f"{VIEW},{STATEFUL}")
    for stream in place.pipeline.streams:
        assert len(journal_batches(place, stream)) > 6
        rejected = [own for own in judged(place, sent, stream) if own.fate in BAD]
        assert place.quarantined(stream) == Counter((own.message.partition, own.message.offset) for own in rejected)
        assert place.raw(stream) == archive_of(sent, stream)
    assert place.cells(VIEW) == truth(VIEW, sent)
    clicks = judged(place, sent, "clicks")
    assert any(own.is_late for own in clicks)
    counted = oracle.visits(rows_of(clicks, with_late=False))
    assert place.cells(STATEFUL) == closed_visits(counted, told_until(place, STATEFUL)) != {}
    assert Losses.read(place.home.lake.losses("shop")) is None, "nothing is lost"


@pytest.mark.soak  # tests/pure/test_backlog.py has every decision of it
def test_batches_that_take_too_long_become_smaller(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(20_000, IN_TIME)
    driver = place.start("--views", VIEW, "--max-batch", "4000", fault=f"before_write.{INTAKE_QUERY}:1:slow")
    wait_for(lambda: place.messages_read(view_query(VIEW)) >= len(messages_of(sent, "orders")), 300, "all messages were read")
    place.stop()
    read = journal_batches(place, "orders")
    assert min(read[0], read[1]) > 3_900, "the second was planned when it was not known yet how long it takes"
    assert 1_900 < read[2] <= 2_000
    assert f"{INTAKE_QUERY} starts again: its batches read at most 2,000 messages" in driver.log.read_text()
    judged(place, sent, "orders")
    assert place.cells(VIEW) == truth(VIEW, sent)


@pytest.mark.soak
def test_partitions_that_are_added_meanwhile_are_read_from_their_start(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(1_500, IN_TIME)
    place.start("--trigger-seconds", "0.5")
    wait_for(lambda: place.messages_read(view_query(VIEW)) >= len(messages_of(sent, "orders")), 240, "the first orders were read")
    with KafkaAdminClient(bootstrap_servers=stack.bootstrap(place.home)) as admin:
        admin.create_partitions({"shop.orders": 4})
    sent += place.produce(1_500, IN_TIME, seed=2)
    for query in (ARCHIVE_QUERY, INTAKE_QUERY, view_query(VIEW)):
        wait_for(lambda query=query: place.messages_read(query) >= len(messages_of(sent, "orders")), 240, f"{query} has read the others")
    place.stop()
    assert place.raw("orders") == archive_of(sent, "orders")
    assert {partition for partition, *_ in place.raw("orders")} == {0, 1, 2, 3}
    judged(place, sent, "orders")
    report = place.nightly()
    assert not any(line.wrong for line in report.ledger) and not any(view.unexplained for view in report.views)
    assert place.cells(VIEW) == truth(VIEW, sent)


@pytest.mark.soak  # half a minute for each leader
def test_leaders_that_are_killed_lose_no_acknowledged_message(workplace: Callable[..., Workplace]) -> None:
    """Three brokers, each message on all, acknowledged by two: the leader of a partition dies five times while events arrive."""
    place = workplace("orders", brokers=3)
    place.start("--trigger-seconds", "0.5")
    wait_for(lambda: place.last_journal_batch() >= 0 or place.control.heartbeat(), 120, "the driver runs")
    sent: list[Sent] = []
    for round_ in range(5):
        with ThreadPoolExecutor(1) as thread:
            producing = thread.submit(place.produce, 1_200, IN_TIME, seed=300 + round_, rate=100)
            time.sleep(4)
            os.kill(leader_of(place, "shop.orders"), signal.SIGKILL)
            sent += producing.result()
        stack.start_kafka(place.home)
    until = len(messages_of(sent, "orders"))
    wait_for(lambda: place.messages_read(ARCHIVE_QUERY) >= until, 240, f"{until} messages were read")
    place.stop()
    place.stream_once()
    # A leader that has taken a message before its predecessor died acknowledges it again, with another time.
    assert until > 5 * 600 and without_times(place.raw("orders")) == without_times(archive_of(sent, "orders")), "each, once"
    journaled = Counter((row["partition"], row["offset"]) for row in place.journal("orders"))
    assert journaled == Counter((own.partition, own.offset) for own in messages_of(sent, "orders")), "each, once"


def without_times(messages: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter({(partition, offset, value): count for (partition, offset, _, value), count in messages.items()})


def leader_of(place: Workplace, topic: str) -> int:
    """The process of the broker that leads the topic's first partition."""
    record = stack.KafkaRecord.read(place.home.stack_record)
    assert record
    with KafkaAdminClient(bootstrap_servers=record.address) as admin:
        number = admin.describe_topics([topic])[0]["partitions"][0]["leader_id"]
    led = record.brokers[number - 1].identity
    assert led
    return led.pid


@pytest.mark.soak  # tests/pure/test_supervision.py has every decision of it
def test_one_driver_at_a_time(workplace: Callable[..., Workplace], tmp_path: Path) -> None:
    """A second driver is refused before any sink code runs; a frozen one is replaced, and writes nothing when it wakes."""
    place = workplace("orders")
    sent = place.produce(500, IN_TIME)
    first = place.start("--trigger-seconds", "0.2")
    wait_until_running(place.home, "shop", first)

    with pytest.raises(Refusal, match="already has a driver: it is run by process"):
        place.start("--once").wait()
    (tmp_path / "link").symlink_to(place.home.lake.root)
    for spelling in (str(tmp_path / "link"), f"file://{place.home.lake.root}/"):
        refused = place.cli("stream", "shop", "--once", WEIR_LAKE=spelling)
        assert refused.returncode == 2 and "already has a driver" in refused.stderr and len(refused.stderr.splitlines()) == 1
    lease = place.control.lease()
    assert lease is not None and lease.generation == 1 and lease.holder.pid == first.process.pid

    wait_for(lambda: place.last_journal_batch() >= 0, 180, "the first batch")
    os.killpg(first.process.pid, signal.SIGSTOP)
    wait_for(lambda: silent_seconds(place) > 31, 60, "a silent driver")
    second = place.start("--trigger-seconds", "0.2")
    wait_until_running(place.home, "shop", second)
    sent += place.produce(500, Shares(dirty=0, late=0, duplicate=0, out_of_order=0, skewed=0, future=0), seed=2)
    os.killpg(first.process.pid, signal.SIGCONT)
    assert first.process.wait(60) == 1
    with pytest.raises(JobFailed, match="generation 1 has been replaced by generation 2"):
        first.outcome()
    place.stop()
    assert second.wait().failure is None
    place.stream_once()
    assert place.raw("orders") == archive_of(sent, "orders")
    judged(place, sent, "orders")
    assert place.cells(VIEW) == truth(VIEW, sent)


def silent_seconds(place: Workplace) -> float:
    beat = place.control.heartbeat()
    assert beat is not None
    return (datetime.now(UTC) - beat.written_at).total_seconds()


@pytest.mark.soak  # a day under Airflow has a stop and a start too
def test_a_stop_comes_at_a_batch_border_and_the_next_start_resumes(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(4_000, IN_TIME)
    for how in ("signal", "record"):
        job: Job = place.start("--trigger-seconds", "0.1", "--max-batch", "100")
        wait_until_running(place.home, "shop", job)
        before = place.last_journal_batch()
        wait_for(lambda before=before: place.last_journal_batch() > before, 180, "a batch")
        if how == "signal":
            job.process.send_signal(signal.SIGTERM)
        else:
            place.stop()
        assert job.wait().failure is None and job.process.returncode == 0
        beat = place.control.heartbeat()
        assert beat is not None and beat.state == "stopped"
    place.stream_once()
    assert place.raw("orders") == archive_of(sent, "orders")
    assert place.cells(VIEW) == truth(VIEW, sent)
    judged(place, sent, "orders")
    rows = place.journal("orders")
    for partition in {row["partition"] for row in rows}:
        offsets = [row["offset"] for row in sorted(rows, key=lambda own: (own["batch"], own["offset"])) if row["partition"] == partition]
        assert offsets == list(range(len(offsets))), "each batch goes on where the one before it ended"
    assert sorted({row["batch"] for row in rows}) == list(range(place.last_journal_batch() + 1)), "no batch is missing"

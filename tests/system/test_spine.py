"""The whole spine on real parts: Kafka, Spark, Delta, processes that are killed. Compared as multisets with the sent file."""

import itertools
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
from deltalake import DeltaTable
from harness import DAY, Sent, Workplace, archive_of, messages_of, wait_for
from kafka import KafkaAdminClient
from oracle import Message

from spark_jobs.progress import BatchRange, read_log
from weir import stack
from weir.generator import Shares
from weir.jobs import Job, JobFailed, wait_until_running
from weir.layout import ARCHIVE_QUERY, view_query
from weir.refusal import Refusal
from weir.serving import answer_query

IN_TIME = Shares(dirty=0.05, late=0, duplicate=0.03, out_of_order=0.1, skewed=0.05, future=0.01)
WITH_LATE = Shares(dirty=0.02, late=0.08, duplicate=0.05, out_of_order=0.1, skewed=0.02, future=0.01)
VIEW = "revenue_per_minute"


def truth(view: str, sent: list[Sent]) -> oracle.Cells:
    return oracle.truth(view, lambda stream: messages_of(sent, stream))


def batches_of(place: Workplace, view: str) -> list[BatchRange]:
    query = view_query(view)
    return read_log(query, place.home.lake.checkpoint("shop", query, place.pipeline.fingerprint(view)))


def test_the_stream_equals_the_batch_equals_the_oracle(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "searches", "clicks", "customers")
    sent = place.produce(4_000, IN_TIME)
    place.stream_once("--max-batch", "700")
    report = place.nightly()

    for stream in place.pipeline.sources:
        assert place.raw(stream) == archive_of(sent, stream), f"raw/{stream}"
    for view in ("revenue_per_minute", "revenue_per_segment"):
        assert len(batches_of(place, view)) > 2, "one batch proves nothing"
        assert place.cells(view) == place.cells(view, "__batch") == place.cells(view, "__speed") == truth(view, sent)

    # Visits are told when they are closed; those that are not yet are pending, and nothing else is missing.
    watermark = datetime.fromtimestamp(batches_of(place, "visits")[-1].watermark_ms / 1_000, UTC)
    closed = {grain: cell for grain, cell in truth("visits", sent).items() if cell[2] + timedelta(minutes=30) <= watermark}
    assert place.cells("visits", "__batch") == place.cells("visits") == truth("visits", sent)
    assert place.cells("visits", "__speed") == closed
    compared = {view.view: view for view in report.views}
    assert compared["visits"].pending == len(truth("visits", sent)) - len(closed) > 0
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
    """Late is what occurred at or before the watermark of the batch before the one that read it. Per event, from the offset log."""
    place = workplace("orders")
    sent = place.produce(3_000, WITH_LATE)
    place.stream_once("--max-batch", "250")
    report = place.nightly()

    batches = batches_of(place, VIEW)
    assert len({b.batch for b in batches}) > 8
    counted, late = [], []
    for message, row in accepted_by_arrival_at_the_stream(sent, batches):
        (late if is_late(message, row["at"], batches) else counted).append((message, row))
    seen: dict[str, oracle.Row] = {}
    for _, row in counted:
        seen.setdefault(row["identity"], row)
    assert len(late) > 50

    full, streamed = truth(VIEW, sent), place.cells(VIEW, "__speed")
    assert streamed == oracle.revenue_per_minute(seen.values())
    assert place.cells(VIEW) == place.cells(VIEW, "__batch") == full, "settled: what is served is true"
    differing = {grain for grain, cell in full.items() if streamed.get(grain) != cell}
    (compared,) = report.views
    assert compared.different + compared.only_batch == len(differing) > 20
    assert compared.only_speed == compared.pending == 0 and compared.equal == len(full) - len(differing)
    assert compared.unexplained == 0 and compared.causes == {"late": len(differing)}
    assert status_of(place) == {grain: "repaired" if grain in differing else "proved" for grain in full}

    # The books: every offset has the fate that plain Python gives it.
    by_day: Counter[str] = Counter()
    for line in report.ledger:
        assert not line.wrong and line.offsets == sum(line.fates.values())
        by_day.update(line.fates)
    arrived = [m for m in messages_of(sent, "orders") if m.received_at.date() == DAY]
    places = {(m.partition, m.offset) for m in arrived}
    fates = Counter(oracle.fate_of("orders", m)[0] for m in arrived)
    expected = Counter(
        late=sum((m.partition, m.offset) in places for m, _ in late),
        counted=sum((m.partition, m.offset) in places for m, _ in first_of(counted)),
        rejected=fates["rejected"],
        undecodable=fates["undecodable"],
    )
    expected["duplicate"] = len(arrived) - expected.total()
    assert +by_day == +expected

    # Each differing cell names the very events that the stream did not wait for.
    told = json.loads(place.cli("explain", VIEW, "--day", str(DAY), "--json").stdout)["cells"]
    assert len(told) == len(differing)
    first_late = [(m, row) for m, row in late if row["identity"] not in seen]
    for cell in told:
        minute = datetime.fromisoformat(cell["grain"]["minute"]).replace(tzinfo=UTC)
        own = {
            r["identity"]
            for _, r in first_late
            if r["country"] == cell["grain"]["country"] and minute <= r["at"] < minute + timedelta(minutes=1)
        }
        (cause,) = cell["causes"]
        assert cause["cause"] == "late" and set(cause["identities"]) == own and cause["events"] == len(own)


def first_of(counted: list[tuple[Message, oracle.Row]]) -> list[tuple[Message, oracle.Row]]:
    seen: dict[str, tuple[Message, oracle.Row]] = {}
    for message, row in counted:
        seen.setdefault(row["identity"], (message, row))
    return list(seen.values())


def status_of(place: Workplace) -> dict[tuple[object, ...], str]:
    answer = answer_query(place.home.lake, [place.pipeline], f"SELECT minute, country, status FROM {VIEW}")
    return {(minute.astimezone(UTC), country): status for minute, country, status in answer.rows}


def accepted_by_arrival_at_the_stream(sent: list[Sent], batches: list[BatchRange]) -> list[tuple[Message, oracle.Row]]:
    accepted = [(m, row) for m in messages_of(sent, "orders") for fate, row in [oracle.fate_of("orders", m)] if fate == "accepted"]
    return sorted(((m, row) for m, row in accepted if row), key=lambda pair: (batch_of(pair[0], batches).batch, pair[0].received_at))


def batch_of(message: Message, batches: list[BatchRange]) -> BatchRange:
    (own,) = [b for b in batches if b.partition == message.partition and b.from_offset <= message.offset < b.until_offset]
    return own


def is_late(message: Message, occurred_at: datetime, batches: list[BatchRange]) -> bool:
    before = [b.watermark_ms for b in batches if b.batch == batch_of(message, batches).batch - 1]
    return bool(before) and occurred_at.timestamp() * 1_000 <= before[0]


def test_a_driver_that_is_killed_in_every_phase_loses_and_doubles_nothing(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(3_000, IN_TIME)
    view, archive = view_query(VIEW), ARCHIVE_QUERY
    # The view first and without the archive: beside a query that is killed the other one gets nobody knows how far.
    for fault in (f"before_write.{view}:1", f"after_write.{view}:2", f"before_write.{archive}:0", f"after_write.{archive}:1"):
        alone = ["--no-archive"] if view in fault else []
        job = place.start("--once", "--max-batch", "500", "--max-archive-batch", "500", *alone, fault=f"{fault}:kill9")
        with pytest.raises(JobFailed):
            job.wait()
        assert job.process.returncode == -signal.SIGKILL, f"the fault {fault} did not strike: {job.log.read_text()[-2000:]}"
    place.stream_once("--max-batch", "500", "--max-archive-batch", "500")
    assert place.raw("orders") == archive_of(sent, "orders")
    assert place.cells(VIEW) == truth(VIEW, sent)


@pytest.mark.soak
def test_kills_at_any_moment_while_events_arrive_lose_and_double_nothing(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent: list[Sent] = []
    for round_ in range(3):
        job = place.start("--trigger-seconds", "0.2")
        before = newest_batch(place)
        sent += place.produce(600, IN_TIME, seed=100 + round_)
        wait_for(lambda before=before: newest_batch(place) > before, 240, "progress after a kill")  # kill again only after progress
        os.killpg(job.process.pid, signal.SIGKILL) if round_ == 1 else job.process.kill()
        job.process.wait()
    place.stream_once()
    assert place.raw("orders") == archive_of(sent, "orders")
    # The seeds' days overlap, so events of a later round can be late: every cell is one of the counted events, by the rule.
    batches = batches_of(place, VIEW)
    seen: dict[str, oracle.Row] = {}
    for message, row in accepted_by_arrival_at_the_stream(sent, batches):
        if not is_late(message, row["at"], batches):
            seen.setdefault(row["identity"], row)
    assert place.cells(VIEW) == oracle.revenue_per_minute(seen.values())


@pytest.mark.soak  # tests/pure/test_backlog.py has every decision of it
def test_batches_that_take_too_long_become_smaller(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(20_000, IN_TIME)
    driver = place.start("--views", VIEW, "--max-batch", "4000", fault=f"before_write.{view_query(VIEW)}:1:slow")
    wait_for(lambda: place.messages_read(view_query(VIEW)) >= len(messages_of(sent, "orders")), 300, "all messages were read")
    place.stop()
    read: Counter[int] = Counter()
    for own in batches_of(place, VIEW):
        read[own.batch] += own.until_offset - own.from_offset
    assert min(read[0], read[1], read[2]) > 3_900, "the third was planned when the second was not done"
    assert 1_900 < read[3] <= 2_000
    assert f"{view_query(VIEW)} starts again: its batches read at most 2,000 messages" in driver.log.read_text()
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
    for query in (ARCHIVE_QUERY, view_query(VIEW)):
        wait_for(lambda query=query: place.messages_read(query) >= len(messages_of(sent, "orders")), 240, f"{query} has read the others")
    place.stop()
    assert place.raw("orders") == archive_of(sent, "orders")
    assert {partition for partition, *_ in place.raw("orders")} == {0, 1, 2, 3}
    report = place.nightly()
    assert not any(line.wrong for line in report.ledger) and not any(view.unexplained for view in report.views)
    assert place.cells(VIEW) == truth(VIEW, sent)


@pytest.mark.soak  # half a minute for each leader
def test_leaders_that_are_killed_lose_no_acknowledged_message(workplace: Callable[..., Workplace]) -> None:
    """Three brokers, each message on all, acknowledged by two: the leader of a partition dies five times while events arrive."""
    place = workplace("orders", brokers=3)
    place.start("--trigger-seconds", "0.5")
    wait_for(lambda: newest_batch(place) >= 0 or place.control.heartbeat(), 120, "the driver runs")
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


def newest_batch(place: Workplace) -> int:
    commits = Path(place.home.lake.checkpoint("shop", view_query(VIEW), place.pipeline.fingerprint(VIEW))) / "commits"
    return max((int(file.name) for file in commits.glob("*") if file.name.isdigit()), default=-1)


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

    wait_for(lambda: newest_batch(place) >= 0, 180, "the first batch")
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
        before = newest_batch(place)
        wait_for(lambda before=before: newest_batch(place) > before, 180, "a batch")
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
    copied = DeltaTable(place.home.lake.progress("shop")).to_pyarrow_table().to_pylist()
    logged = batches_of(place, VIEW)
    assert Counter((c["batch"], c["partition"], c["from_offset"], c["until_offset"], c["watermark_ms"]) for c in copied) == Counter(
        (b.batch, b.partition, b.from_offset, b.until_offset, b.watermark_ms) for b in logged
    )
    for before, after in itertools.pairwise(sorted(logged, key=lambda b: (b.partition, b.batch))):
        assert before.partition != after.partition or before.until_offset == after.from_offset, "a gap in the log"

"""The nightly proof on real parts: what is lost, tampered with, late or dirty is named, blocks, and is repaired; against the oracle."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import oracle
import pytest
from events import order
from harness import DAY, ROOT, Sent, Workplace, archive_of, messages_of, read_sent, wait_for
from kafka import KafkaConsumer
from rich.console import Console

from weir import stack
from weir.drill import Drill, own_settings
from weir.event_time import utc_now
from weir.generator import Shares
from weir.jobs import Job, JobFailed
from weir.layout import Home, corrections_topic
from weir.produce import Event, encode
from weir.records.driver import Losses
from weir.records.night import NightlyReport
from weir.screens import show_drill
from weir.serving import ServedView, answer_query, differences, tamper_with_cell

WITH_ALL = Shares(dirty=0.03, late=0.05, duplicate=0.05, out_of_order=0.1, skewed=0.02, future=0.01)
VIEW, TOPIC = "revenue_per_minute", "shop.orders"
NEXT_DAY = DAY + timedelta(days=1)
USD, GBP = "        - USD\n", "        - GBP\n"
"""As the reduced declaration lists them."""
pytestmark = pytest.mark.timeout(2_400)


def truth(view: str, sent: list[Sent], lost: set[tuple[str, int, int]] = frozenset()) -> oracle.Cells:  # type: ignore[assignment]
    return oracle.truth(view, lambda stream: [m for m in messages_of(sent, stream) if (m.topic, m.partition, m.offset) not in lost])


def of_day(cells: oracle.Cells, day: Any = DAY) -> oracle.Cells:
    return {grain: cell for grain, cell in cells.items() if grain[0].date() == day}


def late_order(number: int, at: datetime, arrives_at: datetime) -> Event:
    return Event("orders", TOPIC, b"k", encode(order(f"o-extra-{number}", at)), f"o-extra-{number}", at, arrives_at, "late")


def test_the_night_names_blocks_and_repairs(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "payments")
    place.produce(2_500, WITH_ALL)
    place.stream_once("--max-batch", "300")

    # Messages that the log drops before anybody has read them: exactly those are booked, and the stream goes on.
    before = stack.end_offsets(stack.bootstrap(place.home), [TOPIC])
    place.produce(1_500, WITH_ALL, seed=2)
    gone = {f"{TOPIC}/0": before[f"{TOPIC}/0"] + 40}
    stack.drop_messages(stack.bootstrap(place.home), gone)
    place.stream_once("--max-batch", "150")
    sent = [s for seed in (1, 2) for s in _sent(place, seed)]
    losses = Losses.read(place.home.lake.losses("shop"))
    assert losses is not None
    assert {(own.query, own.partition, own.until_offset - own.from_offset) for own in losses.found} == {
        ("archive", 0, 40),
        ("intake", 0, 40),
    }
    lost = {(TOPIC, 0, offset) for offset in range(before[f"{TOPIC}/0"], gone[f"{TOPIC}/0"])}
    full = truth(VIEW, sent, lost)

    # One streamed number is changed behind the stream's back: it, and it alone, has no cause, and nothing is settled.
    cell = tamper_with_cell(place.home.lake, place.pipeline, VIEW, "orders")
    blocked = place.nightly()
    view, paid = (next(own for own in blocked.views if own.view == name) for name in (VIEW, "paid_orders"))
    assert view.decision == "BLOCK" and view.unexplained == 1 and view.settled_until is None, view
    assert view.causes == {"unexplained": 1}, "the intake counts late events: nothing else differs"
    # A view that waits for the watermark leaves late events to the night: named, repaired, and settled although another view is not.
    assert paid.causes["late"] > 20 and paid.unexplained == 0 and paid.settled_until == NEXT_DAY, paid
    assert of_day(place.cells("paid_orders")) == of_day(truth("paid_orders", sent, lost))
    (unexplained,) = [own for own in view.examples if own.is_unexplained]
    assert unexplained.grain == cell
    orders = [line for line in blocked.ledger if line.view == VIEW]
    assert sum(line.fates["lost"] for line in orders) == 40
    assert [(r.from_offset, r.until_offset, r.reason) for line in orders for r in line.lost_ranges] == [
        (before[f"{TOPIC}/0"], gone[f"{TOPIC}/0"], "retention")
    ]
    assert not any(line.wrong for line in blocked.ledger)
    assert {row[0] for row in answer_query(place.home.lake, [place.pipeline], f"SELECT DISTINCT status FROM {VIEW}").rows} == {
        "provisional"
    }

    # A person accepts exactly this; the next night settles, and tells the corrections.
    refused = place.cli("reconcile", "shop", "--view", VIEW, "--day", str(DAY), "--accept", " ")
    assert refused.returncode == 2 and "say why" in refused.stderr
    accepted = place.cli("reconcile", "shop", "--view", VIEW, "--day", str(DAY), "--accept", "a test did it")
    assert accepted.returncode == 0, accepted.stderr
    settled = next(own for own in place.nightly().views if own.view == VIEW)
    assert settled.decision == "WARN" and "a test did it" in settled.gate[0] and settled.settled_until == NEXT_DAY
    assert of_day(place.cells(VIEW)) == of_day(full)
    told = _corrections(place)
    assert len(told) == settled.corrections == settled.differing == 1
    assert {(c["cell"]["minute"], c["cell"]["country"]) for c in told} == {(cell["minute"], cell["country"])}

    key = next(grain for grain in full if grain[0].date() == DAY)
    served = ServedView(place.home.lake, place.pipeline, VIEW)
    found = served.look_up({"minute": key[0], "country": key[1]})
    assert found is not None and (found["orders"], found["revenue"]) == full[key] and found["status"] in ("proved", "repaired")

    # What arrives for a settled day makes it dirty; the night of the day of arrival recomputes it, and only it.
    at, arrives = datetime(2026, 3, 1, 10, 30, tzinfo=UTC), datetime(2026, 3, 2, 23, 50, tzinfo=UTC)
    place.send([late_order(n, at + timedelta(seconds=n), arrives) for n in range(3)])
    place.stream_once("--max-batch", "150")
    next_night = place.nightly(NEXT_DAY)
    assert next_night.also == [str(DAY)]
    full = truth(VIEW, [s for seed in (1, 2) for s in _sent(place, seed)], lost)
    assert of_day(place.cells(VIEW)) == of_day(full)
    assert len(_corrections(place)) == len(told) + 1, "all three are in one cell"
    assert not list(place.home.lake.dirty_days("shop").glob("*")), "what is recomputed is clean"

    # Taken back: speed is served again.
    reverted = place.cli("reconcile", "shop", "--view", VIEW, "--day", str(DAY), "--revert", "--json")
    assert json.loads(reverted.stdout[reverted.stdout.index("{") :])["settlements"][0]["until"] is None, reverted.stderr
    assert place.cells(VIEW) == place.cells(VIEW, "__speed") != full


def test_a_view_that_has_read_beyond_the_archive_blocks_the_night_and_the_cut_is_named(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def send(*minutes: int) -> None:
        place.send([late_order(minute, noon + timedelta(minutes=minute), noon + timedelta(minutes=minute)) for minute in minutes])

    send(0, 1, 2)
    place.stream_once()
    send(3, 4)
    place.send([late_order(5, noon + timedelta(minutes=2, seconds=1), noon + timedelta(minutes=5))])
    place.stream_once("--no-archive")
    (early,) = place.nightly().views
    beyond = {str(noon + timedelta(minutes=minute))[:19] for minute in (2, 3, 4)}
    assert (early.compared, early.equal, early.causes, early.unexplained) == (5, 2, {"cut": 3}, 0)
    assert {cell.grain["minute"] for cell in early.examples} == beyond
    assert early.decision == "BLOCK" and early.settled_until is None and len(early.gate) == 1
    assert early.gate[0].startswith(f"the batch is early: raw ends at {TOPIC}/"), early.gate
    assert place.cells(VIEW) == place.cells(VIEW, "__speed") == truth(VIEW, _sent(place, 1)), "what was early is not served"

    place.stream_once()
    (whole,) = place.nightly().views
    assert (whole.compared, whole.equal, whole.causes, whole.settled_until) == (5, 5, {}, NEXT_DAY)
    assert place.cells(VIEW) == place.cells(VIEW, "__batch") == truth(VIEW, _sent(place, 1))


@pytest.mark.soak
def test_what_an_earlier_declaration_has_streamed_differs_by_release_or_by_version(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    place.rewrite("pipeline.yaml", GBP, "")  # somebody forgot a currency
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    orders = [
        order("o-1", noon),
        order("o-released", noon, currency="GBP"),
        order("o-2", noon, country="FR"),
        order("o-3", noon, country="IT"),
    ]
    place.send([Event("orders", TOPIC, b"k", encode(own), own["order_id"], noon, noon, "") for own in orders])
    place.stream_once()
    place.refine()
    before = place.pipeline.fingerprint(VIEW)

    # The rule is mended, what France has ordered counts twice, and there is a column more.
    place.rewrite("pipeline.yaml", USD, USD + GBP)
    place.rewrite(f"{VIEW}.sql", "sum(amount)", "max(amount) AS largest, sum(CASE WHEN country = 'FR' THEN 2 * amount ELSE amount END)")
    assert place.replay("orders").released == 1
    place.stream_once()
    (view,) = place.nightly().views
    assert (view.compared, view.equal, view.causes, view.decision) == (3, 3, {}, "PASS"), view
    (version,) = view.versions
    assert (version.fingerprint, version.compared, version.equal, version.released) == (before, 3, 1, 1)
    assert version.causes == {"quarantine": 1, "version": 1}
    told = {cell.grain["country"]: cell for cell in differences(place.home.lake, place.pipeline, VIEW, DAY, before)}
    assert set(told) == {"DE", "FR"}
    (released,), (changed,) = told["DE"].causes, told["FR"].causes
    assert (released.cause, released.events, released.identities) == ("quarantine", 1, ["o-released"])
    assert (told["DE"].speed, told["DE"].batch) == ({"orders": "1", "revenue": "10.00"}, {"orders": "2", "revenue": "20.00"})
    assert (changed.cause, told["FR"].speed, told["FR"].batch) == (
        "version",
        {"orders": "1", "revenue": "10.00"},
        {"orders": "1", "revenue": "20.00"},
    )


def _sent(place: Workplace, seed: int) -> list[Sent]:
    return read_sent(place.home.sent("shop", str(DAY), seed))


def _corrections(place: Workplace) -> list[dict[str, Any]]:
    topic = corrections_topic("shop", VIEW)
    consumer = KafkaConsumer(topic, bootstrap_servers=stack.bootstrap(place.home), auto_offset_reset="earliest", consumer_timeout_ms=3_000)
    try:
        return [json.loads(message.value) for message in consumer]
    finally:
        consumer.close()


@pytest.mark.soak
def test_a_night_that_is_killed_anywhere_gives_the_same_when_it_is_run_again(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(1_500, WITH_ALL)
    place.stream_once("--max-batch", "150")
    for phase in ("after_differences", "after_telling", "after_publish"):
        os.environ["WEIR_FAULT"] = f"{phase}:0:kill9"
        try:
            job = Job(place.home, "nightly_job", "shop", stack.bootstrap(place.home), ["--day", str(DAY)])
            with pytest.raises(JobFailed):
                job.wait()
        finally:
            del os.environ["WEIR_FAULT"]
        assert job.process.returncode == -signal.SIGKILL, f"{phase} did not strike"
        assert place.cells(VIEW) == place.cells(VIEW, "__speed"), "nothing is served that was not settled"
    (view,) = place.nightly().views
    assert view.unexplained == 0 and view.settled_until == NEXT_DAY
    assert of_day(place.cells(VIEW)) == of_day(truth(VIEW, sent))
    told = Counter(json.dumps([c["cell"], c["before"], c["after"]], sort_keys=True) for c in _corrections(place))
    assert len(told) == view.corrections == view.differing + view.pending
    assert set(told.values()) == {3}, "each by every run that came so far: none is missed, whatever dies"
    (again,) = place.nightly().views
    assert again.corrections == 0 and (again.equal, again.causes) == (view.equal, view.causes), "once more: the same, nothing to correct"
    first = Job(place.home, "nightly_job", "shop", stack.bootstrap(place.home), ["--day", str(DAY)])
    second = Job(place.home, "nightly_job", "shop", stack.bootstrap(place.home), ["--day", str(DAY)])
    outcomes = [job.wait(raises=False) for job in (first, second)]
    assert sorted(outcome.report is None for outcome in outcomes) == [False, True], "one of two at a time"
    assert any("a night of shop is running already" in (outcome.refusal or "") for outcome in outcomes)


@pytest.mark.soak
def test_a_view_that_cannot_be_proved_keeps_no_other_from_being_settled(
    workplace: Callable[..., Workplace], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, broken = workplace("orders", "customers"), "revenue_per_segment"
    sent = place.produce(1_500, WITH_ALL)
    place.stream_once("--max-batch", "150")
    monkeypatch.setenv("WEIR_FAULT", "proving:1:raise")
    with pytest.raises(JobFailed, match=f"{broken} of {DAY} could not be proved: fault injected"):
        Job(place.home, "nightly_job", "shop", stack.bootstrap(place.home), ["--day", str(DAY)]).wait()
    assert of_day(place.cells(VIEW)) == of_day(truth(VIEW, sent))
    assert place.cells(broken) == place.cells(broken, "__speed")
    monkeypatch.delenv("WEIR_FAULT")
    night = place.nightly()
    assert [(own.view, own.settled_until) for own in night.views] == [(VIEW, NEXT_DAY), (broken, NEXT_DAY)]
    assert night.ledger and not any(line.wrong for line in night.ledger)


@pytest.mark.soak
def test_a_night_while_events_arrive_judges_what_was_there(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = place.produce(2_000, WITH_ALL)
    job = place.start("--max-batch", "300")
    wait_for(lambda: any(Path(place.home.lake.raw("shop"), "_delta_log").glob("*.json")), 240, "something is archived")
    wait_for(lambda: place.raw("orders") == archive_of(sent, "orders"), 240, "the first events are archived")
    arriving = Thread(target=place.produce, args=(2_000, WITH_ALL, 2, 8.0))
    arriving.start()
    nights = []
    while arriving.is_alive():
        nights.append(place.nightly())
    arriving.join()
    sent += _sent(place, 2)
    wait_for(lambda: place.raw("orders") == archive_of(sent, "orders"), 240, "all events are archived")
    place.stop()
    job.wait()
    last = place.nightly()
    offsets = [sum(line.offsets for line in night.ledger) for night in [*nights, last]]
    assert len(nights) > 1 and offsets == sorted(offsets) and offsets[0] < offsets[-1], "they ran while events arrived"
    for night in [*nights, last]:
        (view,) = night.views
        assert view.unexplained == 0 and view.decision != "BLOCK" and not any(line.wrong for line in night.ledger), view
    assert of_day(place.cells(VIEW)) == of_day(truth(VIEW, sent))
    served = {json.dumps(c["cell"], sort_keys=True): c["after"] for c in _corrections(place)}
    assert len(served) > 20, "what was corrected is told"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_unexplained_however_the_day_is_cut(workplace: Callable[..., Workplace], seed: int) -> None:
    """Random batches and restarts; every fault; windows, sessions and joins, half of the shop for each seed."""
    place, chance = workplace(*(("orders", "payments") if seed % 2 else ("searches", "clicks"))), random.Random(seed)
    sent: list[Sent] = []
    for part in range(2):
        sent += place.produce(chance.randint(200, 600), WITH_ALL, seed=100 * seed + part + 1)
        place.stream_once("--max-batch", str(chance.choice([40, 100, 300, 1_000])))
    report = place.nightly()
    assert len(report.views) == 3
    for view in report.views:
        assert view.unexplained == 0 and view.settled_until == NEXT_DAY, view
        assert of_day(place.cells(view.view)) == of_day(truth(view.view, sent))
    assert not any(line.wrong for line in report.ledger)
    booked: Counter[tuple[str, str]] = Counter()
    for line in report.ledger:
        booked[line.view, line.stream] += line.offsets
    for (view_name, stream), offsets in booked.items():
        assert offsets == sum(s.stream == stream and s.message.received_at.date() == DAY for s in sent), (view_name, stream)


@pytest.mark.soak
@pytest.mark.timeout(5_400)  # seven views of 200,000 events take half an hour where nobody else works
def test_the_drill_is_passed_and_what_is_served_is_true(tmp_path: Path) -> None:
    """200,000 events on two partitions, all views, every fault with its exact count."""
    home = Home(tmp_path / "home")
    with own_settings(home, ROOT / "pipelines"):
        day = utc_now().date() - timedelta(days=2)
        drill = Drill(home, day, 200_000, 1, print)
        drilled = drill.run()
        show_drill(Console(width=140), drilled, home)
        assert drilled.passed, drilled
        assert all(own.injected > 0 for own in drilled.faults) and drilled.unexplained == 0
        report = NightlyReport.read(home.lake.nightly_report("shop", str(day)))
        assert report is not None
        sent = read_sent(home.sent("shop", str(day), 1))
        losses = Losses.read(home.lake.losses("shop"))
        assert losses is not None
        lost = {(own.topic, own.partition, offset) for own in losses.found for offset in range(own.from_offset, own.until_offset)}
        for view in drill.pipeline.views:
            streams, compute = oracle.VIEWS[view]
            kept = {own: [m for m in messages_of(sent, own) if (m.topic, m.partition, m.offset) not in lost] for own in streams}
            expected = compute(*(_with_barter(own, kept[own]) for own in streams))
            answer = answer_query(home.lake, [drill.pipeline], f"SELECT * EXCLUDE (status) FROM {view}")
            grain = len(drill.pipeline.views[view].grain)
            utc = [tuple(v.astimezone(UTC) if isinstance(v, datetime) else v for v in row) for row in answer.rows]
            assert {row[:grain]: row[grain:] for row in utc} == expected, view


def _with_barter(stream: str, messages: list[oracle.Message]) -> list[oracle.Row]:
    """By the mended rule barter is a way to pay: the oracle knows the rules of before, so it reads 'card' and is told the truth."""
    if stream != "payments":
        return [row for _, row in oracle.counted_of(stream, messages)]
    barter = {(m.partition, m.offset) for m in messages if b'"barter"' in (m.value or b"")}
    shown = [
        oracle.Message(m.topic, m.partition, m.offset, m.received_at, (m.value or b"").replace(b'"barter"', b'"card"'))
        if (m.partition, m.offset) in barter
        else m
        for m in messages
    ]
    rows = oracle.first_of_each(stream, shown)
    return [row | {"method": "barter"} if (m.partition, m.offset) in barter else row for m, row in rows]

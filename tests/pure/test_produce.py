"""The plan of simulated events keeps its promises: same bytes, declared shares, each fault with its meaning."""

import base64
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.structs import TopicPartition

from weir.event_time import FUTURE_TOLERANCE
from weir.generator import ProduceDeclaration, Shares, iso_millis, load_produce
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.produce import BROKEN, DUPLICATE_MS, Event, Shape, _Acknowledgements, can_break, plan_events
from weir.refusal import Refusal

ROOT = Path(__file__).resolve().parents[2]
SHOP_FOLDER = ROOT / "pipelines" / "shop"
SHOP = load_pipeline(SHOP_FOLDER)
SHOP_PRODUCE = load_produce(SHOP_FOLDER, SHOP)
DAY = date(2026, 7, 26)
LONG_AFTER = datetime(2026, 7, 28, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def plan(
    events: int,
    seed: int = 7,
    *,
    pipeline: Pipeline = SHOP,
    declaration: ProduceDeclaration = SHOP_PRODUCE,
    day: date = DAY,
    shares: Shares | None = None,
    start: time | None = None,
    end: time | None = None,
    now: datetime = LONG_AFTER,
) -> list[Event]:
    return list(plan_events(pipeline, declaration, day, events, seed, shares, start, end, now))


@pytest.fixture(scope="module")
def sample() -> list[Event]:
    return plan(60_000)


def kind(event: Event) -> str:
    return event.wrong.split(":")[0]


def of_kind(events: list[Event], wanted: str) -> list[Event]:
    found = [event for event in events if kind(event) == wanted]
    assert found, f"the sample has no {wanted} event"
    return found


def message(event: Event) -> dict[str, Any]:
    assert event.value is not None
    return json.loads(event.value)


def event_time(event: Event) -> datetime:
    return datetime.fromisoformat(message(event)[SHOP.sources[event.stream].occurred_at])


# The plan as a whole


def test_the_same_arguments_give_the_same_bytes_in_another_process_too() -> None:
    program = (
        "import hashlib, sys; sys.path[:0] = ['.', 'tests/pure']; from test_produce import plan; "
        "print(hashlib.sha256(repr(plan(2_000)).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    other = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hashlib.sha256(repr(plan(2_000)).encode()).hexdigest()


@pytest.mark.parametrize(
    "other",
    [{"seed": 8}, {"day": DAY - timedelta(days=1)}, {"start": time(12)}, {"start": time(12, 0, 1)}],
    ids=["seed", "day", "start", "another start"],
)
def test_another_seed_day_or_start_gives_other_identities(other: dict[str, Any]) -> None:
    def identities(events: list[Event]) -> set[str | None]:
        return {event.identity for event in events if event.stream in SHOP.streams and event.identity is not None}

    assert not identities(plan(2_000)) & identities(plan(2_000, **other))
    assert not identities(plan(2_000, start=time(12))) & identities(plan(2_000, start=time(13)))


def test_events_counts_what_happens_and_weights_divide_it_exactly(sample: list[Event]) -> None:
    originals = Counter(event.stream for event in sample if event.wrong != "duplicate")
    assert originals == {"clicks": 24_000, "searches": 18_000, "orders": 10_200, "payments": 7_200, "customers": 600}


def test_messages_come_in_the_order_of_arrival_and_none_after_now(sample: list[Event]) -> None:
    assert all(earlier.arrives_at <= later.arrives_at for earlier, later in pairwise(sample))
    assert sample[-1].arrives_at <= LONG_AFTER


def test_shares_are_as_declared(sample: list[Event]) -> None:
    counts = Counter(map(kind, sample))
    for fault, share in SHOP_PRODUCE.shares.model_dump().items():
        expected = 60_000 * share
        assert abs(counts[fault] - expected) < 5 * expected**0.5, (fault, counts[fault], expected)


def test_the_caller_overrides_the_shares() -> None:
    clean = Shares(dirty=0, late=0, duplicate=0, out_of_order=0, skewed=0, future=0)
    assert {event.wrong for event in plan(2_000, shares=clean)} == {""}
    all_twice = clean.model_copy(update={"duplicate": 1.0})
    assert Counter(event.wrong for event in plan(2_000, shares=all_twice)) == {"": 2_000, "duplicate": 2_000}


def test_a_day_is_quiet_at_night_and_busy_at_noon_and_in_the_evening(sample: list[Event]) -> None:
    by_hour = Counter(event.occurred_at.hour for event in sample if event.wrong == "")
    assert by_hour[3] * 10 < by_hour[12] < by_hour[19]


# Each fault has its meaning


def test_good_messages_follow_the_contract_and_arrive_within_two_seconds(sample: list[Event]) -> None:
    json_types = {"string": str, "bigint": int, "int": int}
    for event in of_kind(sample, ""):
        contract = SHOP.sources[event.stream]
        row = message(event)
        assert event.topic == contract.topic
        assert timedelta(0) <= event.arrives_at - event.occurred_at <= 2 * SECOND
        assert row[contract.occurred_at] == iso_millis(event.occurred_at)
        assert str(row[contract.identity]) == event.identity == event.key.decode()
        assert set(row) | {name for name, column in contract.columns.items() if column.optional} == set(contract.columns)
        for name, value in row.items():
            assert type(value) is json_types[contract.columns[name].wire_type], (name, value)
        if "amount" in row:
            assert row["amount"] == f"{float(row['amount']):.2f}"


def test_identities_of_good_events_are_unique(sample: list[Event]) -> None:
    identities = [event.identity for event in sample if event.stream in SHOP.streams and event.wrong == ""]
    assert len(set(identities)) == len(identities)


def test_an_event_out_of_order_arrives_later_than_others_but_within_the_lateness(sample: list[Event]) -> None:
    for event in of_kind(sample, "out_of_order"):
        assert 5 * SECOND <= event.arrives_at - event.occurred_at <= 5 * MINUTE
        assert event_time(event) == event.occurred_at


def test_a_late_event_arrives_after_the_lateness(sample: list[Event]) -> None:
    for event in of_kind(sample, "late"):
        assert 11 * MINUTE <= event.arrives_at - event.occurred_at <= timedelta(hours=3, minutes=10)
        assert event_time(event) == event.occurred_at


def test_a_duplicate_is_the_same_message_again_within_a_minute(sample: list[Event]) -> None:
    originals = {(event.stream, event.value): event for event in sample if event.wrong == ""}
    for event in of_kind(sample, "duplicate"):
        original = originals[event.stream, event.value]
        assert event == original._replace(arrives_at=event.arrives_at, wrong="duplicate")
        assert timedelta(0) <= event.arrives_at - original.arrives_at <= timedelta(milliseconds=DUPLICATE_MS)


def test_a_skewed_clock_stays_within_the_tolerance(sample: list[Event]) -> None:
    shifts = [event.occurred_at - event.arrives_at for event in of_kind(sample, "skewed")]
    assert max(map(abs, shifts)) <= 4 * MINUTE < FUTURE_TOLERANCE
    assert min(shifts) < -MINUTE and max(shifts) > MINUTE
    assert all(event_time(event) == event.occurred_at for event in of_kind(sample, "skewed"))


def test_an_event_from_the_future_is_beyond_the_tolerance_by_minutes_to_a_year(sample: list[Event]) -> None:
    for event in of_kind(sample, "future"):
        assert FUTURE_TOLERANCE < 6 * MINUTE <= event.occurred_at - event.arrives_at <= timedelta(days=365)
        assert event_time(event) == event.occurred_at


@pytest.mark.parametrize("lateness_minutes", [1, 2, 30])
def test_out_of_order_behind_a_fast_clock_is_still_in_time_whatever_the_lateness(lateness_minutes: int) -> None:
    lateness = lateness_minutes * MINUTE
    streams = {name: stream.model_copy(update={"lateness": lateness}) for name, stream in SHOP.streams.items()}
    shares = Shares(dirty=0, late=0.3, duplicate=0, out_of_order=0.3, skewed=0.3, future=0)
    newest = datetime.min.replace(tzinfo=UTC)
    for event in plan(5_000, pipeline=SHOP.model_copy(update={"streams": streams}), shares=shares):
        if event.stream in streams:
            if event.wrong == "late":
                assert event.arrives_at - event.occurred_at > lateness
            else:
                assert newest - event.occurred_at <= lateness
                newest = max(newest, event.occurred_at)


def test_every_way_of_being_dirty_occurs_in_every_source() -> None:
    seen = defaultdict(set)
    for event in plan(6_000, shares=Shares(dirty=1, late=0, duplicate=0, out_of_order=0, skewed=0, future=0)):
        seen[event.stream].add(event.wrong.removeprefix("dirty:"))
    for name, source in SHOP_PRODUCE.sources.items():
        shape = Shape.of(SHOP.sources[name])
        assert seen[name] == {*source.dirty, *(way for way in BROKEN if can_break(way, shape))}


def test_dirty_messages_are_wrong_in_just_the_way_that_they_say() -> None:
    events = plan(12_000, shares=Shares(dirty=1, late=0, duplicate=0, out_of_order=0, skewed=0, future=0))
    orders = {event.wrong.removeprefix("dirty:"): event for event in events if event.stream == "orders"}
    text = {way: event.value for way, event in orders.items()}
    good = set(SHOP.streams["orders"].columns)

    for unreadable in ("truncated", "not_json", "two_documents", "empty"):
        with pytest.raises(json.JSONDecodeError):
            json.loads(text[unreadable] or b"")
    with pytest.raises(UnicodeDecodeError):
        (text["not_utf8"] or b"").decode()
    assert text["empty"] == b"" and text["tombstone"] is None and text["null_document"] == b"null"
    assert text["bom"] is not None and text["bom"].startswith(b"\xef\xbb\xbf{")
    assert isinstance(json.loads(text["array"] or b""), list)
    assert len(json.loads(text["duplicate_key"] or b"", object_pairs_hook=list)) == len(good) + 1
    assert set(message(orders["wrong_key_case"])) == {name.upper() for name in good}
    assert len(set(message(orders["missing_field"])) & good) == len(good) - 1
    assert len(set(message(orders["unknown_field"])) - good) == 1
    assert b":NaN," in (text["nan"] or b"")
    assert isinstance(message(orders["number_as_string"])["customer_id"], str)
    assert message(orders["epoch_millis"])["ordered_at"] == round(orders["epoch_millis"].occurred_at.timestamp() * 1000)
    assert message(orders["zoneless"])["ordered_at"] + "Z" == iso_millis(orders["zoneless"].occurred_at)

    assert message(orders["country_lower"])["country"] == " de "
    assert message(orders["amount_negative"])["amount"].startswith("-")
    assert message(orders["amount_null"])["amount"] is None
    assert "amount" not in message(orders["amount_missing"])
    assert "order_id" not in message(orders["identity_missing"]) and orders["identity_missing"].identity is None
    assert all(event.key for event in events)
    assert all(event.identity == event.key.decode() for way, event in orders.items() if not way.startswith("identity"))


# What follows what


def test_a_payment_pays_an_order_that_happened_shortly_before() -> None:
    clean = Shares(dirty=0, late=0, duplicate=0, out_of_order=0, skewed=0, future=0)
    events = plan(20_000, shares=clean)
    orders = {event.identity: event for event in events if event.stream == "orders"}
    paid: Counter[str | None] = Counter()
    for payment in (event for event in events if event.stream == "payments"):
        order = orders[message(payment)["order_id"]]
        assert 5 * SECOND <= payment.occurred_at - order.occurred_at <= 3 * MINUTE
        assert message(payment)["amount"] == message(order)["amount"]
        paid[order.identity] += 1
    assert max(paid.values()) == 1


def test_most_clicks_come_from_a_search_of_the_same_customer() -> None:
    clean = Shares(dirty=0, late=0, duplicate=0, out_of_order=0, skewed=0, future=0)
    events = plan(20_000, shares=clean)
    searches = {event.identity: event for event in events if event.stream == "searches"}
    clicks = [event for event in events if event.stream == "clicks"]
    followed = [click for click in clicks if "search_id" in message(click)]
    assert 0.67 < len(followed) / len(clicks) < 0.73
    for click in followed:
        search = searches[message(click)["search_id"]]
        assert SECOND <= click.occurred_at - search.occurred_at <= 4 * MINUTE
        assert message(click)["customer_id"] == message(search)["customer_id"]


def test_in_a_range_too_short_to_follow_payments_are_of_orders_before_it() -> None:
    events = plan(1_000, start=time(12), end=time(12, 0, 2))
    orders = {event.identity for event in events if event.stream == "orders"}
    payments = [message(event) for event in events if event.stream == "payments" and event.wrong == ""]
    assert payments and not any(payment["order_id"] in orders or payment["amount"] is None for payment in payments)


def test_few_customers_do_most_and_yet_no_visit_is_longer_than_the_view_expects() -> None:
    clean = Shares(dirty=0, late=0, duplicate=0, out_of_order=0, skewed=0, future=0)
    clicks = defaultdict(list)
    for event in plan(60_000, shares=clean):
        if event.stream == "clicks":
            clicks[message(event)["customer_id"]].append(event.occurred_at)
    assert all(1 <= customer <= 5000 for customer in clicks)
    busiest = sorted(map(len, clicks.values()), reverse=True)
    assert sum(busiest[:250]) > 0.5 * sum(busiest)

    for times in clicks.values():
        began = earlier = min(times)
        for at in sorted(times):
            began = at if at - earlier > timedelta(minutes=30) else began
            assert at - began < SHOP.views["visits"].reach
            earlier = at


# Around now


def test_today_ends_now_and_faults_without_time_left_do_not_happen() -> None:
    now = datetime.combine(DAY, time(12, 0, 30), UTC)
    events = plan(3_000, start=time(12), now=now)
    assert all(event.arrives_at <= now for event in events)
    assert sum(event.wrong != "duplicate" for event in events) == 3_000
    assert not [event for event in events if event.wrong == "late"]
    assert of_kind(events, "out_of_order")


@pytest.mark.parametrize(
    ("start", "end", "now"), [(time(13), time(12), LONG_AFTER), (time(12), None, datetime(2026, 7, 26, 12, tzinfo=UTC))]
)
def test_a_range_that_is_none_or_not_over_is_refused(start: time, end: time | None, now: datetime) -> None:
    with pytest.raises(Refusal):
        plan(10, start=start, end=end, now=now)


@settings(max_examples=60, deadline=None)
@given(
    events=st.integers(0, 200),
    seed=st.integers(-(2**70), 2**70),
    start_ms=st.integers(0, 86_399_000),
    length_ms=st.integers(1, 86_400_000),
    now_ms=st.integers(1, 2 * 86_400_000),
)
def test_any_range_and_any_now_give_the_number_of_events_in_order(
    events: int, seed: int, start_ms: int, length_ms: int, now_ms: int
) -> None:
    midnight = datetime.combine(DAY, time(), UTC)
    start, now = midnight + timedelta(milliseconds=start_ms), midnight + timedelta(milliseconds=start_ms + now_ms)
    end = start + timedelta(milliseconds=length_ms)
    end_of_day = None if end >= midnight + timedelta(days=1) else end.time()
    planned = plan(events, seed, start=start.time(), end=end_of_day, now=now)
    assert sum(event.wrong != "duplicate" for event in planned) == events
    assert all(earlier.arrives_at <= later.arrives_at for earlier, later in pairwise(planned))
    for event in planned:
        assert start <= event.arrives_at <= now
        if kind(event) not in ("skewed", "future"):
            assert start <= event.occurred_at < min(end, now) and event.occurred_at <= event.arrives_at
            assert event.occurred_at < midnight + timedelta(days=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_any_shares_are_either_refused_or_kept(given_shares: list[float]) -> None:
    names = list(Shares.model_fields)
    if sum(given_shares) > 1.000_001:
        with pytest.raises(ValueError, match="add up"):
            Shares(**dict(zip(names, given_shares, strict=True)))
        given_shares = [share / sum(given_shares) for share in given_shares]
    shares = Shares(**dict(zip(names, given_shares, strict=True)))
    counts = Counter(map(kind, plan(400, shares=shares)))
    for name, share in shares.model_dump().items():
        assert abs(counts[name] - 400 * share) <= 6 * (400 * share * (1 - share)) ** 0.5 + 3


# Any other pipeline


METERS_PIPELINE = """\
pipeline: meters
streams:
  readings:
    topic: meters.readings
    identity: reading
    occurred_at: read_at
    columns:
      reading: bigint
      meter:   string
      value:   double
      price:   "decimal(10,2)"
      ok:      boolean
      tags:    "array<string>"
      note:    {type: string, optional: true}
      read_at: {type: timestamp, from: bigint, clean: timestamp_millis(read_at)}
"""
METERS_PRODUCE = """\
sources:
  readings:
    weight: 1
    columns:
      reading: {sequence: "{n}"}
      meter:   {text: "meter-{reading}"}
      value:   {between: [1, 9]}
      price:   {money: 3.5}
      ok:      {choice: [true, false]}
      tags:    {constant: [a, b]}
      read_at: event_time
"""


def meters(folder: Path, produce: str = METERS_PRODUCE) -> tuple[Pipeline, ProduceDeclaration]:
    folder = folder / "meters"
    folder.mkdir(exist_ok=True)
    (folder / "pipeline.yaml").write_text(METERS_PIPELINE)
    (folder / "produce.yaml").write_text(produce)
    pipeline = load_pipeline(folder)
    return pipeline, load_produce(folder, pipeline)


def test_a_pipeline_of_numbers_gets_its_own_types(tmp_path: Path) -> None:
    pipeline, declaration = meters(tmp_path)
    events = plan(3_000, pipeline=pipeline, declaration=declaration)
    others = plan(3_000, 8, pipeline=pipeline, declaration=declaration)
    assert not {event.identity for event in events} & {event.identity for event in others}
    for event in of_kind(events, ""):
        row = message(event)
        assert 0 < row["reading"] < 2**53 and row["meter"] == f"meter-{row['reading']}"
        assert row["read_at"] == round(event.occurred_at.timestamp() * 1000)
        assert 1 <= row["value"] <= 9 and isinstance(row["price"], float) and row["ok"] in (True, False) and row["tags"] == ["a", "b"]
        assert "note" not in row
    assert not {"dirty:epoch_millis", "dirty:zoneless"} & {event.wrong for event in events}


@pytest.mark.parametrize(
    ("good", "bad", "line", "says"),
    [
        ("weight: 1", "wieght: 1", 3, "unknown word 'wieght' in sources.readings (did you mean 'weight'?)"),
        ("sources:", "shares: {dirtty: 0.1}\nsources:", 1, "unknown word 'dirtty' in shares (did you mean 'dirty'?)"),
        ("sources:", "shares: {dirty: 0.9, late: 0.9}\nsources:", 1, "add up to"),
        ("sources:", "busy: [1, 2]\nsources:", 1, "at least 24"),
        ("{money: 3.5}", "{mony: 3.5}", 8, "'mony' is no way to make a value (did you mean 'money'?)"),
        ("{money: 3.5}", "{money: 3.5, spred: 1}", 8, "unknown word 'spred' in sources.readings.columns.price (did you mean 'spread'?)"),
        ("{money: 3.5}", "{money: -1}", 8, "greater than 0"),
        ("{money: 3.5}", "{skewed: [9, 1]}", 8, "too small a range"),
        ("event_time", "event_tim", 11, "'event_tim' is no way to make a value (did you mean 'event_time'?)"),
        ("event_time", "{constant: 1}", 11, "is the event time: write event_time"),
        ("readings:", "redings:", 2, "'redings' is no stream or table of meters (did you mean 'readings'?)"),
        ("price:", "prize:", 8, "there is no such column (did you mean 'price'?)"),
        ("      ok:      {choice: [true, false]}\n", "", 4, "readings needs column 'ok'"),
        ("{choice: [true, false]}", "{choice: [yes, no]}", 9, "'choice' cannot make this: the message has a boolean here"),
        ("{choice: [true, false]}", "{copied: ok}", 9, "copies, but the source has no follows"),
        ("{choice: [true, false]}", "absent", 9, "is not optional"),
        ("{reading}", "{price}", 6, "'price' is no column that stands above it"),
        ("{reading}", "{reading", 6, "sources.readings.columns.meter: expected '}'"),
        (
            "    columns:",
            "    follows: {source: orders, after: [1 second, 2 seconds]}\n    columns:",
            4,
            "must be a source that stands above",
        ),
        ("    columns:", "    dirty:\n      odd: {column: prise, value: 1}\n    columns:", 5, "no column 'prise' (did you mean 'price'?)"),
        ("    columns:", "    dirty:\n      odd: {column: price}\n    columns:", 5, "exactly one of value, format and absent"),
    ],
)
def test_a_mistake_in_produce_yaml_is_named_with_its_line(tmp_path: Path, good: str, bad: str, line: int, says: str) -> None:
    with pytest.raises(Refusal) as refusal:
        meters(tmp_path, METERS_PRODUCE.replace(good, bad, 1))
    lines = [text for text in str(refusal.value).splitlines() if says in text]
    assert lines, str(refusal.value)
    assert lines[0].startswith(f"{tmp_path}/meters/produce.yaml:{line}: ")


def test_a_pipeline_without_produce_yaml_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"produce\.yaml: cannot be read"):
        load_produce(tmp_path, SHOP)


# What was acknowledged


def answer(event: Event, offset: int, error: KafkaError | None = None) -> FutureRecordMetadata:
    """What KafkaProducer.send returns, after the broker has answered."""
    batch = FutureProduceResult(TopicPartition(event.topic, 0))
    future = FutureRecordMetadata(batch, 0, round(event.arrives_at.timestamp() * 1000), None, 1, 1, 0)
    _ = batch.failure(error) if error else batch.success((offset, -1, None))
    return future


def test_the_file_of_acknowledged_messages_is_private_and_only_grows(tmp_path: Path) -> None:
    file = tmp_path / "sent" / "shop.jsonl"
    events = plan(2_000, shares=Shares(dirty=1, late=0, duplicate=0, out_of_order=0, skewed=0, future=0))
    heard: list[int] = []
    for half in (events[:1_000], events[1_000:]):
        acknowledged = _Acknowledgements(file, heard.append)
        for offset, event in enumerate(half):
            acknowledged.expect(event, answer(event, offset))
        acknowledged.settle(0)
        acknowledged.close()
        assert acknowledged.counts == Counter((event.stream, event.wrong) for event in half)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sum(heard) == 2_000
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    for line, event in zip(lines, events, strict=True):
        value = base64.b64decode(line["value_base64"]) if "value_base64" in line else line["value"]
        assert (value.encode() if isinstance(value, str) else value) == event.value
        assert (line["topic"], line["stream"], line["identity"], line["wrong"]) == (event.topic, event.stream, event.identity, event.wrong)
        assert (line["occurred_at"], line["received_at"]) == (iso_millis(event.occurred_at), iso_millis(event.arrives_at))


def test_after_a_failure_all_that_was_acknowledged_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    acknowledged = _Acknowledgements(file, lambda _: None)
    for offset, event in enumerate(plan(10)[:10]):
        acknowledged.expect(event, answer(event, offset, KafkaError("disk\nfull") if offset == 4 else None))
    with pytest.raises(Refusal, match=r"^topic 'shop\.\w+' did not take .*disk full$"):
        acknowledged.settle(0)
    acknowledged.settle_what_succeeded()
    acknowledged.close()
    assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_every_source_of_the_shop_has_simulated_events() -> None:
    assert set(SHOP_PRODUCE.sources) == set(SHOP.sources)

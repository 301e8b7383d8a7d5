"""Tables on real parts: looked up as of the event in what the intake had read by its batch; what changed later is named and repaired."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import oracle
import pytest
from events import NOON, order
from harness import DAY, Sent, Workplace, messages_of
from journaled import judge_by_batches

from weir.generator import Shares
from weir.produce import Event, encode
from weir.serving import answer_query

pytestmark = pytest.mark.timeout(1_800)
VIEW = "revenue_per_segment"
WITH_ALL = Shares(dirty=0.03, late=0.05, duplicate=0.03, out_of_order=0.1, skewed=0.02, future=0.01)
SEGMENTS = ("new", "regular", "loyal")


def truth(sent: list[Sent]) -> oracle.Cells:
    return oracle.truth(VIEW, lambda source: messages_of(sent, source))


def as_streamed(place: Workplace, sent: list[Sent]) -> oracle.Cells:
    """What the view says if each order finds the changes of the batches up to and including its own, whatever came later."""
    read_in = {(row["partition"], row["offset"]): row["batch"] for row in place.journal("customers")}
    changes = [(read_in[m.partition, m.offset], row) for m, row in oracle.counted_of("customers", messages_of(sent, "customers"))]
    orders = judge_by_batches("orders", messages_of(sent, "orders"), place.journal("orders"), place.pipeline.streams["orders"].lateness)
    cells: dict[tuple[Any, ...], tuple[int, Decimal]] = {}
    for batch in {own.batch for own in orders}:
        of_batch = [own.row for own in orders if own.batch == batch and own.is_accepted and own.row]
        known = [row for number, row in sorted(changes, key=lambda own: own[0]) if number <= batch]
        for grain, (count, revenue) in oracle.revenue_per_segment(of_batch, known).items():
            before = cells.get(grain, (0, Decimal(0)))
            cells[grain] = (before[0] + count, before[1] + revenue)
    return dict(cells)


def change(customer: int, at: datetime, segment: str) -> Event:
    row = {"customer_id": customer, "email": f"c{customer}@example.com", "country": "DE", "segment": segment, "updated_at": at.isoformat()}
    arrives = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
    return Event("customers", "shop.customers", str(customer).encode(), json.dumps(row).encode(), str(customer), at, arrives, None)


def customers_of(sent: list[Sent]) -> list[int]:
    """Who ordered, most orders first."""
    rows = [row for _, row in oracle.first_of_each("orders", messages_of(sent, "orders"))]
    customers = [row["customer_id"] for row in rows if row["customer_id"] is not None]
    return sorted(set(customers), key=lambda own: (-customers.count(own), own))


@pytest.mark.soak
def test_what_a_table_said_then_and_says_now_is_told_apart(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "customers")
    morning = datetime(2026, 3, 1, 0, 0, 1, tzinfo=UTC)
    sent = place.produce(1_500, WITH_ALL)
    known = customers_of(sent)[:60]
    sent = place.send([change(own, morning, SEGMENTS[n % 3]) for n, own in enumerate(known)])
    place.stream_once()

    # All changes were in the batch of the events that look them up: nothing differs because of them.
    assert {row["batch"] for stream in place.pipeline.sources for row in place.journal(stream)} == {0}
    (first,) = [view for view in place.nightly().views if view.view == VIEW]
    assert first.unexplained == 0 and first.causes == {}, first
    assert place.cells(VIEW, "__speed") == as_streamed(place, sent) == truth(sent)
    assert of_day(place.cells(VIEW)) == of_day(truth(sent))
    assert {grain[1] for grain in truth(sent)} == {*SEGMENTS, "unknown"}

    # The table changes for the past, when the orders are counted already; new orders find the new rows.
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sent = place.send([change(own, noon, SEGMENTS[(n + 1) % 3]) for n, own in enumerate(known[:30])])
    sent += place.produce(1_500, WITH_ALL, seed=2)
    place.stream_once("--max-batch", "300")
    before, streamed = truth(sent), as_streamed(place, sent)
    assert len({row["batch"] for row in place.journal("orders")}) > 3
    assert place.cells(VIEW, "__speed") == streamed
    report = place.nightly()
    (second,) = [view for view in report.views if view.view == VIEW]
    differing = {grain for grain in before.keys() | streamed.keys() if before.get(grain) != streamed.get(grain) and grain[0].date() == DAY}
    assert second.unexplained == 0 and second.causes == {"table": len(differing)} and second.decision == "PASS", second
    assert len(differing) > 3
    assert of_day(place.cells(VIEW)) == of_day(before) != of_day(place.cells(VIEW, "__speed"))
    named = [cause for cell in second.examples for cause in cell.causes if cause.cause == "table"]
    assert named and all(own.events > 0 and own.identities for own in named)
    assert not any(line.wrong for line in report.ledger)

    # What the table says now, and what it said.
    present = answer_query(place.home.lake, [place.pipeline], "SELECT customer_id, segment FROM customers")
    expected: dict[Any, Any] = {}
    changes = [row for _, row in oracle.counted_of("customers", messages_of(sent, "customers"))]
    for row in sorted(changes, key=lambda own: own["at"]):
        expected[row["identity"]] = row["segment"]
    assert dict(present.rows) == expected and "email" not in present.columns
    (row,) = answer_query(
        place.home.lake, [place.pipeline], f"SELECT count(*) FROM customers__history WHERE customer_id = {known[0]} AND valid_to IS NULL"
    ).rows
    assert row == (1,)


def of_day(cells: oracle.Cells) -> oracle.Cells:
    return {grain: cell for grain, cell in cells.items() if grain[0].date() == DAY}


def test_an_event_finds_the_changes_up_to_its_own_batch_and_the_night_the_others(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders", "customers")
    morning, hour = NOON - timedelta(hours=6), NOON

    def send(*events: Event) -> list[Sent]:
        sent = place.send(list(events))
        place.stream_once()
        return sent

    def ordered(name: str, customer: int) -> Event:
        document = encode(order(name, NOON, customer_id=customer))
        return Event("orders", "shop.orders", b"k", document, name, NOON, NOON + timedelta(seconds=1), "")

    send(ordered("o-before", 1))
    send(change(1, morning, "loyal"), change(2, morning, "regular"), ordered("o-beside", 1))
    sent = send(ordered("o-after", 2))
    batches = {row["identity"]: row["batch"] for row in place.journal("orders")}
    changed_in = {row["batch"] for row in place.journal("customers")}
    assert batches["o-before"] < batches["o-beside"] < batches["o-after"] and changed_in == {batches["o-beside"]}

    ten = Decimal("10.00")
    streamed = {(hour, "unknown"): (1, ten), (hour, "loyal"): (1, ten), (hour, "regular"): (1, ten)}
    assert place.cells(VIEW) == streamed == as_streamed(place, sent), "what was counted before the change keeps what it found"
    (proved,) = [view for view in place.nightly().views if view.view == VIEW]
    assert (proved.equal, proved.different, proved.only_speed, proved.unexplained, proved.causes) == (1, 1, 1, 0, {"table": 2})
    causes = [cause for cell in proved.examples for cause in cell.causes]
    assert {(own.cause, own.events, *own.identities) for own in causes} == {("table", 1, "o-before")}
    assert proved.decision == "PASS"
    assert place.cells(VIEW) == truth(sent) == {(hour, "loyal"): (2, 2 * ten), (hour, "regular"): (1, ten)}

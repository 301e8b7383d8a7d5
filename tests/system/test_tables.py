"""Tables on real parts: looked up as of the event, known from a moment that can be proved, and what changed later is named and repaired."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import oracle
import pytest
from harness import DAY, Sent, Workplace, messages_of, wait_for

from spark_jobs.known import KNOWN_AFTER_SECONDS
from spark_jobs.stream_job import TABLE_TRIGGER_SECONDS
from weir.generator import Shares
from weir.layout import table_query, view_query
from weir.produce import Event
from weir.serving import answer_query

pytestmark = pytest.mark.timeout(1_800)
VIEW = "revenue_per_segment"
WITH_ALL = Shares(dirty=0.03, late=0.05, duplicate=0.03, out_of_order=0.1, skewed=0.02, future=0.01)
SEGMENTS = ("new", "regular", "loyal")


def truth(sent: list[Sent]) -> oracle.Cells:
    return oracle.truth(VIEW, lambda source: messages_of(sent, source))


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
    place.stream_once("--max-batch", "300")

    # All changes were there before the first event was read: nothing differs because of them.
    (first,) = [view for view in place.nightly().views if view.view == VIEW]
    assert first.unexplained == 0 and "table" not in first.causes, first
    assert of_day(place.cells(VIEW)) == of_day(truth(sent))
    assert {grain[1] for grain in truth(sent)} == {*SEGMENTS, "unknown"}

    # The table changes for the past, when the orders are counted already; new orders find the new rows.
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sent = place.send([change(own, noon, SEGMENTS[(n + 1) % 3]) for n, own in enumerate(known[:30])])
    sent += place.produce(1_500, WITH_ALL, seed=2)
    place.stream_once("--max-batch", "300")
    before = truth(sent)
    report = place.nightly()
    (second,) = [view for view in report.views if view.view == VIEW]
    assert second.unexplained == 0 and second.causes["table"] > 3 and second.decision == "PASS", second
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


@pytest.mark.soak  # tests/pure/test_known.py has every decision of it
def test_a_change_that_is_committed_late_is_missed_by_no_batch(workplace: Callable[..., Workplace]) -> None:
    """It counts from ten seconds after it was read; here its commit takes longer, and orders arrive between the two."""
    place = workplace("orders", "customers")
    sent = place.produce(100, Shares())
    known = customers_of(sent)
    sent = place.send([change(own, datetime(2026, 3, 1, 0, 0, 1, tzinfo=UTC), "new") for own in known])
    driver = place.start("--views", VIEW, fault=f"announced.{table_query('customers')}:1:slow")
    first = len(messages_of(sent, "orders"))
    wait_for(lambda: place.messages_read(view_query(VIEW)) >= first, 120, "the first orders are counted")
    sent = place.send([change(own, datetime(2026, 3, 1, 0, 0, 2, tzinfo=UTC), "loyal") for own in known])
    time.sleep(TABLE_TRIGGER_SECONDS + KNOWN_AFTER_SECONDS + 1)
    sent += place.produce(200, Shares(), seed=2)
    wait_for(lambda: place.messages_read(view_query(VIEW)) >= len(messages_of(sent, "orders")), 120, "the other orders are counted")
    place.stop()
    assert f"{view_query(VIEW)} starts again: a table's change was committed later" in driver.log.read_text()
    (proved,) = [view for view in place.nightly().views if view.view == VIEW]
    assert proved.unexplained == 0 and proved.decision == "PASS", proved
    assert of_day(place.cells(VIEW)) == of_day(truth(sent))

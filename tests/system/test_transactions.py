"""A producer that works in transactions: what it aborts never was, and the offsets that it leaves empty are accounted for."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from events import NOON, order
from harness import Workplace
from kafka import KafkaProducer

from weir import stack
from weir.produce import encode

VIEW, TOPIC = "revenue_per_minute", "shop.orders"
NOWHERE = "XX"
"""The country of the aborted orders: one that got through would be accepted, and be a cell of its own."""
pytestmark = pytest.mark.timeout(900)


def test_messages_of_aborted_transactions_are_nowhere_and_their_offsets_are_a_gap(workplace: Callable[..., Workplace]) -> None:
    place = workplace("orders")
    sent = send_in_transactions(place, 5, 7, 5)
    assert sent == [*range(5), *range(6, 13), *range(14, 19)], "offsets 5 and 13 are the marks of the first two transactions' ends"
    place.stream_once()
    offsets, names = sent[:5] + sent[12:], [f"o-{n}" for n in (*range(5), *range(12, 17))]

    assert Counter(offset for _, offset, _, _ in place.raw("orders").elements()) == Counter(offsets)
    assert not [value for _, _, _, value in place.raw("orders") if NOWHERE.encode() in value]
    journal = place.journal("orders", every_contract=True)
    assert [(row["offset"], row["identity"], row["fate"]) for row in journal] == [
        (offset, name, "accepted") for offset, name in zip(offsets, names, strict=True)
    ]
    assert not place.quarantined("orders")
    cells = {(NOON, "DE"): (10, Decimal("100.00"))}
    assert place.cells(VIEW) == cells

    report = place.nightly()
    (view,) = report.views
    assert (view.compared, view.equal, view.decision) == (1, 1, "PASS"), view
    assert place.cells(VIEW) == place.cells(VIEW, "__batch") == cells
    (line,) = [own for own in report.ledger if own.view == VIEW]
    assert not line.wrong and (line.first_offset, line.until_offset, line.offsets) == (0, 19, 19)
    assert {fate: count for fate, count in line.fates.items() if count} == {"counted": 10, "lost": 9}
    assert [(gap.from_offset, gap.until_offset, gap.reason) for gap in line.lost_ranges] == [(5, 14, "gap")]

    # The last mark is behind the last message: the driver is done although no message has that offset, and goes on behind it.
    assert send_in_transactions(place, 1, 1, 1, start=100) == [20, 22, 24]
    place.stream_once()
    assert place.cells(VIEW, "__speed") == {(NOON, "DE"): (12, Decimal("120.00"))}
    assert [row["offset"] for row in place.journal("orders")] == [*offsets, 20, 24]


def send_in_transactions(place: Workplace, *counts: int, start: int = 0) -> list[int]:
    """Orders to one partition, in one transaction after another: the first is committed, the next aborted, and so on. Their offsets."""
    number, futures = start, []
    producer = KafkaProducer(bootstrap_servers=stack.bootstrap(place.home), transactional_id="till-7")
    try:
        producer.init_transactions()
        for transaction, count in enumerate(counts):
            is_committed = transaction % 2 == 0
            producer.begin_transaction()
            for _ in range(count):
                at = NOON + timedelta(milliseconds=number)
                value = encode(order(f"o-{number}", at, country="DE" if is_committed else NOWHERE))
                futures.append(producer.send(TOPIC, value, b"k", partition=0, timestamp_ms=round(at.timestamp() * 1_000)))
                number += 1
            producer.flush()
            if is_committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    return [future.get(timeout=30).offset for future in futures]

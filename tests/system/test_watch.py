"""Watch on real parts: what is rejected or met by a condition reaches Kafka at once; searches come and go while the views go on."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import oracle
import pytest
import yaml
from events import order
from harness import DAY, Workplace, messages_of, wait_for
from kafka import KafkaConsumer

from weir import stack
from weir.event_time import utc_now
from weir.generator import Shares
from weir.layout import ARCHIVE_QUERY, INTAKE_QUERY, alerts_topic, rejected_topic, view_query, watch_query
from weir.loader import load_named, read_yaml
from weir.produce import Event, encode

DIRTY = Shares(dirty=0.2, late=0, duplicate=0.05, out_of_order=0, skewed=0, future=0.02)
BIG = "amount >= 60"
QUERIES = {ARCHIVE_QUERY, INTAKE_QUERY, view_query("revenue_per_minute"), watch_query("orders")}


@pytest.fixture
def watched(workplace: Callable[..., Workplace]) -> Iterator[Workplace]:
    place = workplace("orders")
    file = place.home.pipelines / "shop" / "pipeline.yaml"
    declared, _ = read_yaml(file)
    declared["watch"] = {"orders": {"alerts": {"big": BIG}}}
    file.write_text(yaml.safe_dump(declared, sort_keys=False))
    place.pipeline = load_named(place.home.pipelines, "shop")
    yield place


class Told:
    """What an independent consumer hears on a topic from now on."""

    def __init__(self, place: Workplace, topic: str) -> None:
        self._consumer = KafkaConsumer(topic, bootstrap_servers=stack.bootstrap(place.home), auto_offset_reset="earliest")
        self.messages: list[dict[str, Any]] = []
        self.delays: list[float] = []

    def listen(self) -> list[dict[str, Any]]:
        for records in self._consumer.poll(timeout_ms=200).values():
            for record in records:
                self.messages.append(json.loads(record.value))
                self.delays.append(time.time() - record.timestamp / 1_000)
        return self.messages

    def close(self) -> None:
        self._consumer.close()

    def places(self) -> set[tuple[int, int]]:
        return {(own["place"]["partition"], own["place"]["offset"]) for own in self.listen()}


@pytest.fixture
def listeners(watched: Workplace) -> Iterator[tuple[Told, Told]]:
    """What is told of alerts and of rejected rows. Closed before the broker is: a consumer would look for it for ever."""
    topics = {alerts_topic("shop"): 1, rejected_topic("shop.orders"): 1}
    stack.create_topics(stack.bootstrap(watched.home), topics)
    alerts, rejected = (Told(watched, topic) for topic in topics)
    yield alerts, rejected
    alerts.close()
    rejected.close()


@pytest.mark.soak
def test_rejected_rows_and_alerts_are_told_and_searches_come_and_go(watched: Workplace, listeners: tuple[Told, Told]) -> None:
    alerts, rejected = listeners
    watched.start()
    wait_for(lambda: (beat := watched.control.heartbeat()) and beat.state == "running" and set(beat.queries) == QUERIES, 240, "it runs")
    time.sleep(15)  # what comes before the watch has begun is not told
    sent = watched.produce(600, DIRTY)
    fates = {(m.partition, m.offset): oracle.fate_of("orders", m) for m in messages_of(sent, "orders")}
    bad = {place for place, (fate, _) in fates.items() if fate != "accepted"}
    big = {place for place, (_, row) in fates.items() if row and row["amount"] >= 60}
    assert len(bad) > 30 and len(big) > 30
    wait_for(lambda: rejected.places() >= bad, 120, "all that is rejected is told")
    wait_for(lambda: alerts.places() >= big, 120, "all alerts are told")
    assert rejected.places() == bad and alerts.places() == big
    reasons = {reason for own in rejected.messages for reason in own["reasons"]}
    assert "currency:be_in_set" in reasons and any(reason.startswith("undecodable:") for reason in reasons)
    assert all(own["alerts"] == ["big"] and set(own["row"]) == set(watched.pipeline.streams["orders"].columns) for own in alerts.messages)

    # The intake judges for itself, with the same result: what was told as rejected is in quarantine, once.
    wait_for(lambda: watched.quarantined("orders") == Counter(bad), 120, "all that is rejected is in quarantine")

    before = watched.control.heartbeat()
    added = watched.cli("search", "add", "shop", "orders", "from_mars", "country = 'MA' AND amount > 1")
    assert added.returncode == 0, added.stderr
    at = datetime(DAY.year, DAY.month, DAY.day, 23, 59, tzinfo=UTC)

    def send(number: int) -> None:
        document = encode(order(f"o-mars-{number}", at, country="MA"))
        watched.send([Event("orders", "shop.orders", b"k", document, f"o-mars-{number}", at, utc_now(), "")])

    heard: list[Any] = []
    deadline = time.monotonic() + 120
    while not heard and time.monotonic() < deadline:
        send(len(alerts.messages) + int(time.monotonic()))
        time.sleep(2)
        heard = [own for own in alerts.listen() if own["alerts"] == ["from_mars"]]
    assert heard, "the search is heard"
    after = watched.control.heartbeat()
    assert before and after and after.generation == before.generation, "the driver was not started again"
    assert json.loads(watched.cli("search", "list", "shop", "--json").stdout)[0]["name"] == "from_mars"
    refused = watched.cli("search", "add", "shop", "orders", "broken", "amuont > 1")
    assert refused.returncode == 2 and "amuont" in refused.stderr
    assert watched.cli("search", "drop", "shop", "from_mars").returncode == 0
    delays = sorted(rejected.delays)
    print(f"rejected rows, sent by their device to heard: median {delays[len(delays) // 2] * 1_000:.0f} ms")
    watched.stop()

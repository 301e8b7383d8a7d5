"""Builders of messages, with defaults for all that a test does not speak of."""

import json
from datetime import UTC, datetime
from typing import Any

from oracle import Message

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def order(order_id: str | None = "o-1", at: datetime | str = NOON, **columns: Any) -> dict[str, Any]:
    base = {"order_id": order_id, "customer_id": 7, "country": "DE", "amount": "10.00", "currency": "EUR"}
    return base | {"ordered_at": at if isinstance(at, str) else iso(at)} | columns


def click(click_id: str, at: datetime, customer_id: int = 7) -> dict[str, Any]:
    return {"click_id": click_id, "search_id": None, "customer_id": customer_id, "page": "/p/1", "clicked_at": iso(at)}


def message(document: Any, offset: int = 0, received_at: datetime = NOON, topic: str = "shop.orders", partition: int = 0) -> Message:
    """A document is sent as JSON, bytes and None as they are."""
    value = document if document is None or isinstance(document, bytes) else json.dumps(document).encode()
    return Message(topic, partition, offset, received_at, value)

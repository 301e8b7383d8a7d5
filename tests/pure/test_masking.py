"""What people may see of a message."""

import json

import pytest

from weir.masking import MASK, shown_payload, shown_row
from weir.pipeline import Pipeline


def test_private_columns_are_masked_and_only_they(shop: Pipeline) -> None:
    customers = shop.tables["customers"]
    assert shown_row(customers, {"email": "a@b", "segment": "new", "country": None}) == {"email": MASK, "segment": "new", "country": None}
    assert shown_row(customers, {"email": None})["email"] is None, "that it is missing may be seen"
    shown = json.loads(shown_payload(customers, b'{"email": "a@b", "e-mail": "c@d", "segment": "new"}'))
    assert shown == {"email": MASK, "e-mail": MASK, "segment": "new"}, "a field of another name may hold what the private one would"


@pytest.mark.parametrize("payload", [b'{"email": "a@b"', b"a@b", b'["a@b"]', b'"a@b"', b"\xff a@b", b"[" * 100_000])
def test_where_a_private_field_cannot_be_found_nothing_is_shown(shop: Pipeline, payload: bytes) -> None:
    shown = shown_payload(shop.tables["customers"], payload)
    assert "a@b" not in shown and f"{len(payload):,} bytes" in shown


def test_other_payloads_are_shown_as_they_came_and_cut(shop: Pipeline) -> None:
    orders = shop.streams["orders"]
    assert shown_payload(orders, None) == "(no value)"
    assert shown_payload(orders, b"\xff{") == "\\xff{"
    long = shown_payload(orders, b"x" * 1_000_000)
    assert len(long) < 2_100 and "1,000,000 characters" in long

"""Drift: what a producer changed, told from a sample of raw messages."""

import json
from typing import Any

import pytest
from events import order

from quality.drift import find_drift
from weir.pipeline import Pipeline, Stream
from weir.records.quality import Drift


def sent(*documents: Any) -> list[bytes | None]:
    return [document if document is None or isinstance(document, bytes) else json.dumps(document).encode() for document in documents]


def told(drifts: list[Drift]) -> list[tuple[str, str, str, int]]:
    return [(drift.kind, drift.field, drift.detail, drift.rows) for drift in drifts]


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


@pytest.fixture
def orders(shop: Pipeline) -> Stream:
    return shop.streams["orders"]


@pytest.fixture
def typed() -> Stream:
    columns = {
        "id": "string",
        "at": "timestamp",
        "size": {"type": "tinyint", "optional": True},
        "price": {"type": "decimal(12,2)", "optional": True},
        "ratio": {"type": "double", "optional": True},
        "paid": {"type": "boolean", "optional": True},
        "tags": {"type": "array<string>", "optional": True},
        "place": {"type": "struct<x:int,y:int>", "optional": True},
        "level": {"type": "int", "optional": True},
        "secret": {"type": "string", "optional": True, "private": True},
    }
    sets = [{"column": "level", "value_set": [1, 2]}, {"column": "secret", "value_set": ["a", "b"]}]
    expectations = [{"expect_column_values_to_be_in_set": arguments} for arguments in sets]
    return Stream(topic="t", identity="id", occurred_at="at", columns=columns, expectations=expectations)


def test_messages_as_declared_show_no_drift(orders: Stream) -> None:
    assert find_drift(orders, sent(*[order(f"o-{i}", customer_id=None) for i in range(20)])) == []


def test_nothing_to_look_at_is_no_drift(orders: Stream) -> None:
    assert find_drift(orders, []) == []


def test_what_cannot_be_read_is_passed_over(orders: Stream) -> None:
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    unreadable = [None, b"", b"\xff\xfe", b"\xef\xbb\xbf{}", b"{", b"[]", b'"text"', b"null", b"3", b'{"amount": NaN}', b"9" * 5_000, deep]
    assert find_drift(orders, unreadable) == []


def test_a_new_field_is_told_with_its_types_and_without_its_values(orders: Stream) -> None:
    found = find_drift(orders, sent(order(voucher="SECRET-1"), order(voucher=7), order()))
    assert told(found) == [("new_field", "voucher", "not declared, holds integer or string", 2)]


def test_a_missing_required_field_is_told_and_an_optional_one_is_not(orders: Stream, typed: Stream) -> None:
    found = find_drift(orders, sent(without(order(), "currency"), order()))
    assert told(found) == [("missing_field", "currency", "declared string", 1)]
    assert find_drift(typed, sent({"id": "1", "at": "2026-03-01T12:00:00Z"})) == []


@pytest.mark.parametrize(
    ("old", "name"), [("country", "Country"), ("customer_id", "customerId"), ("ordered_at", "ordered-at"), ("amount", "amounts")]
)
def test_another_spelling_is_a_renamed_field_even_in_one_row(orders: Stream, old: str, name: str) -> None:
    document = without(order(), old) | {name: order()[old]}
    assert told(find_drift(orders, sent(document, order()))) == [("renamed_field", old, f"{old} → {name}", 1)]


def test_fields_that_always_change_places_with_one_type_are_a_renamed_field(orders: Stream) -> None:
    moved = [without(order(f"o-{i}"), "amount") | {"total": "10.00"} for i in range(5)]
    assert told(find_drift(orders, sent(*moved, order()))) == [("renamed_field", "amount", "amount → total", 5)]


def test_fields_that_change_places_with_another_type_are_missing_and_new(orders: Stream) -> None:
    moved = [without(order(f"o-{i}"), "amount") | {"total": 10.0} for i in range(5)]
    assert [kind for kind, *_ in told(find_drift(orders, sent(*moved)))] == ["missing_field", "new_field"]


def test_two_candidates_of_unlike_names_are_not_guessed(orders: Stream) -> None:
    moved = [without(order(f"o-{i}"), "amount") | {"total": "1", "gross": "1"} for i in range(5)]
    assert [kind for kind, *_ in told(find_drift(orders, sent(*moved)))] == ["missing_field", "new_field", "new_field"]


def test_a_field_beside_the_declared_one_is_new_not_renamed(orders: Stream) -> None:
    assert [kind for kind, *_ in told(find_drift(orders, sent(order(Country="DE"), order(Country="DE"))))] == ["new_field"]


def test_rows_that_lack_both_names_stay_missing(orders: Stream) -> None:
    renamed = without(order(), "country") | {"Country": "DE"}
    found = find_drift(orders, sent(renamed, renamed, without(order(), "country")))
    assert told(found) == [("renamed_field", "country", "country → Country", 2), ("missing_field", "country", "declared string", 1)]


def test_changed_types_are_judged_by_the_type_on_the_wire(orders: Stream) -> None:
    found = find_drift(orders, sent(order(customer_id="7"), order(customer_id="8"), order(amount=10.5), order(ordered_at=1_772_366_400)))
    assert told(found) == [
        ("changed_type", "customer_id", "declared bigint, holds string", 2),
        ("changed_type", "amount", "declared string, holds number", 1),
        ("changed_type", "ordered_at", "declared string, holds integer", 1),
    ]


@pytest.mark.parametrize(
    ("field", "value", "detail"),
    [
        ("size", 127, None),
        ("size", 128, "declared tinyint, holds integer beyond its range"),
        ("size", 1.5, "declared tinyint, holds number"),
        ("size", True, "declared tinyint, holds boolean"),
        ("price", 3, None),
        ("price", 3.25, None),
        ("price", "3.25", "declared decimal(12,2), holds string"),
        ("ratio", 1, None),
        ("ratio", False, "declared double, holds boolean"),
        ("paid", True, None),
        ("paid", 1, "declared boolean, holds integer"),
        ("tags", ["a"], None),
        ("tags", "a", "declared array<string>, holds string"),
        ("place", {"x": 1, "y": 2}, None),
        ("place", [1, 2], "declared struct<x:int,y:int>, holds array"),
        ("tags", None, None),
    ],
)
def test_each_type(typed: Stream, field: str, value: Any, detail: str | None) -> None:
    found = find_drift(typed, sent({"id": "1", "at": "2026-03-01T12:00:00Z", field: value}))
    assert [drift.detail for drift in found] == ([detail] if detail else [])


def test_a_new_value_is_one_that_no_case_or_blank_can_mend(orders: Stream) -> None:
    found = find_drift(orders, sent(*[order(currency=value) for value in ("EUR", " eur ", "Gbp", "CHF", "chf ", "", None)]))
    assert told(found) == [("new_value", "currency", "CHF", 2), ("new_value", "currency", "(empty)", 1)]


def test_numbers_of_a_set_are_compared_as_numbers(typed: Stream) -> None:
    documents = [{"id": "1", "at": "2026-03-01T12:00:00Z", "level": level} for level in (1, 2.0, "2", 3, True, [1])]
    values = [(drift.detail, drift.rows) for drift in find_drift(typed, sent(*documents)) if drift.kind == "new_value"]
    assert values == [("3", 1), ("true", 1)]


def test_values_of_private_columns_and_of_their_renamed_forms_never_appear(typed: Stream) -> None:
    base = {"id": "1", "at": "2026-03-01T12:00:00Z"}
    found = find_drift(
        typed, sent(base | {"secret": "PIN-1"}, base | {"secret": "PIN-2"}, base | {"secret": 4711}, base | {"Secret": "PIN-3"})
    )
    assert "PIN" not in str(found)
    assert "4711" not in str(found)
    assert ("new_value", "secret", "a value that is not in the set (private)", 3) in told(found)
    assert ("renamed_field", "secret", "secret → Secret", 1) in told(found)


def test_the_result_is_bounded_and_the_most_frequent_come_first(orders: Stream) -> None:
    many = [order(currency=f"X{i:04}", **{f"field_{i}_{j}": 1 for j in range(5)}) for i in range(1_000)]
    found = find_drift(orders, sent(*many, *[order(currency="CHF")] * 3, *[order(voucher=1)] * 2))
    assert len(found) == 50
    assert told(found)[:1] == [("new_value", "currency", "CHF", 3)]
    assert [drift.rows for drift in found] == sorted((drift.rows for drift in found), reverse=True)


def test_long_names_and_values_are_cut(orders: Stream) -> None:
    found = find_drift(orders, sent(order(currency="C" * 1_000_000, **{"f" * 1_000_000: 1})))
    assert {drift.kind for drift in found} == {"new_value", "new_field"}
    assert max(len(text) for drift in found for text in (drift.field, drift.detail)) <= 80


def test_half_a_surrogate_pair_can_still_be_written_as_a_record(orders: Stream) -> None:
    found = find_drift(orders, [json.dumps(order(currency="\ud800", **{"\udc00": "x"})).encode()])
    assert [Drift.model_validate_json(drift.model_dump_json()) for drift in found] == found
    assert len(found) == 2

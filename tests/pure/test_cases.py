"""Test cases of pipelines: how they are read, what is refused in them, and when a cell is the expected one."""

import json
from pathlib import Path

import pytest

from weir.cases import as_text, compare, load_cases
from weir.loader import load_named
from weir.pipeline import Pipeline
from weir.refusal import Refusal

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
GOOD = """\
usual:
  orders: {customer_id: 7, country: DE, amount: "10.00", currency: EUR}
cases:
  one:
    given:
      orders:
        - {order_id: o-1, ordered_at: "2026-03-01T12:00:00Z"}
        - {order_id: o-2, ordered_at: "2026-03-01T11:55:00Z", country: FR}
        - "{"
    expect:
      revenue_per_minute:
        - {minute: "2026-03-01T12:00:00Z", orders: 1}
"""


@pytest.fixture(scope="module")
def shop() -> Pipeline:
    return load_named(PIPELINES, "shop")


def written(folder: Path, text: str) -> Path:
    (folder / "some_test.yaml").write_text(text)
    return folder


def test_a_case_becomes_messages_in_the_order_of_arrival(shop: Pipeline, tmp_path: Path) -> None:
    (case,) = load_cases(written(tmp_path, GOOD), shop)
    first, second, third = case.messages["orders"]
    usual = {"customer_id": 7, "country": "DE", "amount": "10.00", "currency": "EUR"}
    assert json.loads(first.value) == usual | {"order_id": "o-1", "ordered_at": "2026-03-01T12:00:00Z"}
    assert b'"country": "FR"' in second.value and third.value == b"{"
    assert [own.offset for own in case.messages["orders"]] == [0, 1, 2]
    assert first.received_at == second.received_at == third.received_at, "nothing arrives before what stands above it"
    assert case.messages["payments"] == [] and case.late is None


def test_what_may_be_late_is_known(shop: Pipeline, tmp_path: Path) -> None:
    (case,) = load_cases(written(tmp_path, GOOD.replace("11:55", "11:50")), shop)
    assert case.late == "o-2", "the lateness of orders is ten minutes"


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("orders:\n        -", "oders:\n        -", r":6: 'oders' is no stream or table of shop \(did you mean 'orders'\?\)"),
        ("revenue_per_minute:", "revenue_per_minut:", r":11: 'revenue_per_minut' is no view of shop"),
        ("ordered_at", "orderd_at", r":7: 'orderd_at' is no column of orders \(did you mean 'ordered_at'\?\)"),
        ("    expect:", "    expects:", r":10: cases.one.expects: extra inputs are not permitted"),
        ("cases:", "case:", "cases: field required"),
    ],
)
def test_what_is_wrong_in_a_case_is_said_with_its_line(shop: Pipeline, tmp_path: Path, wrong: str, right: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        load_cases(written(tmp_path, GOOD.replace(wrong, right, 1)), shop)


def test_no_cases_are_refused(shop: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="holds no test cases"):
        load_cases(tmp_path, shop)
    with pytest.raises(Refusal, match="case 'one' expects nothing"):
        load_cases(written(tmp_path, GOOD[: GOOD.index("    expect:")]), shop)


@pytest.mark.parametrize(
    ("left", "right", "sql_type"),
    [
        (10, "10.00", "decimal(12,2)"),
        ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "timestamp"),
        (0.1 + 0.2, 0.3, "double"),
        (3, "3", "bigint"),
        (True, True, "boolean"),
        (None, None, "string"),
    ],
)
def test_one_value_has_one_spelling(left: object, right: object, sql_type: str) -> None:
    assert as_text(left, sql_type) == as_text(right, sql_type)


def test_cells_are_compared_as_often_as_they_stand_there() -> None:
    types = {"minute": "timestamp", "orders": "bigint"}
    found: list[dict[str, str | None]] = [{"minute": "2026-03-01T12:00:00Z", "orders": "1"}] * 2
    assert compare([{"orders": 1}], found, types) == ([], [{"orders": "1"}])
    assert compare([{"orders": 1}, {"orders": 1}], found, types) == ([], [])
    assert compare([{"orders": 2}], found[:1], types) == ([{"orders": "2"}], [{"orders": "1"}])
    assert compare([], found[:1], types) == ([], found[:1]), "expecting no cell is an expectation"

"""What a gate decides, as data. It fails closed."""

from typing import Any

import pytest

from quality.gate import Validation, _exception_in, decide
from weir.expectations import Expectation
from weir.records.quality import ExpectationResult


def expectation(name: str = "expect_column_mean_to_be_between", **arguments: Any) -> Expectation:
    return Expectation.model_validate({name: {"column": "amount", "min_value": 0} | arguments})


ROW_RULE = "expect_column_values_to_be_between"


def found(of: Expectation, success: bool, **more: Any) -> ExpectationResult:
    base = {"expectation": of.name, "rule": of.rule, "arguments": {}, "severity": of.severity, "success": success}
    return ExpectationResult.model_validate(base | more)


@pytest.mark.parametrize(
    ("declared", "success", "more", "decision", "word"),
    [
        (expectation(), True, {}, "PASS", ""),
        (expectation(), False, {"observed": "-3"}, "BLOCK", "observed -3"),
        (expectation(severity="warning"), False, {"observed": "-3"}, "WARN", "observed -3"),
        (expectation(severity="info"), False, {"observed": "-3"}, "PASS", ""),
        (expectation(severity="info"), False, {"error": "boom"}, "BLOCK", "could not be validated: boom"),
        (expectation(ROW_RULE), False, {"unexpected": 2}, "BLOCK", "2 rows among those that the verdict accepted"),
        (expectation(ROW_RULE, severity="warning"), False, {"unexpected": 2}, "WARN", "2 rows break it"),
    ],
)
def test_each_result_has_its_consequence(declared: Expectation, success: bool, more: dict[str, Any], decision: str, word: str) -> None:
    decided, reasons = decide([declared], Validation([found(declared, success, **more)]), 10, {})
    assert decided == decision and bool(reasons) == bool(word) and all(word in reason for reason in reasons)


def test_a_validation_that_broke_blocks_without_any_result() -> None:
    assert decide([expectation()], Validation([], trouble="it hung"), 10, {}) == ("BLOCK", ["it hung"])


@pytest.mark.parametrize(("broken", "decision"), [(0, "PASS"), (10, "PASS"), (11, "BLOCK")])
def test_mostly_bounds_the_share_of_rows_that_a_rule_sets_aside(broken: int, decision: str) -> None:
    rule = expectation(ROW_RULE, mostly=0.9)
    assert decide([rule], Validation([found(rule, True)]), 100, {rule.rule: broken})[0] == decision
    assert decide([rule], Validation([found(rule, True)]), 0, {})[0] == "PASS", "no rows, no share"


def test_an_exception_is_found_in_both_of_its_forms() -> None:
    raised = {"raised_exception": True, "exception_message": "a\n b", "exception_traceback": "…"}
    assert _exception_in(raised) == _exception_in({"('metric', 'x')": raised}) == "a b"
    assert _exception_in({"raised_exception": False}) is _exception_in({}) is _exception_in(None) is None
    assert "Spark died" in str(_exception_in(raised | {"exception_message": "[Errno 111] Connection refused"}))

"""A suite holds every expectation that was declared, or there is none. Great Expectations itself is the measure of the catalogue."""

import logging
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyspark.sql import SparkSession

from quality.suite import build_suite, quiet_context, refuse_unless_whole
from spark_jobs.check_job import WrongView, check_expectations, check_source, check_view
from weir.expectations import AGGREGATES, REFUSED, ROW_RULES, Expectation, Expectations, argument_names
from weir.pipeline import Pipeline
from weir.refusal import Refusal

OF_WEIR = {
    *("batch_id", "catch_exceptions", "condition_parser", "description", "id", "meta", "notes", "rendered_content", "result_format"),
    *("library_metadata", "windows"),
}
"""What every expectation of Great Expectations takes and a declaration does not say."""


def some(*given: dict[str, Any]) -> list[Expectation]:
    return TypeAdapter(Expectations).validate_python(given)


SEVERAL = [
    {"expect_column_values_to_be_between": {"column": "a", "min_value": 1, "severity": "warning", "mostly": 0.9}},
    {"expect_column_values_to_be_between": {"column": "a", "min_value": 1, "row_condition": "b > 1"}},
    {"expect_column_pair_values_to_be_in_set": {"column_A": "a", "column_B": "b", "value_pairs_set": [[1, None]]}},
    {"expect_column_mean_to_be_between": {"column": "a", "min_value": 1}},
    {"expect_table_row_count_to_be_between": {"min_value": 1, "severity": "info"}},
]


def test_the_catalogue_is_great_expectations_own() -> None:
    """A new version that brings or drops an expectation or an argument shows here."""
    from great_expectations.expectations.registry import get_expectation_impl, list_registered_expectation_implementations

    core = {name for name in list_registered_expectation_implementations() if ".core." in get_expectation_impl(name).__module__}
    assert core == {*ROW_RULES, *AGGREGATES, *REFUSED}
    for name in [*ROW_RULES, *AGGREGATES]:
        assert set(argument_names(name)) == set(get_expectation_impl(name).__fields__) - OF_WEIR, name


def test_a_suite_is_kept_whole_and_each_of_its_expectations_carries_its_rule() -> None:
    suite = build_suite("orders", some(*SEVERAL))
    kept = [(one.expectation_type, one.meta["rule"], one.severity.value) for one in suite.expectations]
    assert kept == [
        ("expect_column_values_to_be_between", "a:be_between", "warning"),
        ("expect_column_values_to_be_between", "a:be_between#2", "critical"),
        ("expect_column_pair_values_to_be_in_set", "a,b:be_in_set", "critical"),
        ("expect_column_mean_to_be_between", "a:mean_be_between", "critical"),
        ("expect_table_row_count_to_be_between", "table:row_count_be_between", "info"),
    ]
    assert suite.expectations[0].mostly == 0.9 and suite.expectations[1].row_condition.pass_through_filter == "b > 1"


def test_what_great_expectations_drops_in_silence_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    from great_expectations import ExpectationSuite

    quiet_context()
    declared = some(*SEVERAL[:2])
    configurations = [{"type": one.name, "kwargs": one.gx_arguments(), "meta": {"rule": one.rule}} for one in declared]
    for configuration in configurations:
        configuration["kwargs"].pop("severity")
    refuse_unless_whole(ExpectationSuite(name="orders", expectations=configurations), declared)
    configurations[1]["type"] = "expect_column_values_to_be_betwen"
    with caplog.at_level(logging.CRITICAL):
        short = ExpectationSuite(name="orders", expectations=configurations)
    assert len(short.expectations) == 1
    with pytest.raises(Refusal, match=r"^orders: Great Expectations did not keep expect_column_values_to_be_between \(a:be_between#2\)$"):
        refuse_unless_whole(short, declared)
    with pytest.raises(Refusal, match="has 2 expectations for the 1 that are declared"):
        refuse_unless_whole(build_suite("orders", declared), declared[:1])


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("expect_column_mean_to_be_between", {"min_value": 1}, "needs 'column'"),
        ("expect_column_mean_to_be_between", {"column": "a", "min_value": "much"}, "min_value: "),
        ("expect_column_mean_to_be_between", {"column": 5, "min_value": 1}, "column: "),
        ("expect_column_unique_value_count_to_be_between", {"column": "a", "min_value": [1]}, "min_value: "),
        ("expect_column_values_to_not_be_outliers", {"column": "a", "method": "guess"}, "method: "),
        ("expect_compound_columns_to_be_unique", {"column_list": "a", "ignore_row_if": "sometimes"}, ": "),
        ("expect_column_max_to_be_between", {"column": "a", "max_value": {"$PARAMETER": "most"}}, "not from suite parameters"),
    ],
)
def test_arguments_that_great_expectations_refuses_are_said_in_one_line(name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        build_suite("orders", some(*SEVERAL, {name: arguments}))
    text = str(refused.value)
    assert text.startswith(f"orders: {name}: ") and said in text and "\n" not in text and len(text) < 400, text


def test_an_argument_that_great_expectations_does_not_know_is_named_with_the_nearest() -> None:
    arguments = {"column": "a", "min_valu": 1}
    misspelt = Expectation.model_construct(name="expect_column_mean_to_be_between", arguments=arguments, severity="info")
    with pytest.raises(Refusal) as refused:
        build_suite("orders", [misspelt])
    said = "orders: expect_column_mean_to_be_between: unknown argument 'min_valu' (did you mean 'min_value'?)"
    assert str(refused.value) == said


def test_everything_that_is_wrong_is_said_at_once() -> None:
    wrong = [{"expect_column_mean_to_be_between": {"min_value": 1}}, {"expect_column_max_to_be_between": {"max_value": 1}}]
    with pytest.raises(Refusal) as refused:
        build_suite("orders", some(*wrong))
    assert len(str(refused.value).splitlines()) == 2


# weir check


def with_expectations(shop: Pipeline, *expectations: dict[str, Any], view: bool = False) -> Pipeline:
    if view:
        changed = shop.views["revenue_per_minute"].model_copy(update={"expectations": some(*expectations)})
        return shop.model_copy(update={"views": shop.views | {"revenue_per_minute": changed}})
    orders = shop.streams["orders"].model_copy(update={"expectations": some(*expectations)})
    return shop.model_copy(update={"streams": shop.streams | {"orders": orders}})


def test_check_says_what_great_expectations_would_refuse(shop: Pipeline) -> None:
    assert check_expectations(shop) == []
    wrong = {"expect_column_mean_to_be_between": {"column": "amount", "min_value": "much"}}
    (line,) = check_expectations(with_expectations(shop, wrong))
    assert line.startswith("orders: expect_column_mean_to_be_between: min_value: ")
    (line,) = check_expectations(with_expectations(shop, wrong, view=True))
    assert line.startswith("revenue_per_minute: expect_column_mean_to_be_between: min_value: ")


def test_check_says_what_spark_would_refuse_of_a_condition(spark: SparkSession, shop: Pipeline) -> None:
    conditions = {
        "country = 'DE' AND amount > 5": None,
        "cuontry = 'DE'": "`cuontry` cannot be resolved",
        "cast(country AS int) = 1": " would kill the query: [CAST_INVALID_INPUT]",
        "country =": "PARSE_SYNTAX_ERROR",
        "count(*) > 1": "INVALID_WHERE_CONDITION",
        "country": "boolean",
    }

    def rule(condition: str, severity: str) -> dict[str, Any]:
        return {"expect_column_values_to_not_be_null": {"column": "currency", "row_condition": condition, "severity": severity}}

    severities = ["critical", "warning", "info"] * len(conditions)
    found = check_source(spark, with_expectations(shop, *map(rule, conditions, severities)), "orders")
    wanted = [(condition, said) for condition, said in conditions.items() if said]
    assert len(found) == len(wanted), found
    for number, (line, (condition, said)) in enumerate(zip(found, wanted, strict=True), start=2):
        assert line.startswith(f"orders: currency:not_be_null#{number}: row_condition `{condition}`"), line
        assert said.lower() in line.lower() and "\n" not in line, line
    (line,) = check_source(spark, with_expectations(shop, rule("cuontry = 'DE'", "info")), "orders")
    assert line.startswith("orders: currency:not_be_null: row_condition `cuontry = 'DE'`: "), "though no stream judges by it"


def test_check_says_which_regular_expression_java_refuses(spark: SparkSession, shop: Pipeline) -> None:
    rule = {"expect_column_values_to_match_regex": {"column": "country", "regex": r"\k<none>"}}
    (line,) = check_source(spark, with_expectations(shop, rule), "orders")
    assert "none" in line and "\n" not in line


def test_check_knows_a_view_s_columns(spark: SparkSession, shop: Pipeline) -> None:
    wrong = {"expect_column_values_to_be_between": {"column": "revenu", "min_value": 0}}
    with pytest.raises(WrongView) as found:
        check_view(spark, with_expectations(shop, wrong, view=True), "revenue_per_minute")
    assert (
        str(found.value) == ":1: expect_column_values_to_be_between names column 'revenu', which is not declared (did you mean 'revenue'?)"
    )
    wrong["expect_column_values_to_be_between"]["column"] = "country"
    with pytest.raises(WrongView) as found:
        check_view(spark, with_expectations(shop, wrong, view=True), "revenue_per_minute")
    assert str(found.value).startswith(":1: expect_column_values_to_be_between needs a column of numbers")

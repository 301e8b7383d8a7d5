"""An expectation is taken by Great Expectations' own name and arguments, or refused in one line with its place and what to write."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from weir.expectations import AGGREGATES, REFUSED, ROW_RULES, Expectation, Expectations, RowRule, argument_names
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.refusal import Refusal

YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns:
      order_id: string
      country: string
      amount: "decimal(12,2)"
      tax: double
      items: int
      paid: boolean
      tags: array<string>
      due: date
      ordered_at: timestamp
    expectations:
{expectations}
views:
  per_minute:
    grain: [minute]
    sql: SELECT window(ordered_at, '1 minute').start AS minute, count(*) AS n FROM orders GROUP BY window(ordered_at, '1 minute')
"""
NOT_NULL = "expect_column_values_to_not_be_null: {column: amount}"


def load(folder: Path, *expectations: str, of_view: str = "") -> Pipeline:
    (folder / "tiny").mkdir(exist_ok=True)
    lines = "\n".join(f"      - {expectation}" for expectation in expectations) or "      []"
    yaml = YAML.format(expectations=lines) + (f"    expectations:\n      - {of_view}\n" if of_view else "")
    (folder / "tiny" / "pipeline.yaml").write_text(yaml)
    return load_pipeline(folder / "tiny")


def refusal(folder: Path, *expectations: str, **more: str) -> str:
    with pytest.raises(Refusal) as refused:
        load(folder, *expectations, **more)
    return str(refused.value).replace(f"{folder}/tiny/", "")


def expect(name: str, **arguments: Any) -> Expectation:
    return Expectation.model_validate({name: arguments})


# What is refused


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        ("expect_column_value_to_be_null: {column: tax}", "is no expectation (did you mean 'expect_column_values_to_be_null'?)"),
        ("expect_column_meen_to_be_between: {column: tax}", "(did you mean 'expect_column_mean_to_be_between'?)"),
        ("nonsense: {column: tax}", "'nonsense' is no expectation (valid: expect_"),
        ("expect_column_values_to_be_null", "needs its arguments"),
        ("expect_column_values_to_be_null:", "needs its arguments: {column, severity, row_condition, mostly}"),
        ("{expect_column_values_to_be_null: {column: tax}, severity: info}", "is written as `- <name>: {<arguments>}`"),
        ("expect_column_values_to_be_null: {colum: tax}", "unknown argument 'colum' (did you mean 'column'?)"),
        ("expect_column_values_to_be_null: {column: tax, severty: info}", "(did you mean 'severity'?)"),
        ("expect_column_values_to_be_null: {column: tax, severity: fatal}", "severity: input should be 'critical', 'warning' or 'info'"),
        ("expect_column_values_to_be_null: {column: tax, mostly: 95}", "mostly: input should be less than or equal to 1"),
        ("expect_column_values_to_be_null: {column: tax, row_condition: ' '}", "row_condition: "),
        ("expect_column_values_to_be_null: {}", "expect_column_values_to_be_null needs 'column'"),
        ("expect_column_mean_to_be_between: {column: tax, min_valu: 1}", "unknown argument 'min_valu' (did you mean 'min_value'?)"),
        ("expect_column_mean_to_be_between: {column: tax, mostly: 0.9}", "unknown argument 'mostly'"),
        ("expect_column_mean_to_be_between: {column: taxes}", "names column 'taxes', which is not declared (did you mean 'tax'?)"),
        ("expect_column_pair_values_to_be_equal: {column_A: tax, column_B: taxi}", "names column 'taxi', which is not declared"),
        ("expect_multicolumn_sum_to_equal: {column_list: [tax, taxi], sum_total: 1}", "names column 'taxi', which is not declared"),
        ("expect_column_values_to_match_like_pattern: {column: country}", "no LIKE on Spark: write expect_column_values_to_match_regex"),
        ("expect_column_values_to_be_dateutil_parseable: {column: country}", "for pandas only: declare the column as a timestamp"),
        ("unexpected_rows_expectation: {unexpected_rows_query: select 1}", "write a view"),
        (
            "expect_column_pair_values_to_be_in_set: {column_A: tax, row_condition: paid}",
            "row_condition: Great Expectations does not heed it",
        ),
    ],
)
def test_a_wrong_expectation_is_refused_with_its_line_and_the_nearest_word(tmp_path: Path, expectation: str, said: str) -> None:
    text = refusal(tmp_path, NOT_NULL, expectation)
    assert said in text and "\n" not in text and text.startswith("pipeline.yaml:19: ")


def test_the_line_of_a_wrong_argument_is_its_own(tmp_path: Path) -> None:
    long = "expect_column_values_to_be_between:\n          column: amount\n          min_value: 1\n          max_valeu: 2"
    assert refusal(tmp_path, NOT_NULL, long).startswith("pipeline.yaml:22: ")
    assert refusal(tmp_path, long.replace("valeu: 2", "value: x")).startswith("pipeline.yaml:21: ")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("values_to_be_between", "", "needs min_value or max_value"),
        ("values_to_be_between", "min_value: 2, max_value: 1", "min_value is greater than max_value"),
        ("values_to_be_between", "min_value: 1, max_value: '2026-01-01'", "both be numbers, both dates or both times"),
        ("values_to_be_between", "min_value: '1'", "'1' is neither a number, a date (2026-03-01) nor a time with its zone"),
        ("values_to_be_between", "min_value: true", "True is neither a number"),
        ("values_to_be_between", "min_value: .nan", "nan is neither a number"),
        ("values_to_be_between", f"min_value: 1{'0' * 400}", "is neither a number"),
        ("values_to_be_between", "min_value: '2026-02-30'", "is neither a number"),
        ("values_to_be_between", "min_value: '2026-03-01T12:00:00'", "nor a time with its zone"),
        ("values_to_be_between", "min_value: 1, strict_min: 1", "strict_min: input should be a valid boolean"),
        ("values_to_be_in_set", "value_set: []", "value_set: list should have at least 1 item"),
        ("values_to_be_in_set", "value_set: [1, null]", "null cannot stand in a set"),
        ("values_to_be_in_set", "value_set: [.inf]", "inf is not a text, number or boolean"),
        ("values_to_be_in_set", "value_set: [99999999999999999999]", "is not a text, number or boolean"),
        ("value_lengths_to_be_between", "", "needs min_value or max_value"),
        ("value_lengths_to_be_between", "min_value: 2, max_value: 1", "min_value is greater than max_value"),
        ("value_lengths_to_be_between", "min_value: 1.5", "min_value: input should be a valid integer"),
        ("value_lengths_to_equal", "value: -1", "value: input should be greater than or equal to 0"),
        ("values_to_match_regex", "regex: 5", "regex: input should be a valid string"),
        ("values_to_match_regex_list", "regex_list: [a], match_on: some", "match_on: input should be 'any' or 'all'"),
        ("values_to_not_match_regex_list", "regex_list: [a], match_on: any", "unknown argument 'match_on'"),
        ("pair_values_to_be_in_set", "column_A: tax, column_B: tax, value_pairs_set: [[1]]", "[1] is not a pair of values"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, name: str, arguments: str, said: str) -> None:
    columns = "" if "pair" in name else "column: tax" + (", " if arguments else "")
    text = refusal(tmp_path, f"expect_column_{name}: {{{columns}{arguments}}}")
    assert said in text and "\n" not in text, text


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        ("column_values_to_be_between: {column: country, min_value: 1}", "needs a column of numbers, dates or times; 'country' is of type"),
        ("column_values_to_be_between: {column: paid, min_value: 1}", "'paid' is of type boolean"),
        ("column_values_to_be_between: {column: tags, min_value: 1}", "'tags' is of type array<string>"),
        ("column_values_to_be_between: {column: amount, min_value: '2026-01-01'}", "of type decimal(12,2) with '2026-01-01'"),
        ("column_values_to_be_between: {column: due, min_value: 5}", "compares column 'due' of type date with 5"),
        ("column_values_to_be_in_set: {column: country, value_set: [DE, 49]}", "of type string with 49: write '49'"),
        ("column_values_to_be_in_set: {column: items, value_set: [1, '2']}", "of type int with '2'"),
        ("column_values_to_be_in_set: {column: items, value_set: [true]}", "of type int with True"),
        ("column_values_to_not_be_in_set: {column: paid, value_set: [1]}", "of type boolean with 1"),
        ("column_values_to_be_in_set: {column: due, value_set: [soon]}", "of type date with 'soon'"),
        ("column_values_to_be_in_set: {column: due, value_set: ['2026-01-01T00:00:00Z']}", "of type date with"),
        ("column_values_to_match_regex: {column: tags, regex: a}", "reads column 'tags' as text, but it is of type array<string>"),
        ("column_value_lengths_to_equal: {column: tags, value: 1}", "reads column 'tags' as text"),
        ("column_values_to_be_json_parseable: {column: items}", "needs a string; column 'items' is of type int"),
        ("column_pair_values_to_be_equal: {column_A: country, column_B: items}", "column 'country' of type string with column 'items'"),
        ("column_pair_values_a_to_be_greater_than_b: {column_A: tags, column_B: tags}", "column 'tags' of type array<string> with"),
        ("column_pair_values_to_be_in_set: {column_A: country, column_B: items, value_pairs_set: [[DE, '1']]}", "of type int with '1'"),
        ("multicolumn_sum_to_equal: {column_list: [amount, paid], sum_total: 1}", "adds up column 'paid', which is of type boolean"),
        ("multicolumn_values_to_be_equal: {column_list: [amount, country]}", "column 'amount' of type decimal(12,2) with column 'country'"),
        ("multicolumn_values_to_be_equal: {column_list: [amount, amount]}", "names a column twice"),
        ("select_column_values_to_be_unique_within_record: {column_list: [due, amount]}", "column 'due' of type date with column 'amount'"),
    ],
)
def test_what_spark_could_only_compare_by_a_cast_that_may_fail_is_refused(tmp_path: Path, expectation: str, said: str) -> None:
    text = refusal(tmp_path, f"expect_{expectation}")
    assert said in text and text.startswith("pipeline.yaml:18: ") and "\n" not in text, text


def test_what_fits_is_taken(tmp_path: Path) -> None:
    stream = load(
        tmp_path,
        "expect_column_values_to_be_between: {column: due, min_value: '2026-01-01', max_value: '2026-12-31'}",
        "expect_column_values_to_be_between: {column: ordered_at, min_value: '2026-01-01T00:00:00Z'}",
        "expect_column_values_to_be_between: {column: ordered_at, max_value: '2027-01-01'}",
        "expect_column_values_to_be_in_set: {column: ordered_at, value_set: ['2026-01-01', '2026-01-01T12:00:00+02:00']}",
        "expect_column_pair_values_a_to_be_greater_than_b: {column_A: due, column_B: ordered_at, or_equal: true}",
        "expect_column_pair_values_to_be_equal: {column_A: amount, column_B: items}",
        "expect_column_pair_values_to_be_in_set: {column_A: country, column_B: paid, value_pairs_set: [[DE, true], [null, false]]}",
        "expect_column_values_to_match_regex: {column: items, regex: '^1'}",
        "expect_column_values_to_not_be_null: {column: tags}",
    ).streams["orders"]
    assert all(expectation.is_row_rule and expectation.rejects for expectation in stream.expectations)


# Regular expressions: Java's, not Python's


@pytest.mark.parametrize(
    "regex",
    [
        r"^[A-Z]{2}$",
        r"^.{1,255}$",
        r"^\p{L}+\h*$",
        r"(?<year>\d{4})",
        r"[a-z&&[^b]]+",
        r"^[]a(]*$",
        r"\Q(\E",
        r"\x{1F600}",
        r"(?i)ab|c",
        r"[a-z]{2,}@.*[^x]",
        r"^([a-z0-9]+\.)++[a-z]{2,}$",
        r"^(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$",
        r"(?=a)b*?(c)?",
        "",
    ],
)
def test_java_s_regular_expressions_are_taken(regex: str) -> None:
    assert expect("expect_column_values_to_match_regex", column="a", regex=regex).is_row_rule


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        ("(a", "does not close a ("),
        ("a)", "closes a group that is not open"),
        ("[a", "does not close a ["),
        ("*a", "repeats nothing by '*'"),
        ("a|+", "repeats nothing by '+'"),
        ("a{,3}", "has a '{' that repeats nothing"),
        ("a\\", "ends with a backslash"),
        ("(?P<x>a)", "is Python's spelling"),
        ("^(a|b)*$", "could exhaust the stack at a long value, by '*': write '*+' (possessive) or at most {0,200}"),
        (r"^([a-z]+\.)+$", "by '+': write '++'"),
        ("(?:(?:a|b){0,100}c){0,100}", "by '{0,100}'"),
        ("(a|b)*?", "by '*?'"),
        ("[^b]{1,}", "by '{1,}'"),
        (r"\R+", "by '+'"),
    ],
)
def test_a_regular_expression_that_is_broken_or_could_kill_a_driver_is_refused(regex: str, said: str) -> None:
    for arguments in ({"regex": regex}, {"regex_list": ["a", regex]}):
        kind = "expect_column_values_to_match_" + next(iter(arguments))
        with pytest.raises(ValidationError) as refused:
            expect(kind, column="a", **arguments)
        assert said in str(refused.value)


# Names


@pytest.mark.parametrize(
    ("name", "arguments", "rule"),
    [
        ("expect_column_values_to_be_between", {"column": "amount", "min_value": 1}, "amount:be_between"),
        ("expect_column_value_lengths_to_equal", {"column": "country", "value": 2}, "country:lengths_equal"),
        ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "b"}, "a,b:be_equal"),
        ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}, "a,b:a_be_greater_than_b"),
        ("expect_multicolumn_sum_to_equal", {"column_list": ["a", "b"], "sum_total": 1}, "a,b:sum_equal"),
        ("expect_select_column_values_to_be_unique_within_record", {"column_list": ["a", "b"]}, "a,b:be_unique_within_record"),
        ("expect_compound_columns_to_be_unique", {"column_list": ["a", "b"]}, "a,b:be_unique"),
        ("expect_column_mean_to_be_between", {"column": "amount", "min_value": 1}, "amount:mean_be_between"),
        ("expect_column_to_exist", {"column": "amount"}, "amount:exist"),
        ("expect_table_row_count_to_be_between", {"min_value": 1}, "table:row_count_be_between"),
        ("expect_table_columns_to_match_set", {"column_set": ["a"]}, "table:columns_match_set"),
    ],
)
def test_a_rule_is_named_after_its_columns_and_its_kind(name: str, arguments: dict[str, Any], rule: str) -> None:
    assert expect(name, **arguments).rule == rule


def test_expectations_of_one_kind_get_numbers_and_one_that_repeats_another_is_refused(tmp_path: Path) -> None:
    between = "expect_column_values_to_be_between: {column: amount, max_value: %s}"
    orders = load(tmp_path, between % 9, between % "5, severity: warning", between % "9, row_condition: items > 1", NOT_NULL)
    rules = [expectation.rule for expectation in orders.streams["orders"].expectations]
    assert rules == ["amount:be_between", "amount:be_between#2", "amount:be_between#3", "amount:not_be_null"]
    said = refusal(tmp_path, between % 9, between % "9, severity: info")
    assert said == "pipeline.yaml:19: streams.orders.expectations.1.expect_column_values_to_be_between: stands twice for amount"


def test_the_catalogue_is_in_three_parts() -> None:
    assert not set(ROW_RULES) & set(AGGREGATES) and not set(REFUSED) & {*ROW_RULES, *AGGREGATES}
    assert all(issubclass(arguments, RowRule) for arguments in ROW_RULES.values())
    assert all(len(argument_names(name)) == len(set(argument_names(name))) for name in [*ROW_RULES, *AGGREGATES])


# What becomes of them


def test_an_aggregate_without_arguments_is_no_row_rule() -> None:
    assert not expect("expect_table_row_count_to_be_between").is_row_rule


def test_only_critical_row_rules_reject() -> None:
    assert expect("expect_column_values_to_be_null", column="a").rejects
    assert not expect("expect_column_values_to_be_null", column="a", severity="warning").rejects
    assert not expect("expect_column_values_to_be_unique", column="a").rejects


def test_great_expectations_gets_its_own_arguments() -> None:
    row = expect("expect_column_values_to_be_between", column="a", min_value=1, severity="info", mostly=0.9, row_condition="b > 1")
    assert row.gx_arguments() == {
        "column": "a",
        "min_value": 1,
        "strict_min": False,
        "strict_max": False,
        "severity": "info",
        "mostly": 0.9,
        "row_condition": "b > 1",
        "condition_parser": "spark",
    }
    assert row.shown_arguments() == {"column": "a", "min_value": 1, "mostly": 0.9, "row_condition": "b > 1"}
    mean = expect("expect_column_mean_to_be_between", column="a", min_value=1, severity="warning")
    assert mean.gx_arguments() == {"column": "a", "min_value": 1, "severity": "warning"}
    assert mean.shown_arguments() == {"column": "a", "min_value": 1}


def test_expectations_come_through_json_and_are_frozen() -> None:
    given = [{"expect_column_mean_to_be_between": {"column": "a", "min_value": 1}}, {"expect_column_values_to_be_null": {"column": "a"}}]
    mean, null = TypeAdapter(Expectations).validate_python(given)
    assert mean.model_dump(mode="json")["arguments"] == {"column": "a", "min_value": 1}
    assert null.model_dump(mode="json")["arguments"] == {"column": "a"}
    assert [Expectation.model_validate(own.model_dump(mode="json")) for own in (mean, null)] == [mean, null]
    with pytest.raises(TypeError):
        mean.arguments["column"] = "b"  # type: ignore[index]


def test_a_declaration_that_comes_back_from_json_judges_by_the_same_rules(tmp_path: Path) -> None:
    declared = load(tmp_path, NOT_NULL, "expect_column_values_to_be_in_set: {column: country, value_set: [DE], row_condition: paid}")
    again = Pipeline.model_validate(declared.model_dump(mode="json", by_alias=True))
    assert all(own.rejects for own in again.streams["orders"].expectations)
    assert again == declared and again.fingerprint("per_minute") == declared.fingerprint("per_minute")


# Fingerprints


def fingerprint(folder: Path, *expectations: str, **more: str) -> str:
    return load(folder, *expectations, **more).fingerprint("per_minute")


BETWEEN = "expect_column_values_to_be_between: {column: amount, min_value: 1%s}"


@pytest.mark.parametrize("change", [", max_value: 5", ", strict_min: true", ", row_condition: items > 1", ", severity: info"])
def test_a_rule_that_sets_other_rows_aside_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    assert fingerprint(tmp_path, BETWEEN % change) != fingerprint(tmp_path, BETWEEN % "")


@pytest.mark.parametrize(
    ("expectations", "of_view"),
    [
        ([BETWEEN % ", mostly: 0.9"], ""),
        ([BETWEEN % "", "expect_column_mean_to_be_between: {column: amount, min_value: 1}"], ""),
        ([BETWEEN % "", "expect_column_values_to_be_unique: {column: order_id}"], ""),
        ([NOT_NULL.replace("amount", "amount, severity: warning"), BETWEEN % ""], ""),
        ([BETWEEN % ""], "expect_column_values_to_be_between: {column: n, min_value: 1}"),
        ([BETWEEN % ""], "expect_table_row_count_to_be_between: {min_value: 1}"),
    ],
)
def test_what_sets_no_row_aside_does_not_change_the_fingerprint(tmp_path: Path, expectations: list[str], of_view: str) -> None:
    assert fingerprint(tmp_path, *expectations, of_view=of_view) == fingerprint(tmp_path, BETWEEN % "")


def test_a_view_s_expectations_are_checked_but_for_their_columns(tmp_path: Path) -> None:
    view = load(tmp_path, of_view="expect_column_values_to_be_between: {column: whatever, min_value: 1}").views["per_minute"]
    assert [expectation.rule for expectation in view.expectations] == ["whatever:be_between"]
    said = refusal(tmp_path, of_view="expect_column_values_to_be_betwen: {column: n, min_value: 1}")
    assert said.startswith("pipeline.yaml:24: views.per_minute.expectations.0: ") and "did you mean" in said

"""Great Expectations defines every row rule; the verdict is its fast form. Here both count the same rows, and must agree."""

import random
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pydantic import TypeAdapter, ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quality.suite import build_suite, quiet_context
from quality.verdict import _BROKEN, _fitting, broken_by, is_accepted, verdict
from weir.expectations import ROW_RULES, Expectation, Expectations

NAN, INF = float("nan"), float("inf")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEXTS = [
    "",
    " ",
    "a",
    "ab",
    "abc",
    "DE",
    "de",
    "NO",
    "é",
    "e\u0301",
    "😀",
    "a😀b",
    "\u05d0",
    "1",
    "01",
    "1.0",
    "-1",
    "NaN",
    "null",
    "a\nb",
    "\u0000",
    "DE\n",
    "DE\u2028",
]
JSONS = [
    *("1", "01", "-0", "1.", ".5", "1e5", "1e", "+1", "NaN", "-NaN", "Infinity", "-Infinity", "+Infinity", "INF", "null", "nul", "True"),
    *(
        '"a"',
        '"a',
        "'a'",
        '"\\u00e9"',
        '"\\ud800"',
        '"\\u12"',
        '"\\x"',
        '"\n"',
        '"\x01"',
        '"😀"',
        "",
        " ",
        " 1 ",
        "\u00a01",
        "\ufeff1",
        "1\x00",
    ),
    *("[]", "{}", "[1,]", "[1 2]", "1 2", "1,2", "[1]\n[2]", '{"a":1}{"b":2}', "[NaN, -Infinity]", '["NaN"]', "{NaN:1}", "NaN1", '"\\NaN"'),
    *('{"a":1,"a":2}', "{'a':1}", "{a:1}", '{"a":1,}', '{"a":}', "1}", "1} {", '1],"x":[2', '1,"x":2', '1,"weir:0f6c1a":0}', "/**/1", "1#"),
    *("[" * 900 + "]" * 900, "[" * 1500 + "]" * 1500, "9" * 999, "1e999", '{"a":{"b":[1,2,{"c":null}]}}', '"' + "a" * 10_000 + '"'),
]
SIGNS = [*"{}[],:\"\\ 01.eE+-nNaIutrf'\n", "NaN", "Infinity", "null", "true", '"a"', "\\u00e9", "😀"]

COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "tiny": ("tinyint", [0, 1, -1, 127, -128]),
    "whole": ("int", [0, 1, 2, 5, -5, 2**31 - 1, -(2**31)]),
    "large": ("bigint", [0, 1, 5, 10, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "single": ("float", [0.0, -0.0, 0.1, 1.0, 5.0, NAN, INF, -INF, 3e38]),
    "real": ("double", [0.0, -0.0, 0.1, 0.3, 1.0, 5.0, NAN, INF, -INF, 1e308, 5e-324]),
    "other": ("double", [0.0, 0.2, 1.0, 5.0, NAN, INF, -1.0]),
    "money": ("decimal(12,2)", [Decimal(text) for text in ("0", "0.10", "0.20", "1", "5", "-5", "9999999999.99", "100000", "100000.01")]),
    "cents": ("decimal(12,2)", [Decimal(text) for text in ("0", "0.10", "0.20", "1", "5", "9999999999.99")]),
    "exact": ("decimal(38,18)", [Decimal(text) for text in ("0", "1", "5", "5.000000000000000001", "0.1", "-99999999999999999999.9")]),
    "text": ("string", TEXTS),
    "word": ("string", TEXTS),
    "json": ("string", JSONS),
    "day": ("date", [date(2026, 3, 1), date(2026, 2, 28), date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31)]),
    "due": ("date", [date(2026, 3, 1), date(2026, 3, 2), date(1969, 12, 31)]),
    "at": ("timestamp", [NOON, NOON + timedelta(microseconds=1), NOON - timedelta(days=9), NOON.replace(hour=0), NOON.replace(year=1900)]),
    "till": ("timestamp", [NOON, NOON - timedelta(microseconds=1), NOON.replace(hour=0)]),
    "flag": ("boolean", [True, False]),
    "paid": ("boolean", [True, False]),
    "tags": ("array<string>", [[], ["a"], ["a", None]]),
}

COLUMN = "expect_column_values_to_"
PAIR = "expect_column_pair_values_"
RULES: list[tuple[str, dict[str, Any]]] = [
    *((f"{COLUMN}be_null", {"column": column}) for column in ("text", "real", "tags")),
    *((f"{COLUMN}not_be_null", {"column": column}) for column in ("text", "real", "tags", "at", "flag")),
    (f"{COLUMN}be_between", {"column": "tiny", "min_value": 0, "max_value": 1}),
    (f"{COLUMN}be_between", {"column": "whole", "min_value": 0.5, "strict_max": True, "max_value": 5}),
    (f"{COLUMN}be_between", {"column": "large", "max_value": 2**53}),
    (f"{COLUMN}be_between", {"column": "large", "min_value": 2**53, "strict_min": True}),
    (f"{COLUMN}be_between", {"column": "single", "max_value": 0.1}),
    (f"{COLUMN}be_between", {"column": "real", "min_value": 0, "strict_min": True}),
    (f"{COLUMN}be_between", {"column": "real", "max_value": 5}),
    (f"{COLUMN}be_between", {"column": "real", "min_value": -1e300, "max_value": 0.3, "strict_max": True}),
    (f"{COLUMN}be_between", {"column": "money", "min_value": 0.1, "max_value": 100000}),
    (f"{COLUMN}be_between", {"column": "money", "min_value": 0.1, "strict_min": True}),
    (f"{COLUMN}be_between", {"column": "exact", "max_value": 5}),
    (f"{COLUMN}be_between", {"column": "day", "min_value": "2026-03-01", "max_value": "9999-12-31", "strict_max": True}),
    (f"{COLUMN}be_between", {"column": "day", "max_value": "2026-02-28T00:00:00Z"}),
    (f"{COLUMN}be_between", {"column": "at", "min_value": "2026-03-01T12:00:00Z", "max_value": "2026-03-01T14:00:00.000001+02:00"}),
    (f"{COLUMN}be_between", {"column": "at", "min_value": "2026-03-01", "strict_min": True}),
    (f"{COLUMN}be_in_set", {"column": "text", "value_set": ["a", "DE", "é", "😀", ""]}),
    (f"{COLUMN}be_in_set", {"column": "text", "value_set": TEXTS[3:18]}),
    (f"{COLUMN}be_in_set", {"column": "large", "value_set": [1, 5, 2**53]}),
    (f"{COLUMN}be_in_set", {"column": "large", "value_set": [1.0, 2**53]}),
    (f"{COLUMN}be_in_set", {"column": "real", "value_set": [0, 0.1, 5]}),
    (f"{COLUMN}be_in_set", {"column": "single", "value_set": [0.1, 5]}),
    (f"{COLUMN}be_in_set", {"column": "money", "value_set": [0.1, 5]}),
    (f"{COLUMN}be_in_set", {"column": "flag", "value_set": [True]}),
    (f"{COLUMN}be_in_set", {"column": "day", "value_set": ["2026-03-01", "1969-12-31"]}),
    (f"{COLUMN}be_in_set", {"column": "at", "value_set": ["2026-03-01T14:00:00+02:00", "2026-03-01"]}),
    (f"{COLUMN}not_be_in_set", {"column": "text", "value_set": ["a", "NaN", "\u0000"]}),
    (f"{COLUMN}not_be_in_set", {"column": "real", "value_set": [0, 0.3]}),
    (f"{COLUMN}match_regex", {"column": "text", "regex": "^[a-zA-Z]{2}$"}),
    (f"{COLUMN}match_regex", {"column": "text", "regex": "^[A-Z]{2}$"}),
    (f"{COLUMN}not_match_regex", {"column": "text", "regex": "^D[A-F_0]$"}),
    (f"{COLUMN}match_regex", {"column": "whole", "regex": "^[1-5]$"}),
    (f"{COLUMN}match_regex", {"column": "text", "regex": r"^\p{L}+$"}),
    (f"{COLUMN}match_regex", {"column": "whole", "regex": "^-?[15]"}),
    (f"{COLUMN}match_regex", {"column": "at", "regex": r"12:00:00$"}),
    (f"{COLUMN}match_regex", {"column": "at", "regex": "^2026-03-"}),
    (f"{COLUMN}match_regex", {"column": "whole", "regex": "^-1"}),
    (f"{COLUMN}not_match_regex", {"column": "text", "regex": "^a"}),
    (f"{COLUMN}not_match_regex", {"column": "text", "regex": "a|^$"}),
    (f"{COLUMN}match_regex_list", {"column": "text", "regex_list": ["^a", "(?i)^de$", "^E"]}),
    (f"{COLUMN}match_regex_list", {"column": "text", "regex_list": ["a", "b"], "match_on": "all"}),
    (f"{COLUMN}not_match_regex_list", {"column": "text", "regex_list": ["a", "1", "^$"]}),
    ("expect_column_value_lengths_to_be_between", {"column": "text", "min_value": 1, "max_value": 2}),
    ("expect_column_value_lengths_to_be_between", {"column": "text", "max_value": 3, "strict_max": True}),
    ("expect_column_value_lengths_to_be_between", {"column": "large", "min_value": 1, "strict_min": True}),
    ("expect_column_value_lengths_to_equal", {"column": "text", "value": 1}),
    (f"{COLUMN}be_json_parseable", {"column": "json"}),
    (f"{PAIR}to_be_equal", {"column_A": "text", "column_B": "word"}),
    (f"{PAIR}to_be_equal", {"column_A": "real", "column_B": "other", "ignore_row_if": "either_value_is_missing"}),
    (f"{PAIR}to_be_equal", {"column_A": "large", "column_B": "exact", "ignore_row_if": "neither"}),
    (f"{PAIR}to_be_equal", {"column_A": "day", "column_B": "at"}),
    (f"{PAIR}to_be_equal", {"column_A": "flag", "column_B": "paid", "ignore_row_if": "either_value_is_missing"}),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "real", "column_B": "other"}),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "real", "column_B": "other", "or_equal": True, "ignore_row_if": "neither"}),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "at", "column_B": "till", "or_equal": True, "ignore_row_if": "either_value_is_missing"}),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "text", "column_B": "word", "ignore_row_if": "neither"}),
    (f"{PAIR}to_be_in_set", {"column_A": "text", "column_B": "whole", "value_pairs_set": [["a", 1], [None, 5], ["DE", None]]}),
    (f"{PAIR}to_be_in_set", {"column_A": "text", "column_B": "whole", "value_pairs_set": [["a", 1]], "ignore_row_if": "neither"}),
    (
        f"{PAIR}to_be_in_set",
        {"column_A": "day", "column_B": "flag", "value_pairs_set": [["2026-03-01", True]], "ignore_row_if": "either_value_is_missing"},
    ),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["whole", "large"], "sum_total": 6}),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["money", "cents"], "sum_total": 0.3, "ignore_row_if": "any_value_is_missing"}),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["real", "other", "tiny"], "sum_total": 1, "ignore_row_if": "never"}),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["large", "tiny"], "sum_total": 2**63}),
    ("expect_multicolumn_values_to_be_equal", {"column_list": ["text", "word", "json"]}),
    ("expect_multicolumn_values_to_be_equal", {"column_list": ["whole", "real", "money"], "ignore_row_if": "any_value_is_missing"}),
    ("expect_multicolumn_values_to_be_equal", {"column_list": ["at", "till"], "ignore_row_if": "never"}),
    ("expect_select_column_values_to_be_unique_within_record", {"column_list": ["text", "word", "json"]}),
    (
        "expect_select_column_values_to_be_unique_within_record",
        {"column_list": ["whole", "real", "money"], "ignore_row_if": "any_value_is_missing"},
    ),
    ("expect_select_column_values_to_be_unique_within_record", {"column_list": ["at", "till"], "ignore_row_if": "never"}),
]
CONDITION = "whole > 0 OR text IN ('a', 'DE')"
"""Neither true nor false for many rows: those are not judged."""
UNCONDITIONAL = f"{PAIR}to_be_in_set"


def expectations_of(rules: list[tuple[str, dict[str, Any]]]) -> list[Expectation]:
    return TypeAdapter(Expectations).validate_python([{name: arguments} for name, arguments in rules])


def every_rule() -> list[Expectation]:
    """Each case as it is, and again with a condition; of those on several columns, a job each, only the first of a kind."""
    first = {name: arguments for name, arguments in reversed(RULES) if name != UNCONDITIONAL}
    again = [(name, arguments) for name, arguments in RULES if "column" in arguments or first.get(name) is arguments]
    return expectations_of([*RULES, *((name, arguments | {"row_condition": CONDITION}) for name, arguments in again)])


def one_of_each() -> list[Expectation]:
    return expectations_of(list({name: (name, arguments) for name, arguments in RULES}.values()))


def some_rows(number: int = 400) -> list[tuple[Any, ...]]:
    """Each value in turn at least once, pairs of equal ones often, a sixth of all null; the same rows each time."""
    chance = random.Random(20260301)
    spoilt = ["".join(chance.choices(SIGNS, k=chance.randint(1, 8))) for _ in range(200)]
    rows = []
    for n in range(number):
        row = {name: values[n % len(values)] if n < 40 else chance.choice(values) for name, (_, values) in COLUMNS.items()}
        row["json"] = (JSONS + spoilt)[n % (len(JSONS) + len(spoilt))]
        if chance.random() < 0.3:
            row |= {"word": row["text"], "other": row["real"], "cents": row["money"], "till": row["at"], "paid": row["flag"]}
        rows.append(tuple(None if chance.random() < 0.15 else value for value in row.values()))
    return [*rows, (None,) * len(COLUMNS)]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    schema = ", ".join(f"{name} {sql_type}" for name, (sql_type, _) in COLUMNS.items())
    frame = spark.createDataFrame(some_rows(), schema).coalesce(1).cache()
    yield frame
    frame.unpersist()


def count_by_verdict(frame: DataFrame, expectations: list[Expectation]) -> dict[str, int]:
    counts = [F.count_if(F.array_contains(verdict([rule]), rule[0])).alias(rule[0]) for rule in map(broken_by, expectations)]
    return frame.agg(*counts).collect()[0].asDict()


def count_by_great_expectations(frame: DataFrame, expectations: list[Expectation]) -> dict[str, int]:
    """Its own `unexpected_count` for each, all in one calculation: a validation would also fetch values, a job for each."""
    from great_expectations.validator.metrics_calculator import MetricsCalculator

    suite = build_suite("parity", expectations)
    source = quiet_context().data_sources.add_spark("parity", persist=False)
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    engine = batch.data.execution_engine
    engine.batch_manager.load_batch_list([batch])
    wanted = {}
    for expectation in suite.expectations:
        needed = expectation.get_validation_dependencies(engine, {"result_format": {"result_format": "BOOLEAN_ONLY"}})
        wanted[expectation.meta["rule"]] = needed.metric_configurations[f"{expectation.map_metric}.unexpected_count"]
    found, failed = MetricsCalculator(engine).compute_metrics(list(wanted.values()))
    assert not failed, failed
    quiet_context().data_sources.delete("parity")
    return {rule: found[metric.id] or 0 for rule, metric in wanted.items()}


def test_there_is_a_verdict_and_a_case_for_every_row_rule() -> None:
    assert set(_BROKEN) == set(ROW_RULES) == {name for name, _ in RULES}


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """For a few hundred rows, compiling so many rules takes much longer than judging."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for key, setting in settings.items():
        spark.conf.set(key, setting)
    yield
    for key in settings:
        spark.conf.unset(key)


def test_the_verdict_counts_what_great_expectations_counts(
    spark: SparkSession, rows: DataFrame, interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    expectations = every_rule()
    by_verdict, by_gx = count_by_verdict(rows, expectations), count_by_great_expectations(rows, expectations)
    told = {expectation.rule: (expectation.name, expectation.shown_arguments()) for expectation in expectations}
    different = {rule: (by_verdict[rule], by_gx[rule], told[rule]) for rule in told if by_verdict[rule] != by_gx[rule]}
    assert not different, different
    assert sum(1 for count in by_gx.values() if count) > 0.95 * len(expectations), "cases that break nothing prove nothing"


def test_a_stream_judges_as_a_batch_and_accepts_whom_nothing_is_held_against(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    rules = [broken_by(expectation) for expectation in one_of_each()]
    judgement = [
        F.col("number"),
        verdict(rules).alias("verdict"),
        is_accepted(rules).alias("accepted"),
        is_accepted(rules[8:9]).alias("one"),
    ]
    numbered = rows.withColumn("number", F.monotonically_increasing_id())
    numbered.write.parquet(str(tmp_path / "in"))
    live = spark.readStream.schema(numbered.schema).parquet(str(tmp_path / "in")).select(*judgement)
    query = live.writeStream.format("memory").queryName("judged_rows_of_a_stream").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    streamed = spark.table("judged_rows_of_a_stream").collect()
    assert sorted(streamed) == sorted(numbered.select(*judgement).collect())
    assert all(row["accepted"] == (row["verdict"] == []) and row["one"] == (rules[8][0] not in row["verdict"]) for row in streamed)
    assert len({rule for row in streamed for rule in row["verdict"]}) == len(rules)


def test_no_rules_accept_every_row(rows: DataFrame) -> None:
    assert rows.filter(~is_accepted([])).count() == 0
    assert rows.select(verdict([])).distinct().collect() == [([],)]


def test_what_great_expectations_itself_would_die_of_is_only_broken(spark: SparkSession) -> None:
    """A sum beyond what a decimal holds, a document too deep for Python: the row is set aside, and the query lives."""
    most = Decimal("9" * 38)
    frame = spark.createDataFrame([(most, most, "[" * 5_000), (Decimal(1), Decimal(1), "[]")], "a decimal(38,0), b decimal(38,0), j string")
    rules = expectations_of(
        [
            ("expect_multicolumn_sum_to_equal", {"column_list": ["a", "b"], "sum_total": 2}),
            (f"{COLUMN}be_json_parseable", {"column": "j"}),
        ]
    )
    found = [row[0] for row in frame.select(verdict([broken_by(rule) for rule in rules])).collect()]
    assert found == [["a,b:sum_equal", "j:be_json_parseable"], []]


@pytest.mark.parametrize("unit", ["ab", "a.", "a😀", "ab-"])
def test_no_regular_expression_that_the_loader_takes_exhausts_the_stack(spark: SparkSession, unit: str) -> None:
    """On Spark the overflow of one task's stack ends the process. Here it is tried in a thread that survives it."""
    groups = ["^(?:a|b)*+$", r"^([a-z]+\.)++[a-z]{2,}$", r"^(\w-?){0,200}$", "(?:(?:a|b){0,200}c)*+"]
    characters = ["^.*$", "^.{1,4000}$", "^[^b]{1,}+$", "^.*?x"]
    java: Any = spark._jvm
    for regex in [*groups, *characters]:
        Expectation.model_validate({f"{COLUMN}match_regex": {"column": "a", "regex": regex}})
        java.java.util.regex.Pattern.compile(regex).matcher(unit * 50_000).find()
    for refused in ("^(a|b|.)*$", "^(.-?)+$"):
        with pytest.raises(ValidationError):
            Expectation.model_validate({f"{COLUMN}match_regex": {"column": "a", "regex": refused}})
        with pytest.raises(Py4JJavaError, match="StackOverflowError"):
            java.java.util.regex.Pattern.compile(refused).matcher(unit * 50_000).find()


@pytest.mark.parametrize("regex", ["^[A-C]{2}$", "^D[A-F_0]$", "^x[ab]{0}y$", "^[a-cB-D1]$"])
def test_what_few_texts_fit_is_looked_up(regex: str) -> None:
    signs = [chr(code) for code in range(32, 127)]
    every = ["", *signs, *(a + b for a in signs for b in signs)]
    assert sorted(_fitting(regex)) == sorted(text for text in every if re.fullmatch(regex[1:-1], text))


@pytest.mark.parametrize("regex", ["^[C-A]$", "^(A|B)$", "^[^A]$", "^[A-Z]?$", "^A{2}$", "^[A-Z]{3}$", "[A-Z]$", r"^\w$"])
def test_what_many_texts_fit_or_is_of_another_form_is_matched(regex: str) -> None:
    assert _fitting(regex) == []

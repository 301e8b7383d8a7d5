"""Expectations, by Great Expectations' own names and arguments: which there are, which judge single rows, and what they may say.

Great Expectations defines every expectation. Those that have a meaning for one row (ROW_RULES) are known here with their
arguments, because the stream judges by them; of the others (AGGREGATES) only the arguments' names are. What it does not do on
Spark is refused with what to write instead.
"""

import functools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from weir.records.quality import Severity
from weir.regexes import checked_regex

Types = Mapping[str, str]
"""The columns that there are, and the SQL type of each."""
_STRICT = ConfigDict(extra="forbid", frozen=True)


def nearest(word: str, valid: Any) -> str:
    """' (did you mean x?)' where a valid word is close, else ' (valid: …)'."""
    from difflib import get_close_matches

    words = sorted(valid)
    if close := get_close_matches(str(word), words, n=1):
        return f" (did you mean '{close[0]}'?)"
    return f" (valid: {', '.join(words)})"


def refusal_at(wrong: Iterable[tuple[tuple[str | int, ...], str]]) -> ValidationError:
    """The error that pydantic reports at each of these places of the declaration, so that the loader can say the line."""
    lines: Any = [{"type": "value_error", "loc": place, "input": None, "ctx": {"error": ValueError(what)}} for place, what in wrong]
    return ValidationError.from_exception_data("expectations", lines)


# Values, and the types of columns that they can be compared with

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)")


def read_time(text: Any) -> date | datetime | None:
    """The date, or the time with its zone, that a text in a declaration is; None if it is neither."""
    try:
        if isinstance(text, str) and _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if isinstance(text, str) and _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a floating one can stand for."""
    return _is_number(value) and abs(value) <= sys.float_info.max


def _checked_number(value: Any) -> int | float:
    if not _is_finite(value):
        raise ValueError(f"{value!r} is not a number")
    return value


def _checked_bound(value: Any) -> int | float | str:
    if isinstance(value, str) and read_time(value):
        return value
    if not _is_finite(value):
        raise ValueError(f"{value!r} is neither a number, a date (2026-03-01) nor a time with its zone (2026-03-01T12:00:00Z)")
    return value


def _checked_value(value: Any) -> str | bool | int | float:
    if value is None:
        raise ValueError("null cannot stand in a set: a null value passes anyway, and Great Expectations would let all others pass too")
    if isinstance(value, str | bool) or (isinstance(value, float) and _is_finite(value)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    raise ValueError(f"{value!r} is not a text, number or boolean")


def _checked_pair(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"{pair!r} is not a pair of values")
    a, b = (None if value is None else _checked_value(value) for value in pair)
    return a, b


Number = Annotated[int | float, PlainValidator(_checked_number)]
Bound = Annotated[int | float | str, PlainValidator(_checked_bound)]
Value = Annotated[str | bool | int | float, PlainValidator(_checked_value)]
ValuePair = Annotated[Any, PlainValidator(_checked_pair)]
ColumnName = Annotated[str, StringConstraints(min_length=1)]


def _kind(sql_type: str) -> str:
    """Types of one kind can be compared; two kinds would be cast, and a row whose cast fails would kill the query."""
    if sql_type in ("string", "boolean"):
        return sql_type
    if sql_type in ("date", "timestamp"):
        return "time"
    return "number" if re.match(r"(tinyint|smallint|int|bigint|float|double|decimal\(.*\))$", sql_type) else "nested"


def _fits(value: Any, sql_type: str) -> bool:
    match _kind(sql_type):
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return _is_number(value)
        case "time":
            return type(read_time(value)) is date or (sql_type == "timestamp" and read_time(value) is not None)
    return False


def _misfit(column: str, types: Types, values: Iterable[Any]) -> str | None:
    for value in values:
        if value is not None and not _fits(value, types[column]):
            hint = f": write '{value}'" if types[column] == "string" and _is_number(value) else ""
            return f"compares column '{column}' of type {types[column]} with {value!r}{hint}"
    return None


def _incomparable(columns: Sequence[str], types: Types) -> str | None:
    first, *others = columns
    for other in others:
        if "nested" in (_kind(types[first]), _kind(types[other])) or _kind(types[first]) != _kind(types[other]):
            return f"compares column '{first}' of type {types[first]} with column '{other}' of type {types[other]}"
    return None


Regex = Annotated[str, AfterValidator(checked_regex)]


# The arguments of row rules


class RowRule(BaseModel):
    """The arguments of an expectation that judges single rows."""

    model_config = _STRICT

    @property
    def columns(self) -> list[str]:
        raise NotImplementedError

    def misfit(self, types: Types) -> str | None:
        """Why the arguments do not fit the types of the columns, all of which are declared."""
        return None


class OneColumn(RowRule):
    column: ColumnName

    @property
    def columns(self) -> list[str]:
        return [self.column]


class _Text(OneColumn):
    """Judges a value as text; Spark writes numbers, times and booleans out, but no arrays, maps and structs."""

    def misfit(self, types: Types) -> str | None:
        if _kind(types[self.column]) == "nested":
            return f"reads column '{self.column}' as text, but it is of type {types[self.column]}"
        return None


class Between(OneColumn):
    min_value: Bound | None = None
    max_value: Bound | None = None
    strict_min: StrictBool = False
    strict_max: StrictBool = False

    @model_validator(mode="after")
    def _some_bound(self) -> "Between":
        low, high = self.bounds
        if low is None and high is None:
            raise ValueError("needs min_value or max_value")
        if low is not None and high is not None:
            if type(low) is not type(high):
                raise ValueError("min_value and max_value must both be numbers, both dates or both times")
            if low > high:  # type: ignore[operator]
                raise ValueError("min_value is greater than max_value")
        return self

    @property
    def bounds(self) -> tuple[float | date | None, float | date | None]:
        """The bounds as Great Expectations takes them: it reads every number as a floating one."""
        return _as_great_expectations(self.min_value), _as_great_expectations(self.max_value)

    def misfit(self, types: Types) -> str | None:
        kind = _kind(types[self.column])
        if kind not in ("number", "time"):
            return f"needs a column of numbers, dates or times; '{self.column}' is of type {types[self.column]}"
        for bound in (self.min_value, self.max_value):
            if bound is not None and isinstance(bound, str) != (kind == "time"):
                return f"compares column '{self.column}' of type {types[self.column]} with {bound!r}"
        return None


def _as_great_expectations(bound: int | float | str | None) -> float | date | None:
    return read_time(bound) if isinstance(bound, str) else None if bound is None else float(bound)


class InSet(OneColumn):
    value_set: list[Value] = Field(min_length=1)

    def misfit(self, types: Types) -> str | None:
        return _misfit(self.column, types, self.value_set)


class MatchRegex(_Text):
    regex: Regex


class MatchRegexList(_Text):
    regex_list: list[Regex] = Field(min_length=1)
    match_on: Literal["any", "all"] = "any"


class NotMatchRegexList(_Text):
    regex_list: list[Regex] = Field(min_length=1)


class LengthBetween(_Text):
    min_value: Annotated[StrictInt, Field(ge=0)] | None = None
    max_value: Annotated[StrictInt, Field(ge=0)] | None = None
    strict_min: StrictBool = False
    strict_max: StrictBool = False

    @model_validator(mode="after")
    def _some_bound(self) -> "LengthBetween":
        if self.min_value is None and self.max_value is None:
            raise ValueError("needs min_value or max_value")
        if self.min_value is not None and self.max_value is not None and self.min_value > self.max_value:
            raise ValueError("min_value is greater than max_value")
        return self


class LengthEqual(_Text):
    value: Annotated[StrictInt, Field(ge=0)]


class JsonParseable(OneColumn):
    def misfit(self, types: Types) -> str | None:
        return None if types[self.column] == "string" else f"needs a string; column '{self.column}' is of type {types[self.column]}"


class Pair(RowRule):
    column_A: ColumnName
    column_B: ColumnName
    ignore_row_if: Literal["both_values_are_missing", "either_value_is_missing", "neither"] = "both_values_are_missing"

    @property
    def columns(self) -> list[str]:
        return [self.column_A, self.column_B]

    def misfit(self, types: Types) -> str | None:
        return _incomparable(self.columns, types)


class PairGreater(Pair):
    or_equal: StrictBool = False


class PairInSet(Pair):
    value_pairs_set: list[ValuePair] = Field(min_length=1)

    def misfit(self, types: Types) -> str | None:
        a, b = zip(*self.value_pairs_set, strict=True)
        return _misfit(self.column_A, types, a) or _misfit(self.column_B, types, b)


class SeveralColumns(RowRule):
    column_list: list[ColumnName] = Field(min_length=2)
    ignore_row_if: Literal["all_values_are_missing", "any_value_is_missing", "never"] = "all_values_are_missing"

    @model_validator(mode="after")
    def _different(self) -> "SeveralColumns":
        if len(set(self.column_list)) != len(self.column_list):
            raise ValueError("names a column twice")
        return self

    @property
    def columns(self) -> list[str]:
        return list(self.column_list)

    def misfit(self, types: Types) -> str | None:
        return _incomparable(self.columns, types)


class SumEqual(SeveralColumns):
    sum_total: Number

    def misfit(self, types: Types) -> str | None:
        wrong = [column for column in self.column_list if _kind(types[column]) != "number"]
        return f"adds up column '{wrong[0]}', which is of type {types[wrong[0]]}" if wrong else None


# The catalogue: every expectation of Great Expectations is in one of these three

ROW_RULES: dict[str, type[RowRule]] = {
    "expect_column_values_to_be_null": OneColumn,
    "expect_column_values_to_not_be_null": OneColumn,
    "expect_column_values_to_be_between": Between,
    "expect_column_values_to_be_in_set": InSet,
    "expect_column_values_to_not_be_in_set": InSet,
    "expect_column_values_to_match_regex": MatchRegex,
    "expect_column_values_to_not_match_regex": MatchRegex,
    "expect_column_values_to_match_regex_list": MatchRegexList,
    "expect_column_values_to_not_match_regex_list": NotMatchRegexList,
    "expect_column_value_lengths_to_be_between": LengthBetween,
    "expect_column_value_lengths_to_equal": LengthEqual,
    "expect_column_values_to_be_json_parseable": JsonParseable,
    "expect_column_pair_values_to_be_equal": Pair,
    "expect_column_pair_values_a_to_be_greater_than_b": PairGreater,
    "expect_column_pair_values_to_be_in_set": PairInSet,
    "expect_multicolumn_sum_to_equal": SumEqual,
    "expect_multicolumn_values_to_be_equal": SeveralColumns,
    "expect_select_column_values_to_be_unique_within_record": SeveralColumns,
}
"""What judges one row by itself, so that a stream can."""

_BETWEEN = "column min_value max_value strict_min strict_max row_condition"
AGGREGATES: dict[str, str] = {
    "expect_column_distinct_values_to_be_in_set": "column value_set row_condition",
    "expect_column_distinct_values_to_contain_set": "column value_set row_condition",
    "expect_column_distinct_values_to_equal_set": "column value_set row_condition",
    "expect_column_kl_divergence_to_be_less_than": "column partition_object threshold internal_weight_holdout tail_weight_holdout "
    "bucketize_data min_value max_value row_condition",
    "expect_column_max_to_be_between": _BETWEEN,
    "expect_column_mean_to_be_between": _BETWEEN,
    "expect_column_median_to_be_between": _BETWEEN,
    "expect_column_min_to_be_between": _BETWEEN,
    "expect_column_most_common_value_to_be_in_set": "column value_set ties_okay row_condition",
    "expect_column_proportion_of_non_null_values_to_be_between": _BETWEEN,
    "expect_column_proportion_of_unique_values_to_be_between": _BETWEEN,
    "expect_column_quantile_values_to_be_between": "column quantile_ranges allow_relative_error row_condition",
    "expect_column_stdev_to_be_between": _BETWEEN,
    "expect_column_sum_to_be_between": _BETWEEN,
    "expect_column_to_exist": "column column_index",
    "expect_column_type_to_be": "column type_",
    "expect_column_unique_value_count_to_be_between": _BETWEEN,
    "expect_column_value_z_scores_to_be_less_than": "column threshold double_sided mostly row_condition",
    "expect_column_values_to_be_decreasing": "column strictly mostly row_condition",
    "expect_column_values_to_be_in_type_list": "column type_list mostly row_condition",
    "expect_column_values_to_be_increasing": "column strictly mostly row_condition",
    "expect_column_values_to_be_of_type": "column type_ mostly row_condition",
    "expect_column_values_to_be_unique": "column mostly row_condition",
    "expect_column_values_to_match_json_schema": "column json_schema mostly row_condition",
    "expect_column_values_to_match_strftime_format": "column strftime_format mostly row_condition",
    "expect_column_values_to_not_be_outliers": "column method multiplier mostly row_condition",
    "expect_compound_columns_to_be_unique": "column_list ignore_row_if mostly row_condition",
    "expect_table_column_count_to_be_between": "min_value max_value",
    "expect_table_column_count_to_equal": "value",
    "expect_table_columns_to_match_ordered_list": "column_list",
    "expect_table_columns_to_match_set": "column_set exact_match",
    "expect_table_row_count_to_be_between": "min_value max_value strict_min strict_max row_condition",
    "expect_table_row_count_to_equal": "value row_condition",
}
"""What needs all rows of a batch, or Python: checked on closed batches only. Each with the names of its arguments."""

REFUSED: dict[str, str] = {
    **{
        f"expect_column_values_to_{form}": f"Great Expectations has no LIKE on Spark: write expect_column_values_to_{instead}"
        for form, instead in {
            "match_like_pattern": "match_regex, for example regex: '^ab' for 'ab%'",
            "not_match_like_pattern": "not_match_regex, for example regex: '^ab' for 'ab%'",
            "match_like_pattern_list": "match_regex_list, for example regex_list: ['^ab'] for ['ab%']",
            "not_match_like_pattern_list": "not_match_regex_list, for example regex_list: ['^ab'] for ['ab%']",
        }.items()
    },
    "expect_column_values_to_be_dateutil_parseable": "Great Expectations has it for pandas only: "
    "declare the column as a timestamp or date, or write expect_column_values_to_match_regex",
    "expect_query_results_to_match_comparison": "it asks another data source: write a view, and expect something of its cells",
    "expect_table_row_count_to_equal_other_table": "Great Expectations sees one table at a time on Spark: "
    "the ledger counts what enters and what becomes of it",
    "unexpected_rows_expectation": "it is a query of its own: write a view, and expect something of its cells, "
    "or give an expectation a row_condition",
}
"""What Great Expectations has and Weir has not, and what to write instead."""


Arguments = Annotated[
    RowRule | Mapping[str, Any],
    PlainValidator(lambda given: given if isinstance(given, RowRule) else MappingProxyType(dict(given))),
    PlainSerializer(lambda arguments: arguments.model_dump() if isinstance(arguments, RowRule) else dict(arguments)),
]
_COMMON = ("severity", "row_condition", "mostly")
_LEADING = re.compile(
    r"^expect_(select_column_values|multicolumn_values|multicolumn|compound_columns|column_pair_values|column_values?|column|table)_"
)


@functools.cache
def _reader_of(rule: str) -> TypeAdapter[Any]:
    """Reads the rule's arguments within a mapping, so that an error's place has the rule's name too. Making one costs more than its use."""
    return TypeAdapter(dict[str, ROW_RULES[rule]])  # type: ignore[valid-type]


def _read_back(name: str, arguments: Any) -> Any:
    """The arguments of an expectation that was written as JSON: a row rule that came back as a mere mapping would judge nothing."""
    if name in ROW_RULES and isinstance(arguments, Mapping):
        return _reader_of(name).validate_python({name: dict(arguments)})[name]
    return arguments


class Expectation(BaseModel):
    """One expectation. In YAML: `- <name>: {<arguments>, severity: …, row_condition: …, mostly: …}`."""

    model_config = _STRICT

    name: str
    arguments: Arguments
    severity: Severity = "critical"
    row_condition: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)] | None = None
    """A Spark SQL condition: rows for which it is not true are not judged."""
    mostly: Annotated[float, Field(ge=0, le=1)] | None = None
    number: int = 1
    """Which it is among those of its kind on the same columns."""

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {given: None}
        if not isinstance(given, dict):
            return given
        if "name" in given:
            return given | {"arguments": _read_back(given["name"], given.get("arguments"))}
        if len(given) != 1:
            raise ValueError("an expectation is written as `- <name>: {<arguments>}`")
        ((name, arguments),) = given.items()
        if name in REFUSED:
            raise ValueError(f"'{name}' is not done here: {REFUSED[name]}")
        if name not in ROW_RULES and name not in AGGREGATES:
            raise ValueError(f"'{name}' is no expectation{nearest(str(name), [*ROW_RULES, *AGGREGATES])}")
        if not isinstance(arguments, dict):
            raise ValueError(f"{name} needs its arguments: {{{', '.join(argument_names(name))}}}")
        known = argument_names(name)
        if unknown := [word for word in arguments if word not in known]:
            raise refusal_at(((name, word), f"unknown argument '{word}'{nearest(word, known)}") for word in unknown)
        if name == "expect_column_pair_values_to_be_in_set" and "row_condition" in arguments:
            raise refusal_at([((name, "row_condition"), "Great Expectations does not heed it for this expectation")])
        own = {word: value for word, value in arguments.items() if word not in _COMMON}
        if name in ROW_RULES:
            own = _reader_of(name).validate_python({name: own})[name]
        return {"name": name, "arguments": own} | {word: arguments[word] for word in _COMMON if word in arguments}

    @property
    def is_row_rule(self) -> bool:
        """Whether it has a meaning for one row by itself."""
        return isinstance(self.arguments, RowRule)

    @property
    def rejects(self) -> bool:
        """Whether a row that breaks it is set aside. All others are only checked on closed batches."""
        return self.is_row_rule and self.severity == "critical"

    @property
    def columns(self) -> list[str]:
        """The columns that its arguments name."""
        if isinstance(self.arguments, RowRule):
            return self.arguments.columns
        if self.name.startswith("expect_table"):
            return []
        named = self.arguments.get("column", self.arguments.get("column_list"))
        return [column for column in (named if isinstance(named, list) else [named]) if isinstance(column, str)]

    @property
    def kind(self) -> str:
        """Its rule without a number: `amount:be_between`."""
        return f"{','.join(self.columns) or 'table'}:{_LEADING.sub('', self.name).replace('to_', '', 1)}"

    @property
    def rule(self) -> str:
        """Its name in verdicts and reports: `amount:be_between`, and `amount:be_between#2` for the next of the kind."""
        return self.kind if self.number == 1 else f"{self.kind}#{self.number}"

    def judgement(self) -> dict[str, Any]:
        """What of it decides which rows are set aside."""
        arguments = self.arguments.model_dump(mode="json") if isinstance(self.arguments, RowRule) else dict(self.arguments)
        return {"name": self.name, "arguments": arguments} | ({"row_condition": self.row_condition} if self.row_condition else {})

    def shown_arguments(self) -> dict[str, Any]:
        """Its arguments as they were written, for reports."""
        own = self.arguments.model_dump(mode="json", exclude_unset=True) if isinstance(self.arguments, RowRule) else dict(self.arguments)
        more = {"row_condition": self.row_condition, "mostly": self.mostly}
        return own | {word: value for word, value in more.items() if value is not None}

    def gx_arguments(self) -> dict[str, Any]:
        """What Great Expectations takes, with all that stands beside the arguments proper."""
        own = self.arguments.model_dump(exclude_none=True) if isinstance(self.arguments, RowRule) else dict(self.arguments)
        given = own | {"severity": self.severity}
        if self.mostly is not None:
            given["mostly"] = self.mostly
        if self.row_condition is not None:
            given |= {"row_condition": self.row_condition, "condition_parser": "spark"}
        return given

    def misfits(self, types: Types) -> list[str]:
        """Why it cannot be asked of these columns: each that is not there, or a type that it cannot judge without failing."""
        unknown = [column for column in self.columns if column not in types]
        absent = [f"names column '{column}', which is not declared{nearest(column, types)}" for column in unknown]
        if absent or not isinstance(self.arguments, RowRule):
            return absent
        wrong = self.arguments.misfit(types)
        return [wrong] if wrong else []


def argument_names(name: str) -> list[str]:
    """The words that may stand in this expectation's arguments."""
    if name in ROW_RULES:
        return [*ROW_RULES[name].model_fields, *_COMMON]
    return [*AGGREGATES[name].split(), "severity"]


def _numbered(expectations: list[Expectation]) -> list[Expectation]:
    """Give the expectations of one kind numbers, and refuse one that only repeats another."""
    judgements = [expectation.judgement() for expectation in expectations]
    kinds = [expectation.kind for expectation in expectations]
    for place, expectation in enumerate(expectations):
        if judgements[place] in judgements[:place]:
            raise refusal_at([((place, expectation.name), f"stands twice for {', '.join(expectation.columns) or 'the table'}")])
    return [
        expectation.model_copy(update={"number": 1 + kinds[:place].count(kinds[place])}) for place, expectation in enumerate(expectations)
    ]


Expectations = Annotated[list[Expectation], AfterValidator(_numbered)]

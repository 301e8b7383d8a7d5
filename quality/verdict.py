"""Row rules → Spark columns, in one pass, the same for stream, micro-batch and batch.

A verdict is the array of the names of the rules that a row breaks; empty means accepted. Great Expectations defines each rule;
what stands here is its fast form, and counts the same rows: null passes, unless the expectation is about null; NaN is greater than
every number and equal to itself. No row can make it fail: the loader refuses comparisons that would cast.
"""

import re
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations, product
from math import prod
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from weir.expectations import Between, Expectation, LengthBetween, Pair, PairGreater, PairInSet, SeveralColumns, SumEqual

Rule = tuple[str, Column]
"""A rule's name, and the condition under which a row breaks it."""


def broken_by(expectation: Expectation) -> Rule:
    """The expectation's name in verdicts and when a row breaks it. Only for row rules."""
    broken = _BROKEN[expectation.name](expectation.arguments)
    if (ignored := _ignored(expectation.arguments)) is not None:
        broken = ~ignored & broken
    if expectation.row_condition is not None:
        broken = F.expr(expectation.row_condition) & broken
    return expectation.rule, broken


def verdict(rules: Sequence[Rule]) -> Column:
    """The names of the rules that a row breaks."""
    if not rules:
        return F.array().cast("array<string>")
    return F.array_compact(F.array(*(F.when(broken, F.lit(name)) for name, broken in rules)))


def is_accepted(rules: Sequence[Rule]) -> Column:
    """Whether the verdict is empty, without building it: what a query needs that only counts accepted rows."""
    return reduce(Column.__and__, (~F.coalesce(broken, F.lit(False)) for _, broken in rules), F.lit(True))


def _ignored(arguments: Any) -> Column | None:
    """The rows that `ignore_row_if` takes out, where that makes a difference."""
    missing = [F.col(column).isNull() for column in arguments.columns]
    match getattr(arguments, "ignore_row_if", None):
        case "either_value_is_missing" | "any_value_is_missing":
            return reduce(Column.__or__, missing)
        case "both_values_are_missing" | "all_values_are_missing":
            return reduce(Column.__and__, missing)
    return None


def _outside(value: Column, bounds: tuple[Any, Any], arguments: Between | LengthBetween) -> Column:
    low, high = bounds
    broken = []
    if low is not None:
        broken.append(value <= F.lit(low) if arguments.strict_min else value < F.lit(low))
    if high is not None:
        broken.append(value >= F.lit(high) if arguments.strict_max else value > F.lit(high))
    return reduce(Column.__or__, broken)


def _not_greater(pair: PairGreater) -> Column:
    a, b = F.col(pair.column_A), F.col(pair.column_B)
    return a < b if pair.or_equal else a <= b


def _not_in_pairs(pair: PairInSet) -> Column:
    a, b = F.col(pair.column_A), F.col(pair.column_B)
    return ~reduce(Column.__or__, (a.eqNullSafe(F.lit(x)) & b.eqNullSafe(F.lit(y)) for x, y in pair.value_pairs_set))


def _not_equal(columns: Pair | SeveralColumns) -> Column:
    first, *others = map(F.col, columns.columns)
    return ~reduce(Column.__and__, (first.eqNullSafe(other) for other in others))


def _not_unique(columns: SeveralColumns) -> Column:
    return reduce(Column.__or__, (a.eqNullSafe(b) for a, b in combinations(map(F.col, columns.column_list), 2)))


def _other_sum(columns: SumEqual) -> Column:
    """Nulls count as 0. Whole numbers are added as decimals, so that they cannot overflow; a sum that does is not the total."""
    nothing = F.lit(0).cast("decimal(20,0)")
    total = reduce(F.try_add, (F.coalesce(F.col(column), F.lit(0)) for column in columns.column_list), nothing)
    return ~F.coalesce(total == F.lit(float(columns.sum_total)), F.lit(False))


_AFTER_JSON = "weir:0f6c1a"


def _not_json(value: Column) -> Column:
    """Whether Python's reader, by which Great Expectations judges, would refuse the text.

    The text is put into an object of ours as its first value. Where it is one value and nothing more, the object has just our two
    keys, and a strict reader gets to its end. NaN and Infinity, which Python reads, are made numbers before: within a string that
    changes nothing. Stricter than Python only for numbers of more than 1,000 digits and for more than 900 levels.
    """
    tame = F.regexp_replace(value, r"(?<![\w.+-])(?:NaN|-?Infinity)(?![\w.+-])", "0")
    wrapped = F.concat(F.lit('{"value":'), tame, F.lit(f',"{_AFTER_JSON}":0}}'))
    strict = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "maxNestingDepth": "901"}
    whole = F.from_json(wrapped, f"`{_AFTER_JSON}` int", strict)[_AFTER_JSON] == 0
    alone = F.json_object_keys(wrapped) == F.array(F.lit("value"), F.lit(_AFTER_JSON))
    return value.isNotNull() & ~F.coalesce(whole & alone & ~F.contains(value, F.lit(_AFTER_JSON)), F.lit(False))


_BROKEN: dict[str, Callable[[Any], Column]] = {
    "expect_column_values_to_be_null": lambda a: F.col(a.column).isNotNull(),
    "expect_column_values_to_not_be_null": lambda a: F.col(a.column).isNull(),
    "expect_column_values_to_be_between": lambda a: _outside(F.col(a.column), a.bounds, a),
    "expect_column_values_to_be_in_set": lambda a: ~F.col(a.column).isin(a.value_set),
    "expect_column_values_to_not_be_in_set": lambda a: F.col(a.column).isin(a.value_set),
    "expect_column_values_to_match_regex": lambda a: ~_found(a.column, a.regex),
    "expect_column_values_to_not_match_regex": lambda a: _found(a.column, a.regex),
    "expect_column_values_to_match_regex_list": lambda a: ~_matches(a),
    "expect_column_values_to_not_match_regex_list": lambda a: reduce(Column.__or__, (_found(a.column, r) for r in a.regex_list)),
    "expect_column_value_lengths_to_be_between": lambda a: _outside(F.length(a.column), (a.min_value, a.max_value), a),
    "expect_column_value_lengths_to_equal": lambda a: F.length(a.column) != a.value,
    "expect_column_values_to_be_json_parseable": lambda a: _not_json(F.col(a.column)),
    "expect_column_pair_values_to_be_equal": _not_equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _not_greater,
    "expect_column_pair_values_to_be_in_set": _not_in_pairs,
    "expect_multicolumn_sum_to_equal": _other_sum,
    "expect_multicolumn_values_to_be_equal": _not_equal,
    "expect_select_column_values_to_be_unique_within_record": _not_unique,
}
"""When a row breaks each row rule. Null stands for no."""


def _matches(arguments: Any) -> Column:
    if arguments.match_on == "all":
        return reduce(Column.__and__, (_found(arguments.column, regex) for regex in arguments.regex_list))
    # One expression of all, as Great Expectations has it: a flag such as (?i) holds for those behind it too.
    return _found(arguments.column, "|".join(arguments.regex_list))


_BEGINNING = re.compile(r"\^[\w /:@,;-]+", re.ASCII)
_FEW = re.compile(r"\^(?:\[(?:[A-Za-z0-9]-[A-Za-z0-9]|\w)+\](?:\{\d\})?|\w)+\$", re.ASCII)
_PART = re.compile(r"\[([^\]]+)\](?:\{(\d)\})?|(\w)", re.ASCII)
MOST_TEXTS = 1_000


def _found(column: str, regex: str) -> Column:
    """Whether the regex is found in the text. Matching is dear: one that only names a beginning is compared, and one that few texts fit
    is looked up first. What is not among them is matched all the same: the end may also be a line's."""
    value = F.col(column)
    if _BEGINNING.fullmatch(regex):
        return value.startswith(regex[1:])
    texts = _fitting(regex)
    return value.cast("string").isin(texts) | value.rlike(regex) if texts else value.rlike(regex)


def _fitting(regex: str) -> list[str]:
    """The texts that it fits, such as the codes of ^[A-Z]{2}$; none where they are many, or it is of another form."""
    if not _FEW.fullmatch(regex):
        return []
    places: list[list[str]] = []
    for signs, times, sign in _PART.findall(regex[1:-1]):
        places += [_signs(signs)] * int(times or 1) if signs else [[sign]]
    return [] if prod(map(len, places)) > MOST_TEXTS else ["".join(text) for text in product(*places)]


def _signs(within: str) -> list[str]:
    """Of a class: A-Z0 are the letters and a digit."""
    found = [
        chr(code) if low else single
        for low, high, single in re.findall(r"(?:(\w)-(\w))|(\w)", within, re.ASCII)
        for code in (range(ord(low), ord(high) + 1) if low else [0])
    ]
    return list(dict.fromkeys(found))

"""Row rules → Spark columns, in one pass, the same for stream, micro-batch and batch.

A verdict is the array of the names of the rules that a row breaks; empty means accepted. An expectation judges a value
as Great Expectations does: null passes, unless a not-null expectation stands beside it.
"""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from weir.pipeline import Between, Expectation, InSet, MatchRegex, NotNull

Rule = tuple[str, Column]
"""A rule's name, and the condition under which a row breaks it."""


def broken_by(expectation: Expectation) -> Rule:
    """The expectation's name in verdicts and when a row breaks it."""
    value = F.col(expectation.arguments.column)
    match expectation.arguments:
        case NotNull():
            broken = value.isNull()
        case Between() as bounds:
            broken = reduce(Column.__or__, _outside(value, bounds))
        case InSet(value_set=allowed):
            broken = ~value.isin(allowed)
        case MatchRegex(regex=regex):
            broken = ~value.rlike(regex)
    return expectation.rule, broken


def _outside(value: Column, bounds: Between) -> list[Column]:
    conditions = []
    if bounds.min_value is not None:
        low = F.lit(bounds.min_value)
        conditions.append(value <= low if bounds.strict_min else value < low)
    if bounds.max_value is not None:
        high = F.lit(bounds.max_value)
        conditions.append(value >= high if bounds.strict_max else value > high)
    return conditions


def verdict(rules: list[Rule]) -> Column:
    """The names of the rules that a row breaks."""
    if not rules:
        return F.array().cast("array<string>")
    return F.array_compact(F.array(*(F.when(broken, F.lit(name)) for name, broken in rules)))


def is_accepted(rules: list[Rule]) -> Column:
    """Whether the verdict is empty, without building it: what a query needs that only counts accepted rows."""
    return reduce(Column.__and__, (~F.coalesce(broken, F.lit(False)) for _, broken in rules), F.lit(True))

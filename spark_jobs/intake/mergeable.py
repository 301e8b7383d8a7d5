"""Views whose cells over two sets of events can be merged: their speed cells need no state and no query of their own.

Such a view groups one stream and selects only its keys and plain counts, sums, minima and maxima. Averages and other expressions over
aggregates, joins, sessions, patterns and DISTINCT are not mergeable; those views run as streaming queries.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from spark_jobs.columns import view_input_type
from spark_jobs.transform import compute_view
from weir.pipeline import Pipeline


class Merge(StrEnum):
    """How the values of one column of two partial cells become one."""

    ADD = "add"
    LEAST = "least"
    GREATEST = "greatest"


_MERGES = {"Count": Merge.ADD, "Sum": Merge.ADD, "Min": Merge.LEAST, "Max": Merge.GREATEST}
_ROW_WISE = {"Project", "Filter", "Expand", "SubqueryAlias", "View", "LogicalRDD", "LocalRelation", "OneRowRelation"}
"""Logical operators that treat each row for itself."""


def mergeable_views(spark: SparkSession, pipeline: Pipeline, views: Iterable[str] | None = None) -> dict[str, dict[str, Merge]]:
    """The mergeable ones of these views (all by default), each with how its columns beside the grain are merged."""
    chosen = pipeline.views if views is None else views
    return {view: merges for view in chosen if (merges := _merges_of(spark, pipeline, view)) is not None}


def _merges_of(spark: SparkSession, pipeline: Pipeline, view: str) -> dict[str, Merge] | None:
    declared, streams = pipeline.views[view], pipeline.streams_of(view)
    if declared.pattern or len(streams) != 1:
        return None
    empty = spark.createDataFrame([], view_input_type(pipeline, view, streams[0]))
    cells = compute_view(spark, pipeline, view, {streams[0]: empty})
    plan = cells._jdf.queryExecution().analyzed()
    while _kind(plan) == "SubqueryAlias":
        plan = plan.child()
    # A session's bounds depend on other rows.
    if _kind(plan) != "Aggregate" or not _is_row_wise(plan.child()) or "session_window" in plan.toString():
        return None
    found = {expression.name(): _merge_of(expression) for expression in _each(plan.aggregateExpressions())}
    merges = {name: merge for name, merge in found.items() if merge is not None}
    grain = {name for name, merge in found.items() if merge is None}
    groupings = plan.groupingExpressions().size()
    if None in merges.values() or grain != set(declared.grain) or groupings < len(grain) or any(map(_aggregates, _others(plan))):
        return None
    values = {field.name: field.dataType for field in cells.schema}
    return None if any(isinstance(own, ArrayType | MapType | StructType) for own in values.values()) else merges


def _merge_of(expression: Any) -> Merge | None:
    """How to merge a column that is an aggregate and nothing else."""
    value = expression.child() if _kind(expression) == "Alias" else expression
    if _kind(value) != "AggregateExpression" or value.isDistinct():
        return None
    return _MERGES.get(_kind(value.aggregateFunction()))


def _others(plan: Any) -> list[Any]:
    return [own for own in _each(plan.aggregateExpressions()) if _merge_of(own) is None]


def _aggregates(expression: Any) -> bool:
    """Whether there is an aggregate anywhere in it."""
    return _kind(expression) == "AggregateExpression" or any(_aggregates(child) for child in _each(expression.children()))


def _is_row_wise(plan: Any) -> bool:
    return _kind(plan) in _ROW_WISE and all(_is_row_wise(child) for child in _each(plan.children()))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: Any) -> Iterable[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))

"""Speed against batch → which cells are equal and which differ."""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.tables import last_words
from weir.event_time import format_duration
from weir.pipeline import View
from weir.records import Cell, ViewComparison

MAX_EXAMPLES = 20


def compare_cells(
    view: View, name: str, fingerprint: str, speed: DataFrame | None, batch: DataFrame, watermark: datetime
) -> ViewComparison:
    """Compare cell by cell, exactly. A cell that only batch has is pending while the speed layer may still tell it."""
    columns = [column for column in batch.columns if not column.startswith("_")]
    values = [column for column in columns if column not in view.grain]
    said = last_words(speed, view.grain) if speed is not None else batch.limit(0)
    left = said.select(F.struct(*columns).alias("_speed"))
    right = batch.select(F.struct(*columns).alias("_batch"))
    same_cell = [F.col(f"_speed.{column}").eqNullSafe(F.col(f"_batch.{column}")) for column in view.grain]
    joined = left.join(right, same_cell, "full_outer").withColumn("_state", _state(view, values, watermark)).persist()
    try:
        counts = {row["_state"]: row["count"] for row in joined.groupBy("_state").count().collect()}
        examples = joined.filter("_state IN ('different', 'only_speed', 'only_batch')")
        first = F.coalesce(f"_speed.{view.time}", f"_batch.{view.time}")
        rows = examples.orderBy(first).limit(MAX_EXAMPLES).select(*(_texts(side, columns).alias(side) for side in ("_speed", "_batch")))
        cells = [_example(row["_speed"], row["_batch"], view.grain, values) for row in rows.collect()]
    finally:
        joined.unpersist()
    return ViewComparison(
        view=name,
        fingerprint=fingerprint,
        compared=sum(counts.values()),
        equal=counts.get("equal", 0),
        different=counts.get("different", 0),
        only_speed=counts.get("only_speed", 0),
        only_batch=counts.get("only_batch", 0),
        pending=counts.get("pending", 0),
        examples=cells,
    )


def _state(view: View, values: list[str], watermark: datetime) -> Column:
    equal = F.lit(True)
    for column in values:
        equal = equal & F.col(f"_speed.{column}").eqNullSafe(F.col(f"_batch.{column}"))
    closes_at = F.col(f"_batch.{view.time}") + F.expr(f"INTERVAL {format_duration(view.reach)}")
    return (
        F.when(F.col("_speed").isNull(), F.when(closes_at > F.lit(watermark), "pending").otherwise("only_batch"))
        .when(F.col("_batch").isNull(), "only_speed")
        .otherwise(F.when(equal, "equal").otherwise("different"))
    )


def _texts(side: str, columns: list[str]) -> Column:
    """The side's values as text, so that no value of a message (a year like 57971) can trouble the driver."""
    pairs = [part for column in columns for part in (F.lit(column), F.col(f"{side}.{column}").cast("string"))]
    return F.when(F.col(side).isNotNull(), F.create_map(*pairs))


def _example(speed: dict[str, str | None] | None, batch: dict[str, str | None] | None, grain: list[str], values: list[str]) -> Cell:
    known = speed if speed is not None else batch
    assert known is not None
    return Cell(
        grain={column: str(known[column]) for column in grain},
        speed=None if speed is None else {column: str(speed[column]) for column in values},
        batch=None if batch is None else {column: str(batch[column]) for column in values},
    )

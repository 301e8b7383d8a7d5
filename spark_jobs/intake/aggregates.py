"""Speed cells of mergeable views, computed inside the intake's batch.

The view's own SQL runs over the rows of one journal batch and gives partial cells; these are merged with the cells so far, which are
kept in memory and can be read back from the view's table at any time. Late events are counted like all others.
"""

import decimal
import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.arrow_tables import ArrowTable
from spark_jobs.columns import BATCH, JOURNALED_ON
from spark_jobs.intake.journal import Journal
from spark_jobs.intake.mergeable import Merge
from spark_jobs.tables import ensure_partitioned, with_day
from spark_jobs.transform import compute_view
from weir.layout import Lake, app_id
from weir.pipeline import Pipeline

MAX_CELLS_IN_MEMORY = 500_000
"""Of one view. Days that have not changed for longest are dropped and read back when they change again."""
MAX_DECIMAL_DIGITS = 38
"""Of Spark's decimals. Python's own default would round after 28."""
DAY, GENERATION, CELL_BATCH = "_day", "_generation", "_batch"

Grain = tuple[Any, ...]
Values = tuple[Any, ...]


class AggregateView:
    """The speed cells of one mergeable view."""

    def __init__(
        self, spark: SparkSession, lake: Lake, pipeline: Pipeline, view: str, merges: Mapping[str, Merge], generation: int
    ) -> None:
        self.spark, self.pipeline, self.view, self.generation = spark, pipeline, view, generation
        self.declared, (self.stream,) = pipeline.views[view], pipeline.streams_of(view)
        fingerprint = pipeline.fingerprint(view)
        self.table = ArrowTable(lake.speed(pipeline.name, view, fingerprint))
        self._writer = app_id(pipeline.name, "cells", f"{view}-{fingerprint}")
        self._merges = merges
        self._cells: dict[date, dict[Grain, Values]] = {}
        self._schema: pa.Schema | None = None

    def prepare(self, journal: Journal, last: int) -> None:
        """Create the table and compute what the journal has beyond it, day by day: all of it for a view that is new."""
        self._cells = {}  # a batch that failed may have left cells here that the table never got
        empty = journal.accepted(journal.rows().limit(0), self.stream, self.view)
        cells = self._with_names(with_day(compute_view(self.spark, self.pipeline, self.view, {self.stream: empty}), self.declared.time), 0)
        ensure_partitioned(cells, self.table.path, [DAY])
        self._schema = to_arrow_schema(cells.schema, timezone="UTC")
        done = self.table.last_appended(self._writer)
        if done >= last:
            return
        behind = journal.batch_rows(done, last).filter(journal.is_of(self.stream))
        for row in behind.groupBy(JOURNALED_ON).agg(F.max(BATCH).alias("until")).orderBy("until").collect():
            rows = behind.filter((F.col(JOURNALED_ON) == F.lit(row[JOURNALED_ON])) & (F.col(BATCH) > done) & (F.col(BATCH) <= row["until"]))
            self.update(journal.accepted(rows, self.stream, self.view), row["until"])

    def update(self, rows: DataFrame, batch: int) -> None:
        """Count the accepted rows of a batch."""
        if self.table.last_appended(self._writer) >= batch:
            return
        assert self._schema is not None
        cells = with_day(compute_view(self.spark, self.pipeline, self.view, {self.stream: rows}), self.declared.time)
        partial = cells.toArrow()
        with decimal.localcontext(prec=MAX_DECIMAL_DIGITS):
            merged = list(self._merge(partial))
        columns = (
            dict(zip(partial.column_names, zip(*merged, strict=True), strict=True)) if merged else dict.fromkeys(partial.column_names, ())
        )
        named = columns | {GENERATION: [self.generation] * len(merged), CELL_BATCH: [batch] * len(merged)}
        arrays = [pa.array(named[field.name], field.type) for field in self._schema]
        metadata = {"view": self.view, "batch": batch, "generation": self.generation}
        self.table.append_once(pa.Table.from_arrays(arrays, schema=self._schema), self._writer, batch, metadata)
        self._drop_old_days(set(partial[DAY].unique().to_pylist()))

    def __len__(self) -> int:
        """How many cells are in memory."""
        return sum(map(len, self._cells.values()))

    def _merge(self, partial: pa.Table) -> Iterator[Values]:
        """The changed cells in the order of the frame's columns."""
        names = partial.column_names
        grain, values = [names.index(column) for column in self.declared.grain], [names.index(column) for column in self._merges]
        day, merges = names.index(DAY), list(self._merges.values())
        for own in pc.unique(partial[DAY]).to_pylist():
            self._load(own)
        for row in zip(*(column.to_pylist() for column in partial.columns), strict=True):
            cells, key = self._cells[row[day]], tuple(row[at] for at in grain)
            new = tuple(row[at] for at in values)
            if (known := cells.get(key)) is not None:
                new = tuple(merge_values(merge, a, b) for merge, a, b in zip(merges, known, new, strict=True))
            cells[key] = new
            merged = list(row)
            for at, value in zip(values, new, strict=True):
                merged[at] = value
            yield tuple(merged)

    def _load(self, day: date) -> None:
        """Have the cells of a day in memory: of each the row of the latest generation and batch."""
        if day in self._cells:
            return
        columns = [*self.declared.grain, *self._merges, GENERATION, CELL_BATCH]
        stored = self.table.read(columns, DAY, day).sort_by([(GENERATION, "ascending"), (CELL_BATCH, "ascending")])
        width = len(self.declared.grain)
        rows = zip(*(stored[column].to_pylist() for column in columns[:-2]), strict=True)
        self._cells[day] = {row[:width]: row[width:] for row in rows}

    def _drop_old_days(self, changed: set[date]) -> None:
        for day in changed:
            self._cells[day] = self._cells.pop(day)  # the last one is the one that changed last
        while len(self) > MAX_CELLS_IN_MEMORY and len(self._cells) > len(changed):
            del self._cells[next(iter(self._cells))]

    def _with_names(self, cells: DataFrame, batch: int) -> DataFrame:
        return cells.withColumn(GENERATION, F.lit(self.generation)).withColumn(CELL_BATCH, F.lit(batch).cast("bigint"))


def merge_values(merge: Merge, one: Any, other: Any) -> Any:
    """As Spark's aggregates do: nulls are left out, NaN is greater than any number."""
    if one is None or other is None:
        return other if one is None else one
    if merge is Merge.ADD:
        return one + other
    least, greatest = (one, other) if _order(one) <= _order(other) else (other, one)
    return least if merge is Merge.LEAST else greatest


def _order(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value

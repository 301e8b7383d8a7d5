"""The journal: one row per message and contract, with its fate. Everything behind the intake reads it."""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.arrow_tables import ArrowTable
from spark_jobs.columns import (
    ACCEPTED,
    BATCH,
    CONTRACT,
    FATE,
    JOURNALED_ON,
    LATE,
    OCCURRED_AT,
    OFFSET,
    PARTITION,
    STREAM,
    TOPIC,
    choose_struct_columns,
    journal_schema,
    lookup_field,
)
from spark_jobs.tables import add_columns, exists, read
from weir.event_time import utc_now
from weir.layout import Lake, journal_writer
from weir.pipeline import Pipeline, Table


@dataclass(frozen=True)
class SourceProgress:
    """How far the intake has judged one source by one contract."""

    until: dict[str, int] = field(default_factory=dict)
    """By topic/partition the offset up to which it has read."""
    newest: int | None = None
    """The greatest event time accepted so far, in microseconds."""


@dataclass(frozen=True)
class BatchNote:
    """What an intake batch says about itself in its commit, so that the next batch, and a restart, know where to go on."""

    batch: int
    planned_at: datetime
    rows: int
    """How many rows the journal has with this batch."""
    sources: dict[str, SourceProgress]
    """By source and contract fingerprint, `<source>/<fingerprint>`: earlier contracts stay, a declaration may return to one."""

    @staticmethod
    def of(said: dict[str, Any]) -> "BatchNote":
        sources = {name: SourceProgress(**own) for name, own in said["sources"].items()}
        return BatchNote(**said | {"planned_at": datetime.fromisoformat(said["planned_at"]), "sources": sources})

    def said(self) -> dict[str, Any]:
        return asdict(self) | {"planned_at": self.planned_at.isoformat()}

    def progress(self, source: str, contract: str) -> SourceProgress | None:
        return self.sources.get(f"{source}/{contract}")

    def until_of(self, contracts: dict[str, str]) -> dict[str, int]:
        """By topic/partition how far these sources were read by these contracts."""
        own = (self.progress(source, contract) for source, contract in contracts.items())
        return {place: end for progress in own if progress for place, end in progress.until.items()}


class Journal:
    """The journal of one pipeline, for reading and, by its intake, for appending."""

    def __init__(self, spark: SparkSession, lake: Lake, pipeline: Pipeline) -> None:
        self.spark, self.pipeline = spark, pipeline
        self.path = lake.journal(pipeline.name)
        self.contracts = {name: pipeline.contract_fingerprint(name) for name in pipeline.sources}
        self.arrow = ArrowTable(self.path)
        self._writer = journal_writer(pipeline.name)

    # For the intake

    def prepare(self) -> None:
        """Create the table, or add the columns that the declaration has gained. Before any query reads it."""
        missing = self.spark.createDataFrame([], journal_schema(self.pipeline, self.struct_columns))
        if set(_paths(missing.schema)) - set(_paths(self._existing or StructType())):
            # The batch number is looked up in every file's statistics: keep it among the columns that have any.
            add_columns(missing, self.path, [JOURNALED_ON], {"delta.dataSkippingNumIndexedCols": "13"})
            self.__dict__.pop("_existing", None)
            self.__dict__.pop("_arrow_schema", None)

    def append(self, rows: pa.Table, note: BatchNote) -> bool:
        """Append a batch once. Rows have the columns of the journal's head and of the declared sources.

        False where the journal has another batch of this number: a driver that lost its lease can write one more as it wakes, and its
        batch need not have read as far as this one.
        """
        return self.arrow.append_once(self._aligned(rows), self._writer, note.batch, note.said()) or self.last_note() == note

    def _aligned(self, rows: pa.Table) -> pa.Table:
        """All columns of the table in its own order and types; null where these rows have none."""
        schema = self._arrow_schema
        columns = [_cast(rows[own.name], own.type) if own.name in rows.column_names else pa.nulls(len(rows), own.type) for own in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def last_note(self) -> BatchNote | None:
        """What the last batch said; read back from the rows where that commit is gone from the table's log."""
        if not exists(self.spark, self.path) or (last := self.arrow.last_appended(self._writer)) < 0:
            return None
        if (said := self.arrow.last_metadata()) and said["batch"] == last:
            return BatchNote.of(said)
        return self._restored_note(last)

    def _restored_note(self, last: int) -> BatchNote:
        newest = F.max(F.when(F.col(FATE) == ACCEPTED, F.unix_micros(OCCURRED_AT))).alias("newest")
        ends = [(F.max(OFFSET) + 1).alias("until"), newest, F.count("*").alias("rows")]
        found = self.rows().groupBy(STREAM, CONTRACT, TOPIC, PARTITION).agg(*ends).collect()
        sources = {}
        for name in {f"{row[STREAM]}/{row[CONTRACT]}" for row in found}:
            own = [row for row in found if f"{row[STREAM]}/{row[CONTRACT]}" == name]
            newest_of = max((row["newest"] for row in own if row["newest"] is not None), default=None)
            sources[name] = SourceProgress({f"{row[TOPIC]}/{row[PARTITION]}": row["until"] for row in own}, newest_of)
        return BatchNote(last, utc_now(), sum(row["rows"] for row in found), sources)

    # For readers

    @property
    def exists(self) -> bool:
        return exists(self.spark, self.path)

    @cached_property
    def _existing(self) -> StructType | None:
        return read(self.spark, self.path).schema if self.exists else None

    @property
    def struct_columns(self) -> dict[str, str]:
        return choose_struct_columns(self.pipeline, self._existing)

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(read(self.spark, self.path).schema, timezone="UTC")

    def rows(self, version: int | None = None) -> DataFrame:
        return read(self.spark, self.path, version)

    def batch_rows(self, after: int, until: int) -> DataFrame:
        """The rows of the batches behind `after`, up to and including `until`."""
        return self.rows().filter((F.col(BATCH) > after) & (F.col(BATCH) <= until))

    def is_of(self, source: str) -> Column:
        """Whether a row is of this source as it is declared now."""
        return (F.col(STREAM) == source) & (F.col(CONTRACT) == self.contracts[source])

    def accepted(self, rows: DataFrame, source: str, view: str | None = None, with_late: bool = True) -> DataFrame:
        """The accepted rows of a stream or table as typed columns; for a view with the rows that it looks up, under the tables' names."""
        wanted = self.is_of(source) & (F.col(FATE) == ACCEPTED)
        wanted = wanted if with_late else wanted & ~F.col(LATE)
        return rows.filter(wanted).select(*self.typed_columns(source, view))

    def typed_columns(self, source: str, view: str | None = None) -> list[Column]:
        contract, struct = self.pipeline.sources[source], self.struct_columns[source]
        own = [F.col(f"{struct}.{name}").alias(name) for name in contract.columns]
        if view is None or isinstance(contract, Table):
            return own
        pairs = [pair for pair in self.pipeline.views[view].as_of.items() if pair[1] in contract.columns]
        return own + [F.col(f"{struct}.{lookup_field(self.pipeline, *pair)}").alias(pair[0]) for pair in pairs]


def _cast(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """Fields of structs are matched by name: a table that grew has more of them, in an order of its own."""
    if not pa.types.is_struct(to) or values.type == to:
        return values.cast(to)
    return pa.chunked_array([_cast_struct(chunk, to) for chunk in values.chunks], to)


def _cast_struct(values: pa.StructArray, to: pa.StructType) -> pa.StructArray:
    named = dict(zip([own.name for own in values.type], values.flatten(), strict=True))
    children = [
        pa.nulls(len(values), own.type)
        if own.name not in named
        else _cast_struct(named[own.name], own.type)
        if pa.types.is_struct(own.type) and named[own.name].type != own.type
        else named[own.name].cast(own.type)
        for own in to
    ]
    return pa.StructArray.from_arrays(children, fields=list(to), mask=values.is_null())


def _paths(schema: StructType, before: str = "") -> list[str]:
    """The full names of all fields, those of structs included."""
    found = []
    for own in schema.fields:
        name = f"{before}{own.name}"
        found += [name, *(_paths(own.dataType, f"{name}.") if isinstance(own.dataType, StructType) else [])]
    return found

"""Column names and schemas that more than one step of the engine uses."""

import hashlib
from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from weir.pipeline import Pipeline, Stream, Table

STREAM, TOPIC, PARTITION, OFFSET, RECEIVED_AT = "stream", "topic", "partition", "offset", "received_at"
IDENTITY, OCCURRED_AT = "identity", "occurred_at"
FATE, REASONS, LATE, WATERMARK = "fate", "reasons", "late", "watermark"
BATCH, CONTRACT, PAYLOAD, JOURNALED_ON = "batch", "contract", "payload", "journaled_on"
DELETED = "_deleted"
"""Of a table's change: whether its key has no row from then on."""

POSITION = (TOPIC, PARTITION, OFFSET)

ACCEPTED, DUPLICATE, REJECTED, UNDECODABLE = "accepted", "duplicate", "rejected", "undecodable"
"""The fates of a message in the journal."""

CONFLICT = "identity:not_conflict"
"""The reason of a row with an identity that was accepted with other content: not a duplicate, somebody has to look at it."""

JOURNAL_HEAD = StructType(
    [
        StructField(STREAM, StringType()),
        StructField(TOPIC, StringType()),
        StructField(PARTITION, IntegerType()),
        StructField(OFFSET, LongType()),
        StructField(RECEIVED_AT, TimestampType()),
        StructField(IDENTITY, StringType()),
        StructField(OCCURRED_AT, TimestampType()),
        StructField(FATE, StringType()),
        StructField(LATE, BooleanType()),
        StructField(WATERMARK, TimestampType()),
        StructField(BATCH, LongType()),
        StructField(CONTRACT, StringType()),
        StructField(JOURNALED_ON, DateType()),
        StructField(REASONS, ArrayType(StringType())),
        StructField(PAYLOAD, BinaryType()),
    ]
)
"""What every journal row has. One struct column per stream or table follows, with its typed columns and looked-up rows."""

QUARANTINED = StructType(
    [
        StructField(STREAM, StringType()),
        StructField(TOPIC, StringType()),
        StructField(PARTITION, IntegerType()),
        StructField(OFFSET, LongType()),
        StructField(RECEIVED_AT, TimestampType()),
        StructField(PAYLOAD, BinaryType()),
        StructField(REASONS, ArrayType(StringType())),
        StructField(IDENTITY, StringType()),
        StructField(OCCURRED_AT, TimestampType()),
        StructField(BATCH, LongType()),
        StructField("quarantined_at", TimestampType()),
        StructField("received_on", DateType()),
    ]
)
"""A row of the quarantine: rejected and undecodable messages of all streams and tables, partitioned by stream and received_on."""


def lookup_field(pipeline: Pipeline, table: str, column: str) -> str:
    """The field of a stream's struct that holds the row of `table` whose key is in `column`. A table with other columns has another one."""
    row_type = table_row_type(pipeline.tables[table]).simpleString()
    return f"_{table}__{column}__{hashlib.sha256(row_type.encode()).hexdigest()[:6]}"


def lookups_of(pipeline: Pipeline, stream: str) -> list[tuple[str, str]]:
    """The (table, column) pairs that the views of a stream look up."""
    wanted = {
        (table, column)
        for view, declared in pipeline.views.items()
        if stream in pipeline.streams_of(view)
        for table, column in declared.as_of.items()
        if column in pipeline.streams[stream].columns
    }
    return sorted(wanted)


def columns_type(source: Stream | Table) -> StructType:
    """The typed columns of a stream or table."""
    declared = StructType.fromDDL(", ".join(f"`{name}` {column.type}" for name, column in source.columns.items()))
    assert isinstance(declared, StructType)
    return StructType(declared.fields + ([StructField(DELETED, BooleanType())] if isinstance(source, Table) else []))


def table_row_type(table: Table) -> StructType:
    """A row of a table as an event sees it: its columns, since when it is valid, when its change arrived."""
    fields = [field for field in columns_type(table).fields if field.name != DELETED]
    return StructType([*fields, StructField("valid_from", TimestampType()), StructField("recorded_at", TimestampType())])


def source_type(pipeline: Pipeline, source: str) -> StructType:
    """The struct column of a stream or table in the journal."""
    declared = columns_type(pipeline.sources[source])
    if source not in pipeline.streams:
        return declared
    found = [StructField(lookup_field(pipeline, *own), table_row_type(pipeline.tables[own[0]])) for own in lookups_of(pipeline, source)]
    return StructType(declared.fields + found)


def view_input_type(pipeline: Pipeline, view: str, stream: str) -> StructType:
    """The rows of a stream as a view reads them: its columns, and under the tables' names the rows that the view looks up."""
    contract = pipeline.streams[stream]
    looked_up = [
        StructField(table, table_row_type(pipeline.tables[table]))
        for table, column in pipeline.views[view].as_of.items()
        if column in contract.columns
    ]
    return StructType(columns_type(contract).fields + looked_up)


def journal_schema(pipeline: Pipeline, struct_columns: Mapping[str, str]) -> StructType:
    fields = [StructField(struct_columns[source], source_type(pipeline, source)) for source in pipeline.sources]
    return StructType(JOURNAL_HEAD.fields + fields)


def choose_struct_columns(pipeline: Pipeline, existing: StructType | None) -> dict[str, str]:
    """Source → its struct column: its own name; numbered where earlier rows have a struct of that name with other types."""
    known = {field.name: field.dataType for field in existing.fields} if existing else {}
    chosen = {}
    for source in pipeline.sources:
        wanted, name, number = source_type(pipeline, source), f"{source}_row", 1
        while name in known and not _extends(known[name], wanted):
            number += 1
            name = f"{source}_row_{number}"
        chosen[source] = name
    return chosen


def _extends(existing: DataType, wanted: DataType) -> bool:
    """Whether `wanted` fits into `existing` by adding fields only."""
    if not isinstance(existing, StructType) or not isinstance(wanted, StructType):
        return existing.simpleString() == wanted.simpleString()
    known = {field.name: field.dataType for field in existing.fields}
    return all(field.name not in known or _extends(known[field.name], field.dataType) for field in wanted.fields)

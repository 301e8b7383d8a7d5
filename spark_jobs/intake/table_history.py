"""A table's accepted changes, twice: on disk for readers, and in memory for looking up rows as of an event's time."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from spark_jobs.arrow_tables import ArrowTable
from spark_jobs.columns import ACCEPTED, DELETED, FATE, JOURNAL_HEAD, OFFSET, PARTITION, RECEIVED_AT, TOPIC, columns_type, table_row_type
from spark_jobs.intake.candidates import KEY_HASHES, row_hashes
from spark_jobs.intake.journal import Journal
from spark_jobs.intake.table_versions import TableVersions
from spark_jobs.tables import ensure_partitioned, read
from weir.layout import Lake, app_id
from weir.pipeline import Pipeline

COORDINATES = (TOPIC, PARTITION, OFFSET, RECEIVED_AT)
COMPACT_EVERY_APPENDS = 100


class TableHistory:
    """The history of one table."""

    def __init__(self, spark: SparkSession, lake: Lake, pipeline: Pipeline, table: str) -> None:
        self.spark, self.pipeline, self.table = spark, pipeline, table
        self.declared = pipeline.tables[table]
        fingerprint = pipeline.table_fingerprint(table)
        self._stored = ArrowTable(lake.history(pipeline.name, table, fingerprint))
        self._writer = app_id(pipeline.name, "history", f"{table}-{fingerprint}")
        head = [JOURNAL_HEAD[name] for name in COORDINATES]
        self._schema = StructType(head + columns_type(self.declared).fields)
        self._row_type = to_arrow_type(table_row_type(self.declared), timezone="UTC")
        self.versions = TableVersions(self._row_type)

    def prepare(self, journal: Journal, last: int) -> None:
        """Create the stored table, append what the journal has beyond it up to its last batch, and load every version."""
        ensure_partitioned(self.spark.createDataFrame([], self._schema), self._stored.path, [])
        done = self._stored.last_appended(self._writer)
        if done < last:
            rows = journal.batch_rows(done, last).filter(journal.is_of(self.table) & (F.col(FATE) == ACCEPTED))
            struct = journal.struct_columns[self.table]
            changes = rows.select(*COORDINATES, *(F.col(f"{struct}.{own.name}") for own in columns_type(self.declared).fields))
            self._store(changes.orderBy(*_ARRIVAL).toArrow(), last)
        self._load(read(self.spark, self._stored.path))

    def _load(self, stored: DataFrame) -> None:
        hashed = stored.select("*", *row_hashes(self.pipeline, self.table, F.col)).orderBy(*_ARRIVAL).toArrow()
        self.versions = TableVersions(self._row_type)
        self.remember(hashed, first_hashes(hashed[KEY_HASHES]))

    def store(self, changes: pa.Table, batch: int) -> None:
        """Append this batch's changes to the stored table."""
        if len(changes):
            self._store(changes, batch)

    def remember(self, changes: pa.Table, hashes: pa.Array) -> None:
        """Add accepted changes, so that events of the same batch find them."""
        valid_from = changes[self.declared.changed_at].combine_chunks()
        columns = [changes[name].combine_chunks() for name in self.declared.columns]
        values = [*columns, valid_from, changes[RECEIVED_AT].combine_chunks()]
        fields = list(self._row_type)
        deleted = changes[DELETED].combine_chunks().fill_null(False)
        cast = [value.cast(own.type) for value, own in zip(values, fields, strict=True)]
        rows = pa.StructArray.from_arrays(cast, fields=fields, mask=deleted)
        self.versions.add(hashes.to_numpy(zero_copy_only=False), micros(valid_from), rows)

    def _store(self, changes: pa.Table, batch: int) -> None:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        rows = pa.Table.from_arrays([changes[own.name].cast(own.type) for own in schema], schema=schema)
        if not len(rows):
            return
        self._stored.append_once(rows, self._writer, batch, {"table": self.table, "batch": batch})
        self._stored.compact_sometimes(COMPACT_EVERY_APPENDS)


_ARRIVAL = (RECEIVED_AT, TOPIC, PARTITION, OFFSET)


def micros(times: pa.Array) -> np.ndarray:
    """Microseconds since 1970; the least number for null."""
    found: np.ndarray = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).fill_null(-(2**62)).to_numpy(zero_copy_only=False)
    return found


def first_hashes(lists: pa.ChunkedArray) -> pa.Array:
    """The first element of each list; 0 for null."""
    return pc.list_element(lists.combine_chunks(), 0).fill_null(0)

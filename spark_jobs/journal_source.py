"""The journal as a streaming source: a view reads the accepted rows of one stream, batch by batch, in the order of the intake.

Offsets are journal batches, so a batch of a view is made of whole batches of the intake, and what a view has read can be told by one
number. The source reads Delta without the JVM: Spark's own Delta source takes a second or more of each trigger.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_jobs.columns import ACCEPTED, BATCH, CONTRACT, FATE, LATE, STREAM, lookup_field, view_input_type
from spark_jobs.intake.journal import Journal
from spark_jobs.streaming.checkpoint import source_offsets
from weir.lake_files import delta_options
from weir.layout import journal_writer

FORMAT = "weir_journal"
START = -1
"""The offset before the journal's first batch."""


def read_journal(spark: SparkSession, journal: Journal, stream: str, view: str, max_rows: int) -> DataFrame:
    """The accepted rows of a stream that are not late, as a stream, with the table rows that the view looks up."""
    pipeline = journal.pipeline
    schema = view_input_type(pipeline, view, stream)
    contract, struct = pipeline.streams[stream], journal.struct_columns[stream]
    looked_up = {
        table: lookup_field(pipeline, table, column) for table, column in pipeline.views[view].as_of.items() if column in contract.columns
    }
    fields = {name: looked_up.get(name, name) for name in schema.names}
    reader = spark.readStream.format(FORMAT).schema(schema).option("path", journal.path).option("pipeline", pipeline.name)
    reader = reader.option("stream", stream).option("contract", journal.contracts[stream]).option("struct", struct)
    return reader.option("fields", ",".join(f"{name}={field}" for name, field in fields.items())).option("maxRows", max_rows).load()


def journal_batches(checkpoint: str, batch: int) -> dict[str, int]:
    """By stream the last journal batch that a view has read with this batch of its own."""
    found: dict[str, int] = {}
    for own in source_offsets(checkpoint, batch):
        found[own[STREAM]] = min(int(own[BATCH]), found.get(own[STREAM], int(own[BATCH])))
    return found


class JournalSource(DataSource):
    """Registered with a session by the driver."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JournalReader(dict(self.options), schema)


@dataclass
class BatchRange(InputPartition):
    """Half open below: batches behind `after`, up to and including `until`."""

    after: int
    until: int


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._path, self._stream, self._contract = given["path"], given["stream"], given["contract"]
        self._struct, self._writer, self._max_rows = given["struct"], journal_writer(given["pipeline"]), int(given["maxrows"])
        self._fields = dict(pair.split("=") for pair in given["fields"].split(","))
        self._schema = schema
        self._table: DeltaTable | None = None
        self._last: int | None = None
        """Where a query ends that only reads what is there."""

    def _now(self) -> DeltaTable:
        if self._table is None:
            self._table = DeltaTable(self._path, storage_options=delta_options(self._path))
        else:
            self._table.update_incremental()
        return self._table

    def _last_batch(self) -> int:
        found = self._now().transaction_version(self._writer)
        return START if found is None else int(found)

    # Planning, in one process that lasts as long as the query

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(START)

    def _offset(self, batch: int) -> dict[str, Any]:
        """The stream is in it so that the checkpoint of a join tells which of its sources has read how far."""
        return {BATCH: batch, STREAM: self._stream}

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._last_batch()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        last = self._last_batch() if self._last is None else self._last
        after = start[BATCH]
        if last <= after or isinstance(limit, ReadAllAvailable):
            return self._offset(max(last, after))
        return self._offset(min(last, self._until(after, last)))

    def _until(self, after: int, last: int) -> int:
        """The last batch that fits into the limit, by the statistics of the journal's files; at least one batch."""
        if last == after + 1:
            return last
        stats = pa.table(self._now().get_add_actions(flatten=True))
        files = zip(*(stats[name].to_pylist() for name in (f"min.{BATCH}", f"max.{BATCH}", "num_records")), strict=True)
        behind = sorted(own for own in files if own[1] is not None and own[1] > after)
        rows = 0
        for first, end, count in behind:
            rows += count
            if rows > self._max_rows:
                if end - max(first, after + 1) > 1:  # a merged file holds many batches: take its share
                    return max(after + 1, first + (end - first) * self._max_rows // rows)
                return max(after + 1, min(end, last) - (1 if count < rows else 0))
        return last

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._offset(self._last_batch())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [BatchRange(start[BATCH], end[BATCH])] if end[BATCH] > start[BATCH] else []

    # In a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, BatchRange)
        wanted = (pc.field(BATCH) > partition.after) & (pc.field(BATCH) <= partition.until)
        wanted &= (pc.field(STREAM) == self._stream) & (pc.field(CONTRACT) == self._contract)
        wanted &= (pc.field(FATE) == ACCEPTED) & ~pc.field(LATE)
        columns = {name: pc.field(self._struct, field) for name, field in self._fields.items()}
        target = to_arrow_schema(self._schema, timezone="UTC")
        dataset = self._now().to_pyarrow_dataset()
        for batch in dataset.to_batches(columns=columns, filter=wanted):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([_cast(batch[own.name], own.type) for own in target], schema=target)


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Fields of structs are matched by name: the journal's may have more of them, in an order of their own."""
    if not pa.types.is_struct(to):
        return values.cast(to)
    named = dict(zip([own.name for own in values.type], values.flatten(), strict=True))
    return pa.StructArray.from_arrays([_cast(named[own.name], own.type) for own in to], fields=list(to), mask=values.is_null())

"""Rejected and undecodable rows → the quarantine table, within the intake's batch: people see them seconds after they arrived."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.arrow_tables import ArrowTable
from spark_jobs.columns import CONTRACT, FATE, OFFSET, PARTITION, POSITION, QUARANTINED, RECEIVED_AT, REJECTED, STREAM, TOPIC, UNDECODABLE
from spark_jobs.intake.journal import BatchNote, Journal
from spark_jobs.tables import ensure_partitioned, read
from weir.event_time import utc_now
from weir.layout import Lake, app_id
from weir.pipeline import Pipeline

COMPACT_EVERY_APPENDS = 100


class Quarantine:
    """What a pipeline's intake sets aside."""

    def __init__(self, spark: SparkSession, lake: Lake, pipeline: Pipeline) -> None:
        self.spark, self.pipeline = spark, pipeline
        self._table = ArrowTable(lake.quarantined(pipeline.name))
        self._writer = app_id(pipeline.name, "quarantine", "intake")
        self._schema = to_arrow_schema(QUARANTINED, timezone="UTC")

    def prepare(self, journal: Journal, note: BatchNote | None) -> None:
        """Create the table, and append what the journal has beyond it."""
        ensure_partitioned(self.spark.createDataFrame([], QUARANTINED), self._table.path, [STREAM, "received_on"])
        if note is None or (done := self._table.last_appended(self._writer)) >= note.batch:
            return
        bad = journal.batch_rows(done, note.batch).filter(F.col(FATE).isin(REJECTED, UNDECODABLE))
        known = read(self.spark, self._table.path).select(STREAM, *POSITION)
        # The same choice as in each batch: what another contract has judged before is left to the micro-batch here too.
        self.add(bad.join(known, [STREAM, *POSITION], "left_anti").toArrow(), note.batch, note)

    def add(self, rows: pa.Table, batch: int, note: BatchNote | None) -> None:
        """Append rejected and undecodable rows, without those that were judged by another contract before."""
        bad = rows.filter(pc.is_in(rows[FATE], pa.array([REJECTED, UNDECODABLE])))
        if note is not None and len(bad):
            bad = bad.filter(pa.array(self._is_new(bad, note)))
        if not len(bad):
            return
        named = {name: bad[name] for name in self._schema.names if name in bad.column_names}
        named["quarantined_at"] = pa.array([utc_now()] * len(bad), pa.timestamp("us", "UTC"))
        named["received_on"] = bad[RECEIVED_AT].cast(pa.date32())
        aligned = pa.Table.from_arrays([named[own.name].cast(own.type) for own in self._schema], schema=self._schema)
        self._table.append_once(aligned, self._writer, batch, {"batch": batch})
        self._table.compact_sometimes(COMPACT_EVERY_APPENDS)

    def _is_new(self, bad: pa.Table, note: BatchNote) -> list[bool]:
        """Whether no other contract of the source had read so far: a changed contract reads its source again from the beginning."""
        columns = (bad[name].to_pylist() for name in (STREAM, CONTRACT, TOPIC, PARTITION, OFFSET))
        ends: dict[tuple[str, str, str], int] = {}

        def read_by_others(source: str, contract: str, place: str) -> int:
            key = (source, contract, place)
            if key not in ends:
                others = [own for name, own in note.sources.items() if name.startswith(f"{source}/") and name != f"{source}/{contract}"]
                ends[key] = max((own.until.get(place, 0) for own in others), default=0)
            return ends[key]

        return [
            offset >= read_by_others(source, contract, f"{topic}/{part}")
            for source, contract, topic, part, offset in zip(*columns, strict=True)
        ]

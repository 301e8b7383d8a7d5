"""One batch of the intake, as numbered steps.

1. collect the judged rows of the batch (executors have decoded, cleaned and judged them)
2. decide each row's fate: missing references, duplicates, conflicts, late rows; look up table rows
3. append the rows to the journal: from now on the batch has happened
4. derive what follows from it: table histories, quarantine, cells of the mergeable views

After a crash `prepare` repeats step 4 for what the journal has. Every derived table records the last batch it holds, so nothing is
counted twice; and messages are read again from where the journal ends, so nothing is judged twice or lost.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.columns import (
    ACCEPTED,
    BATCH,
    CONFLICT,
    CONTRACT,
    DELETED,
    DUPLICATE,
    FATE,
    IDENTITY,
    JOURNALED_ON,
    LATE,
    OCCURRED_AT,
    OFFSET,
    PARTITION,
    PAYLOAD,
    REASONS,
    RECEIVED_AT,
    REJECTED,
    STREAM,
    TOPIC,
    UNDECODABLE,
    WATERMARK,
    lookup_field,
    lookups_of,
)
from spark_jobs.intake.aggregates import AggregateView
from spark_jobs.intake.candidates import (
    CONTENT,
    HASH_1,
    HASH_2,
    IS_ACCEPTED,
    IS_UNDECODABLE,
    KEY_HASHES,
    MESSAGE_VALUE,
    candidate_rows,
    row_hashes,
)
from spark_jobs.intake.identities import IdentityIndex, Keys, mark_repeated
from spark_jobs.intake.journal import BatchNote, Journal, SourceProgress
from spark_jobs.intake.quarantine import Quarantine
from spark_jobs.intake.table_history import TableHistory, micros
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.layout import INTAKE_QUERY, Lake
from weir.pipeline import Pipeline, Stream

REMEMBERED_LATENESSES = 2
"""An identity is remembered until the watermark has passed its event time by this many times the stream's lateness."""
NONE = -(2**62)

Flags = NDArray[np.bool_]


class OvertakenError(Exception):
    """Another driver has appended to the journal meanwhile."""


class Intake:
    """The intake of one pipeline. `prepare` before the first batch, and again after a batch that failed."""

    def __init__(self, spark: SparkSession, lake: Lake, pipeline: Pipeline, aggregates: list[AggregateView]) -> None:
        self.spark, self.pipeline, self.aggregates = spark, pipeline, aggregates
        self.journal = Journal(spark, lake, pipeline)
        self.tables = {table: TableHistory(spark, lake, pipeline, table) for table in pipeline.tables}
        self.quarantine = Quarantine(spark, lake, pipeline)
        self.identities: dict[str, IdentityIndex] = {}
        self._newest: dict[str, int] = {}
        self.note: BatchNote | None = None
        """Of the last batch in the journal."""

    def prepare(self, check_lease: Callable[[], None] = lambda: None) -> None:
        """Bring everything that is derived from the journal up to its last batch, and load what decisions need."""
        self.journal.prepare()
        self.note = self.journal.last_note()
        progress = {name: self._progress(name) for name in self.pipeline.sources}
        self._newest = {name: own.newest for name, own in progress.items() if own.newest is not None}
        check_lease()
        last = self.note.batch if self.note else -1
        for table in self.tables.values():
            table.prepare(self.journal, last)
        self.quarantine.prepare(self.journal, self.note)
        for view in self.aggregates:
            view.prepare(self.journal, last)
        self.identities = {name: self._remembered(name) for name in self.pipeline.streams}

    def _progress(self, source: str) -> SourceProgress:
        found = self.note.progress(source, self.journal.contracts[source]) if self.note else None
        return found or SourceProgress()

    @property
    def until(self) -> dict[str, int]:
        """By topic/partition how far the sources were read by their present contracts."""
        return self.note.until_of(self.journal.contracts) if self.note else {}

    def candidates(self, messages: Mapping[str, DataFrame]) -> DataFrame:
        return candidate_rows(self.pipeline, messages, self.journal.struct_columns)

    def take_in(self, frame: DataFrame, until: Mapping[str, int], check_lease: Callable[[], None] = lambda: None) -> None:
        """Steps 1 to 4. `until` says, by topic/partition, up to which offset the frame reads."""
        batch, planned_at = (self.note.batch if self.note else -1) + 1, utc_now()
        judged = self._beyond_the_journal(frame.drop(MESSAGE_VALUE).toArrow())
        fault_point(f"judged.{INTAKE_QUERY}", batch)
        rows = self._with_payloads(self._decide(judged, batch, planned_at), frame)
        note = self._note(batch, planned_at, until, len(rows))
        check_lease()
        if not self.journal.append(rows, note):  # going on would skip the messages that only this batch has read
            raise OvertakenError(f"batch {batch} of the journal was written by another driver: the next start goes on behind it")
        fault_point(f"journaled.{INTAKE_QUERY}", batch)
        before, self.note = self.note, note
        check_lease()
        self._derive(rows, batch, before)

    def _beyond_the_journal(self, judged: pa.Table) -> pa.Table:
        """Without rows that the journal has: a message is judged once by each contract, whatever a query reads again."""
        known = np.zeros(len(judged), bool)
        topics, partitions, offsets = judged[TOPIC], _numbers(judged[PARTITION]), _numbers(judged[OFFSET])
        for place, end in self.until.items():
            topic, _, partition = place.rpartition("/")
            known |= (partitions == int(partition)) & (offsets < end) & _flags(pc.equal(topics, topic))
        return judged.filter(pa.array(~known)) if known.any() else judged

    def _note(self, batch: int, planned_at: datetime, until: Mapping[str, int], rows: int) -> BatchNote:
        sources = dict(self.note.sources) if self.note else {}
        for name, contract in self.journal.contracts.items():
            topics = self.pipeline.sources[name].topics
            known = self._progress(name).until
            ends = {place: max(end, known.get(place, 0)) for place, end in until.items() if place.rpartition("/")[0] in topics}
            sources[f"{name}/{contract}"] = SourceProgress(known | ends, self._newest.get(name))
        return BatchNote(batch, planned_at, (self.note.rows if self.note else 0) + rows, sources)

    # Step 2

    def _decide(self, judged: pa.Table, batch: int, planned_at: datetime) -> pa.Table:
        count = len(judged)
        streams, accepted = judged[STREAM].combine_chunks(), _flags(judged[IS_ACCEPTED])
        occurred = micros(judged[OCCURRED_AT].combine_chunks())
        late, duplicate, conflict = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
        watermarks, contracts = np.full(count, NONE, dtype=np.int64), np.zeros(count, dtype=np.int64)
        keys, order = _keys(judged), _arrival_order(judged)
        of_source = {name: _flags(pc.equal(streams, name)) for name in self.pipeline.sources}
        self._learn_changes(judged, of_source, order)
        absent = self._missing_references(judged, of_source)
        candidate = accepted & ~np.any(list(absent.values()), axis=0) if absent else accepted
        for number, (source, contract) in enumerate(self.pipeline.sources.items()):
            own = of_source[source]
            contracts[own] = number
            (rows,) = np.nonzero(own & candidate)
            if not len(rows) or not isinstance(contract, Stream):
                continue
            watermark = self.watermark(source)
            watermarks[own] = watermark
            index = self.identities[source]
            duplicate[rows], conflict[rows] = mark_repeated(keys.take(rows), order[rows], index)
            first = rows[~duplicate[rows] & ~conflict[rows]]
            late[first] = occurred[first] <= watermark
            if len(first):
                newest = int(occurred[first].max())
                index.add(keys.take(first), max(newest, watermark) + REMEMBERED_LATENESSES * _micros(contract.lateness))
                self._newest[source] = max(newest, self._newest.get(source, NONE))
                index.expire(self.watermark(source))
        rejected = ~candidate | conflict
        fate = np.select([_flags(judged[IS_UNDECODABLE]), rejected, duplicate], [UNDECODABLE, REJECTED, DUPLICATE], ACCEPTED)
        reasons = _added_reasons(judged[REASONS].combine_chunks(), absent | {CONFLICT: conflict})
        fingerprints = pa.array(list(self.journal.contracts.values())).take(pa.array(contracts))
        rows_table = pa.table(
            {name: judged[name] for name in (STREAM, TOPIC, PARTITION, OFFSET, RECEIVED_AT, IDENTITY, OCCURRED_AT)}
            | {
                FATE: pa.array(fate, pa.string()),
                LATE: pa.array(late),
                WATERMARK: pa.array(watermarks, mask=watermarks == NONE).cast(pa.timestamp("us", "UTC")),
                BATCH: pa.array(np.full(count, batch, dtype=np.int64)),
                CONTRACT: fingerprints,
                JOURNALED_ON: pa.array([planned_at.date()] * count, pa.date32()),
                REASONS: reasons,
                PAYLOAD: judged[PAYLOAD],
            }
            | {struct: judged[struct] for struct in self.journal.struct_columns.values()}
        )
        return self._looked_up(rows_table, judged, of_source, fate == ACCEPTED, occurred)

    def watermark(self, stream: str) -> int:
        """Whole milliseconds, as Spark has them: a view's own watermark is never ahead of it."""
        if stream not in self._newest:
            return NONE
        return self._newest[stream] // 1_000 * 1_000 - _micros(self.pipeline.streams[stream].lateness)

    def _learn_changes(self, judged: pa.Table, of_source: dict[str, Flags], order: NDArray[np.int64]) -> None:
        """Add this batch's table changes to the tables, before any event of the batch looks one up."""
        accepted = _flags(judged[IS_ACCEPTED])
        for name, table in self.tables.items():
            (own,) = np.nonzero(of_source[name] & accepted)
            if len(own):
                changed = judged.take(pa.array(own[np.argsort(order[own])]))
                table.remember(self._flat_changes(changed, name), pc.list_element(changed[KEY_HASHES].combine_chunks(), 0))

    def _missing_references(self, judged: pa.Table, of_source: dict[str, Flags]) -> dict[str, Flags]:
        """By reason, the accepted rows whose reference is not a key of its table."""
        found: dict[str, Flags] = {}
        accepted = _flags(judged[IS_ACCEPTED])
        for name, stream in self.pipeline.streams.items():
            offset = len(lookups_of(self.pipeline, name))
            (rows,) = np.nonzero(of_source[name] & accepted)
            hashes = judged[KEY_HASHES].combine_chunks().take(pa.array(rows)) if stream.references and len(rows) else None
            for position, (column, table) in enumerate(stream.references.items()):
                reason = f"{column}:exist_in_{table}"
                missing = found.setdefault(reason, np.zeros(len(judged), bool))
                if hashes is None:
                    continue
                key = pc.list_element(hashes, offset + position)
                given = ~_flags(key.is_null())
                known = self.tables[table].versions.has_key(key.fill_null(0).to_numpy(zero_copy_only=False))
                missing[rows[given & ~known]] = True
        return found

    def _looked_up(
        self, rows: pa.Table, judged: pa.Table, of_source: dict[str, Flags], accepted: Flags, occurred: NDArray[np.int64]
    ) -> pa.Table:
        """Add to each event the rows of the tables that views look up."""
        hashes = judged[KEY_HASHES].combine_chunks()
        for stream in self.pipeline.streams:
            if not (lookups := lookups_of(self.pipeline, stream)):
                continue
            struct = self.journal.struct_columns[stream]
            (at,) = np.nonzero(of_source[stream])
            values = rows[struct].combine_chunks()
            fields, children = list(values.type), values.flatten()
            of_stream = hashes.take(pa.array(at))
            for position, (table, column) in enumerate(lookups):
                versions = _scattered(self._rows_as_of(table, of_stream, position, occurred[at], accepted[at]), at, len(rows))
                fields.append(pa.field(lookup_field(self.pipeline, table, column), versions.type))
                children.append(versions)
            with_rows = pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
            rows = rows.set_column(rows.schema.get_field_index(struct), struct, with_rows)
        return rows

    def _rows_as_of(self, table: str, hashes: pa.Array, position: int, at: NDArray[np.int64], accepted: Flags) -> pa.Array:
        key = pc.list_element(hashes, position) if len(hashes) else pa.array([], pa.int64())
        wanted = accepted & ~_flags(key.is_null())
        return self.tables[table].versions.as_of(key.fill_null(0).to_numpy(zero_copy_only=False), at, wanted)

    def _flat_changes(self, rows: pa.Table, table: str) -> pa.Table:
        """Changes of a table as flat columns."""
        values = rows[self.journal.struct_columns[table]].combine_chunks()
        columns = dict(zip([*self.pipeline.tables[table].columns, DELETED], values.flatten(), strict=True))
        return pa.table({name: rows[name] for name in (TOPIC, PARTITION, OFFSET, RECEIVED_AT)} | columns)

    def _with_payloads(self, rows: pa.Table, frame: DataFrame) -> pa.Table:
        """Fetch the payloads of the rows that the intake itself has rejected: only judged rows brought theirs along."""
        lacking = _flags(pc.and_(pc.equal(rows[FATE], REJECTED), pc.is_null(rows[PAYLOAD])))
        (at,) = np.nonzero(lacking)
        if not len(at):
            return rows
        wanted = self.spark.createDataFrame(rows.take(pa.array(at)).select([TOPIC, PARTITION, OFFSET]))
        position = [TOPIC, PARTITION, OFFSET]
        found = frame.select(*position, MESSAGE_VALUE).join(F.broadcast(wanted), position).toArrow()
        columns = (found[name].to_pylist() for name in (*position, MESSAGE_VALUE))
        values = {(topic, partition, offset): value for topic, partition, offset, value in zip(*columns, strict=True)}
        payloads = rows[PAYLOAD].to_pylist()
        places = rows.select(position).take(pa.array(at)).to_pylist()
        for row, place in zip(at, places, strict=True):
            payloads[row] = values.get(tuple(place.values()))
        return rows.set_column(rows.schema.get_field_index(PAYLOAD), PAYLOAD, pa.array(payloads, pa.binary()))

    # Step 4

    def _derive(self, rows: pa.Table, batch: int, before: BatchNote | None) -> None:
        accepted = _flags(pc.equal(rows[FATE], ACCEPTED))
        for name, table in self.tables.items():
            own = rows.filter(pa.array(accepted & _flags(pc.equal(rows[STREAM], name))))
            table.store(self._flat_changes(own, name), batch)
        fault_point(f"histories.{INTAKE_QUERY}", batch)
        self.quarantine.add(rows, batch, before)
        fault_point(f"quarantined.{INTAKE_QUERY}", batch)
        frames: dict[str, DataFrame] = {}
        for view in self.aggregates:
            stream = view.stream
            own_rows = accepted & _flags(pc.equal(rows[STREAM], stream))
            if not own_rows.any():
                continue
            if stream not in frames:
                struct = self.journal.struct_columns[stream]
                few = rows.filter(pa.array(own_rows)).select([STREAM, CONTRACT, FATE, struct])
                frames[stream] = self.spark.createDataFrame(few)
            view.update(self.journal.accepted(frames[stream], stream, view.view), batch)
            fault_point(f"cells_{view.view}.{INTAKE_QUERY}", batch)
        fault_point(f"cells.{INTAKE_QUERY}", batch)

    # Loading

    def _remembered(self, stream: str) -> IdentityIndex:
        """The index as it was after the journal's last batch."""
        contract, watermark = self.pipeline.streams[stream], self.watermark(stream)
        lateness = _micros(contract.lateness)
        index = IdentityIndex(max(lateness, _micros(timedelta(minutes=1))))
        if watermark == NONE:
            return index
        since = F.timestamp_micros(F.lit(watermark - REMEMBERED_LATENESSES * lateness - index.granularity))
        own = self.journal.rows().filter(self.journal.is_of(stream) & (F.col(FATE) == ACCEPTED))
        first = own.filter((F.col(OCCURRED_AT) >= since) | (F.col(WATERMARK) >= since)).agg(F.min(BATCH)).first()
        if first is None or first[0] is None:
            return index
        struct = self.journal.struct_columns[stream]
        hashed = row_hashes(self.pipeline, stream, lambda name: F.col(f"{struct}.{name}"))[:3]
        rows = own.filter(F.col(BATCH) >= first[0]).select(BATCH, OCCURRED_AT, WATERMARK, *hashed).toArrow()
        batches, occurred = rows[BATCH].to_numpy(), micros(rows[OCCURRED_AT].combine_chunks())
        watermarks, keys = micros(rows[WATERMARK].combine_chunks()), _keys(rows)
        for batch in np.unique(batches):
            (at,) = np.nonzero(batches == batch)
            index.add(keys.take(at), max(int(occurred[at].max()), int(watermarks[at].max())) + REMEMBERED_LATENESSES * lateness)
        index.expire(watermark)
        return index


def _micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _flags(values: pa.Array | pa.ChunkedArray) -> Flags:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    found: Flags = whole.fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    return found


def _added_reasons(reasons: pa.Array, found: Mapping[str, Flags]) -> pa.Array:
    """The judged rows' reasons; of rows that broke none of those, the reasons found here."""
    rejected = np.any(list(found.values()), axis=0)
    if not rejected.any():
        return reasons
    whole = reasons.to_pylist()
    for row in np.nonzero(rejected)[0]:
        whole[row] = [reason for reason, flags in found.items() if flags[row]]
    return pa.array(whole, reasons.type)


def _numbers(values: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = values.combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _keys(rows: pa.Table) -> Keys:
    return Keys(_numbers(rows[HASH_1]), _numbers(rows[HASH_2]), _numbers(rows[CONTENT]))


def _arrival_order(rows: pa.Table) -> NDArray[np.int64]:
    """The rank of each row by received_at, topic, partition, offset."""
    topics = rows[TOPIC].combine_chunks().dictionary_encode()
    by_name = np.argsort(np.argsort(topics.dictionary.to_numpy(zero_copy_only=False)))
    topic = by_name[topics.indices.to_numpy()] if len(rows) else np.zeros(0, dtype=np.int64)
    received = micros(rows[RECEIVED_AT].combine_chunks())
    order = np.lexsort((_numbers(rows[OFFSET]), _numbers(rows[PARTITION]), topic, received))
    rank = np.empty(len(rows), dtype=np.int64)
    rank[order] = np.arange(len(rows))
    return rank


def _scattered(values: pa.Array, at: NDArray[np.intp], count: int) -> pa.Array:
    """These values at these positions, null at all others."""
    position = np.full(count, -1, dtype=np.int64)
    position[at] = np.arange(len(at))
    return values.take(pa.array(position, mask=position < 0))

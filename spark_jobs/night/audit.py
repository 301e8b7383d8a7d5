"""Raw, judged again, beside the journal: what each message is, and what the stream made of it.

One pass per stream serves all of its views. The audit is exact and has no lateness: of each identity the first by arrival counts. Where
the stream has counted another copy with the same content, that copy counts: which of equal copies does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark_jobs.columns import (
    ACCEPTED,
    BATCH,
    CONTRACT,
    DUPLICATE,
    FATE,
    LATE,
    POSITION,
    RECEIVED_AT,
    STREAM,
    UNDECODABLE,
    WATERMARK,
    lookup_field,
    lookups_of,
)
from spark_jobs.intake.journal import Journal
from spark_jobs.night.snapshot import ViewSnapshot
from spark_jobs.transform import by_identity
from weir.event_time import day_bounds
from weir.pipeline import Stream, Table
from weir.records.driver import Loss
from weir.records.night import Fate, LatenessChoice

JOURNALED, READ_IN, WAS_LATE, WATERMARK_THEN = "_journaled", "_read_in", "_was_late", "_watermark_then"
"""The journal's fate, batch, late flag and watermark (micros) of an audited row; null where the journal has no such message."""
FIRST = "_first"
LATENESSES = (0, 10, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
"""Seconds. What people would choose from."""


def then(table: str, column: str) -> str:
    """The column of an audited row that holds the row of a table as the intake found it."""
    return f"_then_{table}__{column}"


def audited_rows(judged: DataFrame, journal: Journal, source: str, contract: str, earliest: date) -> DataFrame:
    """Judged raw rows, each with what the journal says of it by this contract, and FIRST: whether it is an event that counts.

    Kept in memory for all views.
    """
    declared = journal.pipeline.sources[source]
    joined = judged.join(_journaled(journal, source, contract, earliest), list(POSITION), "left")
    if isinstance(declared, Table):
        return joined.withColumn(FIRST, F.col("_accepted")).persist()
    return _with_first(joined, declared)


def _journaled(journal: Journal, source: str, contract: str, earliest: date) -> DataFrame:
    rows = journal.rows().filter(
        (F.col(STREAM) == source) & (F.col(CONTRACT) == contract) & (F.col(RECEIVED_AT) >= day_bounds(earliest)[0])
    )
    own = journal.pipeline.sources[source]
    lookups = lookups_of(journal.pipeline, source) if isinstance(own, Stream) and contract == journal.contracts[source] else []
    struct = journal.struct_columns[source]
    return rows.select(
        *POSITION,
        F.col(FATE).alias(JOURNALED),
        F.col(BATCH).alias(READ_IN),
        F.col(LATE).alias(WAS_LATE),
        F.unix_micros(WATERMARK).alias(WATERMARK_THEN),
        *(F.col(f"{struct}.{lookup_field(journal.pipeline, *pair)}").alias(then(*pair)) for pair in lookups),
    )


def _with_first(joined: DataFrame, stream: Stream) -> DataFrame:
    """Mark the first accepted row of each identity. Nearly all events come once, and their rows are not moved for it."""
    hashed = F.when(F.col("_accepted"), F.xxhash64(stream.identity))
    kept = joined.withColumn("_hash", hashed).persist()
    again = kept.filter("_accepted").groupBy(F.col("_hash").alias("_again")).count().filter("count > 1").select("_again").persist()
    marked = kept.join(F.broadcast(again), F.col("_hash") == F.col("_again"), "left").drop("_hash")
    once = marked.filter("_again IS NULL").withColumn(FIRST, F.col("_accepted"))
    whole = by_identity(stream).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    content, was_accepted = F.xxhash64(*stream.columns), F.col("_accepted") & F.coalesce(F.col(JOURNALED) == ACCEPTED, F.lit(False))
    several = marked.filter("_again IS NOT NULL").withColumn(FIRST, F.col("_accepted") & (F.row_number().over(by_identity(stream)) == 1))
    several = several.withColumn("_same", F.first(content).over(whole) == content).withColumn("_counted", was_accepted)
    only_one = F.sum(F.col("_counted").cast("int")).over(whole) == 1
    is_equal_copy = only_one & F.bool_or(F.col("_counted") & F.col("_same")).over(whole)
    several = several.withColumn(FIRST, F.when(is_equal_copy, F.col("_counted")).otherwise(F.col(FIRST)))
    return once.unionByName(several.drop("_same", "_counted").persist()).drop("_again")


def never_read(lost: list[Loss], until: dict[str, int]) -> Column:
    """Whether the intake will not read an archived message any more: it has gone on behind it."""
    ends = F.create_map(*(F.lit(word) for pair in until.items() for word in pair)) if until else None
    behind = F.coalesce(F.col("offset") < ends[F.concat_ws("/", "topic", "partition")], F.lit(False)) if ends is not None else F.lit(False)
    return F.col(JOURNALED).isNull() & (behind | _is_in(lost))


def fate_in(snapshot: ViewSnapshot, stream: str, is_lost: Column) -> Column:
    """What became of an audited row in a view. A view that the intake computes counts late events like all others."""
    journaled = F.col(JOURNALED)
    late = F.lit("counted") if snapshot.version.is_aggregate else F.when(F.col(WAS_LATE), "late").otherwise("counted")
    return (
        F.when(journaled.isNull(), F.when(is_lost, "lost").otherwise("pending"))
        .when((journaled == ACCEPTED) & (F.col(READ_IN) > snapshot.read_until[stream]), "pending")
        .when(journaled == ACCEPTED, late)
        .otherwise(journaled)
    )


def suspects(audited: DataFrame, stream: Stream, fate: Column) -> DataFrame:
    """The events that batch has and speed has not, or the other way round: `_cause`, `_identity`, `_at` and the columns."""
    counted = F.col("_fate") == "counted"
    cause = (
        F.when(F.col(FIRST) & F.col("_fate").isin("rejected", UNDECODABLE), "quarantine")
        .when(F.col(FIRST) & ~counted, F.col("_fate"))
        .when(counted & ~F.col("_accepted"), "quarantine")
        .when(counted & ~F.col(FIRST), DUPLICATE)
    )
    found = audited.withColumn("_fate", fate).select(*stream.columns, cause.alias("_cause")).filter("_cause IS NOT NULL")
    return found.withColumn("_identity", F.col(stream.identity).cast("string")).withColumn("_at", F.col(stream.occurred_at))


def _is_in(lost: list[Loss]) -> Column:
    found = F.lit(False)
    for own in lost:
        within = (F.col("offset") >= own.from_offset) & (F.col("offset") < own.until_offset)
        found = found | ((F.col("topic") == own.topic) & (F.col("partition") == own.partition) & within)
    return found


# Counting


@dataclass(frozen=True)
class Group:
    """Audited rows that are alike in all that the books ask for."""

    row: Row

    def fate(self, snapshot: ViewSnapshot | None) -> Fate:
        """As fate_in; without a snapshot that of a stream that no view reads."""
        row = self.row
        if row["_lost"]:
            return "lost"
        if row[JOURNALED] is None:
            return "pending"
        if row[JOURNALED] != ACCEPTED:
            return row[JOURNALED]
        if snapshot and row["_first_batch"] > snapshot.read_until[row["stream"]]:
            return "pending"
        return "late" if row[WAS_LATE] and snapshot and not snapshot.version.is_aggregate else "counted"


def count_groups(audited: dict[str, tuple[DataFrame, Stream | Table]], day: date, cuts: Iterable[int], is_lost: Column) -> list[Group]:
    """Every audited message, counted once for all that the report and the books ask for.

    `cuts` are the journal batches up to which the views have read: no group has rows from both sides of one. A message that is not
    accepted belongs to the day on which it came.
    """
    frames = [_in_common(source, frame, contract, day) for source, (frame, contract) in audited.items()]
    each = reduce(DataFrame.unionByName, frames)
    arrived_on = F.to_date("received_at").cast("string").alias("arrived_on")
    belongs_to = F.to_date(F.when(F.col("_accepted"), F.col("_at")).otherwise(F.col("received_at"))).cast("string").alias("belongs_to")
    between = reduce(Column.__add__, (F.when(F.col(READ_IN) > cut, 1).otherwise(0) for cut in sorted(set(cuts))), F.lit(0))
    alike: list[Any] = ["stream", "topic", "partition", "_undecodable", "_verdict", "_accepted", FIRST, JOURNALED, WAS_LATE]
    alike += [is_lost.alias("_lost"), between.alias("_between")]
    sums = [F.sum(f"_behind_{own}").alias(f"behind_{own}") for own in LATENESSES]
    told = [F.count("*").alias("messages"), F.max("offset").alias("last"), F.min(READ_IN).alias("_first_batch")]
    declared = [F.sum("_behind_declared").alias("behind_declared"), F.sum("_read").alias("read")]
    return [Group(row) for row in each.groupBy(*alike, arrived_on, belongs_to).agg(*told, *declared, *sums).collect()]


def _in_common(source: str, audited: DataFrame, contract: Stream | Table, day: date) -> DataFrame:
    kept = [*POSITION, RECEIVED_AT, "_undecodable", "_verdict", "_accepted", FIRST, JOURNALED, WAS_LATE, READ_IN]
    at = F.col(contract.occurred_at)
    lateness = int(contract.lateness.total_seconds()) if isinstance(contract, Stream) else 0
    is_read = (F.to_date(at) == F.lit(day)) & F.col("_accepted") & F.col(JOURNALED).isNotNull()
    behind = F.col(WATERMARK_THEN) + lateness * 1_000_000 - F.unix_micros(at)
    late = {f"_behind_{own}": F.when(is_read & (behind >= own * 1_000_000), 1).otherwise(0) for own in LATENESSES}
    late["_behind_declared"] = F.when(is_read & (behind >= lateness * 1_000_000), 1).otherwise(0)
    counted = [value.alias(name) for name, value in late.items()]
    return audited.select(F.lit(source).alias("stream"), *kept, at.alias("_at"), F.when(is_read, 1).otherwise(0).alias("_read"), *counted)


def fates_of(groups: Iterable[Group], source: str, day: date, snapshot: ViewSnapshot | None) -> dict[str, dict[str, int]]:
    """By topic/partition how many messages that arrived on the day have each fate."""
    counts: dict[str, dict[str, int]] = {}
    for group in groups:
        row = group.row
        if row["stream"] == source and row["arrived_on"] == str(day):
            own = counts.setdefault(f"{row['topic']}/{row['partition']}", {})
            own[group.fate(snapshot)] = own.get(group.fate(snapshot), 0) + row["messages"]
    return counts


def causes_of(groups: Iterable[Group], sources: Iterable[str], snapshot: ViewSnapshot) -> set[str]:
    """Why the view's speed cells can differ from the truth at all."""
    found: set[str] = set()
    for group in groups:
        if group.row["stream"] in sources:
            fate, first, accepted = group.fate(snapshot), group.row[FIRST], group.row["_accepted"]
            if first and fate != "counted":
                found.add("quarantine" if fate in ("rejected", UNDECODABLE) else fate)
            elif fate == "counted" and not first:
                found.add(DUPLICATE if accepted else "quarantine")
    return found


def lateness_choices(groups: Iterable[Group], source: str, stream: Stream) -> list[LatenessChoice]:
    """What each lateness would have cost and gained on the day.

    How far an event came behind the newest one of the batches before does not depend on the lateness; which of them are late does.
    """
    own = [group.row for group in groups if group.row["stream"] == source]
    if not (read := sum(row["read"] for row in own)):
        return []
    late = {seconds: sum(row[f"behind_{seconds}"] for row in own) for seconds in LATENESSES}
    late[int(stream.lateness.total_seconds())] = sum(row["behind_declared"] for row in own)
    return [LatenessChoice(seconds=s, late=late[s], state=round(read * 2 * s / 86_400)) for s in sorted(late)]

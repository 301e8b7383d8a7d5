"""Judged rows → the accepted table, each exactly once, whatever dies in between.

A refine publishes a range of the journal, whose rows never change. A replay judges quarantined rows anew, and publishes its stage: the
result as it was written down.

1. plan        the batch passed its gate: from now on it will be published
2. accepted    the first commit
3. acts        quarantined rows that are accepted now are marked as released
4. quarantine  rows that another contract had accepted, and that this one rejects, are quarantined
5. cursor      one file replaced: the batch is done; its plan and stage go

A refine needs steps 3 and 4 only for messages that were judged by another contract before: all others the intake has quarantined.
Whoever starts next finishes a plan that is still there. A stage without a plan never passed a gate, and is thrown away.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.columns import (
    ACCEPTED,
    BATCH,
    CONFLICT,
    CONTRACT,
    DUPLICATE,
    FATE,
    IDENTITY,
    OCCURRED_AT,
    OFFSET,
    PARTITION,
    PAYLOAD,
    POSITION,
    QUARANTINED,
    REASONS,
    RECEIVED_AT,
    REJECTED,
    STREAM,
    TOPIC,
    UNDECODABLE,
)
from spark_jobs.intake.journal import Journal
from spark_jobs.tables import append_once, exists, read
from spark_jobs.transform import by_identity, judged_rows, mark_first
from weir.event_time import utc_now
from weir.faults import fault_point
from weir.lake_files import remove_folder
from weir.layout import REFINE, REPLAY, Lake, app_id
from weir.pipeline import COORDINATES, Pipeline, Stream
from weir.records.night import DirtyDay
from weir.records.quality import JournalRange, PublishPlan, RefineCursor

RELEASED = "released"
"""The act on a quarantined row that is accepted now."""


class Shelf:
    """Everything that one source of a pipeline has on disk for refining."""

    def __init__(self, spark: SparkSession, lake: Lake, pipeline: Pipeline, source: str) -> None:
        self.spark, self.lake, self.pipeline, self.source = spark, lake, pipeline, source
        self.contract = pipeline.sources[source]
        self.accepted = lake.accepted(pipeline.name, source)
        self.journal = Journal(spark, lake, pipeline)

    def record(self, what: str) -> Path:
        return self.lake.refine_record(self.pipeline.name, self.source, what)

    def journaled(self, of: JournalRange) -> DataFrame:
        """Each message of a range as it was judged, without those that a replay has published already."""
        rows = self._journal_rows(of)
        if of.judged_before and exists(self.spark, self.lake.quarantine_acts(self.pipeline.name)):
            acts = read(self.spark, self.lake.quarantine_acts(self.pipeline.name))
            released = acts.filter((F.col(STREAM) == self.source) & (F.col("act") == RELEASED))
            rows = rows.join(released, [*POSITION], "left_anti")
        return rows.select(
            *COORDINATES,
            *(F.col(f"{of.struct}.{name}").alias(name) for name in of.columns),
            F.col(PAYLOAD).alias("_payload"),
            F.coalesce(REASONS, F.array().cast("array<string>")).alias("_reasons"),
            F.col(IDENTITY).alias("_identity"),
            F.col(OCCURRED_AT).alias("_occurred_at"),
            F.col(FATE).alias("_fate"),
        )

    def _journal_rows(self, of: JournalRange) -> DataFrame:
        is_of = (F.col(STREAM) == self.source) & (F.col(CONTRACT) == of.contract) & (F.col(BATCH) > of.after_batch)
        return self.journal.rows().filter(is_of & _is_behind(of.since) & ~_is_behind(of.until))

    # What a replay publishes

    def judge(self, messages: DataFrame) -> DataFrame:
        """Each message with its `_fate`: accepted, duplicate, rejected or undecodable, and its `_reasons`."""
        judged = judged_rows(messages, self.contract)
        reasons = F.when(F.col("_undecodable").isNotNull(), F.array(F.concat(F.lit("undecodable:"), "_undecodable")))
        judged = judged.withColumn("_reasons", reasons.otherwise(F.col("_verdict"))).drop("_verdict")
        if isinstance(self.contract, Stream):
            judged = self._missing_references(judged, self.contract)
            # What refers to nothing is not accepted, so that it shadows no later row of its identity.
            judged = judged.withColumn("_accepted", F.col("_accepted") & (F.size("_reasons") == 0))
            judged = self._repeated(judged, self.contract)
        else:
            judged = judged.withColumn("_repeats", F.lit(False))
        fate = (
            F.when(F.col("_undecodable").isNotNull(), "undecodable")
            .when(F.size("_reasons") > 0, "rejected")
            .when(F.col("_repeats"), "duplicate")
            .otherwise("accepted")
        )
        return judged.select(
            *COORDINATES,
            *self.contract.columns,
            "_payload",
            "_reasons",
            F.col(self.contract.identity).cast("string").alias("_identity"),
            F.col(self.contract.occurred_at).alias("_occurred_at"),
            fate.alias("_fate"),
        )

    def _missing_references(self, judged: DataFrame, stream: Stream) -> DataFrame:
        for column, table in stream.references.items():
            path, key = self.lake.accepted(self.pipeline.name, table), self.pipeline.tables[table].key
            known = f"_known_{column}"
            if exists(self.spark, path):
                keys = read(self.spark, path).select(F.col(key).alias(known)).distinct()
                judged = judged.join(keys, F.col(column) == F.col(known), "left")
            else:
                judged = judged.withColumn(known, F.lit(None))
            missing = F.col("_accepted") & F.col(column).isNotNull() & F.col(known).isNull()
            judged = self._with_reason(judged, missing, f"{column}:exist_in_{table}").drop(known)
        return judged

    def _repeated(self, judged: DataFrame, stream: Stream) -> DataFrame:
        """Mark what came before, in this batch or in the accepted days around it: a duplicate if it says the same, else a conflict."""
        content = F.to_json(F.struct(*(F.col(column) for column in stream.columns)))
        ranked = mark_first(judged.withColumn("_content", content), stream)
        ranked = ranked.withColumn("_before", F.first("_content").over(by_identity(stream)))
        if exists(self.spark, self.accepted):
            ranked = ranked.join(self._accepted_before(ranked, stream, content), F.col(stream.identity) == F.col("_identity"), "left")
        else:
            ranked = ranked.withColumn("_identity", F.lit(None)).withColumn("_earlier", F.lit(None).cast("string"))
        came_before = F.col("_accepted") & (~F.col("_first") | F.col("_identity").isNotNull())
        differs = came_before & (F.coalesce("_earlier", "_before") != F.col("_content"))
        marked = self._with_reason(ranked.withColumn("_differs", differs), F.col("_differs"), CONFLICT)
        marked = marked.withColumn("_repeats", came_before & ~F.col("_differs"))
        return marked.drop("_content", "_before", "_identity", "_earlier", "_differs")

    def _accepted_before(self, ranked: DataFrame, stream: Stream, content: Column) -> DataFrame:
        """Identity and content of what is accepted in the days of these rows and one around them: not all of history."""
        days = ranked.filter("_accepted").agg(F.to_date(F.min(stream.occurred_at)), F.to_date(F.max(stream.occurred_at))).first()
        known = read(self.spark, self.accepted)
        low, high = (days[0], days[1]) if days else (None, None)
        around = F.col("_day").between(F.date_sub(F.lit(low), 1), F.date_add(F.lit(high), 1)) if low else F.lit(False)
        absent = [F.lit(None).cast(c.type).alias(name) for name, c in stream.columns.items() if name not in known.columns]
        known = known.filter(around).select("*", *absent)
        return known.select(F.col(stream.identity).alias("_identity"), content.alias("_earlier")).dropDuplicates(["_identity"])

    @staticmethod
    def _with_reason(rows: DataFrame, broken: Column, reason: str) -> DataFrame:
        return rows.withColumn("_reasons", F.when(broken, F.array_append("_reasons", F.lit(reason))).otherwise(F.col("_reasons")))

    def stage(self, rows: DataFrame, batch: str) -> str:
        """Write the rows down; what an earlier run left there goes."""
        path = self.lake.stage(self.pipeline.name, self.source, batch)
        self.forget_stages()
        rows.write.parquet(path)
        return path

    def forget_stages(self) -> None:
        remove_folder(self.lake.stages(self.pipeline.name) / self.source)

    # Steps 1 to 5

    def publish(self, plan: PublishPlan, check_lease: Callable[[], None]) -> None:
        if plan.way == REPLAY and self.cursor(REFINE) is None and not exists(self.spark, self.accepted):
            # Rows may be replayed before any was refined, and a refine refuses a table that has rows but no cursor.
            RefineCursor(id=secrets.token_hex(8)).write(self.record(REFINE))
        plan.write(self.record("plan"))
        self.finish(check_lease)

    def finish(self, check_lease: Callable[[], None]) -> PublishPlan | None:
        """Carry out the plan that is there, if there is one."""
        if (plan := PublishPlan.read(self.record("plan"))) is None:
            return None
        batch, name = plan.cursor.batch, self.pipeline.name
        writer = app_id(name, f"{plan.way}_{self.source}", plan.cursor.id)
        metadata = {"way": plan.way, "source": self.source, "batch": batch, "until": plan.cursor.until}

        def append(rows: DataFrame, path: str, partition_by: list[str]) -> None:
            check_lease()
            append_once(rows, path, partition_by, writer, batch, metadata)

        rows = self.journaled(plan.rows) if plan.rows else self.spark.read.parquet(plan.stage)
        fault_point(f"before_accepted.{self.source}", batch)
        append(_accepted_rows(rows), self.accepted, ["_day"])
        fault_point(f"between.{self.source}", batch)
        passing, acts = rows.filter(F.col("_fate").isin(ACCEPTED, DUPLICATE)), self.lake.quarantine_acts(name)
        if plan.rows is None:
            append(acts_on(passing, self.source, RELEASED, "replayed"), acts, [STREAM])
        elif plan.rows.judged_before:
            is_open = open_rows(self.spark, self.lake, name).filter(F.col(STREAM) == self.source)
            append(
                acts_on(passing.join(is_open, [*POSITION], "left_semi"), self.source, RELEASED, "the contract has changed"), acts, [STREAM]
            )
            append(self._newly_rejected(plan.rows), self.lake.quarantined(name), [STREAM, "received_on"])
        fault_point(f"before_cursor.{self.source}", batch)
        check_lease()
        for day, reason in plan.dirty.items():
            DirtyDay(day=day, reason=reason, marked_at=utc_now()).write(self.lake.dirty_days(name) / f"{day}.json")
        plan.cursor.write(self.record(plan.way))
        self.record("plan").unlink()
        self.forget_stages()
        return plan

    def _newly_rejected(self, of: JournalRange) -> DataFrame:
        """Rejected rows that are not in quarantine: the intake leaves out what it has read by another contract before."""
        rows = self._journal_rows(of).filter(~_is_behind(of.judged_before) & F.col(FATE).isin(REJECTED, UNDECODABLE))
        known = read(self.spark, self.lake.quarantined(self.pipeline.name)).filter(F.col(STREAM) == self.source)
        named = {"quarantined_at": F.lit(utc_now()).cast("timestamp"), "received_on": F.to_date(RECEIVED_AT)}
        new = rows.join(known, [*POSITION], "left_anti")
        return new.select(*(named.get(column, F.col(column)).alias(column) for column in QUARANTINED.names))

    def cursor(self, way: str) -> RefineCursor | None:
        return RefineCursor.read(self.record(way))


def _is_behind(bounds: dict[str, int]) -> Column:
    """Whether a row stands at or behind the offset of its partition; one that is not named is behind."""
    if not bounds:
        return F.lit(True)
    by_place = F.create_map(*(F.lit(word) for pair in bounds.items() for word in pair))
    return F.col(OFFSET) >= F.coalesce(by_place[F.concat_ws("/", TOPIC, PARTITION)], F.lit(0))


def _accepted_rows(rows: DataFrame) -> DataFrame:
    """One file for each day: the accepted tables are read by others."""
    columns = [name for name in rows.columns if name not in COORDINATES and not name.startswith("_")]
    accepted = rows.filter(F.col("_fate") == ACCEPTED).withColumn("_day", F.to_date("_occurred_at")).repartition("_day")
    return accepted.select(*columns, *(F.col(c).alias(f"_{c}") for c in COORDINATES), "_day")


def open_rows(spark: SparkSession, lake: Lake, pipeline: str) -> DataFrame:
    """The quarantined rows that nobody has acted on."""
    rows = read(spark, lake.quarantined(pipeline))
    if exists(spark, lake.quarantine_acts(pipeline)):
        rows = rows.join(read(spark, lake.quarantine_acts(pipeline)), [STREAM, *POSITION], "left_anti")
    return rows


def mark_rows(rows: DataFrame, lake: Lake, pipeline: str, source: str, act: str, note: str) -> int:
    """Write down what was done about these rows, and give their number. They stay in the table, and are no longer open."""
    acts = acts_on(rows, source, act, note).localCheckpoint()
    writer = app_id(pipeline, f"{act}_{source}", secrets.token_hex(8))
    append_once(acts, lake.quarantine_acts(pipeline), ["stream"], writer, 0, {"act": act, "note": note})
    return acts.count()


def acts_on(rows: DataFrame, source: str, act: str, note: str) -> DataFrame:
    """What was done about these rows, by their coordinates."""
    said = {"stream": source, "act": act, "note": note}
    at = F.lit(utc_now()).cast("timestamp").alias("acted_at")
    return rows.select("topic", "partition", "offset", *(F.lit(value).alias(name) for name, value in said.items()), at)

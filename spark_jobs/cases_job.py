"""Runs a pipeline's test cases: each view as one batch, as a stream that is cut at random, and as one that crashes in between.

1. judge the case's messages: what is rejected, and by which rules
2. as a batch
3. as a stream, cut at random, then stopped and started again for what closes the last cells
4. the same with other cuts and a sink that dies in a batch
"""

import argparse
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_jobs.entry import Call, run_job
from spark_jobs.output_mode import output_mode
from spark_jobs.session import PYTHON_TOO_SLOW, build_session
from spark_jobs.transform import MESSAGE, accepted_rows, compute_view, dedupe_stream, judged_rows, look_up, mark_first, table_changes
from weir.cases import Case, CaseMessage, as_text, compare, load_cases
from weir.pipeline import Pipeline, Stream, View
from weir.records.jobs import CaseResult, Outcome
from weir.refusal import Refusal

Messages = dict[str, list[CaseMessage]]
Pieces = list[list[CaseMessage]]


class _Crash(Exception):
    """What a sink dies of on purpose."""


def message_frame(spark: SparkSession, topic: str, messages: list[CaseMessage]) -> DataFrame:
    """Messages as raw rows, in one partition."""
    rows = [(topic, 0, own.offset, own.received_at, own.value) for own in messages]
    return spark.createDataFrame(rows, MESSAGE).coalesce(1)


def as_batch(spark: SparkSession, pipeline: Pipeline, view: str, messages: Messages) -> DataFrame:
    frames, changes = {}, _changes(spark, pipeline, view, messages)
    for name in pipeline.streams_of(view):
        stream = pipeline.streams[name]
        ranked = mark_first(judged_rows(message_frame(spark, stream.topic, messages[name]), stream), stream)
        frames[name] = look_up(ranked.filter("_first").select(*stream.columns), pipeline, view, name, changes)
    return compute_view(spark, pipeline, view, frames)


def _changes(spark: SparkSession, pipeline: Pipeline, view: str, messages: Messages) -> dict[str, DataFrame]:
    """The changes of the tables that a view looks up, all known from the beginning."""
    tables = {name: pipeline.tables[name] for name in pipeline.views[view].as_of}
    return {name: table_changes(message_frame(spark, table.topic, messages[name]), table) for name, table in tables.items()}


@contextmanager
def _unions_kept(spark: SparkSession) -> Iterator[None]:
    """A union that loses its empty half in one batch has other nullable columns than in the next, and Spark refuses its own state."""
    name = "spark.sql.optimizer.excludedRules"
    before = spark.conf.get(name, None)
    spark.conf.set(name, "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation")
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def as_stream(spark: SparkSession, pipeline: Pipeline, view: str, pieces: dict[str, Pieces], folder: Path, crash_in: int = -1) -> list[Row]:
    """The last words of the view. Each piece is what one micro-batch reads of a stream; with `crash_in` the sink dies in that batch.

    At the end a row far in the future is put behind the judgement of each stream, so that the watermark passes all others
    and every cell is told; the cells that it makes itself are left out.
    """
    declared, frames, closings = pipeline.views[view], {}, {}
    changes = _changes(spark, pipeline, view, {name: list(itertools.chain(*own)) for name, own in pieces.items()})
    for name in pipeline.streams_of(view):
        stream = pipeline.streams[name]
        live = _file_stream(spark, folder / name, MESSAGE, [message_frame(spark, stream.topic, piece) for piece in pieces[name]])
        accepted = accepted_rows(live, stream)
        empty = spark.createDataFrame([], accepted.schema)
        closings[name] = empty
        closing = _file_stream(spark, folder / f"{name}_closing", empty.schema, [])
        frames[name] = look_up(dedupe_stream(accepted.unionByName(closing), stream), pipeline, view, name, changes)
    cells = compute_view(spark, pipeline, view, frames)
    told: dict[tuple[Any, ...], Row] = {}
    crashes = [crash_in]

    def sink(changed: DataFrame, batch: int) -> None:
        words = changed.collect()
        if batch in crashes:
            crashes.clear()
            raise _Crash
        for row in words:
            told[tuple(row[column] for column in declared.grain)] = row

    writer = cells.writeStream.outputMode(output_mode(cells)).foreachBatch(sink).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    with _unions_kept(spark):
        try:
            _run(writer)
        except Exception:
            if crashes:  # it died of something else
                raise
            _run(writer)
        for name, empty in closings.items():
            _close(spark, pipeline.streams[name], declared, empty, pieces[name], folder / f"{name}_closing")
        _run(writer)
    newest = max(_newest(pieces[name]) for name in pipeline.streams_of(view)) + timedelta(days=1)
    return [row for row in told.values() if not _is_beyond(row[declared.time], newest)]


def _run(writer: DataStreamWriter) -> None:
    """Read what is there. The checkpoint makes it harmless to try again."""
    for is_last in (False, False, True):
        try:
            writer.start().awaitTermination()
            return
        except StreamingQueryException as error:
            if is_last or PYTHON_TOO_SLOW not in str(error):
                raise


def _close(spark: SparkSession, stream: Stream, view: View, like: DataFrame, pieces: Pieces, folder: Path) -> None:
    """Add a row of nothing but a time, far behind all others of the stream."""
    far = _newest(pieces) + stream.lateness + view.reach + view.span + timedelta(days=2)
    values = [F.lit(far if column == stream.occurred_at else None).cast(kind).alias(column) for column, kind in like.dtypes]
    _add_file(spark.range(1).select(*values), folder, 0)


def _newest(pieces: Pieces) -> datetime:
    return max((own.received_at for own in itertools.chain(*pieces)), default=datetime(1970, 1, 2, tzinfo=UTC))


def _is_beyond(at: Any, newest: datetime) -> bool:
    if not isinstance(at, datetime):
        return bool(at > newest.date())
    return at.astimezone(UTC) > newest


def _file_stream(spark: SparkSession, folder: Path, schema: Any, pieces: list[DataFrame]) -> DataFrame:
    """A stream that reads one piece in each micro-batch."""
    folder.mkdir(parents=True)
    for number, piece in enumerate(pieces):
        _add_file(piece, folder, number)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def _add_file(frame: DataFrame, folder: Path, number: int) -> None:
    staged = folder.with_name(f"{folder.name}_{number}")
    frame.coalesce(1).write.parquet(str(staged))
    (part,) = staged.glob("part-*.parquet")
    os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads files in the order of their times
    part.rename(folder / f"{number:05}.parquet")


def cut(messages: list[CaseMessage], chance: random.Random) -> Pieces:
    """The messages in one to four pieces."""
    borders = sorted(chance.sample(range(1, len(messages)), min(chance.randint(0, 3), len(messages) - 1))) if len(messages) > 1 else []
    return [messages[a:b] for a, b in itertools.pairwise([0, *borders, len(messages)])]


def run_case(spark: SparkSession, pipeline: Pipeline, case: Case, folder: Path) -> list[CaseResult]:
    """Steps 1 to 4."""
    results = [_judge(spark, pipeline, case, stream) for stream in case.rejected]
    for view in case.expect:
        batch = as_batch(spark, pipeline, view, case.messages)
        types = dict(batch.dtypes)
        if unknown := next((column for row in case.expect[view] for column in row if column not in types), None):
            raise Refusal(f"{case.file}:{case.line}: '{unknown}' is no column of {view} ({', '.join(types)})")
        forms: dict[str, Callable[[], list[Row]]] = {"batch": batch.collect}
        if case.late is None:
            for number, form in enumerate(("stream", "stream with a crash")):
                chance = random.Random(f"{case.name} {view} {form}")  # noqa: S311 (the same case is cut in the same way)
                pieces = {name: cut(case.messages[name], chance) for name in pipeline.streams_of(view)}
                crash_in = chance.randrange(max(map(len, pieces.values()))) if number else -1
                pieces |= {name: [case.messages[name]] for name in pipeline.views[view].as_of}
                place = folder / f"{view}_{number}"
                forms[form] = lambda view=view, pieces=pieces, place=place, crash_in=crash_in: as_stream(  # type: ignore[misc]
                    spark, pipeline, view, pieces, place, crash_in
                )
        for form, run in forms.items():
            found = [{column: as_text(row[column], types[column]) for column in types} for row in run()]
            missing, unexpected = compare(case.expect[view], found, types)
            results.append(CaseResult(case=case.name, of=view, form=form, missing=missing, unexpected=unexpected))
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _judge(spark: SparkSession, pipeline: Pipeline, case: Case, stream: str) -> CaseResult:
    """Whether just the rows are rejected that should be, each by the rules that are named."""
    contract = pipeline.streams[stream]
    judged = judged_rows(message_frame(spark, contract.topic, case.messages[stream]), contract).filter("NOT _accepted")
    rules = F.array_join(F.array_sort(F.coalesce("_verdict", F.array(F.concat(F.lit("undecodable:"), "_undecodable")))), ", ")
    found = judged.select(F.coalesce(F.col(contract.identity).cast("string"), F.lit("?")).alias("identity"), rules.alias("rules")).collect()
    there = [{"identity": row["identity"], "rules": row["rules"]} for row in found]
    wanted = [{"identity": identity, "rules": ", ".join(sorted(own))} for identity, own in case.rejected[stream].items()]
    missing, unexpected = compare(wanted, there, {"identity": "string", "rules": "string"})
    return CaseResult(case=case.name, of=stream, form="rejected", missing=missing, unexpected=unexpected)


def test(call: Call) -> Outcome:
    cases = [own for own in load_cases(call.options.pipelines / call.pipeline.name, call.pipeline) if call.options.case in own.name]
    if not cases:
        raise Refusal(f"no case of '{call.pipeline.name}' has '{call.options.case}' in its name")
    spark = build_session(f"weir {call.pipeline.name} test")
    results: list[CaseResult] = []
    lines = []
    with tempfile.TemporaryDirectory(prefix="weir-cases-") as room:
        for number, case in enumerate(cases):
            print(f"case {number + 1} of {len(cases)}: {case.name}", flush=True)
            results += run_case(spark, call.pipeline, case, Path(room, str(number)))
            if case.late:
                lines.append(f"{case.name}: '{case.late}' comes after its stream's lateness, so only the batch is held to it")
    return Outcome(cases=results, lines=lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", default="")


if __name__ == "__main__":
    run_job(test, add_options)

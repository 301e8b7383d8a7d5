"""Says what would be refused, before anything runs: by Spark each cleansing expression, each condition, and each view as a batch
and as a stream; by Great Expectations each expectation."""

import argparse
import re
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, TimestampType

from quality.suite import build_suite
from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.output_mode import output_mode
from spark_jobs.session import build_session
from spark_jobs.transform import MESSAGE, accepted_rows, clean, compute_view, decode, dedupe_stream, judged_rows, look_up, table_changes
from weir.pipeline import Pipeline, Stream, Table
from weir.records.jobs import Outcome
from weir.refusal import Refusal
from weir.serving import check_served
from weir.sql_text import relations_in

HOSTILE = {
    "string": [
        "null",
        '""',
        '"abc"',
        '"-1"',
        '"9e999"',
        '"99999999999999999999999"',
        '"0"',
        '"\\u0000"',
        '" "',
        '"é,;\\n"',
        '"2026-13-45"',
    ],
    "number": ["null", "0", "-1", "9223372036854775807", "-9223372036854775808", "2147483647", "1", "127"],
    "other": ["null"],
}
"""JSON values that a cleansing expression must survive, by the type in which the message is read."""


EXAMPLE = "for example `b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR`"


def check(call: Call) -> Outcome:
    """Analyse everything; all that is wrong is said at once."""
    spark = build_session(f"weir {call.pipeline.name} check")
    folder = call.options.pipelines / call.pipeline.name
    if call.options.search:
        stream, when = call.options.search
        if complaint := check_condition(spark, call.pipeline.streams[stream], when):
            raise Refusal(complaint)
        return Outcome()
    wrong = [line for name in call.pipeline.sources for line in check_source(spark, call.pipeline, name)]
    wrong += check_expectations(call.pipeline)
    for name, watch in call.pipeline.watch.items():
        found = {alert: check_condition(spark, call.pipeline.streams[name], when) for alert, when in watch.alerts.items()}
        wrong += [f"watch.{name}.alerts.{alert}: {line}" for alert, line in found.items() if line]
    for name, table in call.pipeline.tables.items():
        if table.deleted and (complaint := check_condition(spark, table, table.deleted)):
            wrong.append(f"tables.{name}.deleted: {complaint}")
    wrong += [line for view in call.pipeline.views for line in check_steps(spark, call.pipeline, view)]
    lines: list[str] = []
    columns: dict[str, dict[str, str]] = {}
    if not wrong:
        for view, declared in call.pipeline.views.items():
            try:
                mode, columns[view] = check_view(spark, call.pipeline, view)
            except WrongView as error:
                wrong.append(f"views.{view}: {str(error).lstrip(':1 ')}" if declared.pattern else f"{folder / f'{view}.sql'}{error}")
                continue
            told = ", ".join(f"{name} {sql_type}" for name, sql_type in columns[view].items())
            lines.append(f"{view}: from {', '.join(call.pipeline.streams_of(view))}; {mode} mode; {told}")
    if not wrong:
        served = check_served(call.pipeline, columns)
        wrong = [f"{folder / f'{name}.sql'}:1: {line}" for name, line in served.items()]
        lines += [f"{name}: from {', '.join(relations_in(query.sql))}; served" for name, query in call.pipeline.serve.items()]
    if wrong:
        raise Refusal("\n".join(w if str(folder) in w else f"{folder / 'pipeline.yaml'}: {w}" for w in wrong))
    return Outcome(lines=lines)


def check_source(spark: SparkSession, pipeline: Pipeline, name: str) -> list[str]:
    """What is wrong with the contract: an expression that Spark does not know, or one that a row can kill."""
    contract = pipeline.sources[name]
    cleaned = [column for column, declared in contract.columns.items() if declared.clean]
    tried = list(contract.columns) if any(expectation.row_condition for expectation in contract.expectations) else cleaned
    hostile = [_message_with(contract, column, json) for column in tried for json in _hostile(contract, column)]
    messages = _messages(spark, [_message_with(contract, None, "null"), *hostile])
    try:
        judged_rows(messages, contract).collect()
    except PySparkException as error:
        if _is_cleaned(messages, contract):
            culprits = [f"{name}: {line}" for line in _accuse_conditions(contract, messages)]
        else:
            culprits = [f"{name}.columns.{column}: {line}" for column in cleaned for line in _accuse(spark, contract, column)]
        return culprits or [f"{name}: {one_line(error)}"]
    return [f"{name}: {line}" for line in _accuse_conditions(contract, messages)]


def _is_cleaned(messages: DataFrame, contract: Stream | Table) -> bool:
    try:
        clean(decode(messages, contract), contract).collect()
        return True
    except PySparkException:
        return False


def _accuse(spark: SparkSession, contract: Stream | Table, column: str) -> list[str]:
    """Which value kills this column's cleansing. The other columns' is left out, so that a death has one culprit."""
    clean_of = contract.columns[column].clean
    columns = {n: c if n == column else c.model_copy(update={"clean": None}) for n, c in contract.columns.items()}
    alone = contract.model_copy(update={"columns": columns})
    for json in _hostile(contract, column):
        try:
            clean(decode(_messages(spark, [_message_with(contract, column, json)]), alone), alone).select(column).collect()
        except PySparkException as error:
            if _is_analysis(error):
                return [f"`{clean_of}`: {one_line(error)}"]
            return [f"`{clean_of}` would kill the query at a message with {json}: {one_line(error)}"]
    return []


def _accuse_conditions(contract: Stream | Table, messages: DataFrame) -> list[str]:
    """Which row_condition Spark does not know, or a row can kill; also of expectations that only Great Expectations judges by."""
    rows = clean(decode(messages, contract), contract).select(*contract.columns)
    conditions = {expectation.rule: when for expectation in contract.expectations if (when := expectation.row_condition) is not None}
    return [f"{rule}: row_condition {line}" for rule, when in conditions.items() if (line := _accuse_condition(rows, when))]


def check_condition(spark: SparkSession, contract: Stream | Table, when: str) -> str | None:
    """What is wrong with a condition on a stream's rows: Spark does not know it, or a row can kill it."""
    hostile = [_message_with(contract, column, json) for column in contract.columns for json in _hostile(contract, column)]
    messages = _messages(spark, [_message_with(contract, None, "null"), *hostile])
    return _accuse_condition(clean(decode(messages, contract), contract).select(*contract.columns), when)


def check_steps(spark: SparkSession, pipeline: Pipeline, view: str) -> list[str]:
    """What is wrong with the conditions of a pattern."""
    pattern = pipeline.views[view].pattern
    found = []
    for number, step in enumerate(pattern.steps if pattern else [], 1):
        assert pattern is not None
        if complaint := check_condition(spark, pipeline.streams[step.of or pattern.of], step.condition):
            found.append(f"views.{view}.pattern: step {number}: {complaint}")
    return found


def _accuse_condition(rows: DataFrame, when: str) -> str | None:
    try:
        rows.filter(when).collect()
        return None
    except PySparkException as error:
        return f"`{when}`{'' if _is_analysis(error) else ' would kill the query'}: {one_line(error)}"


def check_expectations(pipeline: Pipeline) -> list[str]:
    """What Great Expectations refuses of the suites of streams, tables and views."""
    found = []
    for name, declared in {**pipeline.sources, **pipeline.views}.items():
        try:
            build_suite(name, declared.expectations)
        except Refusal as refusal:
            found += str(refusal).splitlines()
    return found


def _hostile(contract: Stream | Table, column: str) -> list[str]:
    wire_type = contract.columns[column].wire_type
    return HOSTILE["string" if wire_type == "string" else "number" if _is_number(wire_type) else "other"]


def _is_analysis(error: PySparkException) -> bool:
    return type(error).__name__ in ("AnalysisException", "ParseException")


def _is_number(wire_type: str) -> bool:
    return wire_type in ("tinyint", "smallint", "int", "bigint", "float", "double") or wire_type.startswith("decimal")


def _message_with(contract: Stream | Table, column: str | None, json: str) -> str:
    values = {name: json if name == column else "null" for name in contract.columns}
    return "{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + "}"


def _messages(spark: SparkSession, texts: list[str]) -> DataFrame:
    rows = [(f"{number}", text) for number, text in enumerate(texts)]
    values = ", ".join(f"({number}, unbase64('{_base64(text)}'))" for number, text in rows)
    return spark.sql(
        f"SELECT 't' topic, 0 partition, bigint(n) offset, current_timestamp() received_at, v value FROM VALUES {values} AS x(n, v)"
    )


def _base64(text: str) -> str:
    from base64 import b64encode

    return b64encode(text.encode()).decode()


class WrongView(Exception):
    """Starts with the line of the SQL: `:line: what`."""


def check_view(spark: SparkSession, pipeline: Pipeline, view: str) -> tuple[str, dict[str, str]]:
    """The mode in which a view is told, and its columns with their types."""
    declared = pipeline.views[view]
    streams = {name: pipeline.streams[name] for name in pipeline.streams_of(view)}
    try:
        empty = spark.createDataFrame([], MESSAGE)
        changes = {name: table_changes(empty, pipeline.tables[name]) for name in declared.as_of}
        frames = {n: look_up(accepted_rows(empty, s), pipeline, view, n, changes) for n, s in streams.items()}
        cells = compute_view(spark, pipeline, view, frames)
        if complaint := _check_shape(cells, declared.grain):
            raise WrongView(f":1: {complaint}")
        types = {field.name: field.dataType.simpleString() for field in cells.schema}
        for expectation in declared.expectations:
            for misfit in expectation.misfits(types):
                raise WrongView(f":1: {expectation.name} {misfit}")
        live = (
            spark.readStream.format("rate")
            .load()
            .selectExpr("'t' topic", "0 partition", "value offset", "timestamp received_at", "binary('') value")
        )
        frames = {n: look_up(dedupe_stream(accepted_rows(live, s), s), pipeline, view, n, changes) for n, s in streams.items()}
        streamed = compute_view(spark, pipeline, view, frames)
        mode = output_mode(streamed)
        if why := unbounded(streamed):
            raise WrongView(f":1: {why}")
        return mode, types
    except PySparkException as error:
        line = re.search(r"line (\d+)", str(error))
        way = "stream" if "streaming" in str(error).lower() else "query"
        raise WrongView(f":{line.group(1) if line else 1}: as a {way}: {one_line(error)}") from None


def unbounded(streamed: DataFrame) -> str | None:
    """Why the state of a streaming query would grow for ever, if it would."""
    jvm: Any = streamed.sparkSession._jvm
    plan: Any = streamed._jdf.queryExecution().analyzed()
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    a_watermark = jvm.scala.Some(10**12)  # any will do; py4j makes a small number an Integer, which Scala does not take for a Long
    for join in _nodes(plan, "Join"):
        left, right = join.left(), join.right()
        if not left.isStreaming() or not right.isStreaming() or helper.isWatermarkInJoinKeys(join):
            continue
        for own, other in ((left, right), (right, left)):
            if helper.getStateValueWatermark(own.outputSet(), other.outputSet(), join.condition(), a_watermark).isEmpty():
                return f"a join without an interval keeps every event for ever: bound both sides, {EXAMPLE}"
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            plan, jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        )
    except Exception:
        return "an aggregate without a window keeps every group for ever: group by `window(<time>, '1 hour')` or by the time itself"
    return None


def _nodes(plan: Any, name: str) -> Iterator[Any]:
    if plan.nodeName() == name:
        yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number), name)


def _check_shape(cells: DataFrame, grain: list[str]) -> str | None:
    types = {field.name: field.dataType for field in cells.schema}
    if missing := [column for column in grain if column not in types]:
        return f"the grain names '{missing[0]}', which is not a column of the query ({', '.join(types)})"
    if hidden := [column for column in types if column.startswith("_")]:
        return f"column '{hidden[0]}': names that start with _ are Weir's own"
    if len(types) != len(cells.columns):
        return "two columns of the query have the same name"
    if not isinstance(types[grain[0]], TimestampType | DateType):
        return (
            f"the first grain column '{grain[0]}' is the view's time and must be a timestamp or date, not {types[grain[0]].simpleString()}"
        )
    return None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--search", nargs=2, metavar=("STREAM", "CONDITION"), help="check only this condition on the rows of a stream")


if __name__ == "__main__":
    run_job(check, add_options)

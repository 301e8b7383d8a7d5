"""decode → clean → judge → dedupe → view: the one transform of stream, micro-batch and batch.

Each step takes a frame and gives a frame, streaming or not. No row can make a step fail, and none is dropped in
silence: what cannot be read carries its reason in `_undecodable`, what breaks a rule carries the rule in `_verdict`.
"""

import threading

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from quality.verdict import Rule, broken_by, is_accepted, verdict
from weir.event_time import FUTURE_TOLERANCE, format_duration
from weir.pipeline import COORDINATES, Contract, Pipeline, Stream, Table

MESSAGE = "topic string, partition int, offset bigint, received_at timestamp, value binary"
"""What the transform needs of a message; raw rows and Kafka's have more."""

_END_KEY = "\x01"
_BLANKS = " \t\r\n"
_DAY = r"(?!0000|9999)\d{4}-\d\d-\d\d"
_TIMESTAMP = rf"^{_DAY}[T ]\d\d:\d\d(:\d\d(\.\d{{1,9}})?)?(Z|[+-]\d\d:\d\d)$"
"""A time needs its zone: without one Spark takes the session's, and a bare number for a year like 57971."""


def accepted_rows(messages: DataFrame, contract: Stream | Table) -> DataFrame:
    """The declared columns of the messages that pass, nothing else."""
    return judged_rows(messages, contract).filter("_accepted").select(*contract.columns)


def judged_rows(messages: DataFrame, contract: Stream | Table) -> DataFrame:
    """Every message with its coordinates, `_payload`, columns, `_undecodable`, `_verdict` and `_accepted`."""
    return judge(clean(decode(messages, contract), contract), contract)


def decode(messages: DataFrame, contract: Contract) -> DataFrame:
    """Read each message's JSON by the contract. Gives its fields, `_undecodable`, `_missing` and `_unknown`.

    Spark's reader flags what it cannot parse, but says nothing of a second document, a key that stands twice, missing or
    unknown fields. So the keys are read once more from the message with a last key of our own put into it: if that key
    does not come out as the last one, the document ended earlier. Plain messages, which are most, are spared this.
    """
    fields = ", ".join(f"`{name}` {column.wire_type}" for name, column in contract.columns.items())
    options = {"columnNameOfCorruptRecord": "_corrupt", "allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
    text = F.col("value").cast("string")
    trimmed = F.btrim(text, F.lit(_BLANKS))
    wire = F.from_json(text, f"{fields}, _corrupt string", options)
    # In steps of their own, so that Spark computes each once.
    read = messages.select(*COORDINATES, "value", wire.alias("_wire")).withColumn("_plain", _is_plain(text, contract))
    read = read.withColumn("_keys", F.when(~F.col("_plain"), F.json_object_keys(_with_end_key(text, trimmed))))
    return read.select(
        *COORDINATES,
        F.col("value").alias("_payload"),
        *(F.col(f"_wire.{name}") for name in contract.columns),
        _undecodable(text, trimmed).alias("_undecodable"),
        _has_missing_field(contract).alias("_missing"),
        _has_unknown_field(contract).alias("_unknown"),
    )


def _is_plain(text: Column, contract: Contract) -> Column:
    """Whether the message is, byte for byte, the declared fields in their order with the values that were read, and nothing else.

    That proves all that the list of keys would: without a backslash a string ends at the next quote, so a text that equals the
    one put together from its values has one document, each key once, and no other. Both usual spellings count, with and
    without a blank behind colon and comma. A null, another order or an escape is not wrong, only not plain.
    """
    dense, spaced = _spelled_out(contract, ":", ","), _spelled_out(contract, ": ", ", ")
    first, *_ = contract.columns
    spelled = F.when(F.startswith(text, F.lit(f'{{"{first}": ')), spaced).otherwise(dense)
    return F.coalesce((text == spelled) & ~F.contains(text, F.lit("\\")), F.lit(False))


def _spelled_out(contract: Contract, colon: str, comma: str) -> Column:
    parts, before = [], "{"
    for name, column in contract.columns.items():
        quote = '"' if column.wire_type == "string" else ""
        parts += [F.lit(f'{before}"{name}"{colon}{quote}'), F.col(f"_wire.{name}").cast("string")]
        before = f"{quote}{comma}"
    return F.concat(*parts, F.lit(before.removesuffix(comma) + "}"))


def _with_end_key(text: Column, trimmed: Column) -> Column:
    """The message with our key as its last. Cutting bytes is much cheaper than cutting characters."""
    value, end = F.col("value"), f',"{_END_KEY}":0}}'
    by_bytes = F.concat(F.substring(value, F.lit(1), F.octet_length(value) - 1), F.lit(end.encode())).cast("string")
    by_characters = F.concat(F.substring(trimmed, F.lit(1), F.length(trimmed) - 1), F.lit(end))
    return F.when(F.endswith(value, F.lit(b"}")), by_bytes).otherwise(by_characters)


def _undecodable(text: Column, trimmed: Column) -> Column:
    keys = F.col("_keys")
    return (
        F.when(F.col("_plain"), F.lit(None).cast("string"))
        .when(F.col("value").isNull(), "tombstone")
        .when(F.length(trimmed) == 0, "empty")
        .when(~F.is_valid_utf8(text), "not_utf8")
        .when(
            F.col("_wire").isNull() | F.col("_wire._corrupt").isNotNull(),
            F.when(F.element_at(keys, -1) == _END_KEY, "wrong_type").otherwise("not_json"),
        )
        .when(keys.isNull(), F.when(trimmed.rlike(r"^\{\s*\}$"), "empty").otherwise("trailing_data"))
        .when(F.element_at(keys, -1) != _END_KEY, "trailing_data")
        .when(F.size(F.array_distinct(keys)) != F.size(keys), "duplicate_key")
    )


def _has_missing_field(contract: Contract) -> Column:
    required = [name for name, column in contract.columns.items() if not column.optional]
    missing = F.array_except(_strings(required), F.col("_keys"))
    return F.when(F.col("_plain"), False).otherwise(F.size(missing) > 0)


def _has_unknown_field(contract: Contract) -> Column:
    if contract.unknown_fields == "ignore":
        return F.lit(False)
    unknown = F.array_except(F.col("_keys"), _strings([*contract.columns, _END_KEY]))
    return F.when(F.col("_plain"), False).otherwise(F.size(unknown) > 0)


def _strings(words: list[str]) -> Column:
    return F.array(*map(F.lit, words)) if words else F.array().cast("array<string>")


def clean(decoded: DataFrame, contract: Stream | Table) -> DataFrame:
    """Apply the declared expressions, all to the message's own values, and read times. Adds `_unreadable_<column>`."""
    kept = [*COORDINATES, "_payload", "_undecodable", "_missing", "_unknown"]
    cleaned = {name: F.expr(column.clean) if column.clean else F.col(name) for name, column in contract.columns.items()}
    times = [name for name, column in contract.columns.items() if column.is_parsed_time]
    parsed = {name: _parsed_time(cleaned[name], contract.columns[name].type) for name in times}
    values = {name: parsed.get(name, cleaned[name].try_cast(column.type)) for name, column in contract.columns.items()}
    present = [cleaned[name].isNotNull().alias(_unreadable(name)) for name in times]
    read = decoded.select(*kept, *(value.alias(name) for name, value in values.items()), *present)
    unreadable = [(F.col(_unreadable(name)) & F.col(name).isNull()).alias(_unreadable(name)) for name in times]
    columns = [_by_our_clock(contract).alias(name) if name == contract.occurred_at else F.col(name) for name in contract.columns]
    return read.select(*kept, *columns, *unreadable)


def _by_our_clock(contract: Stream | Table) -> Column:
    """When it occurred, by the clock of the log: as long before its arrival as, by the device's clock, before its sending."""
    occurred_at = F.col(contract.occurred_at)
    if not isinstance(contract, Stream) or contract.sent_at is None:
        return occurred_at
    sent_at = F.col(contract.sent_at)
    corrected = F.timestamp_micros(F.unix_micros("received_at") - F.unix_micros(sent_at) + F.unix_micros(occurred_at))
    return F.when(sent_at >= occurred_at, corrected).otherwise(occurred_at)


def _unreadable(column: str) -> str:
    return f"_unreadable_{column}"


def _parsed_time(text: Column, sql_type: str) -> Column:
    form = _TIMESTAMP if sql_type == "timestamp" else rf"^{_DAY}$"
    return F.when(text.rlike(form), text.try_cast(sql_type))


def judge(cleaned: DataFrame, contract: Stream | Table) -> DataFrame:
    """Add `_verdict` (the rules a row breaks) and `_accepted`. An undecodable message has no verdict and is not accepted."""
    rules = _rules(contract)
    return cleaned.select(*_kept(contract), _verdict(rules), _accepted(rules))


def judge_some(cleaned: DataFrame, contract: Stream | Table, wanted: Column) -> DataFrame:
    """The same for the rows that are wanted only; the condition may ask for `_accepted`. A verdict costs more than all the rest."""
    rules = _rules(contract)
    some = cleaned.withColumn("_accepted", _accepted(rules)).filter(wanted)
    return some.select(*_kept(contract), _verdict(rules), "_accepted")


def _kept(contract: Contract) -> list[str]:
    return [*COORDINATES, "_payload", *contract.columns, "_undecodable"]


def _verdict(rules: list[Rule]) -> Column:
    """Built for the few rows that break something; for all others it is known to be empty."""
    told = F.when(is_accepted(rules), verdict([])).otherwise(verdict(rules))
    return F.when(F.col("_undecodable").isNull(), told).alias("_verdict")


def _accepted(rules: list[Rule]) -> Column:
    """Nothing is undecodable, no rule broken. Null is asked for by an expression that Spark holds to be dear, and matches no null anyway:
    a filter of cheap conditions it would put before the reading of the message, which it then reads once for each mention of a field.
    """
    decoded = ~F.coalesce(F.col("_undecodable").rlike(""), F.lit(False))
    return (decoded & is_accepted(rules)).alias("_accepted")


def _rules(contract: Stream | Table) -> list[Rule]:
    return _built_in_rules(contract) + [broken_by(expectation) for expectation in contract.expectations if expectation.rejects]


def _built_in_rules(contract: Stream | Table) -> list[Rule]:
    ahead = F.col(contract.occurred_at) > F.col("received_at") + F.expr(f"INTERVAL {format_duration(FUTURE_TOLERANCE)}")
    absent = F.col(contract.occurred_at).isNull()
    if contract.columns[contract.occurred_at].is_parsed_time:
        absent = absent & ~F.col(_unreadable(contract.occurred_at))
    rules: list[Rule] = [
        ("contract:no_missing_field", F.col("_missing")),
        ("contract:no_unknown_field", F.col("_unknown")),
        ("identity:be_present", F.col(contract.identity).isNull()),
        ("occurred_at:be_present", absent),
        ("occurred_at:not_be_future", ahead),
    ]
    if isinstance(contract, Stream):
        absurd = F.col(contract.occurred_at) < F.col("received_at") - F.expr(f"INTERVAL {format_duration(contract.oldest)}")
        rules.append(("occurred_at:not_be_absurd", absurd))
    for name, column in contract.columns.items():
        if column.is_parsed_time:
            rules.append((f"{name}:be_readable", F.col(_unreadable(name))))
        if column.type in ("float", "double"):
            rules.append((f"{name}:be_finite", F.isnan(name) | F.abs(name).eqNullSafe(F.lit(float("inf")))))
    return rules


def dedupe_stream(accepted: DataFrame, stream: Stream) -> DataFrame:
    """The first of each identity as a plain streaming query finds it: for test cases and checks, which run without an intake."""
    return accepted.withWatermark(stream.occurred_at, format_duration(stream.lateness)).dropDuplicatesWithinWatermark([stream.identity])


def mark_first(judged: DataFrame, stream: Stream) -> DataFrame:
    """Add `_first`: whether a row is accepted and the first of its identity by received_at, topic, partition, offset.

    The exact form of dedupe_stream, without lateness, for closed frames only.
    """
    return judged.withColumn("_first", F.col("_accepted") & (F.row_number().over(by_identity(stream)) == 1))


def by_identity(stream: Stream) -> WindowSpec:
    """The accepted rows of one identity in the order of their arrival; every other row stands alone."""
    place = F.concat_ws("/", "topic", "partition", "offset")
    identity = F.when(F.col("_accepted"), F.concat(F.lit("="), F.col(stream.identity))).otherwise(place)
    return Window.partitionBy("_accepted", identity).orderBy("received_at", "topic", "partition", "offset")


CHANGE_ORDER = ("received_at", "topic", "partition", "offset")
"""Behind changed_at: of two changes of one moment the one that arrived later holds."""


def table_changes(messages: DataFrame, table: Table) -> DataFrame:
    """Every accepted change of a table, with its coordinates and `_deleted`: whether its key has no row from then on."""
    deleted = F.coalesce(F.expr(table.deleted), F.lit(False)) if table.deleted else F.lit(False)
    accepted = judged_rows(messages, table).filter("_accepted")
    return accepted.select(*COORDINATES, *table.columns, deleted.cast("boolean").alias("_deleted"))


def table_row(table: Table) -> Column:
    """What an event gets of the version that held when it occurred; null where the key was deleted."""
    row = F.struct(*table.columns, F.col(table.changed_at).alias("valid_from"), F.col("received_at").alias("recorded_at"))
    return F.when(~F.col("_deleted"), row)


def look_up(rows: DataFrame, pipeline: Pipeline, view: str, stream: str, changes: dict[str, DataFrame]) -> DataFrame:
    """The stream's rows with one column more for each table of the view: its row as of the time of the event."""
    own = pipeline.streams[stream]
    for name, column in pipeline.views[view].as_of.items():
        if column not in own.columns:
            continue
        table = pipeline.tables[name]
        by_key = Window.partitionBy(table.key).orderBy(table.changed_at, *CHANGE_ORDER)
        versions = changes[name].select(
            F.col(table.key).alias("_key"),
            F.col(table.changed_at).alias("_from"),
            F.lead(table.changed_at).over(by_key).alias("_until"),
            table_row(table).alias(name),
        )
        at = F.col(own.occurred_at)
        holds = (F.col(column) == F.col("_key")) & (at >= F.col("_from")) & (F.col("_until").isNull() | (at < F.col("_until")))
        rows = rows.join(versions, holds, "left").drop("_key", "_from", "_until")
    return rows


_NAMING = threading.Lock()
"""Names of frames are the session's: two views at once would read each other's streams."""


def compute_view(spark: SparkSession, pipeline: Pipeline, view: str, streams: dict[str, DataFrame]) -> DataFrame:
    """Run the view's SQL over the given frames, each under its stream's name; or find its pattern in them."""
    if pattern := pipeline.views[view].pattern:
        from spark_jobs.patterns import find_pattern  # loads pandas, which no other view needs

        return find_pattern(pipeline, pattern, streams)
    with _NAMING:
        for name, frame in streams.items():
            frame.createOrReplaceTempView(name)
        return spark.sql(pipeline.views[view].sql)

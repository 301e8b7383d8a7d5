"""Messages of all sources → one frame of judged rows, before references and deduplication. Runs in parallel on the executors."""

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.columns import (
    DELETED,
    IDENTITY,
    OCCURRED_AT,
    OFFSET,
    PARTITION,
    PAYLOAD,
    REASONS,
    RECEIVED_AT,
    STREAM,
    TOPIC,
    columns_type,
    lookups_of,
)
from spark_jobs.transform import judged_rows
from weir.pipeline import Pipeline, Stream, Table

IS_UNDECODABLE, IS_ACCEPTED = "_is_undecodable", "_is_accepted"
HASH_1, HASH_2, CONTENT, KEY_HASHES = "_hash_1", "_hash_2", "_content", "_key_hashes"
MESSAGE_VALUE = "_message_value"
"""The payload of every row. Not collected with the others: only the few rows that the intake itself rejects need it."""
SECOND_SEED = "weir"
"""Makes the second hash of an identity independent of the first."""


def candidate_rows(pipeline: Pipeline, messages: Mapping[str, DataFrame], struct_columns: Mapping[str, str]) -> DataFrame:
    """The judged messages of every source under one schema."""
    return reduce(DataFrame.unionByName, (_candidates(pipeline, source, frame, struct_columns) for source, frame in messages.items()))


def _candidates(pipeline: Pipeline, source: str, messages: DataFrame, struct_columns: Mapping[str, str]) -> DataFrame:
    contract = pipeline.sources[source]
    judged = judged_rows(messages, contract)
    undecodable = F.array(F.concat(F.lit("undecodable:"), "_undecodable"))
    reasons = F.when(F.col("_undecodable").isNotNull(), undecodable).otherwise(F.col("_verdict"))
    accepted = F.col("_accepted")
    structs = [
        (_values(contract) if other == source else F.lit(None).cast(columns_type(pipeline.sources[other]))).alias(struct_columns[other])
        for other in pipeline.sources
    ]
    return judged.select(
        F.lit(source).alias(STREAM),
        *(TOPIC, PARTITION, OFFSET, RECEIVED_AT),
        F.col(contract.identity).cast("string").alias(IDENTITY),
        F.col(contract.occurred_at).alias(OCCURRED_AT),
        accepted.alias(IS_ACCEPTED),
        F.col("_undecodable").isNotNull().alias(IS_UNDECODABLE),
        F.when(~accepted, reasons).alias(REASONS),
        F.when(~accepted, F.col("_payload")).alias(PAYLOAD),
        F.col("_payload").alias(MESSAGE_VALUE),
        *row_hashes(pipeline, source, F.col),
        *structs,
    )


def row_hashes(pipeline: Pipeline, source: str, column: Callable[[str], Column]) -> list[Column]:
    """The hashes by which rows are deduplicated and looked up. `column` gives a column of the source by its name.

    KEY_HASHES are, of a table, that of its key; of a stream, those of the keys that it looks up, then those that it refers to.
    """
    contract = pipeline.sources[source]
    identity = column(contract.identity).cast("string")
    values = [column(name) for name in contract.columns]
    keys = [column(contract.key)] if isinstance(contract, Table) else _table_keys(pipeline, source, column)
    hashes = [F.when(key.isNotNull(), F.xxhash64(key)) for key in keys]
    content = F.xxhash64(F.to_json(F.struct(*values))) if _has_map(contract) else F.xxhash64(*values)
    return [
        F.xxhash64(identity).alias(HASH_1),
        F.xxhash64(identity, F.lit(SECOND_SEED)).alias(HASH_2),
        content.alias(CONTENT),
        (F.array(*hashes) if hashes else F.array().cast("array<bigint>")).alias(KEY_HASHES),
    ]


def _table_keys(pipeline: Pipeline, stream: str, column: Callable[[str], Column]) -> list[Column]:
    tables = pipeline.tables
    references = pipeline.streams[stream].references.items()
    referred = [column(name).try_cast(tables[table].columns[tables[table].key].type) for name, table in references]
    return [column(name) for _, name in lookups_of(pipeline, stream)] + referred


def _has_map(contract: Stream | Table) -> bool:
    """Spark does not hash maps."""
    return any("map<" in column.type for column in contract.columns.values())


def _values(contract: Stream | Table) -> Column:
    columns = [F.col(name) for name in contract.columns]
    if isinstance(contract, Table):
        deleted = F.coalesce(F.expr(contract.deleted).cast("boolean"), F.lit(False)) if contract.deleted else F.lit(False)
        columns.append(deleted.alias(DELETED))
    # An undecodable message has no values; a rejected one keeps those that could be read.
    return F.when(F.col("_undecodable").isNull(), F.struct(*columns)).cast(columns_type(contract))

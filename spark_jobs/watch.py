"""Watch: what is wrong or wanted in a stream, told to Kafka within milliseconds of its arrival, in Spark's real-time mode.

One stateless query per watched stream: decode → clean → judge, as everywhere, then one message for each row that is rejected, and one
for each row that meets conditions: those of the declaration, and the searches that people have saved. It tells at least once.
"""

from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.transform import clean, decode, judge_some, judged_rows
from weir.layout import alerts_topic, rejected_topic
from weir.pipeline import Pipeline

CHECKPOINT_SECONDS = 30
"""How often the query notes how far it has read; what came since is told again after a crash."""


def watched_rows(messages: DataFrame, pipeline: Pipeline, stream: str, searched: dict[str, str]) -> DataFrame:
    """What is told of these messages: `topic`, `key` and `value`, as Kafka's sink takes them."""
    contract = pipeline.streams[stream]
    conditions = {name: F.coalesce(F.expr(when).cast("boolean"), F.lit(False)) for name, when in searched.items()}
    alerts = F.col("_accepted") & reduce(Column.__or__, conditions.values(), F.lit(False))
    wanted = alerts | ~F.col("_accepted") if pipeline.watch[stream].rejected else alerts
    told = judge_some(clean(decode(messages, contract), contract), contract, wanted)
    met = F.array(*(F.when(condition, F.lit(name)) for name, condition in conditions.items())) if conditions else F.array()
    told = told.withColumn("_met", F.array_compact(met.cast("array<string>")))
    shown = [column for column in contract.columns if column not in contract.private_columns]
    reasons = F.when(F.col("_undecodable").isNotNull(), F.array(F.concat(F.lit("undecodable:"), "_undecodable"))).otherwise(
        F.col("_verdict")
    )
    place = F.struct("topic", "partition", "offset")
    alert = F.struct(
        F.lit(stream).alias("stream"), F.col("_met").alias("alerts"), F.struct(*shown).alias("row"), "received_at", place.alias("place")
    )
    rejected = F.struct(
        F.lit(stream).alias("stream"),
        reasons.alias("reasons"),
        F.col("_payload").cast("string").alias("payload"),
        "received_at",
        place.alias("place"),
    )
    return told.select(
        F.when(F.col("_accepted"), alerts_topic(pipeline.name)).otherwise(F.concat("topic", F.lit(rejected_topic("")))).alias("topic"),
        F.col(contract.identity).cast("string").alias("key"),
        F.when(F.col("_accepted"), F.to_json(alert)).otherwise(F.to_json(rejected)).alias("value"),
    )


def usable(messages: DataFrame, pipeline: Pipeline, stream: str, searches: dict[str, str]) -> dict[str, str]:
    """The searches that Spark understands. One that it does not must not keep the others from being heard; it is said in the log."""
    found = {}
    for name, when in searches.items():
        try:
            judged_rows(messages, pipeline.streams[stream]).filter(F.expr(when).cast("boolean"))
            found[name] = when
        except PySparkException as error:
            print(f"search '{name}' on {stream} is left out: {str(error).splitlines()[0]}", flush=True)
    return found

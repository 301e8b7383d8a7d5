"""Watch: what is wrong or wanted in a stream, told to Kafka within milliseconds of its arrival, in Spark's real-time mode.

One stateless query per watched stream: decode → clean → judge, as everywhere, then one message for each row that is rejected, and one
for each row that meets conditions: those of the declaration, and the searches that people have saved. It tells at least once.
"""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.transform import judged_rows
from weir.layout import alerts_topic, rejected_topic
from weir.pipeline import Pipeline

CHECKPOINT_SECONDS = 10
"""How often the query notes how far it has read; what came since is told again after a crash."""


def watched_rows(messages: DataFrame, pipeline: Pipeline, stream: str, conditions: dict[str, str]) -> DataFrame:
    """What is told of these messages: `topic`, `key` and `value`, as Kafka's sink takes them."""
    contract = pipeline.streams[stream]
    judged = judged_rows(messages, contract)
    met = F.array_compact(F.array(*(F.when(F.expr(when), F.lit(name)) for name, when in conditions.items()))) if conditions else F.array()
    met = F.when(F.col("_accepted"), met).otherwise(F.array().cast("array<string>"))
    told = judged.withColumn("_met", met.cast("array<string>"))
    alerts = F.size("_met") > 0
    wanted = alerts | ~F.col("_accepted") if pipeline.watch[stream].rejected else alerts
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
    return told.filter(wanted).select(
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

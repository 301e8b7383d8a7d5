"""All Delta access from Spark. Every append happens once, every replacement is one commit."""

import json
import re
from collections import Counter
from datetime import date
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

COMPACT_FROM_FILES = 40
"""A day of a speed table with so many files is rewritten; readers open that many at most, and a rewrite is worth it."""

TABLE_DEFAULTS = {
    # Other engines read the tables too.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    # A speed table commits every second: a month of its log would be millions of files.
    "spark.databricks.delta.properties.defaults.logRetentionDuration": "interval 7 days",
}
"""Session settings by which every new table is made. A table comes into being with its first rows."""


def exists(spark: SparkSession, path: str) -> bool:
    return DeltaTable.isDeltaTable(spark, path)


def read(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path)


def append_once(frame: DataFrame, path: str, partition_by: list[str], app_id: str, version: int, metadata: dict[str, Any]) -> None:
    """Append, unless this app id has already appended this version or a later one: then nothing happens."""
    (
        frame.write.format("delta")
        .mode("append")
        .partitionBy(*partition_by)
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .option("userMetadata", json.dumps(metadata, sort_keys=True))
        .save(path)
    )


def replace_day(frame: DataFrame, path: str, day: date) -> None:
    """Put these cells in the place of the day's, in one commit. `frame` has `_day`, all of it this day."""
    frame.write.format("delta").mode("overwrite").partitionBy("_day").option("replaceWhere", f"_day = DATE'{day}'").save(path)


def last_words(cells: DataFrame, grain: list[str]) -> DataFrame:
    """A speed table's cells: of each grain value the row of the latest driver generation and batch."""
    latest = Window.partitionBy(*grain).orderBy(F.desc("_generation"), F.desc("_batch"))
    return cells.withColumn("_rank", F.row_number().over(latest)).filter("_rank = 1").drop("_rank")


def compact_speed(spark: SparkSession, path: str, grain: list[str]) -> list[date]:
    """Rewrite the days that have become many files, keeping each cell's last word. Only the table's own writer may call it."""
    speed = read(spark, path)
    files = Counter(re.findall(r"_day=(\d{4}-\d\d-\d\d)", "\n".join(speed.inputFiles())))
    days = [date.fromisoformat(day) for day, count in files.items() if count >= COMPACT_FROM_FILES]
    for day in days:
        replace_day(last_words(speed.filter(F.col("_day") == F.lit(day)), grain).coalesce(1), path, day)
    return days

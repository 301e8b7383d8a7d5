"""All Delta access from Spark. Every append happens once, every replacement is one commit."""

import json
import re
from collections import Counter
from datetime import date
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

COMPACT_FROM_FILES = 40
"""A day of a speed table with so many files is rewritten; readers open that many at most, and a rewrite is worth it."""

_PROPERTIES = {
    # Other engines read the tables too.
    "delta.enableDeletionVectors": "false",
    # A speed table commits every second: a month of its log would be millions of files.
    "delta.logRetentionDuration": "interval 7 days",
}


def create_table(spark: SparkSession, path: str, schema: StructType, partition_by: str) -> None:
    """Make the table if it is not there yet."""
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema).partitionedBy(partition_by)
    for key, setting in _PROPERTIES.items():
        builder = builder.property(key, setting)
    builder.execute()


def exists(spark: SparkSession, path: str) -> bool:
    return DeltaTable.isDeltaTable(spark, path)


def read(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path)


def append_once(frame: DataFrame, path: str, app_id: str, version: int, metadata: dict[str, Any]) -> None:
    """Append, unless this app id has already appended this version or a later one: then nothing happens."""
    (
        frame.write.format("delta")
        .mode("append")
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .option("userMetadata", json.dumps(metadata, sort_keys=True))
        .save(path)
    )


def replace_day(frame: DataFrame, path: str, day: date) -> None:
    """Put these cells in the place of the day's, in one commit. `frame` has `_day`, all of it this day."""
    frame.write.format("delta").mode("overwrite").option("replaceWhere", f"_day = DATE'{day}'").save(path)


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

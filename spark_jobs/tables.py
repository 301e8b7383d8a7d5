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


def append_cells(frame: DataFrame, path: str, metadata: dict[str, Any]) -> None:
    """Append changed cells to a speed table. Needs no append_once: a batch that is told twice says the same twice, an outdated
    driver's words have a lower generation, and the last word wins. Asking Delta what it has would cost most of a second a batch.
    """
    frame.write.format("delta").mode("append").partitionBy("_day").option("userMetadata", json.dumps(metadata, sort_keys=True)).save(path)


def append_once(frame: DataFrame, path: str, partition_by: list[str], app_id: str, version: int, metadata: dict[str, Any]) -> None:
    """Append, unless this app id has already appended this version or a later one: then the table stays as it is.

    The frame is computed either way. Delta alone would skip it unread, and a stateful query whose driver died between this
    commit and Spark's own would never get its state of that batch, and never start again.
    """
    if _appended_version(frame.sparkSession, path, app_id) >= version:
        frame.write.format("noop").mode("overwrite").save()
        return
    (
        frame.write.format("delta")
        .mode("append")
        .partitionBy(*partition_by)
        .option("mergeSchema", "true")  # a column that a contract has gained
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .option("userMetadata", json.dumps(metadata, sort_keys=True))
        .save(path)
    )


def _appended_version(spark: SparkSession, path: str, app_id: str) -> int:
    """The last version that this app id has appended, or -1. Delta's own view of the table, which the append needs as well."""
    if not exists(spark, path):
        return -1
    jvm = spark._jvm
    assert jvm is not None
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    found = log.unsafeVolatileSnapshot().transactions().get(app_id)
    return int(found.get()) if found.isDefined() else -1


def with_day(cells: DataFrame, time_column: str) -> DataFrame:
    """Cells with `_day`, the UTC day of their time: what tables of cells are partitioned by."""
    return cells.withColumn("_day", F.to_date(F.col(time_column)))


def replace_day(frame: DataFrame, path: str, day: date) -> None:
    """Put these cells in the place of the day's, in one commit. `frame` has `_day`, all of it this day."""
    frame.write.format("delta").mode("overwrite").partitionBy("_day").option("replaceWhere", f"_day = DATE'{day}'").save(path)


def last_words(cells: DataFrame, grain: list[str]) -> DataFrame:
    """A speed table's cells: of each grain value the row of the latest driver generation and batch."""
    latest = Window.partitionBy(*grain).orderBy(F.desc("_generation"), F.desc("_batch"))
    return cells.withColumn("_rank", F.row_number().over(latest)).filter("_rank = 1").drop("_rank")


def compact_speed(spark: SparkSession, path: str, grain: list[str], from_files: int = COMPACT_FROM_FILES) -> list[date]:
    """Rewrite the days that have become many files, keeping each cell's last word. Only the table's own writer may call it."""
    speed = read(spark, path)
    files = Counter(re.findall(r"_day=(\d{4}-\d\d-\d\d)", "\n".join(speed.inputFiles())))
    days = [date.fromisoformat(day) for day, count in files.items() if count >= from_files]
    for day in days:
        replace_day(last_words(speed.filter(F.col("_day") == F.lit(day)), grain).coalesce(1), path, day)
    return days

"""All Delta access from Spark. Every append happens once, every replacement is one commit."""

import json
import re
from collections import Counter
from datetime import date, timedelta
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.event_time import utc_now
from weir.housekeeping import SMALL_FILE_BYTES, PartitionFiles
from weir.lake_files import files_below, lake_path

COMPACT_FROM_FILES = 40
"""A day of a speed table with so many files is rewritten; readers open that many at most, and a rewrite is worth it."""

TABLE_DEFAULTS = {
    # Other engines read the tables too.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    # A speed table commits every second: a month of its log would be millions of files.
    "spark.databricks.delta.properties.defaults.logRetentionDuration": "interval 7 days",
    # Delta's own of 10 stops a table that commits every second for two seconds out of ten; what readers read beyond it is small.
    "spark.databricks.delta.properties.defaults.checkpointInterval": "50",
}
"""Session settings by which every new table is made. A table comes into being with its first rows."""


def exists(spark: SparkSession, path: str) -> bool:
    """Looked up anew: `DeltaTable.isDeltaTable` goes on saying no where another process has made the table since it was first asked."""
    return last_version(spark, path) >= 0


def read(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """A table as it is, or as it was at a version."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(path)


def last_version(spark: SparkSession, path: str) -> int:
    """What to read again and again as if nobody wrote meanwhile."""
    return int(_delta_log(spark, path).update(False, _none(spark), _none(spark)).version())


def _none(spark: SparkSession) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.scala.Option.empty()


def ensure_partitioned(like: DataFrame, path: str, partition_by: list[str]) -> None:
    """Create an empty table of this schema unless there is one."""
    if not exists(like.sparkSession, path):
        like.limit(0).write.format("delta").partitionBy(*partition_by).mode("ignore").save(path)


def add_columns(empty: DataFrame, path: str, partition_by: list[str], properties: dict[str, str]) -> None:
    """Create an empty table, or add the columns that it lacks."""
    writer = empty.write.format("delta").mode("append").partitionBy(*partition_by).option("mergeSchema", "true")
    writer.options(**properties).save(path)


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
    found = _delta_log(spark, path).unsafeVolatileSnapshot().transactions().get(app_id)
    return int(found.get()) if found.isDefined() else -1


def _delta_log(spark: SparkSession, path: str) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def with_day(cells: DataFrame, time_column: str) -> DataFrame:
    """Cells with `_day`, the UTC day of their time: what tables of cells are partitioned by."""
    return cells.withColumn("_day", F.to_date(F.col(time_column)))


def replace_day(frame: DataFrame, path: str, day: date, of: dict[str, list[str]] | None = None, says_the_same: bool = False) -> None:
    """Put these rows in the place of the day's, in one commit. `frame` has `_day`, all of it this day.

    With `of`, only the rows of the day with one of these values: columns by which the table is partitioned too. What `says_the_same` as the
    rows before, for all who read last words, may be appended to meanwhile: Delta sees no conflict, and removes only what it has read.
    """
    own = "".join(f" AND {column} IN ({', '.join(map(repr, values))})" for column, values in (of or {}).items())
    (
        frame.write.format("delta")
        .mode("overwrite")
        .partitionBy("_day", *(of or {}))
        .option("replaceWhere", f"_day = DATE'{day}'{own}")
        .option("dataChange", not says_the_same)
        .option("mergeSchema", "true")
        .save(path)
    )


def last_words(cells: DataFrame, grain: list[str]) -> DataFrame:
    """A speed table's cells: of each grain value the row of the latest driver generation and batch."""
    latest = Window.partitionBy(*grain).orderBy(F.desc("_generation"), F.desc("_batch"))
    return cells.withColumn("_rank", F.row_number().over(latest)).filter("_rank = 1").drop("_rank")


def compact_speed(spark: SparkSession, path: str, grain: list[str], from_files: int = COMPACT_FROM_FILES) -> list[date]:
    """Rewrite the days that have become many files, keeping each cell's last word. Appends may go on; two of these at once may not."""
    speed = read(spark, path)
    files = Counter(re.findall(r"_day=(\d{4}-\d\d-\d\d)", "\n".join(speed.inputFiles())))
    days = [date.fromisoformat(day) for day, count in files.items() if count >= from_files]
    for day in days:
        kept = last_words(speed.filter(F.col("_day") == F.lit(day)), grain).coalesce(1).sortWithinPartitions(*grain)
        replace_day(kept, path, day, says_the_same=True)
    return days


def partition_files(spark: SparkSession, path: str, day_column: str) -> list[PartitionFiles]:
    """How many files each partition has, from the table's log alone: no file is opened."""
    small = F.count_if(F.col("size") < SMALL_FILE_BYTES)
    counted = (
        _live_files(spark, path)
        .groupBy(F.to_json("partitionValues").alias("values"))
        .agg(F.count("*").alias("files"), small.alias("small"))
        .collect()
    )
    found = []
    for row in counted:
        values = json.loads(row["values"] or "{}")
        day = date.fromisoformat(values[day_column]) if values.get(day_column) else None
        found.append(PartitionFiles(tuple(sorted(values.items())), day, row["files"], row["small"]))
    return found


def _live_files(spark: SparkSession, path: str) -> DataFrame:
    return DataFrame(_delta_log(spark, path).unsafeVolatileSnapshot().allFiles().toDF(), spark)


def compact_partition(spark: SparkSession, path: str, partition: PartitionFiles) -> None:
    """Merge the small files of one partition, in one commit that changes no row: appends beside it do not conflict."""
    is_in = " AND ".join(f"`{column}` = '{value}'" for column, value in partition.values)
    DeltaTable.forPath(spark, path).optimize().where(is_in).executeCompaction()


def delete_rows(spark: SparkSession, path: str, condition: Column) -> None:
    """Delete in one commit. What is appended meanwhile stays."""
    DeltaTable.forPath(spark, path).delete(condition)


def vacuum(spark: SparkSession, path: str) -> tuple[int, int]:
    """Remove the files that no version of the last week needs (Delta's own 168 hours, never less): how many, and their bytes.

    Where there are none, nothing is done: Delta would look for seconds, and write two commits to say so. Folders that became
    empty wait for the next files.
    """
    if not _has_old_files(spark, path):
        return 0, 0
    # Delta lists folders with so many tasks; its default of 10,000 took ten minutes on a table of eight files.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", spark.sparkContext.defaultParallelism)
    found = [lake_path(row[0].removeprefix("file:")) for row in spark.sql(f"VACUUM delta.`{path}` DRY RUN").collect()]
    sizes = [file.stat().st_size for file in found if file.is_file()]
    if sizes:
        DeltaTable.forPath(spark, path).vacuum()
    return len(sizes), sum(sizes)


def _has_old_files(spark: SparkSession, path: str) -> bool:
    """Whether a file older than a week is not in the table's last version. Only such files can be more than Delta has to keep."""
    week_ago = (utc_now() - timedelta(hours=168)).timestamp()
    written = files_below(lake_path(path)).items()
    old = {name for name, at in written if at < week_ago and name.endswith(".parquet") and not name.startswith("_delta_log/")}
    return bool(old) and bool(old - {unquote(row["path"]) for row in _live_files(spark, path).select("path").collect()})

"""The one SparkSession builder."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.tables import TABLE_DEFAULTS
from weir.jars import spark_jars
from weir.lake_files import endpoint
from weir.layout import Home

CLUSTER_CORES = 2
"""What a job takes of a standalone cluster that does not say it."""
PYTHON_TOO_SLOW = "Python worker failed to connect back"
"""What Spark says when a machine is so busy that Python does not start within ten seconds, which nothing can raise. Trying again helps."""
AT_ONCE = 2
"""While one is planned, which keeps the driver busy, another is computed."""
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_Of = TypeVar("_Of")
_Found = TypeVar("_Found")


def build_session(app_name: str, occupied: int = 0) -> SparkSession:
    """A session with Delta, Kafka, UTC and bounded memory. `occupied` task slots are held all the time: they are added to the others.

    Under spark-submit its master, jars and memory hold; else WEIR_SPARK_MASTER names the master, and the default is this machine.
    """
    # PySpark logs every analysis error as JSON with its whole stack; Weir says it in one line instead.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    # Spark would start whatever python3 is on the PATH, which may know none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = _submitted_master()
    master = submitted or chosen_master()
    builder = SparkSession.builder.appName(app_name)
    settings = _settings(master) if submitted else _settings(master) | _own_start(master)
    if occupied and (slots := re.fullmatch(r"local\[(\*|\d+)\]", master)):
        settings["spark.master"] = f"local[{(os.cpu_count() or 2 if slots[1] == '*' else int(slots[1])) + occupied}]"
    elif occupied and master.startswith("spark://"):
        others = SparkConf().get("spark.cores.max") if submitted else None
        settings["spark.cores.max"] = str(int(others or CLUSTER_CORES) + occupied)
    for key, setting in settings.items():
        builder = builder.config(key, setting)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def side_by_side(spark: SparkSession, act: Callable[[_Of], _Found], each: Iterable[_Of]) -> list[_Found]:
    """What the act finds of each, in their order, a few at a time in this session. Once one has failed, no other is begun."""

    def enter() -> None:
        jvm = spark._jvm
        assert jvm is not None
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # else its settings would not hold there

    with ThreadPoolExecutor(AT_ONCE, initializer=enter) as pool:
        begun = [pool.submit(act, own) for own in each]
        wait(begun, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False, cancel_futures=True)
        return [own.result() for own in begun]


def chosen_master() -> str:
    """Where jobs run that nobody submits."""
    return os.environ.get("WEIR_SPARK_MASTER", "local[*]")


def _submitted_master() -> str | None:
    """The master that spark-submit was told; None when nobody has started a JVM for this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()  # a SparkConf knows what was submitted only when it is connected to the JVM
    return SparkConf().get("spark.master")


def _own_start(master: str) -> dict[str, str]:
    """What has to be known before the JVM starts."""
    return {
        "spark.master": master,
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.driver.memory": os.environ.get("WEIR_DRIVER_MEMORY", "2g"),
    }


def _settings(master: str) -> dict[str, str]:
    settings = TABLE_DEFAULTS | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting the rows of the state reads every key before it is written: a sixth of the throughput.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        # Planning would infer conditions from every alias of every field that decode names, twice as many with each column: at twenty
        # columns half a minute of every batch.
        "spark.sql.constraintPropagation.enabled": "false",
        # Every column would be told which line of ours made it, for messages that Weir does not show: three calls for one.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # progress.py copies the offset log every half minute; this many batches must outlast a long pause of it.
        "spark.sql.streaming.minBatchesToRetain": "2000",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.ui.showConsoleProgress": "false",
        # Its pages have no login: only where somebody asks for them.
        "spark.ui.enabled": "true" if os.environ.get("WEIR_SPARK_UI") else "false",
    }
    if Home.from_environment().lake.is_remote:
        settings |= _object_store()
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # On small tables Delta's default of 50 partitions is where most of the time goes.
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return settings


def _object_store() -> dict[str, str]:
    """For a lake that many processes write in an object store, which the environment describes in the words of AWS."""
    settings = {
        "spark.delta.logStore.s3a.impl": "weir.ConditionalLogStore",
        "spark.hadoop.fs.s3a.endpoint.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        # Every refused commit would be told with a page of counters.
        "spark.hadoop.fs.s3a.iostatistics.logging.level": "debug",
    }
    if where := endpoint():
        settings |= {"spark.hadoop.fs.s3a.endpoint": where, "spark.hadoop.fs.s3a.path.style.access": "true"}
    return settings

"""One Spark session for all tests below tests/spark, built by the product's own builder."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.stack import QUICK_JAVA

os.environ["TZ"] = "Pacific/Kiritimati"  # far from UTC: what depends on this machine's zone shows
time.tzset()
os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)

logging.getLogger("kafka").setLevel(logging.WARNING)  # or every connection is told, and what failed is lost among them

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shop() -> Pipeline:
    return load_pipeline(ROOT / "pipelines" / "shop")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from spark_jobs.session import build_session
    from weir.jars import fetch_jars

    fetch_jars()
    session = build_session("weir tests")
    yield session
    session.stop()

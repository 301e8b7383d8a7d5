"""The one session builder: started by spark-submit, what that was told holds. What is done side by side is done in it, too."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import AT_ONCE, side_by_side

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """
from spark_jobs.session import build_session
spark = build_session("probe")
conf = spark.sparkContext.getConf()
print("FOUND", conf.get("spark.master"), conf.get("spark.driver.memory"), conf.get("spark.sql.session.timeZone"))
spark.stop()
"""


def test_the_master_of_spark_submit_holds(tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    script.write_text(PROGRAM)
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", "--driver-memory", "777m"]
    env = os.environ | {"WEIR_SPARK_MASTER": "local[2]", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    env.pop("PYSPARK_GATEWAY_PORT", None)
    env.pop("PYSPARK_GATEWAY_SECRET", None)
    told = subprocess.run([*submit, "--conf", "spark.sql.extensions=", str(script)], env=env, capture_output=True, text=True, timeout=180)
    assert "FOUND local[1] 777m UTC" in told.stdout, told.stdout + told.stderr[-2_000:]


def test_side_by_side_means_at_once_in_one_session_and_in_order(spark: SparkSession) -> None:
    together = threading.Barrier(AT_ONCE)

    def look(number: int) -> tuple[int, str, str]:
        together.wait(30)  # one after another would never get here
        assert spark._jvm is not None
        held = spark._jvm.org.apache.spark.sql.internal.SQLConf.get().getConfString("spark.sql.session.timeZone")
        (row,) = spark.sql(f"SELECT {number} AS number, current_timezone() AS zone").collect()
        return row["number"], row["zone"], held

    numbers = range(2 * AT_ONCE)
    assert side_by_side(spark, look, numbers) == [(number, "UTC", "UTC") for number in numbers]


def test_the_first_that_fails_ends_what_is_done_side_by_side(spark: SparkSession) -> None:
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("1 is wrong")
        time.sleep(0.5)

    with pytest.raises(ValueError, match="1 is wrong"):
        side_by_side(spark, fail, range(20))
    assert len(begun) < 20

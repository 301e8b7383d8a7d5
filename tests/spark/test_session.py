"""The one session builder: started by spark-submit, what that was told holds."""

import os
import subprocess
import sys
from pathlib import Path

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

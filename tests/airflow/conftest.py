"""Airflow writes its settings into its home as soon as it is imported: here that is a folder of its own."""

import atexit
import os
import shutil
import tempfile

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="weir-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

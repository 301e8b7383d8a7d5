"""The declaration of a pipeline and every decision about it, in pure Python: no Airflow, Spark or Great Expectations."""

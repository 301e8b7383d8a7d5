"""Weir in Airflow: DAGs built from the declarations, and what they are made of. Meets Spark only in command lines and records."""

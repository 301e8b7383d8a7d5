"""In which of Spark's output modes a view runs as a streaming query."""

from pyspark.sql import DataFrame


def output_mode(cells: DataFrame) -> str:
    """'update' where Spark allows it for this query, else 'append': sessions and some joins only give their closed cells."""
    jvm = cells.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(cells._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Update())
        return "update"
    except Exception:
        checker.checkForStreaming(cells._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Append())
        return "append"

"""`weir check` says what Spark would refuse: in one line, with the file and line, and before anything runs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.check_job import WrongView, check_source, check_steps, check_view
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.serving import check_served

YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns:
      order_id: string
      amount: {{type: "decimal(12,2)", from: string, clean: "{clean}"}}
      customer_id: {{type: int, from: bigint, clean: "{clean_id}"}}
      ordered_at: timestamp
views:
  per_minute: {{grain: [{grain}], reach: 1 hour}}
"""
SQL = "SELECT window(ordered_at, '1 minute').start AS minute, count(*) AS n FROM orders GROUP BY window(ordered_at, '1 minute')"


def tiny(
    folder: Path, clean: str = "try_cast(amount AS decimal(12,2))", clean_id: str = "customer_id", sql: str = SQL, grain: str = "minute"
) -> Pipeline:
    home = folder / "tiny"
    home.mkdir(exist_ok=True)
    (home / "pipeline.yaml").write_text(YAML.format(clean=clean, clean_id=clean_id, grain=grain))
    (home / "per_minute.sql").write_text(sql)
    return load_pipeline(home)


def test_the_shop_is_in_order(spark: SparkSession, shop: Pipeline) -> None:
    assert [line for name in shop.sources for line in check_source(spark, shop, name)] == []
    columns = {}
    for view, declared in shop.views.items():
        mode, columns[view] = check_view(spark, shop, view)
        assert mode == ("append" if declared.is_told_when_closed and not declared.pattern else "update"), view
    assert check_served(shop, columns) == {}


@pytest.mark.parametrize(
    ("clean", "clean_id", "said"),
    [
        ("cast(amount AS decimal(12,2))", "customer_id", 'would kill the query at a message with ""'),
        ("to_number(amount, '999')", "customer_id", "would kill the query at a message with"),
        ("try_cast(amuont AS decimal(12,2))", "customer_id", "`amuont` cannot be resolved"),
        ("amount +", "customer_id", "PARSE_SYNTAX_ERROR"),
        ("amount", "1000 / customer_id", "would kill the query at a message with 0"),
        ("amount", "customer_id + 1", "would kill the query at a message with 9223372036854775807"),
        ("amount", "customer_id", ""),
    ],
)
def test_a_cleansing_expression_that_a_row_could_kill_is_named_with_that_row(
    spark: SparkSession, tmp_path: Path, clean: str, clean_id: str, said: str
) -> None:
    found = check_source(spark, tiny(tmp_path, clean, clean_id), "orders")
    if said:
        assert len(found) == 1 and said in found[0] and "\n" not in found[0]
    else:
        assert found == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (SQL.replace("SELECT", "SELECT nope,"), "nope"),
        (SQL.replace("\n", " ").replace(" FROM", "\n\nFROM").replace("count(*)", "cuont(*)"), "cuont"),
        ("SELECT ordered_at AS minute FROM orders ORDER BY ordered_at", ":1: as a stream: "),
        (SQL.replace("count(*)", "count(DISTINCT order_id)"), "approx_count_distinct"),
        ("SELECT ordered_at AS minute, row_number() OVER (PARTITION BY order_id ORDER BY ordered_at) AS n FROM orders", "as a stream: "),
        ("SELECT ordered_at AS hour FROM orders", "the grain names 'minute', which is not a column of the query (hour)"),
        ("SELECT order_id AS minute FROM orders", "must be a timestamp or date, not string"),
        ("SELECT ordered_at AS minute, 1 AS _x FROM orders", "names that start with _ are Weir's own"),
        (
            "SELECT max(ordered_at) AS minute, customer_id FROM orders GROUP BY customer_id",
            "an aggregate without a window keeps",
        ),
        ("SELECT DISTINCT date_trunc('minute', ordered_at) AS minute FROM orders", "an aggregate without a window"),
        ("SELECT a.ordered_at AS minute FROM orders a JOIN orders b USING (customer_id)", "a join without an interval keeps every event"),
        (
            "SELECT a.ordered_at AS minute FROM orders a JOIN orders b ON a.customer_id = b.customer_id AND a.ordered_at > b.ordered_at",
            "a join without an interval keeps every event",
        ),
    ],
)
def test_a_view_that_spark_would_refuse_is_refused(spark: SparkSession, tmp_path: Path, sql: str, said: str) -> None:
    with pytest.raises(WrongView) as found:
        check_view(spark, tiny(tmp_path, sql=sql), "per_minute")
    line = str(found.value)
    assert line.startswith(":") and said in line and "\n" not in line


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"when": "cuontry = 'DE'"}, "views.found.pattern: step 1: `cuontry = 'DE'`: "),
        ({"when": "1 / (length(order_id) - 3) > 0"}, "views.found.pattern: step 1: `1 / (length(order_id) - 3) > 0` would kill the query"),
    ],
)
def test_a_step_that_would_be_refused_is_named(spark: SparkSession, shop: Pipeline, step: dict[str, str], said: str) -> None:
    pattern = {"of": "orders", "by": "customer_id", "within": "5 minutes", "steps": [step]}
    declared = shop.model_dump(mode="json", by_alias=True) | {"views": {"found": {"pattern": pattern}}, "serve": {}}
    (line,) = check_steps(spark, Pipeline.model_validate(declared), "found")
    assert line.startswith(said), line

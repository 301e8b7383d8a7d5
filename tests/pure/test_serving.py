"""Served queries: SQL over served views, one over another, and what is said of a wrong one. On real tables, without Spark."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from weir.layout import Lake
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.refusal import Refusal
from weir.serving import answer_query, check_served

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns: {order_id: string, country: string, amount: "decimal(12,2)", ordered_at: timestamp}
views:
  revenue: {grain: [minute, country]}
serve: [best, best_one, smoothed]
"""
SQL = {
    "revenue": "SELECT window(ordered_at, '1 minute').start AS minute, country, sum(amount) AS revenue FROM orders "
    "GROUP BY window(ordered_at, '1 minute'), country",
    "best": "SELECT country, sum(revenue) AS revenue FROM revenue GROUP BY country ORDER BY 2 DESC LIMIT 2",
    "best_one": "SELECT country FROM best LIMIT 1;",
    "smoothed": "SELECT minute, avg(revenue) OVER (ORDER BY minute ROWS 1 PRECEDING) AS average FROM revenue WHERE country = 'DE'",
}
COLUMNS = {"revenue": {"minute": "timestamp", "country": "string", "revenue": "decimal(22,2)"}}


def tiny(folder: Path, **other: str) -> Pipeline:
    home = folder / "tiny"
    home.mkdir(exist_ok=True)
    (home / "pipeline.yaml").write_text(YAML)
    for name, sql in (SQL | other).items():
        (home / f"{name}.sql").write_text(sql)
    return load_pipeline(home)


def test_served_queries_read_the_last_words_and_one_another(tmp_path: Path) -> None:
    pipeline, lake = tiny(tmp_path), Lake.at(str(tmp_path / "lake"))
    told = [(0, "DE", 5, 0), (0, "DE", 7, 1), (1, "DE", 3, 1), (0, "FR", 11, 0), (0, "NL", 1, 0)]
    cells = pa.table(
        {
            "minute": pa.array([NOON + timedelta(minutes=minute) for minute, *_ in told], pa.timestamp("us", "UTC")),
            "country": [country for _, country, *_ in told],
            "revenue": pa.array([Decimal(f"{revenue}.00") for *_, revenue, _ in told], pa.decimal128(22, 2)),
            "_day": pa.array([NOON.date()] * len(told)),
            "_generation": pa.array([1] * len(told), pa.int64()),
            "_batch": pa.array([batch for *_, batch in told], pa.int64()),
        }
    )
    write_deltalake(lake.speed("tiny", "revenue", pipeline.fingerprint("revenue")), cells)
    assert answer_query(lake, [pipeline], "SELECT * FROM best").rows == [("FR", Decimal(11)), ("DE", Decimal(10))]
    assert answer_query(lake, [pipeline], "FROM best_one").rows == [("FR",)]
    assert [row[1] for row in answer_query(lake, [pipeline], "SELECT * FROM smoothed ORDER BY minute").rows] == [7.0, 5.0]
    with pytest.raises(Refusal, match=r"best_on.*did you mean 'best_one'"):
        answer_query(lake, [pipeline], "SELECT * FROM best_on")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM orders", r"pipeline.yaml:10: .*reads 'orders': served queries read views"),
        ("SELECT 1", r"pipeline.yaml:10: .*reads no view"),
        ("SELECT * FROM revenu", r"pipeline.yaml:10: .*reads no view \(did you mean 'revenue'\?\)"),
        ("SELECT * FROM best_one", r"pipeline.yaml:10: .*reads itself: best → best_one → best"),
    ],
)
def test_a_served_query_that_reads_no_view_is_refused(tmp_path: Path, sql: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        tiny(tmp_path, best=sql)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    tiny(tmp_path)
    (tmp_path / "tiny" / "best.sql").unlink()
    with pytest.raises(Refusal, match=r"pipeline.yaml:10: served query 'best' needs its SQL in .*best.sql"):
        load_pipeline(tmp_path / "tiny")


def test_check_says_what_duckdb_refuses(tmp_path: Path) -> None:
    assert check_served(tiny(tmp_path), COLUMNS) == {}
    wrong = check_served(tiny(tmp_path, best="SELECT country, sum(revenu) AS revenue FROM revenue GROUP BY country"), COLUMNS)
    assert list(wrong) == ["best", "best_one"] and "revenu" in wrong["best"]
    assert check_served(tiny(tmp_path, best="SELECT country, status AS revenue FROM revenue"), COLUMNS) == {}, "served rows have a status"

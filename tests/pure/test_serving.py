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


TIMELINE = """\
pipeline: home
streams:
  likes: {topic: home.likes, identity: like_id, occurred_at: liked_at, columns: {like_id: string, liked_at: timestamp}}
tables:
  posts:
    topic: home.posts
    key: post_id
    changed_at: at
    deleted: gone
    columns: {post_id: string, author: string, text: string, draft: {type: string, private: true}, gone: boolean, at: timestamp}
  follows:
    topic: home.follows
    key: pair
    changed_at: at
    deleted: gone
    columns: {pair: string, follower: string, author: string, gone: boolean, at: timestamp}
serve:
  timeline:
    sql: SELECT follower, post_id, text FROM follows JOIN posts USING (author) ORDER BY follower, post_id
"""


def test_a_timeline_from_posts_and_follows_is_kept_up_to_date(tmp_path: Path) -> None:
    """Two tables joined: an edited post, a deleted one, an unfollow, changes that arrive out of order and twice."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "pipeline.yaml").write_text(TIMELINE)
    pipeline, lake = load_pipeline(home), Lake.at(str(tmp_path / "lake"))
    assert check_served(pipeline, {}) == {}

    def append(table: str, *changes: tuple[int, dict[str, str], bool]) -> None:
        path = lake.history("home", table, pipeline.table_fingerprint(table))
        rows = [
            {
                **values,
                "gone": gone,
                "at": NOON + timedelta(minutes=minute),
                "topic": f"home.{table}",
                "partition": 0,
                "offset": offset,
                "received_at": NOON + timedelta(hours=1, minutes=offset),
                "_deleted": gone,
                "_known_at": NOON + timedelta(hours=2),
            }
            for offset, (minute, values, gone) in enumerate(changes)
        ]
        stamp = pa.timestamp("us", "UTC")
        times = dict.fromkeys(("at", "received_at", "_known_at"), stamp)
        fields = [(name, times.get(name) or pa.array([value]).type) for name, value in rows[0].items()]
        write_deltalake(path, pa.Table.from_pylist(rows, pa.schema(fields)), mode="append")

    def post(number: int, author: str, text: str) -> dict[str, str]:
        return {"post_id": f"p-{number}", "author": author, "text": text, "draft": "secret"}

    def follow(follower: str, author: str) -> dict[str, str]:
        return {"pair": f"{follower}-{author}", "follower": follower, "author": author}

    with pytest.raises(Refusal, match="nothing of table 'follows' is known yet"):
        answer_query(lake, [pipeline], "FROM timeline")
    append("posts", (1, post(1, "ann", "hello"), False), (9, post(2, "ann", "edited"), False), (2, post(2, "ann", "first"), False))
    append("follows", (0, follow("bob", "ann"), False), (0, follow("eve", "ann"), False), (0, follow("bob", "ann"), False))
    both = [("bob", "p-1", "hello"), ("bob", "p-2", "edited"), ("eve", "p-1", "hello"), ("eve", "p-2", "edited")]
    assert answer_query(lake, [pipeline], "FROM timeline").rows == both, "an older version that arrives later is not the present one"
    append("posts", (20, post(1, "ann", "hello"), True))
    append("follows", (20, follow("eve", "ann"), True))
    assert answer_query(lake, [pipeline], "FROM timeline").rows == [("bob", "p-2", "edited")]
    append("follows", (30, follow("eve", "ann"), False))
    assert answer_query(lake, [pipeline], "FROM timeline").rows == [("bob", "p-2", "edited"), ("eve", "p-2", "edited")]
    history = answer_query(
        lake, [pipeline], "SELECT text, valid_to - valid_from FROM posts__history WHERE post_id = 'p-2' ORDER BY valid_from"
    )
    assert history.rows == [("first", timedelta(minutes=7)), ("edited", None)]
    assert "draft" not in answer_query(lake, [pipeline], "FROM posts").columns


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM orders", r"pipeline.yaml:10: .*reads 'orders': served queries read views"),
        ("SELECT 1", r"pipeline.yaml:10: .*reads no view"),
        ("SELECT * FROM revenu", r"pipeline.yaml:10: .*reads no view and no table \(did you mean 'revenue'\?\)"),
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

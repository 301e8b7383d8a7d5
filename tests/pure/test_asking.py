"""Questions by SQL: what is refused, what is bounded, and what stays hidden. On real tables and processes, without Spark."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from weir.asking import PAGE, Limits
from weir.asking_process import AskingProcesses
from weir.layout import Lake
from weir.loader import load_pipeline
from weir.open_tables import OpenTables
from weir.pipeline import Pipeline
from weir.records.night import Settlement
from weir.refusal import Refusal
from weir.serving import answer_query, last_cells, settled_cells
from weir.view_reading import first_question, view_overviews

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns: {order_id: string, country: string, email: {type: string, private: true}, ordered_at: timestamp}
tables:
  customers:
    topic: tiny.customers
    key: customer_id
    changed_at: at
    columns: {customer_id: string, phone: {type: string, private: true}, at: timestamp}
views:
  counted: {grain: [minute, country]}
"""
SQL = (
    "SELECT window(ordered_at, '1 minute').start AS minute, country, max(email) AS email, count(*) AS orders FROM orders "
    "GROUP BY window(ordered_at, '1 minute'), country"
)
SECRET = "ann@example.org"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    folder = tmp_path / "pipelines" / "tiny"
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(YAML)
    (folder / "counted.sql").write_text(SQL)
    return load_pipeline(folder)


@pytest.fixture
def lake(tmp_path: Path, pipeline: Pipeline) -> Lake:
    """Nine settled days, and one that is streamed: its cells were told twice."""
    lake, fingerprint = Lake.at(str(tmp_path / "lake")), pipeline.fingerprint("counted")
    for day in range(9):
        write_deltalake(
            lake.batch("tiny", "counted", fingerprint), cells(day, 2, _status=["proved", "repaired"]), mode="append", partition_by=["_day"]
        )
    for batch in range(2):
        told = cells(9, 1 + batch, _generation=pa.array([1, 1], pa.int64()), _batch=pa.array([batch] * 2, pa.int64()))
        write_deltalake(lake.speed("tiny", "counted", fingerprint), told, mode="append", partition_by=["_day"])
    settled = Settlement(view="counted", fingerprint=fingerprint, since=NOON.date(), until=NOON.date() + timedelta(days=9))
    settled.write(lake.settlement("tiny", "counted", fingerprint))
    kept = {
        "customer_id": ["1"],
        "phone": ["555"],
        "at": pa.array([NOON], pa.timestamp("us", "UTC")),
        "topic": ["t"],
        "partition": [0],
        "offset": [0],
        "received_at": pa.array([NOON], pa.timestamp("us", "UTC")),
        "_deleted": [False],
    }
    write_deltalake(lake.history("tiny", "customers", pipeline.table_fingerprint("customers")), pa.table(kept))
    return lake


def cells(day: int, orders: int, **own: object) -> pa.Table:
    at = NOON + timedelta(days=day)
    told = {
        "minute": pa.array([at, at], pa.timestamp("us", "UTC")),
        "country": ["DE", "FR"],
        "email": [SECRET, None],
        "orders": pa.array([orders, orders], pa.int64()),
        "_day": pa.array([at.date()] * 2),
    }
    return pa.table(told | own)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' cannot be asked"),
        ("SELECT * FROM glob('/*')", "'glob' cannot be asked"),
        ("SELECT * FROM '/etc/passwd'", "there is no view, table or served query '/etc/passwd'"),
        ("SELECT * FROM query('SELECT 1')", "'query' cannot be asked"),
        ("SELECT * FROM duckdb_settings()", "'duckdb_settings' cannot be asked"),
        ("SELECT * FROM information_schema.tables", "there is no view"),
        ("FROM counted, read_text('/etc/passwd')", "'read_text' cannot be asked"),
        ("SELECT (SELECT max(content) FROM read_text('/etc/passwd'))", "'read_text' cannot be asked"),
        ("COPY counted TO '/tmp/out.csv'", "only one SELECT"),
        ("ATTACH '/tmp/x.db'", "only one SELECT"),
        ("INSTALL httpfs", "only one SELECT"),
        ("LOAD httpfs", "only one SELECT"),
        ("PRAGMA database_list", "only one SELECT"),
        ("SET threads = 64", "only one SELECT"),
        ("CALL range(3)", "only one SELECT"),
        ("CREATE TABLE x AS SELECT 1", "only one SELECT"),
        ("EXPLAIN ANALYZE SELECT 1", "only one SELECT"),
        ("WITH x AS (DELETE FROM counted RETURNING *) FROM x", "only a SELECT|Parser Error"),
        ("SELECT 1; SELECT 2", "these are 2 statements"),
        ("SELECT 1; DROP TABLE counted", "only one SELECT"),
        ("", "nothing is asked"),
        ("-- nothing", "nothing is asked"),
        ("SHOW TABLES", "there is nothing to show but"),
        ("SELECT getenv('HOME')", "getenv does not exist"),
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM counted", "nothing"),
        ("FROM countd", "did you mean 'counted'"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "depth|deep"),
        ("SELECT '" + "x" * 30_000 + "'", "20,000 characters at most"),
        ("SELECT '\ud800'", "cannot be read"),
    ],
)
def test_only_one_select_over_declared_names_is_answered(lake: Lake, pipeline: Pipeline, sql: str, said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        answer_query(lake, [pipeline], sql, PAGE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sql", ["WITH x AS (FROM counted) FROM x", "DESCRIBE counted", "VALUES (1)", "FROM range(3)", "FROM Counted"])
def test_what_only_reads_is_answered(lake: Lake, pipeline: Pipeline, sql: str) -> None:
    assert answer_query(lake, [pipeline], sql, PAGE).rows


def test_what_is_private_cannot_be_had_by_any_name(lake: Lake, pipeline: Pipeline) -> None:
    for form in ("counted", "counted__speed", "counted__batch"):
        shown = answer_query(lake, [pipeline], f"SELECT DISTINCT country, email FROM {form} ORDER BY ALL").rows
        assert shown == [("DE", "•••"), ("FR", None)], form
        assert not answer_query(lake, [pipeline], f"FROM {form} WHERE email = '{SECRET}'").rows
    for sql in (
        "FROM counted, _counted_batch",
        "FROM customers, _customers_kept",
        "FROM (WITH _customers_kept AS (FROM customers) FROM customers), _customers_kept",
    ):
        with pytest.raises(Refusal, match="there is no view, table or served query '_"):
            answer_query(lake, [pipeline], sql, PAGE)
    found = last_cells(lake, pipeline, "counted", 7, 50)
    assert found and SECRET not in str(found)


def test_rows_beyond_the_limit_are_cut_and_said(lake: Lake, pipeline: Pipeline) -> None:
    answer = answer_query(lake, [pipeline], "FROM range(1000000000000)", replace(PAGE, rows=10))
    assert len(answer.rows) == 10 and answer.is_cut
    assert not answer_query(lake, [pipeline], "FROM range(10)", replace(PAGE, rows=10)).is_cut


def test_the_last_cells_are_those_that_are_served(lake: Lake, pipeline: Pipeline) -> None:
    found = last_cells(lake, pipeline, "counted", days=3, rows=3)
    assert found and found.since == date(2026, 3, 8)
    assert found.statuses == {"proved": 2, "repaired": 2, "provisional": 2}
    assert [row[3] for row in found.cells.rows] == [2, 2, 2] and [row[4] for row in found.cells.rows][:2] == ["provisional"] * 2
    assert settled_cells(lake, pipeline, "counted") == 18
    assert [own.settled_until for own in view_overviews(lake, pipeline)] == [date(2026, 3, 10)]
    answer = answer_query(lake, [pipeline], first_question(lake, pipeline, "counted"), PAGE)
    assert len(answer.rows) == 4, "the last two days"


def test_an_open_table_follows_what_is_written_and_what_is_replaced(lake: Lake, pipeline: Pipeline) -> None:
    path, tables = lake.batch("tiny", "counted", pipeline.fingerprint("counted")), OpenTables(most=1)
    first = tables.now(path, "minute")
    assert first and len(first.days()) == 9 and tables.now(path, "minute") is first
    write_deltalake(path, cells(20, 1, _status=["proved", "proved"]), mode="append")
    second = tables.now(path, "minute")
    assert second and second.days()[-1] == date(2026, 3, 21) and second.rows_of(date(2026, 3, 21)) == 2
    assert second.since(date(2026, 3, 21)).count_rows() == 2
    assert tables.now(lake.speed("tiny", "counted", pipeline.fingerprint("counted")), "minute")
    Path(path).rename(f"{path}.old")
    assert tables.now(path, "minute") is None
    write_deltalake(path, cells(30, 1, _status=["proved", "proved"]), partition_by=["_day"])
    third = tables.now(path, "minute")
    assert third and third.days() == [date(2026, 3, 31)]


@pytest.fixture(scope="module")
def processes() -> Iterator[AskingProcesses]:
    processes = AskingProcesses(most=1)
    yield processes
    processes.end()


BRIEF = Limits(rows=1_000, seconds=2, memory_mb=128, threads=1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000) a, range(1000000) b",
        "WITH RECURSIVE t AS (SELECT 1 a UNION ALL SELECT a + 1 FROM t) SELECT max(a) FROM t",
        "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))",
        "SELECT repeat('x', 1000000000)",
        "SELECT lpad('x', 2000000000, 'ab')",
        "SELECT list_reduce(range(100000000), lambda x, y: x + y)",
        "SELECT repeat('x', 5000000) FROM range(1000)",
    ],
)
def test_a_question_without_end_is_ended_and_the_next_is_answered(
    lake: Lake, pipeline: Pipeline, tmp_path: Path, processes: AskingProcesses, sql: str
) -> None:
    folder = tmp_path / "pipelines" / "tiny"
    processes.ask(lake.root, folder, "SELECT 1", PAGE)
    began = time.monotonic()
    with pytest.raises(Refusal, match=r"took longer than 2 s|took more than 128 MB|Out of Memory") as refused:
        processes.ask(lake.root, folder, sql, BRIEF)
    assert "\n" not in str(refused.value) and time.monotonic() - began < 30
    assert len(processes.ask(lake.root, folder, "FROM counted", PAGE).rows) == 20


def test_a_process_gives_plain_values_and_lines(lake: Lake, tmp_path: Path, pipeline: Pipeline, processes: AskingProcesses) -> None:
    folder = tmp_path / "pipelines" / "tiny"
    sql = "SELECT TIMESTAMPTZ '2026-03-01 12:00+00' AS at, 1.50 AS price, 2 AS n, '<b>' AS text, NULL AS none, [1, 2] AS many, 'nan'::REAL"
    answer = processes.ask(lake.root, folder, sql, PAGE)
    assert answer.rows == [["2026-03-01 12:00:00", "1.50", 2, "<b>", None, "[1, 2]", "nan"]]
    assert [column.kind for column in answer.columns] == ["time", "number", "number", "text", "text", "text", "number"]
    with pytest.raises(Refusal, match="syntax error"):
        processes.ask(lake.root, folder, "SELEC", PAGE)

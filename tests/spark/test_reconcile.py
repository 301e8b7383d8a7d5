"""Three forms of a day lined up: when two numbers are equal, and what is said of a cell that no fate explains."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.night.snapshot import ViewSnapshot
from spark_jobs.reconcile import Sides, line_up, with_causes
from weir.pipeline import View
from weir.records.night import ViewVersion

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SUMS = View(grain=["minute", "country"], sql="SELECT window(at, '1 minute').start AS minute, country, sum(x) AS total FROM s GROUP BY 1, 2")
CELLS = "minute timestamp, country string, total double, _batch bigint"
SUSPECTS = "country string, _cause string, _identity string, _at timestamp"


def cells(spark: SparkSession, total: float | None, batch: int = 3) -> DataFrame:
    return spark.createDataFrame([] if total is None else [(NOON, "DE", total, batch)], CELLS)


def told(spark: SparkSession, speed: float | None, batch: float | None, counted: float | None, view: View = SUMS) -> str:
    sides = Sides(cells(spark, speed), cells(spark, batch), cells(spark, counted), int(NOON.timestamp()) * 1_000_000)
    (row,) = line_up(view, sides).collect()
    return str(row["_state"])


@pytest.mark.parametrize(
    ("speed", "batch", "counted", "state"),
    [
        (0.3, 0.1 + 0.2, 0.3, "equal"),  # a sum in another order
        (0.3, 0.300001, 0.3, "explained"),
        (0.3, 0.300001, 0.5, "unexplained"),
        (None, 1.0, None, "explained"),
        (None, 1.0, 1.0, "unexplained"),  # an update-mode view tells at once
        (1.0, None, None, "unexplained"),
        (float("nan"), float("nan"), 1.0, "equal"),
    ],
)
def test_when_two_cells_are_equal(spark: SparkSession, speed: float | None, batch: float | None, counted: float | None, state: str) -> None:
    assert told(spark, speed, batch, counted) == state


def test_the_declared_tolerance_holds(spark: SparkSession) -> None:
    assert told(spark, 100.0, 100.5, 1.0, SUMS.model_copy(update={"tolerance": 0.01})) == "equal"
    assert told(spark, 0.3, 0.1 + 0.2, 1.0, SUMS.model_copy(update={"tolerance": 0.0})) == "unexplained"


def test_a_view_that_tells_closed_cells_has_time(spark: SparkSession) -> None:
    sql = "SELECT session_window(at, '5 minutes').start AS minute, country, sum(x) AS total FROM s GROUP BY 1, 2"
    assert told(spark, None, 1.0, 1.0, View(grain=SUMS.grain, sql=sql, reach=timedelta(hours=1))) == "pending"


@pytest.mark.parametrize(
    ("is_early", "expected"),
    [
        (False, "unexplained"),  # what lies near does not explain what the counted events do not
        (True, "cut"),  # the stream has read beyond raw
    ],
)
def test_what_is_said_of_a_cell_that_no_fate_explains(spark: SparkSession, is_early: bool, expected: str) -> None:
    sides = Sides(cells(spark, 1.0), cells(spark, 2.0), cells(spark, 3.0), 0)
    near = spark.createDataFrame([("DE", "late", "o-1", NOON + timedelta(seconds=5))], SUSPECTS)
    (row,) = with_causes(SUMS, line_up(SUMS, sides), [near], {"late"}, is_early, "unexplained").collect()
    assert [own["cause"] for own in row["_causes"]] == [expected]


def test_an_explained_cell_names_the_events_near_it(spark: SparkSession) -> None:
    sides = Sides(cells(spark, 1.0), cells(spark, 2.0), cells(spark, 1.0), 0)
    rows = [
        ("DE", "late", "o-1", NOON),
        ("DE", "late", "o-2", NOON + timedelta(seconds=59)),
        ("DE", "late", "o-3", NOON + timedelta(minutes=1)),
    ]
    near = spark.createDataFrame([*rows, ("FR", "late", "o-4", NOON)], SUSPECTS)
    (row,) = with_causes(SUMS, line_up(SUMS, sides), [near], {"late"}, False, "unexplained").collect()
    assert [(own["cause"], own["events"], own["identities"]) for own in row["_causes"]] == [("late", 2, ["o-1", "o-2"])]


@pytest.mark.parametrize(
    ("type_then", "told", "state"),
    [
        ("bigint", 2, "equal"),
        ("decimal(12,2)", Decimal("2.00"), "equal"),
        ("string", "2", "equal"),
        ("string", "two", "unexplained"),  # what cannot be read as a number is no number
        ("array<string>", ["2"], "unexplained"),
    ],
)
def test_what_was_told_in_another_type_is_compared_in_the_present_one(spark: SparkSession, type_then: str, told: Any, state: str) -> None:
    then = spark.createDataFrame([(NOON, "DE", told, 3)], f"minute timestamp, country string, total {type_then}, _batch bigint")
    now = cells(spark, 2.0)
    (row,) = line_up(SUMS, Sides(ViewSnapshot(then, ViewVersion(contracts={}, is_aggregate=True), {}).cells(now), now, now, 0)).collect()
    assert row["_state"] == state

"""One declaration, the same numbers: as a batch, as a stream however it is cut, and in the oracle's plain Python."""

import itertools
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import oracle
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from oracle import Cells, Message
from pyspark.sql import SparkSession

from spark_jobs.cases_job import as_batch, as_stream, cut
from weir.generator import Shares, load_produce
from weir.pipeline import Pipeline
from weir.produce import plan_events

DAY = date(2026, 3, 1)
NO_LATE_ONES = Shares(dirty=0.05, late=0, duplicate=0.05, out_of_order=0.2, skewed=0.05, future=0.01)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def messages(shop: Pipeline) -> dict[str, list[Message]]:
    """Per stream some hundred messages of a day in the order of their arrival, with every fault but late ones."""
    declaration = load_produce(ROOT / "pipelines" / "shop", shop)
    now = datetime(2026, 3, 3, tzinfo=UTC)
    offsets: dict[str, Iterator[int]] = {name: itertools.count() for name in shop.sources}
    found: dict[str, list[Message]] = {name: [] for name in shop.sources}
    for event in plan_events(shop, declaration, DAY, 3_000, 11, NO_LATE_ONES, None, None, now):
        found[event.stream].append(Message(event.topic, 0, next(offsets[event.stream]), event.arrives_at, event.value))
    return found


def as_cells(rows: list[Any], grain: list[str]) -> Cells:
    cells = {}
    for row in rows:
        values = {k: v.replace(tzinfo=None).astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.asDict().items()}
        key = tuple(values.pop(column) for column in grain)
        cells[key] = tuple(values.values())
    return cells


def truth(view: str, messages: dict[str, list[Message]]) -> Cells:
    return oracle.truth(view, messages.__getitem__)


@pytest.mark.parametrize("view", oracle.VIEWS)
def test_batch_equals_the_oracle(spark: SparkSession, shop: Pipeline, messages: dict[str, list[Message]], view: str) -> None:
    expected = truth(view, messages)
    assert len(expected) > 30
    assert as_cells(as_batch(spark, shop, view, messages).collect(), shop.views[view].grain) == expected


@pytest.mark.parametrize(
    "view", ["visits", "paid_orders", *(pytest.param(own, marks=pytest.mark.soak) for own in ("revenue_per_minute", "clicked_searches"))]
)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(chance=st.integers(0, 10**6), crash=st.integers(-1, 2))
def test_random_cuts_and_a_crash_change_nothing(
    spark: SparkSession, shop: Pipeline, messages: dict[str, list[Message]], tmp_path: Path, view: str, chance: int, crash: int
) -> None:
    pieces = {name: cut(messages[name], Random(chance)) for name in shop.streams_of(view)}
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    streamed = as_stream(spark, shop, view, pieces, tmp_path / "run", min(crash, max(map(len, pieces.values())) - 1))
    assert as_cells(streamed, shop.views[view].grain) == truth(view, messages)

"""Test cases of pipelines on Spark: a case that is right passes in every form, one that is wrong shows both sides."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.cases_job import run_case
from weir.cases import Case, load_cases
from weir.pipeline import Pipeline
from weir.refusal import Refusal

SHOP = Path(__file__).resolve().parents[2] / "pipelines" / "shop"


@pytest.fixture
def case(shop: Pipeline) -> Case:
    return next(own for own in load_cases(SHOP, shop) if own.name == "a repeated or bad order does not count")


def test_a_case_passes_as_batch_as_stream_and_with_a_crash(spark: SparkSession, shop: Pipeline, case: Case, tmp_path: Path) -> None:
    results = run_case(spark, shop, case, tmp_path / "room")
    assert [(own.of, own.form) for own in results] == [
        ("orders", "rejected"),
        ("revenue_per_minute", "batch"),
        ("revenue_per_minute", "stream"),
        ("revenue_per_minute", "stream with a crash"),
    ]
    assert all(own.passed for own in results), results


def test_a_wrong_case_shows_what_was_expected_beside_what_was_found(
    spark: SparkSession, shop: Pipeline, case: Case, tmp_path: Path
) -> None:
    wrong = replace(
        case,
        expect={"revenue_per_minute": [{"country": "DE", "orders": 2}]},
        rejected={"orders": {"o-2": ["amount:be_between"]}},
        late="o-1",
    )
    rejected, batch = run_case(spark, shop, wrong, tmp_path / "room")
    assert (batch.missing, batch.unexpected) == ([{"country": "DE", "orders": "2"}], [{"country": "DE", "orders": "1"}])
    assert rejected.missing == [{"identity": "o-2", "rules": "amount:be_between"}]
    assert [own["identity"] for own in rejected.unexpected] == ["?", "o-2"]
    misspelt = replace(case, expect={"revenue_per_minute": [{"orders": 1, "revenu": 1}]}, rejected={})
    with pytest.raises(Refusal, match=r"'revenu' is no column of revenue_per_minute \(minute, country, orders, revenue\)"):
        run_case(spark, shop, misspelt, tmp_path / "room")

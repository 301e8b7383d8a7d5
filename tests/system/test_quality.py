"""Quality as a user meets it: break a rule, refine, look, mend, replay; and what really dies leaves nothing half done."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from events import NOON, message, order
from harness import fill_archive
from intake_runs import open_intake, take_in
from pyspark.sql import SparkSession

from weir.layout import Home
from weir.loader import load_named

ROOT = Path(__file__).resolve().parent.parent.parent


class Desk:
    """A user's home with an archive, and the `weir` command."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.home = Home(folder / "home")
        shutil.copytree(ROOT / "pipelines", folder / "pipelines")
        self.offset = 0

    def archive(self, *documents: Any) -> None:
        """As the stream would: archived, and judged by the declaration as it is now."""
        messages = [message(document, self.offset + n, NOON) for n, document in enumerate(documents)]
        fill_archive(self.spark, self.home.lake, "orders", messages)
        intake = open_intake(self.spark, self.home.lake, load_named(self.folder / "pipelines", "shop"))
        take_in(self.spark, intake, {"orders": messages})
        self.offset += len(documents)

    def change(self, old: str, new: str) -> None:
        file = self.folder / "pipelines" / "shop" / "pipeline.yaml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def weir(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        places = {"WEIR_HOME": str(self.home.root), "WEIR_PIPELINES": str(self.folder / "pipelines")}
        command = [sys.executable, "-m", "weir.cli", *arguments]
        return subprocess.run(command, cwd=ROOT, env=os.environ | places | environment, capture_output=True, text=True, timeout=400)

    def places(self) -> tuple[Counter[int], Counter[int]]:
        """The offsets that are accepted, and those in quarantine."""
        return self._offsets(self.home.lake.accepted("shop", "orders"), "_offset"), self._offsets(
            self.home.lake.quarantined("shop"), "offset"
        )

    @staticmethod
    def _offsets(path: str, column: str) -> Counter[int]:
        return Counter(DeltaTable(path).to_pyarrow_table()[column].to_pylist()) if Path(path, "_delta_log").is_dir() else Counter()


@pytest.fixture
def desk(spark: SparkSession, tmp_path: Path) -> Desk:
    return Desk(spark, tmp_path)


@pytest.mark.soak  # four minutes; tests/spark/test_refine.py has each step of it
def test_break_a_rule_refine_look_mend_replay(desk: Desk) -> None:
    script = "<script>alert(1)</script>"
    desk.change("value_set: [EUR, USD, GBP]", "value_set: [USD]")  # somebody forgot a currency
    desk.archive(*(order(f"e-{n}", currency="EUR") for n in range(4)), order("u-1", currency="USD"), order(script, currency=script))

    died = desk.weir("refine", "shop", "--streams", "orders", WEIR_FAULT="before_cursor.orders:0:kill9")
    assert died.returncode == 1 and len(died.stderr.strip().splitlines()) == 1, died.stderr
    assert desk.places() == (Counter([4]), Counter([0, 1, 2, 3, 5])), "killed before the cursor was moved"
    refined = desk.weir("refine", "shop", "--streams", "orders")
    assert refined.returncode == 0, refined.stderr
    assert desk.places() == (Counter([4]), Counter([0, 1, 2, 3, 5]))

    listed = json.loads(desk.weir("quarantine", "list", "shop", "--json").stdout)
    assert [(group["reason"], group["rows"]) for group in listed] == [("currency:be_in_set", 5)]
    shown = desk.weir("quarantine", "show", "shop", "--stream", "orders")
    assert "currency:be_in_set" in shown.stdout and script in shown.stdout and shown.returncode == 0
    pages = [file.read_text() for file in desk.home.lake.quality_site("shop").rglob("*.html")]
    assert len(pages) >= 2 and any("currency:be_in_set" in page for page in pages)
    assert not any("<script" in page for page in pages), "what comes out of messages is text"

    desk.change("value_set: [USD]", "value_set: [EUR, USD, GBP]")
    preview = desk.weir("quarantine", "replay", "shop", "--stream", "orders")
    assert "A replay would" in preview.stdout and "Nothing was changed" in preview.stdout and "revenue_per_minute" in preview.stdout
    assert desk.places()[0] == Counter([4])
    applied = desk.weir("quarantine", "replay", "shop", "--stream", "orders", "--yes")
    assert "Replayed" in applied.stdout, applied.stderr
    assert desk.places() == (Counter([0, 1, 2, 3, 4]), Counter([0, 1, 2, 3, 5]))
    left = json.loads(desk.weir("quarantine", "list", "shop", "--json").stdout)
    assert [(group["reason"], group["rows"]) for group in left] == [("currency:be_in_set", 1)]
    assert "2026-03-01 waits for" in desk.weir("status").stdout


@pytest.mark.soak
def test_a_driver_that_runs_out_of_memory_publishes_nothing(desk: Desk) -> None:
    desk.archive(*(order(f"m-{n}") for n in range(10)))
    condition = "length(repeat(order_id, 700000000)) > 0"
    rule = "      - expect_column_values_to_match_regex: {column: country"
    desk.change(rule, f'      - expect_column_mean_to_be_between: {{column: amount, min_value: 0, row_condition: "{condition}"}}\n{rule}')
    broken = desk.weir("refine", "shop", "--streams", "orders", WEIR_DRIVER_MEMORY="1g")
    assert broken.returncode == 1 and "orders is blocked" in broken.stderr and "Spark died" in broken.stderr, broken.stderr
    assert desk.places() == (Counter(), Counter())
    desk.change(f', row_condition: "{condition}"', "")
    assert desk.weir("refine", "shop", "--streams", "orders").returncode == 0
    assert desk.places() == (Counter(range(10)), Counter())


def test_a_misspelt_expectation_is_refused_by_name_and_line(desk: Desk) -> None:
    desk.change("expect_column_values_to_be_in_set: {column: currency", "expect_column_values_to_be_in_sett: {column: currency")
    refused = desk.weir("refine", "shop")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "expect_column_values_to_be_in_sett" in refused.stderr and "did you mean 'expect_column_values_to_be_in_set'" in refused.stderr
    assert "pipeline.yaml:" in refused.stderr
    assert not Path(desk.home.lake.root, "_stage").exists()

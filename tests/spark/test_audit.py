"""The audit: what the journal made of each message beside what it is, and which events make a cell differ."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from events import NOON, message, order
from harness import fill_archive
from intake_runs import open_intake, take_in
from oracle import Message
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.intake.intake import Intake
from spark_jobs.night import audit
from spark_jobs.night.snapshot import ViewSnapshot
from spark_jobs.tables import read
from spark_jobs.transform import judged_rows
from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.records.driver import Loss
from weir.records.night import ViewVersion

LATENESS = timedelta(minutes=10)


class Day:
    """Orders that are archived, and taken in batch by batch."""

    def __init__(self, spark: SparkSession, folder: Path, pipeline: Pipeline) -> None:
        self.spark, self.pipeline, self.lake = spark, pipeline, Lake.at(str(folder / "lake"))
        self.intake: Intake = open_intake(spark, self.lake, pipeline)
        self._sent = 0

    def batch(self, *orders: tuple[str, datetime, str], archived: bool = True, journaled: bool = True) -> None:
        """(identity, when, amount) each."""
        rows: list[Message] = []
        for identity, at, amount in orders:
            received_at = NOON + timedelta(hours=2, milliseconds=self._sent)
            rows.append(message(order(identity, at, amount=amount), self._sent, received_at))
            self._sent += 1
        if archived:
            fill_archive(self.spark, self.lake, "orders", rows)
        if journaled:
            take_in(self.spark, self.intake, {"orders": rows})

    def audited(self) -> DataFrame:
        contract = self.pipeline.streams["orders"]
        judged = judged_rows(read(self.spark, self.lake.raw("shop")), contract).drop("_payload")
        journal = self.intake.journal
        return audit.audited_rows(judged, journal, "orders", journal.contracts["orders"], NOON.date())

    def fates(self, snapshot: ViewSnapshot, lost: list[Loss] | None = None) -> list[tuple[str, str, bool]]:
        """(identity, fate, whether it is the event that counts), by offset."""
        rows = self.audited().withColumn("_fate", audit.fate_in(snapshot, "orders", audit.never_read(lost or [], self.intake.until)))
        return [(r["order_id"], r["_fate"], r[audit.FIRST]) for r in rows.orderBy("offset").collect()]

    def causes(self, snapshot: ViewSnapshot) -> Counter[tuple[str, str]]:
        is_lost = audit.never_read([], self.intake.until)
        found = audit.suspects(self.audited(), self.pipeline.streams["orders"], audit.fate_in(snapshot, "orders", is_lost))
        return Counter((r["_identity"], r["_cause"]) for r in found.collect())


def snapshot(is_aggregate: bool = True, read_until: int = 99) -> ViewSnapshot:
    return ViewSnapshot(None, ViewVersion(contracts={}, is_aggregate=is_aggregate), {"orders": read_until})


@pytest.fixture
def day(spark: SparkSession, tmp_path: Path, shop: Pipeline) -> Day:
    return Day(spark, tmp_path, shop)


def test_a_view_with_a_query_of_its_own_leaves_late_events_to_the_night_and_an_aggregate_counts_them(day: Day) -> None:
    millisecond = timedelta(milliseconds=1)
    day.batch(("o-1", NOON, "10.00"), ("o-1", NOON, "10.00"))
    day.batch(("o-late", NOON - LATENESS, "10.00"), ("o-in-time", NOON - LATENESS + millisecond, "10.00"))
    expected = [("o-1", "counted", True), ("o-1", "duplicate", False), ("o-late", "late", True), ("o-in-time", "counted", True)]
    assert day.fates(snapshot(is_aggregate=False)) == expected
    assert [fate for _, fate, _ in day.fates(snapshot())] == ["counted", "duplicate", "counted", "counted"]
    assert day.causes(snapshot(is_aggregate=False)) == {("o-late", "late"): 1}
    assert not day.causes(snapshot())


def test_what_a_view_has_not_read_is_pending_and_what_the_intake_passed_over_is_lost(day: Day) -> None:
    day.batch(("o-1", NOON, "10.00"))
    day.batch(("o-skipped", NOON, "10.00"), journaled=False)
    day.batch(("o-2", NOON, "10.00"), ("o-bad", NOON, "abc"))
    day.batch(("o-new", NOON, "10.00"), journaled=False)
    fates = [fate for _, fate, _ in day.fates(snapshot(read_until=0))]
    assert fates == ["counted", "lost", "pending", "rejected", "pending"], "what is rejected is so in every view"
    loss = Loss(query="intake", topic="shop.orders", partition=0, from_offset=4, until_offset=5, noticed_at=NOON)
    assert [fate for _, fate, _ in day.fates(snapshot(), [loss])] == ["counted", "lost", "counted", "rejected", "lost"]
    assert day.causes(snapshot(read_until=-1))["o-1", "pending"] == 1


def test_of_equal_copies_the_one_that_was_counted_counts_and_other_content_is_a_difference(day: Day) -> None:
    # The archive has copies before those that the journal has accepted: another partition was read first.
    day.batch(("o-same", NOON, "10.00"), ("o-other", NOON, "10.00"), journaled=False)
    day.batch(("o-same", NOON, "10.00"), ("o-other", NOON, "11.00"))
    assert day.fates(snapshot()) == [
        ("o-same", "lost", False),
        ("o-other", "lost", True),
        ("o-same", "counted", True),
        ("o-other", "counted", False),
    ]
    assert day.causes(snapshot()) == {("o-other", "lost"): 1, ("o-other", "duplicate"): 1}


def test_groups_count_each_message_once_for_books_and_report(day: Day) -> None:
    day.batch(("o-1", NOON, "10.00"), ("o-1", NOON, "10.00"), ("o-bad", NOON, "abc"))
    day.batch(("o-2", NOON + timedelta(minutes=1), "10.00"), ("o-late", NOON - timedelta(minutes=30), "10.00"))
    day.batch(("o-3", NOON, "10.00"))
    stream, view = day.pipeline.streams["orders"], snapshot(is_aggregate=False, read_until=1)
    is_lost = audit.never_read([], day.intake.until)
    groups = audit.count_groups({"orders": (day.audited(), stream)}, NOON.date(), [1, -1], is_lost)
    assert sum(group.row["messages"] for group in groups) == 6
    expected: dict[str, Any] = {"shop.orders/0": {"counted": 2, "duplicate": 1, "rejected": 1, "late": 1, "pending": 1}}
    assert audit.fates_of(groups, "orders", NOON.date(), view) == expected
    assert audit.causes_of(groups, ["orders"], view) == {"late", "pending"}
    assert audit.causes_of(groups, ["orders"], snapshot()) == set()
    choices = {own.seconds: own.late for own in audit.lateness_choices(groups, "orders", stream)}
    assert choices[600] == 1 and choices[1_800] == 1 and choices[3_600] == 0

"""The micro-batch: what is published is validated, complete, and published once, whatever dies; rejected rows can come back."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from deltalake import DeltaTable
from events import NOON, message, order
from harness import run_act
from intake_runs import take_in
from oracle import Message
from pyspark.sql import SparkSession

from spark_jobs import quarantine_job, refine_job
from spark_jobs.entry import Call
from spark_jobs.intake.intake import Intake
from weir.layout import Lake
from weir.loader import load_pipeline
from weir.quarantine import QuarantineFilter
from weir.records.jobs import Outcome
from weir.records.quality import GateReport, RefineCursor, ReplayReport
from weir.refusal import Refusal
from weir.serving import quarantine_groups, quarantine_rows

ROOT = Path(__file__).resolve().parent.parent.parent


class Lakeside:
    """A lake whose journal the test fills, and the micro-batch run in this process."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.monkeypatch = spark, monkeypatch
        self.lake = Lake.at(str(folder / "lake"))
        self.declaration = folder / "shop"
        shutil.copytree(ROOT / "pipelines" / "shop", self.declaration)
        self.messages: list[Message] = []
        self.intake: Intake | None = None

    def change(self, old: str, new: str) -> None:
        """Change the declaration, as its author would. The stream is stopped until the next start or message."""
        file = self.declaration / "pipeline.yaml"
        text = file.read_text()
        assert old in text, f"{old!r} is not in the declaration"
        file.write_text(text.replace(old, new))
        self.intake = None

    def start_stream(self) -> Intake:
        """Start the intake by the declaration as it is now. By a contract that is new it reads everything from the beginning."""
        self.intake = Intake(self.spark, self.lake, load_pipeline(self.declaration), [])
        self.intake.prepare()
        self._take_in(self.intake, self.messages)
        return self.intake

    def _take_in(self, intake: Intake, messages: list[Message]) -> None:
        by_source: dict[str, list[Message]] = {}
        for m in messages:
            by_source.setdefault(m.topic.split(".")[1], []).append(m)
        if by_source:
            take_in(self.spark, intake, by_source)

    def send(self, *documents: Any, topic: str = "shop.orders", received_at: datetime = NOON) -> None:
        """Send messages, half of them to each partition, and let the intake read them."""
        intake, first = self.intake or self.start_stream(), len(self.messages)
        new = [message(document, n, received_at, topic, n % 2) for n, document in enumerate(documents, first)]
        self.messages += new
        self._take_in(intake, new)

    def refine(self, *options: str, fault: str = "") -> Outcome:
        self.monkeypatch.setenv("WEIR_FAULT", fault)
        try:
            return self._run(refine_job.refine, refine_job.add_options, *options)
        finally:
            self.monkeypatch.delenv("WEIR_FAULT")

    def gate(self, stream: str = "orders", *options: str, fault: str = "") -> GateReport:
        refined = self.refine("--streams", stream, *options, fault=fault).refined
        assert refined is not None
        (report,) = refined.streams
        return report

    def replay(self, *options: str, stream: str = "orders") -> ReplayReport:
        found = self._run(quarantine_job.act, quarantine_job.add_options, "--act", "replay", "--stream", stream, *options).replayed
        assert found is not None
        return found

    def _run(self, act: Callable[[Call], Outcome], add_options: Callable[[Any], None], *options: str) -> Outcome:
        return run_act(act, add_options, load_pipeline(self.declaration), self.lake, "", *options)

    def accepted(self, stream: str = "orders") -> list[dict[str, Any]]:
        return self._table(self.lake.accepted("shop", stream))

    def quarantined(self) -> list[dict[str, Any]]:
        return self._table(self.lake.quarantined("shop"))

    @staticmethod
    def _table(path: str) -> list[dict[str, Any]]:
        return DeltaTable(path).to_pyarrow_table().to_pylist() if Path(path, "_delta_log").is_dir() else []

    def places(self, rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
        return Counter((r.get("_partition", r.get("partition")), r.get("_offset", r.get("offset"))) for r in rows)

    def cursor(self, stream: str = "orders") -> RefineCursor | None:
        return RefineCursor.read(self.lake.refine_control("shop") / f"{stream}.refine.json")


@pytest.fixture
def lakeside(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakeside]:
    yield Lakeside(spark, tmp_path, monkeypatch)


GOOD = [order(f"g-{n}", NOON - timedelta(seconds=n), amount=f"{20 + n}.00") for n in range(8)]
BAD = [order("b-1", amount="-5"), order("b-2", currency="DOGE"), b"not json", None, order("b-3", amount="x", country="DEU")]


def test_every_message_goes_to_one_place_with_its_reasons(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD, *BAD, GOOD[0])
    report = lakeside.gate()
    assert (report.decision, report.rows, report.accepted, report.duplicates, report.rejected, report.undecodable) == (
        "PASS",
        14,
        8,
        1,
        3,
        2,
    )
    assert report.broken == {
        "amount:be_between": 1,
        "amount:not_be_null": 1,
        "country:match_regex": 1,
        "currency:be_in_set": 1,
        "undecodable:not_json": 1,
        "undecodable:tombstone": 1,
    }
    fates = {(m.partition, m.offset): oracle.fate_of("orders", m)[0] for m in lakeside.messages}
    accepted, quarantined = lakeside.places(lakeside.accepted()), lakeside.places(lakeside.quarantined())
    repeated = {(lakeside.messages[-1].partition, lakeside.messages[-1].offset)}
    assert accepted == Counter(place for place, fate in fates.items() if fate == "accepted" and place not in repeated)
    assert quarantined == Counter(place for place, fate in fates.items() if fate != "accepted")
    kept = {(r["partition"], r["offset"]): r["payload"] for r in lakeside.quarantined()}
    assert kept == {(m.partition, m.offset): m.value for m in lakeside.messages if (m.partition, m.offset) in quarantined}
    assert lakeside.refine("--streams", "orders").refined.streams == []  # type: ignore[union-attr]

    lakeside.send(order("g-9", amount="21"), GOOD[1], order("g-2", amount="999"))
    report = lakeside.gate()
    assert (report.batch, report.accepted, report.duplicates, report.broken) == (1, 1, 1, {"identity:not_conflict": 1})
    cursor = lakeside.cursor()
    assert cursor is not None and cursor.days[str(NOON.date())].rows == len(lakeside.messages)
    assert cursor.days[str(NOON.date())].batches == 2


def test_a_blocked_gate_publishes_nothing_and_moves_nothing(lakeside: Lakeside) -> None:
    lakeside.change(
        "      - expect_column_values_to_match_regex: {column: country",
        "      - expect_column_mean_to_be_between: {column: amount, max_value: 5}\n"
        "      - expect_column_values_to_match_regex: {column: country",
    )
    lakeside.send(*GOOD, *BAD)
    outcome = lakeside.refine("--streams", "orders")
    assert outcome.refined is not None and outcome.failure is not None
    assert outcome.refined.streams[0].decision == "BLOCK" and "mean" in outcome.failure
    assert lakeside.accepted() == [] and lakeside.cursor() is None
    assert len(lakeside.quarantined()) == len(BAD), "the gate has no say about what is rejected"
    assert "is blocked" in outcome.failure and "23.5" in outcome.failure
    page = Path(outcome.refined.site).read_text()
    assert "orders" in page and "23.5" in page, "the page tells of the block"
    lakeside.change("max_value: 5}", "max_value: 5, severity: warning}")
    report = lakeside.gate()
    assert report.decision == "WARN" and len(lakeside.accepted()) == len(GOOD) and len(lakeside.quarantined()) == len(BAD)


def test_a_share_of_bad_rows_can_block(lakeside: Lakeside) -> None:
    lakeside.change("value_set: [EUR, USD, GBP]}", "value_set: [EUR, USD, GBP], mostly: 0.9}")
    lakeside.send(*GOOD, *(order(f"d-{n}", currency="DOGE") for n in range(2)))
    report = lakeside.gate()
    assert report.decision == "BLOCK" and report.reasons == ["currency:be_in_set: only 80.0% of 10 rows keep it, 90.0% must"]
    lakeside.send(*(order(f"e-{n}") for n in range(10)))
    assert lakeside.gate().decision == "PASS"


@pytest.mark.parametrize(
    ("fault", "deadline", "word"),
    [("hang", "3", "did not end within 3 s"), ("raise", "60", "fault injected"), ("oom", "60", "MemoryError")],
)
def test_a_validation_that_does_not_come_to_its_end_blocks(lakeside: Lakeside, fault: str, deadline: str, word: str) -> None:
    lakeside.send(*GOOD, *BAD)
    report = lakeside.gate("orders", "--deadline-seconds", deadline, fault=f"validate.orders:0:{fault}")
    assert report.decision == "BLOCK" and word in report.reasons[0]
    assert lakeside.accepted() == [] and lakeside.cursor() is None
    assert lakeside.gate().decision == "PASS" and len(lakeside.accepted()) == len(GOOD)


def test_a_crash_at_any_step_loses_and_doubles_nothing(lakeside: Lakeside) -> None:
    bound = "max_value: {}}}\n      - expect_column_values_to_be_in_set: {{column: currency"
    # Ten crashes after the commit: of two batches, and again and again while the next run finishes it.
    crashes = [("counted", 1), ("before_accepted", 1), ("before_cursor", 1), ("between", 5), ("between", 5)]
    for batch, (phase, times) in enumerate(crashes):
        lakeside.send(*(order(f"c-{batch}-{n}") for n in range(3)))
        lakeside.send(order(f"x-{batch}", amount="-1"), order(f"y-{batch}", amount="99999.5"))
        for _ in range(times):
            with pytest.raises(RuntimeError, match="fault injected"):
                lakeside.refine("--streams", "orders", fault=f"{phase}.orders:{batch}:raise")
        # What was planned by the old rules is published by the old rules, what was not planned by the new ones.
        lakeside.change(bound.format(100000), bound.format(99999))
        if phase != "between":
            lakeside.start_stream()
        refined = lakeside.refine("--streams", "orders").refined
        lakeside.change(bound.format(99999), bound.format(100000))
        assert refined is not None and len(refined.streams) == (1 if phase == "counted" else 0)
        assert (f"y-{batch}" in {row["order_id"] for row in lakeside.accepted()}) == (phase != "counted")
        accepted, quarantined = lakeside.places(lakeside.accepted()), lakeside.places(lakeside.quarantined())
        assert accepted + quarantined == Counter((m.partition, m.offset) for m in lakeside.messages), f"after {phase}"
    cursor = lakeside.cursor()
    assert cursor is not None and sum(day.rows for day in cursor.days.values()) == len(lakeside.messages)


def test_a_run_that_died_after_its_commit_is_finished_with_the_same_rows(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD)
    with pytest.raises(RuntimeError, match="fault injected"):
        lakeside.refine("--streams", "orders", fault="before_cursor.orders:0:raise")
    published = lakeside.places(lakeside.accepted())
    assert sum(published.values()) == len(GOOD) and lakeside.cursor() is None
    lakeside.send(order("n-1"), *BAD)
    report = lakeside.gate()
    assert (report.batch, report.rows, report.accepted) == (1, 1 + len(BAD), 1), "what came after the plan is a batch of its own"
    assert lakeside.places(lakeside.accepted()) == published + lakeside.places([{"partition": 0, "offset": len(GOOD)}])
    cursor = lakeside.cursor()
    assert cursor is not None and cursor.until == {"shop.orders/0": 13, "shop.orders/1": 14}


def test_a_run_takes_so_many_rows_at_most_and_the_next_ones_take_the_rest(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD)
    lakeside.send(*BAD)
    lakeside.send(order("n-1"))
    reports = [lakeside.gate("orders", "--max-rows", "6") for _ in range(4)]
    assert [report.rows for report in reports] == [4, 4, 4, 2], "offsets count, and every second one of a partition is a message"
    assert lakeside.refine("--streams", "orders").refined.streams == []  # type: ignore[union-attr]
    assert len(lakeside.accepted()) == len(GOOD) + 1
    accepted, quarantined = lakeside.places(lakeside.accepted()), lakeside.places(lakeside.quarantined())
    assert accepted + quarantined == Counter((m.partition, m.offset) for m in lakeside.messages)


def test_quarantined_rows_are_listed_before_any_micro_batch_ran(lakeside: Lakeside) -> None:
    with pytest.raises(Refusal, match="nothing of 'shop' is in the journal yet: run `weir stream shop` first"):
        lakeside.refine()
    lakeside.send(*GOOD, *BAD)
    rows = quarantine_rows(lakeside.lake, load_pipeline(lakeside.declaration), QuarantineFilter(stream="orders"), 100)
    assert Counter(row["payload"] for row in rows) == Counter(m.value for m in lakeside.messages[len(GOOD) :])
    assert lakeside.accepted() == []


def test_what_is_published_is_not_published_again_by_a_changed_contract(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD, order("d-1", currency="DOGE"))
    lakeside.gate()
    lakeside.change("value_set: [EUR, USD, GBP]", "value_set: [USD, GBP, DOGE]")
    lakeside.start_stream()
    assert lakeside.refine("--streams", "orders").refined.streams == []  # type: ignore[union-attr]
    lakeside.send(order("d-2", currency="DOGE"), order("e-1", currency="EUR"))
    report = lakeside.gate()
    assert (report.rows, report.accepted, report.broken) == (2, 1, {"currency:be_in_set": 1})
    assert Counter(row["order_id"] for row in lakeside.accepted()) == Counter([*(f"g-{n}" for n in range(8)), "d-2"])
    assert lakeside.places(lakeside.quarantined()) == Counter([(0, 8), (0, 10)])
    lakeside.change("value_set: [USD, GBP, DOGE]", "value_set: [EUR, USD, GBP]")
    lakeside.send(order("e-2"))  # the first contract again: its rows of d-2 and e-1 are journaled behind those of the second
    assert lakeside.gate().rows == 1 and len(lakeside.accepted()) == len(GOOD) + 2


def test_a_changed_contract_judges_what_a_blocked_gate_has_held_back(lakeside: Lakeside) -> None:
    """Each message is accepted or open in quarantine as the present contract judges it, also what a replay has released meanwhile."""
    lakeside.change("value_set: [EUR, USD, GBP]}", "value_set: [EUR, USD, GBP], mostly: 0.9}")
    day_before = NOON - timedelta(days=1)
    lakeside.send(order("d-0", day_before, currency="DOGE"), received_at=day_before)
    lakeside.send(*GOOD, *(order(f"d-{n}", currency="DOGE") for n in (1, 2)), order("u-1", currency="USD"), b"{")
    assert lakeside.gate().decision == "BLOCK" and len(lakeside.quarantined()) == 4
    lakeside.change("value_set: [EUR, USD, GBP], mostly: 0.9}", "value_set: [EUR, GBP, DOGE]}")
    assert lakeside.replay("--apply", "--until", "2026-02-28").released == 1
    lakeside.start_stream()
    lakeside.send(order("d-9", currency="DOGE"))
    with pytest.raises(RuntimeError, match="fault injected"):
        lakeside.refine("--streams", "orders", fault="before_cursor.orders:0:raise")
    assert lakeside.refine("--streams", "orders").refined.streams == []  # type: ignore[union-attr]
    assert Counter(row["order_id"] for row in lakeside.accepted()) == Counter(
        [f"g-{n}" for n in range(8)] + [f"d-{n}" for n in (0, 1, 2, 9)]
    )
    pipeline = load_pipeline(lakeside.declaration)
    still_open = [row["payload"] for row in quarantine_rows(lakeside.lake, pipeline, QuarantineFilter(), 100)]
    assert sorted(still_open) == [b"{", json.dumps(order("u-1", currency="USD")).encode()]


def test_a_contract_that_has_gained_a_column_goes_on(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD)
    with pytest.raises(RuntimeError, match="fault injected"):
        lakeside.refine("--streams", "orders", fault="before_accepted.orders:0:raise")
    lakeside.change("      currency:    {type", "      note:        {type: string, optional: true}\n      currency:    {type")
    lakeside.send(order("n-1", note="leave it at the door"))
    assert lakeside.gate().batch == 1, "what was planned before the change is finished first"
    assert Counter(row["note"] for row in lakeside.accepted()) == {None: len(GOOD), "leave it at the door": 1}


def test_an_identity_may_be_a_number(lakeside: Lakeside) -> None:
    lakeside.change("    identity: order_id             #", "    identity: customer_id          #")
    lakeside.send(order(customer_id=1), order(customer_id=2), order(customer_id=1), order(customer_id=3, amount="-1"))
    report = lakeside.gate()
    assert (report.accepted, report.duplicates, report.rejected) == (2, 1, 1)


def test_a_lost_cursor_and_a_second_run_are_refused(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD)
    lakeside.gate()
    (lakeside.lake.refine_control("shop") / "orders.refine.json").unlink()
    with pytest.raises(Refusal, match=r"its cursor .* is gone"):
        lakeside.refine("--streams", "orders")
    with pytest.raises(Refusal, match="did you mean 'orders'"):
        lakeside.refine("--streams", "order")


def test_a_reference_must_exist_in_its_table(lakeside: Lakeside) -> None:
    lakeside.change(
        "    lateness: 10 minutes           # how", "    references: {customer_id: customers}\n    lateness: 10 minutes           # how"
    )
    customer = {"customer_id": 7, "email": "a@b", "country": "DE", "segment": "new", "updated_at": "2026-03-01T11:00:00Z"}
    lakeside.send(customer, topic="shop.customers")
    lakeside.send(order("r-1", customer_id=7), order("r-2", customer_id=8))
    lakeside.send(order("r-3", customer_id=9), order("r-3", customer_id=7))  # the first is rejected, so the second is no duplicate
    refined = lakeside.refine("--streams", "orders,customers").refined
    assert refined is not None
    assert {report.stream: report.broken for report in refined.streams} == {
        "customers": {},
        "orders": {"customer_id:exist_in_customers": 2},
    }
    # The customer comes later: now the order passes.
    lakeside.send(customer | {"customer_id": 8}, topic="shop.customers")
    lakeside.gate("customers")
    assert lakeside.replay("--apply").released == 1
    assert {row["order_id"] for row in lakeside.accepted()} == {"r-1", "r-2", "r-3"}


def test_a_replay_shows_what_would_change_and_then_changes_it_once(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD, order("d-1", currency="DOGE"), order("d-2", currency="DOGE", amount="-1"), b"{", order("d-1", currency="DOGE"))
    lakeside.gate()
    pipeline = load_pipeline(lakeside.declaration)
    groups = {g.reason: g.rows for g in quarantine_groups(lakeside.lake, pipeline, QuarantineFilter(stream="orders"))}
    assert groups == {"currency:be_in_set": 3, "amount:be_between": 1, "undecodable:not_json": 1}
    assert lakeside.replay().released == 0, "nothing has changed yet"

    lakeside.change("value_set: [EUR, USD, GBP]", "value_set: [EUR, USD, GBP, DOGE]")
    before = (lakeside.accepted(), lakeside.quarantined())
    preview = lakeside.replay()
    assert (preview.applied, preview.rows, preview.released, preview.duplicates) == (False, 4, 1, 1)
    assert preview.remaining == {"amount:be_between": 1, "undecodable:not_json": 1}
    assert preview.days == {"2026-03-01": 1} and preview.views == ["revenue_per_minute", "paid_orders", "revenue_per_segment"]
    assert (lakeside.accepted(), lakeside.quarantined()) == before

    with pytest.raises(RuntimeError, match="fault injected"):
        lakeside.monkeypatch.setenv("WEIR_FAULT", "between.orders:0:raise")
        lakeside.replay("--apply")
    lakeside.monkeypatch.delenv("WEIR_FAULT")
    assert lakeside.replay("--apply").released == 0, "the run that died is finished first"
    assert Counter(row["order_id"] for row in lakeside.accepted())["d-1"] == 1
    assert {row["payload"] for row in quarantine_rows(lakeside.lake, pipeline, QuarantineFilter(), 100)} == {
        b"{",
        json.dumps(order("d-2", currency="DOGE", amount="-1")).encode(),
    }
    assert [file.name for file in lakeside.lake.dirty_days("shop").iterdir()] == ["2026-03-01.json"]


def test_discarded_rows_are_marked_and_kept(lakeside: Lakeside) -> None:
    lakeside.send(*GOOD, *BAD)
    lakeside.gate()
    options = ["--act", "discard", "--stream", "orders", "--rule", "amount:be_between", "--note", "a test order"]
    assert lakeside._run(quarantine_job.act, quarantine_job.add_options, *options).lines == ["1"]
    pipeline = load_pipeline(lakeside.declaration)
    assert "amount:be_between" not in {g.reason for g in quarantine_groups(lakeside.lake, pipeline, QuarantineFilter())}
    assert len(lakeside.quarantined()) == len(BAD)
    (act,) = DeltaTable(lakeside.lake.quarantine_acts("shop")).to_pyarrow_table().to_pylist()
    assert (act["act"], act["note"]) == ("discarded", "a test order")

"""Housekeeping changes where rows lie, never which rows there are, except those that its declaration lets go."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from events import NOON, click, message, order
from harness import Workplace, fill_archive, run_act
from intake_runs import take_in
from oracle import Message
from pyspark.sql import SparkSession

from spark_jobs import housekeeping_job, nightly_job, quarantine_job, refine_job, tables
from spark_jobs.entry import Call
from spark_jobs.intake.intake import Intake
from spark_jobs.transform import MESSAGE
from weir.layout import Lake
from weir.loader import load_pipeline
from weir.quarantine import QuarantineFilter
from weir.records.driver import Control, Loss, Losses
from weir.records.jobs import ExpiredRows, HousekeepingReport, Outcome, RawKept, TableFiles
from weir.records.night import Arrivals, DirtyDay
from weir.records.quality import PublishPlan, RefineCursor
from weir.refusal import Refusal
from weir.serving import quarantine_groups
from weir.supervision import hold_lease

ROOT = Path(__file__).resolve().parent.parent.parent
NOW = NOON + timedelta(days=40)
"""When the housekeeping thinks it is. Delta's own clock is the machine's."""
Rows = Counter[tuple[Any, ...]]


class Household:
    """A lake with two streams, filled by the test, and its housekeeping in this process with a clock of its own."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.monkeypatch, self.offset = spark, monkeypatch, 0
        self.unread: dict[str, list[Message]] = {}
        self.intake: Intake | None = None
        self.lake = Lake.at(str(folder / "lake"))
        self.declaration = folder / "shop"
        shutil.copytree(ROOT / "pipelines" / "shop", self.declaration)
        Workplace._reduce(self.declaration, ("orders", "clicks"))

    def declare(self, line: str) -> None:
        file = self.declaration / "pipeline.yaml"
        file.write_text(f"{line}\n{file.read_text()}")

    def archive(self, received_at: datetime, *documents: Any, topic: str = "shop.orders") -> None:
        """Put messages behind those that are there, in a commit of their own."""
        messages = []
        for document in documents:
            messages.append(message(document, self.offset, received_at, topic))
            self.offset += 1
        stream = topic.split(".")[1]
        fill_archive(self.spark, self.lake, stream, messages)
        self.unread.setdefault(stream, []).extend(messages)

    def orders(self, received_at: datetime, count: int = 2, **columns: Any) -> None:
        self.archive(received_at, *(order(f"o-{self.offset + n}", received_at, **columns) for n in range(count)))

    def refine(self) -> None:
        """Let the intake read what was archived, and run the micro-batch of the orders."""
        if self.intake is None:
            self.intake = Intake(self.spark, self.lake, load_pipeline(self.declaration), [])
            self.intake.prepare()
        take_in(self.spark, self.intake, self.unread)
        self.unread = {}
        assert self._run(refine_job.refine, refine_job.add_options, "--streams", "orders").failure is None

    def keep(self, now: datetime = NOW, fault: str = "") -> HousekeepingReport:
        self.monkeypatch.setattr(housekeeping_job, "utc_now", lambda: now)
        self.monkeypatch.setenv("WEIR_FAULT", fault)
        report = self._run(housekeeping_job.housekeep, housekeeping_job.add_options, "--from-files", "1").housekept
        assert report is not None
        return report

    def _run(self, act: Callable[[Call], Outcome], add_options: Callable[[Any], None], *options: str) -> Outcome:
        return run_act(act, add_options, load_pipeline(self.declaration), self.lake, "", *options)

    def nightly(self, day: str) -> Outcome:
        return self._run(nightly_job.nightly, nightly_job.add_options, "--day", day)

    # Reading back, by another engine than the one that wrote

    def rows(self, path: str, version: int | None = None) -> Rows:
        rows = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
        return Counter(tuple(sorted((name, repr(value)) for name, value in row.items())) for row in rows)

    def raw(self) -> Rows:
        return self.rows(self.lake.raw("shop"))

    def all_rows(self) -> list[Rows]:
        return [self.raw(), self.rows(self.lake.accepted("shop", "orders")), self.rows(self.lake.quarantined("shop"))]

    def versions(self) -> list[int]:
        paths = [self.lake.raw("shop"), self.lake.accepted("shop", "orders"), self.lake.quarantined("shop")]
        return [DeltaTable(path).version() for path in paths]

    def files(self, path: str) -> Counter[str]:
        """Live files by day."""
        return Counter(uri.split("=")[-1].split("/")[0] for uri in DeltaTable(path).file_uris())

    def days(self) -> Counter[tuple[str, str]]:
        rows = DeltaTable(self.lake.raw("shop")).to_pyarrow_table(columns=["stream", "received_on"]).to_pylist()
        return Counter((row["stream"], str(row["received_on"])) for row in rows)

    def open_reasons(self) -> dict[str, int]:
        groups = quarantine_groups(self.lake, load_pipeline(self.declaration), QuarantineFilter())
        return {group.reason: group.rows for group in groups}


@pytest.fixture
def household(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Household]:
    yield Household(spark, tmp_path, monkeypatch)


def age(path: Path, days: float) -> None:
    """Make a file look as if it had been written so many days before NOW."""
    at = (NOW - timedelta(days=days)).timestamp()
    os.utime(path, (at, at))


def on(day: datetime) -> str:
    return str(day.date())


@pytest.mark.soak
def test_crowded_closed_days_become_one_file_and_every_row_stays(household: Household) -> None:
    for amount in ("10.00", "-5"):
        household.orders(NOON, 3, amount=amount)
        household.orders(NOON, 2)
        household.orders(NOW, 2)
        household.refine()
    household.orders(NOON + timedelta(days=1))
    before, raw, accepted = household.all_rows(), household.lake.raw("shop"), household.lake.accepted("shop", "orders")
    assert household.files(raw) == {on(NOON): 4, on(NOW): 2, on(NOON + timedelta(days=1)): 1}
    crowded = household.files(accepted)[on(NOON)]
    report = household.keep()
    assert household.all_rows() == before
    assert household.files(raw) == {on(NOON): 1, on(NOW): 2, on(NOON + timedelta(days=1)): 1}
    assert crowded > 1 and household.files(accepted)[on(NOON)] == 1
    found = {table.table: table for table in report.tables}
    assert found["raw"] == TableFiles(table="raw", files_before=7, files_after=4, compacted=1, files_removed=0, bytes_removed=0)
    assert found["accepted/orders"].compacted == 1

    versions = household.versions()
    again = household.keep()
    assert household.versions() == versions, "a run after a run commits nothing"
    assert [table.compacted for table in again.tables] == [0, 0, 0] and (again.removed, again.expired) == ([], [])


@pytest.mark.soak
def test_a_stream_that_appends_meanwhile_is_not_disturbed(household: Household) -> None:
    for _ in range(6):
        household.orders(NOON)
    household.offset += 1_000
    raw, ended, failed, appended = household.lake.raw("shop"), threading.Event(), [], []
    expected = household.raw()

    def append(batch: int) -> None:
        """Today's messages, and one that claims to have come on the closed day."""
        new = [message(order(f"live-{batch}"), 2 * batch + n, at, partition=1) for n, at in enumerate((NOW, NOON))]
        frame = household.spark.createDataFrame([(m.topic, m.partition, m.offset, m.received_at, m.value) for m in new], MESSAGE)
        frame = frame.selectExpr("*", "'orders' AS stream", "to_date(received_at) AS received_on")
        tables.append_once(frame, raw, ["stream", "received_on"], "archive", batch, {})
        appended.extend((1, m.offset, m.value) for m in new)

    def keep_appending() -> None:
        batch = 0
        try:
            while not ended.is_set() or batch < 3:
                append(batch)
                batch += 1
        except Exception as error:
            failed.append(error)

    archive = threading.Thread(target=keep_appending)
    archive.start()
    try:
        household.keep()
    finally:
        ended.set()
        archive.join()
    assert not failed
    rows = DeltaTable(raw).to_pyarrow_table().to_pylist()
    assert Counter((1, r["offset"], r["value"]) for r in rows if r["partition"] == 1) == Counter(appended)
    kept = Counter(tuple(sorted((name, repr(value)) for name, value in r.items())) for r in rows if r["partition"] == 0)
    assert kept == expected
    assert [entry["operation"] for entry in DeltaTable(raw).history()].count("OPTIMIZE") == 1


@pytest.mark.soak
def test_old_raw_goes_by_whole_days_and_only_when_all_have_read_it(household: Household) -> None:
    old, older = NOON + timedelta(days=5), NOON
    household.orders(older)
    household.orders(old)
    household.orders(NOW)
    household.refine()
    household.archive(older, *(click(f"c-{n}", older) for n in range(2)), topic="shop.clicks")
    before = household.days()
    assert household.keep().days_dropped == {} and household.days() == before, "raw is kept for ever unless something else is declared"

    household.declare("keep_raw: 10 days")
    noted = [Arrivals(day=at.date(), streams={}) for at in (older, old, NOW)]
    for own in noted:
        own.write(household.lake.arrivals("shop") / f"{own.day}.json")
    losses = [Loss(query="archive", topic="shop.orders", partition=0, from_offset=0, until_offset=1, noticed_at=at) for at in (older, NOW)]
    Losses(found=losses).write(household.lake.losses("shop"))
    DirtyDay(day=on(old), reason="a test", marked_at=NOW).write(household.lake.dirty_days("shop") / f"{on(old)}.json")
    report = household.keep()
    assert report.days_dropped == {"orders": [on(older)]}, "the night of a dirty day reads what came the day before it"
    assert {file.stem for file in household.lake.arrivals("shop").glob("*")} == {on(old), on(NOW)}, "books of what is gone are closed"
    assert Losses.read(household.lake.losses("shop")) == Losses(found=losses[1:])
    (household.lake.dirty_days("shop") / f"{on(old)}.json").unlink()
    household.orders(old)  # nobody has read these yet
    kept = {("orders", on(old)): 4, ("orders", on(NOW)): 2, ("clicks", on(older)): 2}
    report = household.keep()
    assert household.days() == kept and report.days_dropped == {}
    assert report.days_held == {f"orders {on(old)}": "not refined yet", f"clicks {on(older)}": "not refined yet"}
    household.refine()
    accepted = household.rows(household.lake.accepted("shop", "orders"))
    household.orders(NOW)  # the last message of the partition, not refined: today is not touched
    with pytest.raises(RuntimeError, match="fault injected"):
        household.keep(fault="told:0:raise")
    assert household.days() == kept | {("orders", on(NOW)): 4}, "told, and not yet dropped"
    assert RawKept.read(household.lake.raw_kept("shop")).since == (old + timedelta(days=1)).date()  # type: ignore[union-attr]
    assert household.keep().days_dropped == {"orders": [on(old)]}
    assert household.days() == {("orders", on(NOW)): 4, ("clicks", on(older)): 2}
    assert household.rows(household.lake.accepted("shop", "orders")) == accepted
    assert household.keep().days_dropped == {}
    with pytest.raises(Refusal, match=r"cannot be recomputed: raw before .* was dropped"):
        household.nightly(on(old))


@pytest.mark.soak
def test_what_is_archived_after_the_days_were_chosen_stays(household: Household) -> None:
    household.orders(NOON)
    refined = {"shop.orders/0": household.offset}
    household.orders(NOON)
    household.orders(NOW)
    rows = DeltaTable(household.lake.raw("shop")).to_pyarrow_table().to_pylist()
    late = Counter(r["offset"] for r in rows if r["offset"] >= refined["shop.orders/0"])
    tables.delete_rows(
        household.spark, household.lake.raw("shop"), housekeeping_job._is_refined_of("orders", [NOON.date(), NOW.date()], refined)
    )
    rows = DeltaTable(household.lake.raw("shop")).to_pyarrow_table().to_pylist()
    assert Counter(r["offset"] for r in rows) == late and len(late) == 4


@pytest.mark.soak
def test_vacuum_removes_what_is_older_than_a_week_and_the_last_week_can_be_read(household: Household) -> None:
    for _ in range(3):
        household.orders(NOON)
    path = Path(household.lake.raw("shop"))
    version, before = DeltaTable(str(path)).version(), household.raw()
    (some,) = [folder for folder in path.glob("stream=orders/*") if folder.is_dir()]
    week_old = (datetime.now(UTC) - timedelta(days=8)).timestamp()
    for name in ("old", "young"):
        (some / f"{name}.parquet").write_bytes(b"left by a writer that died")
    os.utime(some / "old.parquet", (week_old, week_old))
    (found,) = household.keep().tables
    assert (found.compacted, found.files_removed, found.bytes_removed) == (1, 1, 26)
    assert [file.name for file in some.glob("*.parquet") if file.name in ("old.parquet", "young.parquet")] == ["young.parquet"]
    assert household.raw() == household.rows(str(path), version) == before, "the files that were merged are still there"
    (found,) = household.keep().tables
    assert (found.compacted, found.files_removed) == (0, 0)


def test_expired_rows_are_told_for_a_week_then_marked_and_never_deleted(household: Household) -> None:
    household.archive(NOON, order("good"), order("a", amount="-5"), order("b", amount="-5", currency="DOGE"), b"not json")
    household.archive(NOON, None)
    household.refine()
    discard = ["--act", "discard", "--stream", "orders", "--rule", "undecodable:tombstone", "--note", "seen"]
    assert household._run(quarantine_job.act, quarantine_job.add_options, *discard).lines == ["1"], "what somebody acted on does not expire"
    began, before = datetime.now(UTC), household.rows(household.lake.quarantined("shop"))
    reasons = {"amount:be_between": 2, "currency:be_in_set": 1, "undecodable:not_json": 1}
    assert household.keep(began + timedelta(days=29)).expired == []
    told = [ExpiredRows(stream="orders", reason=reason, rows=rows, marked=0) for reason, rows in reasons.items()]
    assert household.keep(began + timedelta(days=31)).expired == told
    assert household.keep(began + timedelta(days=36)).expired == told and household.open_reasons() == reasons
    assert len(household.rows(household.lake.quarantine_acts("shop"))) == 1

    with pytest.raises(RuntimeError, match="fault injected"):
        household.keep(began + timedelta(days=38), fault="vacuumed:0:raise")
    assert household.open_reasons() == reasons
    report = household.keep(began + timedelta(days=38))
    assert report.expired == [group.model_copy(update={"marked": group.rows}) for group in told]
    assert household.open_reasons() == {} and household.rows(household.lake.quarantined("shop")) == before
    acts = DeltaTable(household.lake.quarantine_acts("shop")).to_pyarrow_table().to_pylist()
    assert Counter((act["offset"], act["act"]) for act in acts) == Counter([*((n, "expired") for n in (1, 2, 3)), (4, "discarded")])
    assert household.keep(began + timedelta(days=39)).expired == []


def test_old_reports_and_forgotten_stages_go_and_what_is_in_use_stays(household: Household) -> None:
    lake = household.lake
    reports = {lake.nightly_report("shop", "2024-01-01"): 401, lake.nightly_report("shop", "2024-01-02"): 399}
    reports |= {lake.outcome("shop", "old"): 401, lake.quality_site("shop") / "orders" / "2024-01-01.html": 900}
    for file, days in reports.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        age(file, days)
    stages = {Path(lake.stage("shop", "orders", batch)): days for batch, days in (("1", 8), ("2", 8), ("3", 6))}
    stages |= {Path(lake.stage("shop", "gone", "1")): 8, Path(lake.stage("other", "orders", "1")): 8}
    for folder, days in stages.items():
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(b"")
        age(folder, days)
    PublishPlan(way="replay", stage=lake.stage("shop", "orders", "2"), cursor=RefineCursor(id="x")).write(
        lake.refine_record("shop", "orders", "plan")
    )
    undeclared = Path(lake.speed("shop", "revenue_per_minute", "0123456789ab"))
    undeclared.mkdir(parents=True)
    age(undeclared, 900)
    with hold_lease(Control(lake.refine_control("shop")), "refining"):
        removed = household.keep().removed
    assert removed == ["_control/shop/outcomes/old.json", "shop/reports/nightly-2024-01-01.json"], "stages wait for the replay"
    assert household.keep().removed == ["_stage/shop/gone/1", "_stage/shop/orders/1"]
    assert household.keep().removed == []
    assert sorted(file.name for file in reports if file.exists()) == ["2024-01-01.html", "nightly-2024-01-02.json"]
    assert [folder.name for folder in stages if folder.exists()] == ["2", "3", "1"] and undeclared.exists()


@pytest.mark.soak
def test_a_crash_after_any_step_loses_nothing_and_the_next_run_goes_on(household: Household) -> None:
    household.declare("keep_raw: 10 days")
    for amount in ("10.00", "-5"):
        household.orders(NOON, 2, amount=amount)
        household.orders(NOW - timedelta(days=3), 2)
        household.refine()
    household.orders(NOW)
    raw, accepted, quarantined = household.all_rows()
    whole, dropped = household.days(), ("orders", on(NOON))
    assert whole[dropped] == 4
    for step in ("compacting", "compacted", "told"):
        with pytest.raises(RuntimeError, match="fault injected"):
            household.keep(fault=f"{step}:0:raise")
        assert household.all_rows() == [raw, accepted, quarantined], f"after a crash at {step}"
    for step in ("dropped", "vacuumed", "expired"):
        with pytest.raises(RuntimeError, match="fault injected"):
            household.keep(fault=f"{step}:0:raise")
        assert household.days() == {day: count for day, count in whole.items() if day != dropped}
    report = household.keep()
    assert report.days_dropped == {} and all(table.compacted == 0 for table in report.tables)
    kept, *others = household.all_rows()
    assert kept < raw and others == [accepted, quarantined]

"""The pages of the nights: what messages hold is text, private values are masked, the site stays small."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pages import Page

from quality.nights import write_nights
from weir.masking import MASK, shown_cell
from weir.pipeline import Pipeline
from weir.records.night import FATES, Cell, CellCause, LedgerLine, LostRange, NightlyReport, VersionComparison, ViewComparison
from weir.records.quality import Decision
from weir.summaries import DAYS_KEPT, NightSummary

VIEW = "revenue_per_minute"
HOSTILE = ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "x" * 100_000, "a\u202eb\x00"]


def night(day: str, decision: Decision = "PASS", value: str = "DE") -> NightlyReport:
    cause = CellCause(cause="unexplained" if decision == "BLOCK" else "late", events=1, identities=[value])
    cell = Cell(grain={"minute": "2026-03-01 10:00:00", "country": value}, speed=None, batch={"orders": value}, causes=[cause])
    view = ViewComparison(
        view=VIEW,
        fingerprint="f",
        compared=10,
        equal=8,
        different=1,
        only_speed=0,
        only_batch=0,
        pending=1,
        causes={cause.cause: 1, "pending": 1},
        unexplained=int(decision == "BLOCK"),
        examples=[cell],
        decision=decision,
        gate=[value] if decision != "PASS" else [],
        settled_until=None if decision == "BLOCK" else date.fromisoformat(day) + timedelta(days=1),
        versions=[VersionComparison(fingerprint="e", compared=9, equal=7, causes={"quarantine": 2}, released=3)],
    )
    line = LedgerLine(
        view=VIEW,
        stream="orders",
        topic="shop.orders",
        partition=0,
        day=day,
        first_offset=0,
        until_offset=10,
        offsets=10,
        fates=dict.fromkeys(FATES, 1) | {"counted": 4},
        lost_ranges=[LostRange(from_offset=3, until_offset=4, reason="retention")],
        wrong=[value] if decision == "BLOCK" else [],
    )
    return NightlyReport(
        pipeline="shop", day=day, written_at=datetime(2026, 3, 2, tzinfo=UTC), seconds=1.5, streams=[], views=[view], ledger=[line]
    )


def written(folder: Path, pipeline: Pipeline, report: NightlyReport) -> Path:
    write_nights(folder, pipeline, [report], NightSummary().with_reports([report]))
    return folder / f"{report.day}.html"


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("decision", ["PASS", "WARN", "BLOCK"])
def test_whatever_messages_hold_is_text(tmp_path: Path, shop: Pipeline, value: str, decision: Decision) -> None:
    page = written(tmp_path, shop, night("2026-03-01", decision, value))
    for file in (page, tmp_path / "index.html"):
        html = file.read_text()
        Page(html).must_be_inert()
        assert len(html) < 100_000
    read = Page(page.read_text())
    assert value.startswith(("x", "a")) or value in read.text


def test_a_page_says_what_was_proved(tmp_path: Path, shop: Pipeline) -> None:
    page = Page(written(tmp_path, shop, night("2026-03-01")).read_text()).words
    for words in ("repaired", "settled until", "2026-03-02", "late", "offsets 3 to 3", "balanced", "3 events were released"):
        assert words in page, words
    blocked = Page(written(tmp_path, shop, night("2026-03-01", "BLOCK")).read_text()).words
    assert "BLOCKED" in blocked and "--accept" in blocked and "unexplained" in blocked


def test_the_site_keeps_a_month(tmp_path: Path, shop: Pipeline) -> None:
    days = [str(date(2026, 3, 1) + timedelta(days=n)) for n in range(DAYS_KEPT + 9)]
    summary = NightSummary()
    for day in days:
        summary = summary.with_reports([night(day)])
        write_nights(tmp_path / "site", shop, [night(day)], summary)
    pages = {file.name for file in (tmp_path / "site").iterdir()}
    assert pages == {"index.html", *(f"{day}.html" for day in days[-DAYS_KEPT:])}
    links = [attributes["href"] for tag, attributes in Page((tmp_path / "site" / "index.html").read_text()).tags if tag == "a"]
    assert set(links) <= pages


def test_private_values_are_masked(shop: Pipeline) -> None:
    orders = shop.streams["orders"]
    columns = orders.columns | {name: orders.columns[name].model_copy(update={"private": True}) for name in ("country", "order_id")}
    private = shop.model_copy(update={"streams": shop.streams | {"orders": orders.model_copy(update={"columns": columns})}})
    cell = night("2026-03-01").views[0].examples[0]
    shown = shown_cell(private, VIEW, cell)
    assert shown.grain == {"minute": "2026-03-01 10:00:00", "country": MASK} and shown.causes[0].identities == [MASK]
    assert shown_cell(shop, VIEW, cell) == cell

"""What is asked of the quarantine, and what is read of it without Spark: filters, pages, counts; what is acted on is gone."""

import argparse
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from events import NOON, order
from quarantined import act_on, aside, set_aside

from weir.event_time import utc_now
from weir.layout import Lake
from weir.masking import MASK, shown_quarantined
from weir.pipeline import Pipeline
from weir.quarantine import QuarantineAct, QuarantineFilter, QuarantineSummary
from weir.refusal import Refusal
from weir.serving import count_quarantined, quarantine_groups, quarantine_rows, summarise_quarantine

ALL = QuarantineFilter()
HOSTILE = ["--apply", "-x", "{{ params }}", "$(id)", "`id`", "a;b", "' OR 1=1 --", "<script>alert(1)</script>", "..", "ünï", " ", "x y"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(str(tmp_path / "a lake"))


@pytest.mark.parametrize("value", [*HOSTILE, "a\n", "a\0", "x" * 301, 7, ["a"], {"a": 1}])
@pytest.mark.parametrize("name", ["act", "stream", "rule", "since", "until"])
def test_what_makes_no_sense_is_refused_in_one_line(name: str, value: Any) -> None:
    if name in ("since", "until") and value == 7:
        return  # a number is a day for pydantic: seconds since 1970
    with pytest.raises(Refusal, match=f"^{name}: ") as refused:
        QuarantineAct.of({"act": "preview", "stream": "orders"} | {name: value})
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("note", ["", "   ", None, "two\nlines", "a\0b", "x" * 501, 7])
def test_a_discard_without_a_reason_is_refused(note: Any) -> None:
    with pytest.raises(Refusal):
        QuarantineAct.of({"act": "discard", "stream": "orders", "note": note})


def test_days_are_in_order() -> None:
    with pytest.raises(Refusal, match="the first day is after the last"):
        QuarantineAct.of({"act": "preview", "stream": "orders", "since": "2026-03-02", "until": "2026-03-01"})


@pytest.mark.parametrize("note", [own for own in HOSTILE if own.strip()])
def test_a_value_is_never_an_option(note: str) -> None:
    """The job reads back what was meant, whatever it looks like."""
    act = QuarantineAct.of({"act": "discard", "stream": "orders", "rule": "amount:be_between#2", "since": "2026-03-01", "note": note})
    assert QuarantineAct.of(act.settings()) == act
    parser = argparse.ArgumentParser()
    for name in ("act", "stream", "rule", "since", "until", "note"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--apply", action="store_true")
    read = vars(parser.parse_args(act.job_options()))
    told = {"act": "discard", "stream": "orders", "rule": "amount:be_between#2", "since": "2026-03-01", "until": "", "note": note}
    assert read == told | {"apply": False}


def test_only_a_replay_applies() -> None:
    options = {
        act: QuarantineAct.of({"act": act, "stream": "orders", "note": "x"}).job_options() for act in ("preview", "replay", "discard")
    }
    assert [act for act, own in options.items() if "--apply" in own] == ["replay"]
    assert [own[0] for own in options.values()] == ["--act=replay", "--act=replay", "--act=discard"]


def test_filters_and_pages_agree_with_each_other(lake: Lake, shop: Pipeline) -> None:
    rows = [
        aside(
            number,
            [["a:x"], ["b:y"], ["a:x", "b:y"]][number % 3],
            order(f"o-{number}"),
            stream=["orders", "clicks"][number % 2],
            received_at=NOON + timedelta(hours=10 * number),
        )
        for number in range(30)
    ]
    set_aside(lake, *rows[:20])
    set_aside(lake, *rows[20:])
    act_on(lake, rows[0], rows[7])
    left = [row for row in rows if row not in (rows[0], rows[7])]
    asked = [
        ALL,
        QuarantineFilter(stream="orders"),
        QuarantineFilter(rule="a:x"),
        QuarantineFilter("clicks", "b:y", date(2026, 3, 3), date(2026, 3, 9)),
        QuarantineFilter(since=date(2026, 3, 5)),
        QuarantineFilter(until=date(2026, 3, 5)),
        QuarantineFilter(rule="no:such"),
        QuarantineFilter(rule="' OR 1=1 --"),
    ]
    for own in asked:
        meant = [
            row
            for row in left
            if own.stream in (None, row["stream"])
            and (own.rule is None or own.rule in row["reasons"])
            and (own.since or date.min) <= row["received_on"] <= (own.until or date.max)
        ]
        pages = [quarantine_rows(lake, shop, own, 4, behind) for behind in range(0, 32, 4)]
        assert [row["offset"] for page in pages for row in page] == [row["offset"] for row in meant], own
        assert [row["payload"] for page in pages for row in page] == [row["payload"] for row in meant]
        assert sum(count.rows for count in count_quarantined(lake, shop, own).values()) == len(meant)
        reasons = {reason for row in meant for reason in row["reasons"]} & ({own.rule} if own.rule else {"a:x", "b:y"})
        found = {(group.stream, group.reason): group.rows for group in quarantine_groups(lake, shop, own)}
        counted = {(s, r): sum(s == row["stream"] and r in row["reasons"] for row in meant) for s in ("orders", "clicks") for r in reasons}
        assert found == {key: count for key, count in counted.items() if count}


def test_the_summary_says_what_is_open_and_what_expires(lake: Lake, shop: Pipeline) -> None:
    assert summarise_quarantine(lake, shop).rows == 0
    now = utc_now()
    soon = now - shop.sources["orders"].keep_quarantined + timedelta(days=1)
    set_aside(
        lake,
        aside(0, ["a:x", "b:y"], quarantined_at=soon, received_at=soon),
        aside(1, ["a:x"], quarantined_at=now, received_at=now),
        aside(2, ["a:x"], stream="gone", quarantined_at=soon, received_at=soon),
    )
    found = summarise_quarantine(lake, shop)
    assert (found.rows, found.expiring, found.streams["orders"].rows) == (3, 1, 2)
    assert found.oldest is not None and abs(found.oldest - soon) < timedelta(seconds=1)
    assert found.streams["gone"].expires_at is None, "rows of a stream that is no longer declared stay"
    file = lake.quarantine_summary("shop")
    found.write(file)
    assert QuarantineSummary.read(file) == found


def test_a_stream_that_is_not_declared_is_named(lake: Lake, shop: Pipeline) -> None:
    with pytest.raises(Refusal, match=r"'order' is no stream or table of shop.*orders"):
        quarantine_rows(lake, shop, QuarantineFilter(stream="order"), 1)


def test_private_fields_are_masked_and_undeclared_streams_not_shown(shop: Pipeline) -> None:
    private = aside(0, ["a:x"], {"customer_id": 7, "email": "ann@example.org"}, stream="customers", identity="7")
    assert "ann@example.org" not in shown_quarantined(shop, private)["payload"] and MASK in shown_quarantined(shop, private)["payload"]
    gone = shown_quarantined(shop, aside(0, ["a:x"], {"email": "ann@example.org"}, stream="gone", identity="ann"))
    assert gone["payload"] == "(not shown: the stream is no longer declared)" and gone["identity"] == MASK


def test_a_clock_that_is_thousands_of_years_off_breaks_nothing(lake: Lake, shop: Pipeline) -> None:
    far = 1_767_225_600_000_000_000
    """Milliseconds taken for microseconds: the year 57971."""
    set_aside(lake, aside(0, ["a:x"]) | {"received_at": far, "occurred_at": far}, aside(1, ["a:x"]) | {"received_at": -far})
    assert [row["offset"] for row in quarantine_rows(lake, shop, ALL, 9)] == [1, 0]
    (group,) = quarantine_groups(lake, shop, ALL)
    assert group.oldest.year == 1 and group.newest.year == 9999
    assert summarise_quarantine(lake, shop).rows == 2

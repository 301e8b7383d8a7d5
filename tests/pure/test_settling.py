"""What may be settled, how far a view is, and what makes a settled day dirty: decisions as data."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.event_time import Run
from weir.records.night import Acceptance, Arrivals, DayVerdict, Settlement, ViewComparison
from weir.records.quality import Decision
from weir.refusal import Refusal
from weir.settling import KEPT_DAYS, dirtied_days, is_settled, judge_day, revert, settle

NOW = datetime(2026, 3, 9, tzinfo=UTC)
DAY = date(2026, 3, 1)


def day(number: int) -> date:
    return DAY + timedelta(days=number)


def verdict(number: int, decision: Decision = "PASS", cut: dict[str, int] | None = None) -> DayVerdict:
    return DayVerdict(day=day(number), decision=decision, equal=1, repaired=0, pending=0, unexplained=0, cut=cut or {}, written_at=NOW)


def comparison(unexplained: int = 0, digest: str = "") -> ViewComparison:
    cells = {"compared": 9, "equal": 9 - unexplained, "different": unexplained, "only_speed": 0, "only_batch": 0, "pending": 0}
    return ViewComparison(view="v", fingerprint="f", **cells, unexplained=unexplained, unexplained_digest=digest, examples=[])


def after(*verdicts: DayVerdict) -> Settlement:
    settled = Settlement(view="v", fingerprint="f")
    for own in verdicts:
        settled = settle(settled, own)
    return settled


@given(st.permutations(range(7)), st.sets(st.integers(0, 6)))
def test_the_run_is_the_same_in_whatever_order_the_days_come(order: list[int], blocked: set[int]) -> None:
    """The law: from the first day that passed, the run reaches as far as there is no hole; days behind one wait."""
    settled = after(*(verdict(n, "BLOCK" if n in blocked else "PASS") for n in order))
    passed = {n for n in order if n not in blocked}
    if not passed:
        assert settled.run is None
        return
    assert settled.run is not None
    inside = {n for n in range(7) if settled.run.since <= day(n) < settled.run.until}
    anchor = next(n for n in order if n in passed)
    assert anchor in inside <= passed
    assert day(min(inside) - 1) not in {day(n) for n in passed} and day(max(inside) + 1) not in {day(n) for n in passed}
    assert set(settled.ahead) == {day(n) for n in passed - inside}
    assert all(is_settled(settled, day(n)) == (n in passed) for n in range(7))


def test_a_settled_day_that_is_blocked_later_keeps_what_is_served() -> None:
    settled = after(verdict(0), verdict(1), verdict(0, "BLOCK"))
    assert settled.run == Run(day(0), day(2))
    assert settled.days[day(0)].decision == "BLOCK"


def test_only_the_last_verdicts_are_kept_and_the_bound_stays() -> None:
    settled = after(*(verdict(n) for n in range(KEPT_DAYS + 20)))
    assert len(settled.days) == KEPT_DAYS and settled.run == Run(day(0), day(KEPT_DAYS + 20))


def test_a_revert_takes_the_day_and_all_after_it_back() -> None:
    settled = after(verdict(0), verdict(1), verdict(2), verdict(4))
    assert revert(settled, day(1)).run == Run(day(0), day(1))
    assert revert(settled, day(0)).run is None
    with pytest.raises(Refusal, match="settled until 2026-03-04"):
        revert(settled, day(4))


def test_what_blocks_a_day_and_what_only_warns() -> None:
    assert judge_day(comparison(), ("PASS", []), [], [], []) == ("PASS", [])
    assert judge_day(comparison(), ("WARN", ["mean"]), [], [], []) == ("WARN", ["mean"])
    decision, reasons = judge_day(comparison(2, "d"), ("WARN", ["mean"]), ["9 offsets, 8 fates"], ["raw ends"], [])
    assert decision == "BLOCK"
    assert [reason.split(":")[0].split(" (")[0] for reason in reasons] == [
        "the ledger does not balance",
        "the batch is early",
        "2 cells are unexplained",
        "mean",
    ]


def test_what_a_person_accepted_passes_and_nothing_else() -> None:
    word = Acceptance(day=DAY, digest="d", reason="a test has tampered with it", who="ada", accepted_at=NOW)
    decision, reasons = judge_day(comparison(1, "d"), ("PASS", []), [], [], [word])
    assert decision == "WARN" and "1 cell is unexplained" in reasons[0] and "accepted by ada" in reasons[0]
    assert judge_day(comparison(1, "other"), ("PASS", []), [], [], [word])[0] == "BLOCK"
    assert judge_day(comparison(1, "d"), ("BLOCK", ["mean"]), [], [], [word])[0] == "BLOCK"


def test_late_arrivals_make_settled_days_dirty_unless_they_were_seen() -> None:
    settled = after(verdict(0, cut={"t/0": 100}), verdict(1, cut={"t/0": 200}))
    arrivals = Arrivals(day=day(3), streams={"s": {day(0): {"t/0": 150}, day(1): {"t/0": 150}, day(3): {"t/0": 900}}})
    assert dirtied_days(settled, ["s"], [], timedelta(0), arrivals) == {day(0)}
    assert dirtied_days(settled, ["other"], [], timedelta(0), arrivals) == set()
    unseen = Arrivals(day=day(3), streams={"s": {day(0): {"t/1": 0}}})
    assert dirtied_days(settled, ["s"], [], timedelta(0), unseen) == {day(0)}, "a partition that is new since then"
    assert dirtied_days(settled, ["s"], [], timedelta(hours=4), unseen) == {day(0), day(1)}, "a session may reach into the next day"
    changed = Arrivals(day=day(5), streams={"customers": {day(0): {"c/0": 3}}})
    assert dirtied_days(settled, ["s"], ["customers"], timedelta(0), changed) == {day(0), day(1)}, "a row holds until it is changed again"
    assert dirtied_days(settled, ["s"], [], timedelta(0), changed) == set()

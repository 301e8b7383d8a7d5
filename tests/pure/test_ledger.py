"""The arithmetic of the books: holes, their reasons, and when a line does not balance."""

from datetime import UTC, date, datetime

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ledger import Partition, _with_reasons, _without, draw_lines
from weir.records.driver import Loss
from weir.records.night import FATES

DAY = date(2026, 3, 1)


def partition(rows: int, different: int | None = None, holes: list[tuple[int, int]] | None = None) -> Partition:
    return Partition("t", 0, rows, rows if different is None else different, 10, 10 + rows, holes or [])


def loss(start: int, end: int, partition: int = 0) -> Loss:
    return Loss(
        query="archive", topic="t", partition=partition, from_offset=start, until_offset=end, noticed_at=datetime(2026, 3, 1, tzinfo=UTC)
    )


def counts(**fates: int) -> dict[str, dict[str, int]]:
    return {"t/0": fates}


def test_a_line_balances_when_each_offset_has_one_fate() -> None:
    (line,) = draw_lines("v", "s", DAY, [partition(10)], counts(counted=7, late=2, duplicate=1), [])
    assert line.wrong == [] and line.offsets == 10 == sum(line.fates.values()) and set(line.fates) == set(FATES)


def test_what_does_not_balance_says_why() -> None:
    (short,) = draw_lines("v", "s", DAY, [partition(10)], counts(counted=9), [])
    assert short.wrong == ["t/0: 10 offsets, but 9 fates"]
    (twice,) = draw_lines("v", "s", DAY, [partition(10, different=9)], counts(counted=10), [])
    assert twice.wrong == ["1 messages of t/0 stand twice in raw"]
    (strange,) = draw_lines("v", "s", DAY, [partition(10)], counts(counted=9, read=1), [])
    assert strange.wrong == ["t/0: no such fate as read"]


def test_holes_are_lost_offsets_with_their_reason() -> None:
    own = partition(5, holes=[(0, 10)])
    (line,) = draw_lines("v", "s", DAY, [own], counts(counted=5), [loss(2, 6), loss(0, 9, partition=1)])
    assert [(r.from_offset, r.until_offset, r.reason) for r in line.lost_ranges] == [(0, 2, "gap"), (2, 6, "retention"), (6, 10, "gap")]
    assert line.fates["lost"] == 10 and line.offsets == 15 and line.first_offset == 0 and line.wrong == []


spans = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(spans, st.lists(spans, max_size=4))
def test_the_parts_of_a_hole_cover_it_once(hole: tuple[int, int], noted: list[tuple[int, int]]) -> None:
    parts = _with_reasons(partition(1), hole, [loss(*own) for own in noted])
    covered = [offset for part in parts for offset in range(part.from_offset, part.until_offset)]
    assert covered == list(range(*hole))
    dropped = {offset for own in noted for offset in range(*own)}
    for part in parts:
        inside = set(range(part.from_offset, part.until_offset))
        assert inside <= dropped if part.reason == "retention" else not inside & dropped


@given(st.lists(st.integers(1, 5), max_size=5), st.sets(st.integers(0, 40)))
def test_what_is_there_after_all_is_no_gap(lengths: list[int], present: set[int]) -> None:
    gaps, at = [], 0
    for length in lengths:
        gaps.append((at, at + length))
        at += length + 2
    left = [offset for gap in _without(gaps, sorted(present)) for offset in range(*gap)]
    assert left == [offset for gap in gaps for offset in range(*gap) if offset not in present]

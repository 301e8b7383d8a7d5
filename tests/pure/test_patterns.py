"""The finder against a slow one that tries every way; the laws that the stream and the night rely on."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.patterns import Happened, Match, build_steps, find_matches

Counts = list[tuple[int, int | None] | None]
WITHIN = 10


def happened(word: str) -> list[Happened]:
    """`a.b` is an a at 0, nothing at 1, a b at 2; capital letters meet the next step too."""
    found = []
    for at, sign in enumerate(word):
        if sign != ".":
            bit = ord(sign.lower()) - ord("a")
            found.append(Happened(at, f"{sign}{at}", 1 << bit | (1 << bit + 1 if sign.isupper() else 0)))
    return found


def told(counts: Counts, word: str) -> list[str]:
    return ["-".join(e.identity for e in match.events) for match in find_matches(build_steps(counts), WITHIN, happened(word))]


ONE = (1, 1)


@pytest.mark.parametrize(
    ("counts", "word", "expected"),
    [
        ([ONE, ONE], "ab", ["a0-b1"]),
        ([ONE, ONE], "ba", []),
        ([ONE, ONE], "acb", ["a0-b2"]),  # what meets no step is passed over
        ([ONE, ONE], "aab", ["a0-b2"]),  # one match for each event that ends one: the earliest
        ([ONE, ONE], "abb", ["a0-b1", "a0-b2"]),
        ([ONE, ONE], "a..........b", []),  # out of the time
        ([ONE, ONE], "a.........b", ["a0-b10"]),
        ([(3, 3), ONE], "aaab", ["a0-a1-a2-b3"]),
        ([(3, 3), ONE], "aab", []),
        ([(3, 3), ONE], "aaaaab", ["a0-a1-a2-b5"]),
        ([(3, None), ONE], "aaaaab", ["a0-a1-a2-a3-a4-b5"]),
        ([(2, 3), ONE], "aaaaab", ["a0-a1-a2-b5"]),
        ([(2, 3), ONE], "aab", ["a0-a1-b2"]),
        ([ONE, None, ONE], "ac", ["a0-c1"]),
        ([ONE, None, ONE], "abc", []),
        ([ONE, None, ONE], "abac", ["a2-c3"]),  # a later beginning behind what is forbidden
        ([ONE, None, (1, None)], "acbc", ["a0-c1", "a0-c1-c3"]),  # forbidden only on the way into the step
        ([ONE, None], "a", ["a0"]),
        ([ONE, None], "ab", []),
        ([ONE, None], "a.........b", []),  # at the very end of the time
        ([ONE, None], "a..........b", ["a0"]),
        ([ONE, (1, None)], "abbb", ["a0-b1", "a0-b1-b2", "a0-b1-b2-b3"]),
        ([ONE, ONE], "Ab", ["A0-b1"]),
        ([ONE, ONE], "aA", ["a0-A1"]),
        ([(2, 2)], "aaa", ["a0-a1", "a0-a2"]),
    ],
)
def test_what_is_found(counts: Counts, word: str, expected: list[str]) -> None:
    assert told(counts, word) == expected


def test_a_missing_event_is_told_at_the_end_of_the_time() -> None:
    (match,) = find_matches(build_steps([ONE, None]), WITHIN, happened("..a"))
    assert match.matched_at == 2 + WITHIN


COUNTS = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(1, 2), st.integers(0, 2)).map(lambda own: (own[0], None if own[1] == 2 else sum(own)))),
    min_size=1,
    max_size=4,
).filter(lambda own: own[0] is not None)
EVENTS = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 15)), max_size=9).map(
    lambda own: sorted(Happened(at, str(number), meets) for number, (at, meets) in enumerate(own))
)


def every_way(counts: Counts, events: Sequence[Happened]) -> dict[Happened, tuple[int, Happened]]:
    """By its last event: when it matched and the first event of the earliest match, from trying every subset of the events."""
    found: dict[Happened, tuple[int, Happened]] = {}
    for size in range(1, len(events) + 1):
        for places in combinations(range(len(events)), size):
            taken = [events[place] for place in places]
            if taken[-1].at - taken[0].at > WITHIN or not any(_fits(counts, events, places, split) for split in _splits(counts, size)):
                continue
            end = taken[-1].at
            if counts[-1] is None:
                end = taken[0].at + WITHIN
                bits = _trailing(counts)
                if any(e.meets & bits and e.at <= end for e in events[places[-1] + 1 :]):
                    continue
            best = found.get(taken[-1])
            if best is None or taken[0] < best[1]:
                found[taken[-1]] = (end, taken[0])
    return found


def _trailing(counts: Counts) -> int:
    bits = 0
    for step in reversed(range(len(counts))):
        if counts[step] is not None:
            break
        bits |= 1 << step
    return bits


def _splits(counts: Counts, size: int) -> list[list[int]]:
    """The ways to give so many events to the steps."""
    ways: list[list[int]] = [[]]
    for count in counts:
        least, most = (0, 0) if count is None else (count[0], size if count[1] is None else count[1])
        ways = [[*way, own] for way in ways for own in range(least, most + 1) if sum(way) + own <= size]
    return [way for way in ways if sum(way) == size]


def _fits(counts: Counts, events: Sequence[Happened], places: Sequence[int], split: list[int]) -> bool:
    position, guard = 0, 0
    for step, own in enumerate(split):
        if counts[step] is None:
            guard |= 1 << step
            continue
        for number in range(own):
            place = places[position]
            if not events[place].meets >> step & 1:
                return False
            if number == 0 and guard and position and any(e.meets & guard for e in events[places[position - 1] + 1 : place]):
                return False
            position += 1
        guard = 0
    return True


@settings(max_examples=1_500, deadline=None)
@given(COUNTS, EVENTS)
def test_it_finds_what_trying_every_way_finds(counts: Counts, events: list[Happened]) -> None:
    matches = list(find_matches(build_steps(counts), WITHIN, events))
    found = {match.events[-1]: (match.matched_at, match.events[0]) for match in matches}
    assert found == every_way(counts, events) and len(found) == len(matches)
    for match in matches:
        places = [events.index(event) for event in match.events]
        assert any(_fits(counts, events, places, split) for split in _splits(counts, len(places))), match


@settings(max_examples=300, deadline=None)
@given(COUNTS, EVENTS, st.integers(0, 25))
def test_a_match_depends_on_nothing_but_its_time(counts: Counts, events: list[Happened], moment: int) -> None:
    """A day is recomputed from its events and those within reach of it."""
    reach = WITHIN * (2 if counts[-1] is None else 1)
    steps = build_steps(counts)

    def of_day(own: Sequence[Happened]) -> list[Match]:
        return [match for match in find_matches(steps, WITHIN, own) if moment <= match.matched_at < moment + 5]

    assert of_day(events) == of_day([e for e in events if moment - reach <= e.at < moment + 5 + reach])


@settings(max_examples=300, deadline=None)
@given(COUNTS.filter(lambda own: None not in own), EVENTS, st.data())
def test_without_a_not_more_events_never_take_a_match_away(counts: Counts, events: list[Happened], data: st.DataObject) -> None:
    """So such a pattern can be told at once, and what is told later about the same last event is its last word."""
    some = sorted(data.draw(st.sets(st.sampled_from(events)) if events else st.just(set())))
    steps = build_steps(counts)
    few = {match.events[-1] for match in find_matches(steps, WITHIN, some)}
    assert few <= {match.events[-1] for match in find_matches(steps, WITHIN, events)}

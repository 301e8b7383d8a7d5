"""Finds a declared sequence among the events of one key. Pure: the stream and the batch call the same function.

Every event that can end the sequence ends one match at most: the one that begins earliest within the time. So a match depends on
nothing but the events in that time around it, however the rest of the history looks. Of several ways from its first event to its last
the one is told that takes each next event as early as it can, and stays in a step as long as it may.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Happened(NamedTuple):
    """An event as a pattern sees it. Events are ordered by time, then identity."""

    at: int
    """Microseconds."""
    identity: str
    meets: int
    """One bit for each step, in their order: whether the event meets its condition."""


@dataclass(frozen=True)
class Steps:
    """Slots that events fill, one after the other.

    A step that takes two to three events is two slots that must be filled and one that may be passed over; one that takes any number
    has a last one, which may be passed over, or filled again and again.
    """

    slots: tuple[int, ...]
    """For each slot the step whose condition it asks for."""
    after: tuple[tuple[int, ...], ...]
    """For each slot the slots that can come next, those of its own step first."""
    forbidden: tuple[int, ...]
    """For each slot the bits that no event between the one before and its own may have."""
    last: frozenset[int]
    """The slots that can be the last."""
    never_after: int
    """Bits that no event may have between the last slot and the end of the time; 0 where the sequence ends with an event."""


@dataclass(frozen=True)
class Match:
    matched_at: int
    events: tuple[Happened, ...]


def build_steps(counts: Sequence[tuple[int, int | None] | None]) -> Steps:
    """From each step's least and greatest count (None: any number), or None for a step that must not happen."""
    slots: list[int] = []
    optional: list[bool] = []
    loops: list[bool] = []
    forbidden: list[int] = []
    bits = 0
    for step, count in enumerate(counts):
        if count is None:
            bits |= 1 << step
            continue
        least, most = count
        for number in range(least + 1 if most is None else most):
            slots.append(step)
            optional.append(number >= least)
            loops.append(most is None and number == least)
            forbidden.append(bits if number == 0 else 0)  # only on the way into the step
        bits = 0
    after = []
    for slot in range(len(slots)):
        ways = [slot] if loops[slot] else []
        for following in range(slot + 1, len(slots)):
            ways.append(following)
            if not optional[following]:
                break
        after.append(tuple(ways))
    ends = []
    for slot in reversed(range(len(slots))):
        ends.append(slot)
        if not optional[slot]:
            break
    # What is forbidden before a step holds also where the optional slots before it are passed over: it belongs to the step's first slot,
    # which is never passed over, because every step takes one event at least.
    return Steps(tuple(slots), tuple(after), tuple(forbidden), frozenset(ends), bits)


def find_matches(steps: Steps, within: int, events: Sequence[Happened]) -> Iterator[Match]:
    """The matches among the events, which are in order, one for each event that ends one, in their order."""
    times = [event.at for event in events]
    closing = 0
    for slot in steps.last:
        closing |= 1 << steps.slots[slot]
    for end, event in enumerate(events):
        if not event.meets & closing:
            continue
        first = bisect_left(times, event.at - within)
        found = _best(steps, events[first : end + 1])
        if found is None:
            continue
        if not steps.never_after:
            yield Match(event.at, found)
        elif not _happens(events, end + 1, found[0].at + within, steps.never_after):
            yield Match(found[0].at + within, found)


def _happens(events: Sequence[Happened], start: int, until: int, bits: int) -> bool:
    for event in events[start:]:
        if event.at > until:
            return False
        if event.meets & bits:
            return True
    return False


def _best(steps: Steps, events: Sequence[Happened]) -> tuple[Happened, ...] | None:
    """The earliest way that fills the slots and ends with the last of these events."""
    nowhere, end = len(events), len(events) - 1
    count = len(steps.slots)
    # next_fit[i][s]: the first event from i on that can fill slot s and has a way on to the end.
    next_fit = [[nowhere] * count for _ in range(nowhere + 1)]
    # next_bad[i]: for each guarded slot the first event from i on that may not come before it.
    guards = sorted({bits for bits in steps.forbidden if bits})
    next_bad = dict.fromkeys(guards, nowhere)
    bad_after = [dict.fromkeys(guards, nowhere) for _ in range(nowhere)]

    def fits_after(place: int, slot: int) -> int:
        """The first event behind this place that can fill the slot and go on, with nothing forbidden before it."""
        following = next_fit[place + 1][slot]
        bits = steps.forbidden[slot]
        return nowhere if bits and bad_after[place][bits] < following else following

    for place in range(end, -1, -1):
        event = events[place]
        if guards:
            bad_after[place] = dict(next_bad)
        for slot in range(count):
            fits = False
            if event.meets >> steps.slots[slot] & 1:
                fits = slot in steps.last if place == end else any(fits_after(place, way) < nowhere for way in steps.after[slot])
            next_fit[place][slot] = place if fits else next_fit[place + 1][slot]
        for bits in guards:
            if event.meets & bits:
                next_bad[bits] = place
    place, slot = next_fit[0][0], 0
    if place == nowhere:
        return None
    taken = [events[place]]
    while place != end:
        place, slot = min((fits_after(place, way), way) for way in steps.after[slot])
        taken.append(events[place])
    return tuple(taken)

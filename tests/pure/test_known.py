"""A batch is written only when it has seen every change that counts at its time."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.known import KNOWN_AFTER_SECONDS, Known, Unseen

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOT_STOPPING = threading.Event()


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


def appended(began: float, done: float) -> Known:
    """A driver that has appended one change."""
    clock = Clock()
    known = Known(clock)
    clock.now = at(began)
    known.announce("customers")
    clock.now = at(done)
    known.done("customers")
    return known


@given(began=st.floats(0, 100), took=st.floats(0, 100), planned=st.floats(0, 300), started=st.floats(0, 300))
def test_what_passes_has_seen_all_that_counts(began: float, took: float, planned: float, started: float) -> None:
    """A batch reads after it was planned and after its query was started: what was done by then it has seen, and only that for sure."""
    known, done = appended(began, began + took), at(began + took)
    counts = at(began) + timedelta(seconds=KNOWN_AFTER_SECONDS) <= at(planned)
    has_seen = done <= at(planned) or done <= at(started)
    if counts and not has_seen:
        with pytest.raises(Unseen):
            known.check(at(planned), at(started), NOT_STOPPING)
    else:
        known.check(at(planned), at(started), NOT_STOPPING)


def test_a_batch_waits_for_what_is_under_way_and_is_refused() -> None:
    clock = Clock()
    known = Known(clock)
    known.announce("customers")
    known.check(at(5), at(0), NOT_STOPPING)  # it does not count yet
    threading.Timer(0.3, known.done, ["customers"]).start()
    with pytest.raises(Unseen):
        known.check(at(KNOWN_AFTER_SECONDS), at(0), NOT_STOPPING)


def test_a_stop_ends_the_waiting() -> None:
    known, stopping = Known(Clock()), threading.Event()
    known.announce("customers")
    stopping.set()
    with pytest.raises(Unseen):
        known.check(at(60), at(0), stopping)


def test_what_failed_stays_under_way_from_when_it_first_counted() -> None:
    """Its commit may have been done all the same, and its rows carry the first time."""
    clock = Clock()
    known = Known(clock)
    known.announce("customers")
    clock.now = at(30)
    known.announce("customers")
    clock.now = at(31)
    known.done("customers")
    with pytest.raises(Unseen):
        known.check(at(20), at(0), NOT_STOPPING)
    known.check(at(32), at(0), NOT_STOPPING)
    known.check(at(20), at(31), NOT_STOPPING)

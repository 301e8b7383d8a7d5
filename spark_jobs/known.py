"""From when on the changes of a table count, for the batches of all views of one driver.

A change counts from a moment that is written with it, some seconds after it was read: every batch of a later time uses it. That holds
as long as its commit is done by then. Where a commit takes longer, a batch of a later time may have missed it; such a batch is not
written, and runs again at its own time when the commit is done. So times alone tell what a batch knew.
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from weir.event_time import utc_now

KNOWN_AFTER_SECONDS = 10
"""An append takes a second or two, so it is rare that one comes later; and the views wait so long for the changes of a table."""
FORGET_AFTER = timedelta(days=1)
LOOK_SECONDS = 0.2


class Unseen(Exception):
    """A batch may have missed a change that counts at its time. Nothing of it was written; run again, it sees the change."""


class Known:
    """Which changes are on their way, and which came later than they count. Called by the threads of all queries."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[str, datetime] = {}
        self._late: list[tuple[datetime, datetime]] = []
        """From when each counts, and when its commit was done."""

    def announce(self, table: str) -> datetime:
        """Before changes are appended: from when on they count. What was announced before and not done stays under way."""
        counts_from = self._clock() + timedelta(seconds=KNOWN_AFTER_SECONDS)
        with self._lock:
            self._under_way.setdefault(table, counts_from)
        return counts_from

    def done(self, table: str) -> None:
        """The commit is done, of these changes and of any that were announced before them."""
        with self._lock:
            now = self._clock()
            if (counts_from := self._under_way.pop(table)) < now:
                self._late = [own for own in self._late if now - own[1] < FORGET_AFTER] + [(counts_from, now)]

    def check(self, planned_at: datetime, started_at: datetime, stopping: threading.Event) -> None:
        """Let a batch through that has seen all that counts at its time, in a query that was started then; else wait, and refuse it."""
        awaited = False
        while self._is_under_way(planned_at):
            awaited = True
            if stopping.wait(LOOK_SECONDS):
                break
        with self._lock:
            late = any(counts_from <= planned_at < done and started_at < done for counts_from, done in self._late)
        if awaited or late:
            raise Unseen(f"a table's change came later than it counts, perhaps too late for the batch planned at {planned_at:%H:%M:%S}")

    def _is_under_way(self, planned_at: datetime) -> bool:
        with self._lock:
            return any(counts_from <= planned_at for counts_from in self._under_way.values())

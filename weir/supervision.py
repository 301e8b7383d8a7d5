"""Who may write: decisions as pure functions over records, and the lease that carries them out."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from weir.event_time import utc_now
from weir.records import Control, Heartbeat, Identity, Lease
from weir.refusal import Refusal

BEAT_SECONDS = 2

LEASE_SECONDS = 30
"""A driver that has not beaten for so long may be replaced; a healthy one beats every 2 seconds."""


@dataclass(frozen=True)
class Take:
    generation: int
    reason: str


@dataclass(frozen=True)
class Leave:
    reason: str


def decide_lease(lease: Lease | None, heartbeat: Heartbeat | None, holder_is_dead: bool, now: datetime) -> Take | Leave:
    """Whether a new driver may take the lease. `holder_is_dead` only when that is known for sure, on the same host."""
    if lease is None:
        return Take(1, "no driver has run yet")
    following = lease.generation + 1
    who = f"process {lease.holder.pid} on {lease.holder.host} (generation {lease.generation})"
    own_beat = heartbeat if heartbeat and heartbeat.generation == lease.generation else None
    if own_beat and own_beat.state in ("stopped", "failed"):
        return Take(following, f"{who} has {own_beat.state}")
    if holder_is_dead:
        return Take(following, f"{who} is dead")
    last_sign = own_beat.written_at if own_beat else lease.taken_at
    silent = now - last_sign
    if silent > timedelta(seconds=LEASE_SECONDS):
        return Take(following, f"{who} has been silent for {silent.total_seconds():.0f} s")
    return Leave(f"it is run by {who}, last heard of {max(silent.total_seconds(), 0):.0f} s ago")


class LeaseLost(Exception):
    """Another process has taken over: nothing more may be written."""


def take_lease(control: Control, what: str, advice: str = "wait until it has ended") -> Lease:
    """Become the one that does `what`, or refuse."""
    lease, now = control.lease(), utc_now()
    dead = lease is not None and lease.holder.is_on_this_host() and not lease.holder.is_alive()
    decision = decide_lease(lease, control.heartbeat(), dead, now)
    if isinstance(decision, Leave):
        raise Refusal(f"{what}: {decision.reason}; {advice}")
    taken = control.take_lease(decision.generation, Identity.of_this_process())
    if taken is None:
        raise Refusal(f"{what}: another one took generation {decision.generation} just now; {advice}")
    print(f"generation {decision.generation}: {decision.reason}", flush=True)
    return taken


def check_lease(control: Control, own: Lease) -> None:
    current = control.lease()
    if current != own:
        raise LeaseLost(f"generation {own.generation} has been replaced by generation {current.generation if current else '?'}")


@contextmanager
def hold_lease(control: Control, what: str) -> Iterator[Callable[[], None]]:
    """Hold the lease while a job runs, beating in the background. Gives the check to make before each write."""
    lease = take_lease(control, what)
    ended = threading.Event()

    def beat(state: Literal["running", "stopped", "failed"]) -> None:
        control.beat(Heartbeat(holder=lease.holder, generation=lease.generation, state=state, written_at=utc_now()))

    def keep_beating() -> None:
        while not ended.wait(BEAT_SECONDS):
            if control.lease() == lease:
                beat("running")

    beat("running")
    thread = threading.Thread(target=keep_beating, daemon=True)
    thread.start()
    state: Literal["stopped", "failed"] = "failed"
    try:
        yield lambda: check_lease(control, lease)
        state = "stopped"
    finally:
        ended.set()
        thread.join()
        if control.lease() == lease:
            beat(state)

"""Decisions about drivers, as pure functions over records."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from weir.records import Heartbeat, Lease

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

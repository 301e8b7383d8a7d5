"""Who may write, and what is to be done about a driver: decisions as pure functions over records, and the lease that fences writers."""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from weir.event_time import utc_now
from weir.lake_files import lake_path
from weir.records.driver import Control, DriverEnd, Heartbeat, Identity, Launch, Lease, StopRequest
from weir.records.jobs import Outcome
from weir.refusal import Refusal

BEAT_SECONDS = 2

HOLD_SECONDS = 60
"""A continuous DAG starts its next run within seconds: one that begins so soon after a person's stop was not asked for by a person."""

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


def take_lease(control: Control, what: str, advice: str = "wait until it has ended", nonce: str | None = None) -> Lease:
    """Become the one that does `what`, or refuse. `nonce` is how the starter will know its process again."""
    lease = control.lease()
    decision = decide_lease(lease, control.heartbeat(), lease is not None and lease.holder.is_known_dead(), utc_now())
    if isinstance(decision, Leave):
        raise Refusal(f"{what}: {decision.reason}; {advice}")
    taken = control.take_lease(decision.generation, Identity.of_this_process(nonce))
    if taken is None:
        raise Refusal(f"{what}: another one took generation {decision.generation} just now; {advice}")
    print(f"generation {decision.generation}: {decision.reason}", flush=True)
    return taken


def check_lease(control: Control, own: Lease) -> None:
    current = control.lease()
    if current != own:
        raise LeaseLost(f"generation {own.generation} has been replaced by generation {current.generation if current else '?'}")


@contextmanager
def hold_lease(control: Control, what: str, wait_seconds: float = 0) -> Iterator[Callable[[], None]]:
    """Hold the lease while a job runs, beating in the background. Gives the check to make before each write.

    Who may wait does so for another to end, and refuses only then.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            lease = take_lease(control, what)
            break
        except Refusal:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1)
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


# --- What a shift does about its pipeline's driver


class Act(StrEnum):
    """What is to be done about a pipeline's driver."""

    START = "start"
    ADOPT = "adopt"
    LEAVE = "leave"
    """It is on its way up: wait for its first beat."""
    RESTART = "restart"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class Policy:
    """When a driver counts as hung, how long to wait before it is started again, and when that is useless."""

    start_seconds: float = 180
    """From the launch to the first heartbeat: a JVM and its sessions on a crowded machine."""
    first_wait_seconds: float = 5
    longest_wait_seconds: float = 300
    longest_wait_away_seconds: float = 60
    """While the brokers are away nothing is wrong with the driver: it is tried again until they are back, and soon after."""
    crashes: int = 5
    """So many ends in a row, each after a short life, are a loop that a restart does not break."""
    healthy_seconds: float = 600
    """A driver that ran so long has proved that it can: its end begins a new count."""


@dataclass(frozen=True)
class Seen:
    """What is known about a pipeline's driver at one moment: its records, and which processes are surely dead."""

    lease: Lease | None = None
    heartbeat: Heartbeat | None = None
    holder_is_dead: bool = False
    launch: Launch | None = None
    launched_is_dead: bool = False
    last_words: str | None = None
    """What a launched process that never came to beat left behind."""
    stop: StopRequest | None = None
    history: Sequence[DriverEnd] = ()


@dataclass(frozen=True)
class Decided:
    act: Act
    reason: str
    wait_seconds: float = 0
    ended: DriverEnd | None = None
    """An end that is not in the history yet."""


@dataclass(frozen=True)
class Incurable:
    """A kind of error that a restart repeats, and what a person can do about it."""

    name: str
    signs: str
    advice: str


LOST_OFFSETS = (
    r"failOnDataLoss|data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange|MISSING_PARTITIONS|UnknownTopicOrPartition|were aged out"
)
"""What the log drops before it is read, the driver books and goes on. It ends only when the log itself is another one."""

INCURABLE = (
    Incurable(
        "torn checkpoint",
        r"STREAMING_CHECKPOINT_MISSING_METADATA_FILE|Incomplete log file|CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries"
        r"|CANNOT_LOAD_STATE_STORE|STATE_STORE_COMMIT_VALIDATION_FAILED|CHECKPOINT_FILE_CHECKSUM",
        "move the query's checkpoint folder away; the view is then read anew from the log, and the archive goes on behind what it holds",
    ),
    Incurable(
        "lost offsets",
        LOST_OFFSETS,
        "the topic is not the one that was read (deleted, made anew): move the query's checkpoint folder away to read it from its start",
    ),
    Incurable(
        "incompatible state",
        r"STATE_STORE_\w*SCHEMA|STATE_STORE_INVALID|StateSchemaNotCompatible|Provided schema doesn't match|STREAMING_STATEFUL_OPERATOR",
        "the query's state was written by another version of Spark or of the view: move its checkpoint folder away",
    ),
    Incurable(
        "refused",
        r"is not on .*: run `weir up`|there is no pipeline|there is no connection|names no master|is not on the PATH"
        r"|pipeline\.yaml:\d+|\.sql:\d+|is not declared|run `weir jars`|WEIR_LAKE=",
        "change what the line says",
    ),
)
"""What no restart mends. Anything else is tried again: a broker that is away, a full disk, memory, a killed process."""


AWAY = r"no Kafka broker answers|Kafka is not running|Timed out waiting for a node assignment|could not be established. Node may not be"
"""Ends that say nothing about the driver: what it needs is not there just now."""


def name_incurable(error: str | None) -> Incurable | None:
    return next((kind for kind in INCURABLE if error and re.search(kind.signs, error)), None)


def decide(seen: Seen, policy: Policy, now: datetime) -> Decided:
    """What a shift has to do now. It depends on nothing but its arguments, and asked again after the wait it says the same."""
    lease, launch = seen.lease, seen.launch
    beat = seen.heartbeat if seen.heartbeat and lease and seen.heartbeat.generation == lease.generation else None
    who = f"process {lease.holder.pid} on {lease.holder.host} (generation {lease.generation})" if lease else ""
    known = {end.nonce for end in seen.history}
    if lease and isinstance(decide_lease(lease, seen.heartbeat, seen.holder_is_dead, now), Leave):
        return Decided(Act.ADOPT if beat else Act.LEAVE, f"{who} is {beat.state if beat else 'starting'}")
    if launch and launch.nonce not in known and not (lease and lease.holder.nonce == launch.nonce):
        age = (now - launch.launched_at).total_seconds()
        if not seen.launched_is_dead and age < policy.start_seconds:
            return Decided(Act.LEAVE, f"process {launch.identity.pid} was started {max(age, 0):.0f} s ago and has not beaten yet")
        silent = "ended before its first beat" if seen.launched_is_dead else f"did not beat within {policy.start_seconds:.0f} s"
        error = seen.last_words or f"{silent}; see {launch.log}"
        return _after_an_end(seen.history, policy, now, DriverEnd(nonce=launch.nonce, ended_at=now, lived_seconds=0, error=error))
    if lease and lease.holder.nonce not in known:
        if beat and beat.state == "stopped":
            was_tried_since = bool(seen.history) and beat.written_at < seen.history[-1].ended_at
            return (
                _after_an_end(seen.history, policy, now, None)
                if was_tried_since
                else _after_a_stop(who, lease, seen.stop, beat.written_at, now)
            )
        error = (
            beat.error or "failed without a word" if beat and beat.state == "failed" else "died" if seen.holder_is_dead else "fell silent"
        )
        told_at = beat.written_at if beat else lease.taken_at
        lived = max((told_at - lease.taken_at).total_seconds(), 0)
        ended_at = told_at if beat and beat.state == "failed" else now
        return _after_an_end(
            seen.history, policy, now, DriverEnd(nonce=lease.holder.nonce, ended_at=ended_at, lived_seconds=lived, error=error)
        )
    if not seen.history:
        return Decided(Act.START, "no driver has run yet")
    return _after_an_end(seen.history, policy, now, None)


def _after_a_stop(who: str, lease: Lease, stop: StopRequest | None, stopped_at: datetime, now: datetime) -> Decided:
    """A driver that was asked to stop is started again, unless its stop is so fresh that this shift cannot be the answer to it."""
    if stop is None or stop.generation < lease.generation:
        return Decided(Act.START, f"{who} was stopped")
    if stop.hold and now - max(stop.requested_at, stopped_at) < timedelta(seconds=HOLD_SECONDS):
        return Decided(Act.GIVE_UP, f"{who} was stopped: {stop.reason}; unpause the DAG to start it again")
    return Decided(Act.START, f"{who} was stopped: {stop.reason}")


def _after_an_end(history: Sequence[DriverEnd], policy: Policy, now: datetime, new: DriverEnd | None) -> Decided:
    """Start again, after a wait that doubles with each crash in a row, or give up. What was given up on is a closed matter."""
    ends = [*history, new] if new else list(history)
    last, in_a_row = ends[-1], 0
    if last.given_up:
        return Decided(Act.START, f"it is tried anew after: {last.error}")
    if incurable := name_incurable(last.error):
        return Decided(Act.GIVE_UP, f"{incurable.name}: {last.error}; a restart cannot mend this: {incurable.advice}", ended=new)
    for end in reversed(ends):
        if end.given_up:
            break
        in_a_row += 1
        if end.lived_seconds >= policy.healthy_seconds:
            break
    is_waiting = bool(re.search(AWAY, last.error))
    if in_a_row >= policy.crashes and not is_waiting:
        reason = f"crash loop: {in_a_row} drivers in a row ended early, the last with: {last.error}"
        return Decided(Act.GIVE_UP, f"{reason}; mend the cause, then start the stream again", ended=new)
    longest = policy.longest_wait_away_seconds if is_waiting else policy.longest_wait_seconds
    wait = min(policy.first_wait_seconds * 2 ** min(in_a_row - 1, 20), longest)
    wait *= random.Random(last.nonce).uniform(0.8, 1.2)  # noqa: S311 (jitter, the same however often it is asked)
    left = max((last.ended_at + timedelta(seconds=wait) - now).total_seconds(), 0)
    return Decided(Act.RESTART, f"the driver ended ({last.error}), {in_a_row}. time in a row", left, new)


def observe(control: Control) -> Seen:
    """Read a pipeline's records. Of processes on other hosts nothing is known but what they wrote."""
    lease, launch = control.lease(), control.launch()
    outcome = Outcome.read(lake_path(launch.outcome)) if launch else None
    return Seen(
        lease=lease,
        heartbeat=control.heartbeat(),
        holder_is_dead=lease is not None and lease.holder.is_known_dead(),
        launch=launch,
        launched_is_dead=launch is not None and launch.identity.is_known_dead(),
        last_words=(outcome.refusal or outcome.failure) if outcome else None,
        stop=control.stop_request(),
        history=control.history(),
    )

"""Plans the events of a day from produce.yaml, faults included, and sends them. Same arguments, same bytes."""

import base64
import json
import math
import os
import time as clock
from bisect import bisect, bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from heapq import heappop, heappush, merge
from itertools import accumulate, count, cycle
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError
from pydantic_core import to_json

from weir.event_time import day_bounds
from weir.generator import Dirty, Follows, ProduceDeclaration, Row, Shares, Source, is_number, iso_millis, row_maker
from weir.pipeline import Pipeline, Stream, Table
from weir.refusal import Refusal

PROMPT_MS = 2_000
OUT_OF_ORDER_MS = (5_000, 300_000)
LATE_MS = (60_000, 3 * 3_600_000)
"""On top of the stream's lateness."""
SKEW_MS = 240_000
"""Less than event_time.FUTURE_TOLERANCE: a clock that is a little off is no reason to reject."""
FUTURE_MS = (360_000, 365 * 86_400_000)
DUPLICATE_MS = 60_000
TABLE_LATENESS = timedelta(minutes=10)
"""A table declares no lateness; its late changes are as late as those of a stream with the default."""
PIECE_MS = 900_000
"""The day's curve is drawn in quarters of an hour, each as busy as the hours around it say."""

EPOCH = datetime.fromtimestamp(0, UTC)

ALONE = -1
"""Stands where the number of the followed event would, for an event that follows none."""
UNSENT = -2
"""Likewise, for one that follows an event from before the range, which is not part of the plan."""

MAX_WAITING = 20_000
"""Messages sent and not yet acknowledged: bounds the memory, and is enough to keep the broker busy."""
DELIVERY_TIMEOUT_MS = 300_000
"""A broker may be away for some minutes, and sending goes on when it is back."""
CONNECT_TIMEOUT_MS = 15_000
CLOSE_TIMEOUT_SECONDS = 10


class Event(NamedTuple):
    """One message. `wrong` is its fault: '', late, duplicate, out_of_order, skewed, future or dirty:<what>."""

    stream: str
    topic: str
    key: bytes
    value: bytes | None
    identity: str | None
    """None where a dirty message carries none. Its key is then still the one it was made with."""
    occurred_at: datetime
    """The event time that the message claims; of a dirty one, the time it was made with."""
    arrives_at: datetime
    """Becomes the record's timestamp, and so Weir's received_at."""
    wrong: str


@dataclass(frozen=True)
class Span:
    """In epoch milliseconds: events happen in [start, end) and arrive until now."""

    midnight: int
    start: int
    end: int
    now: int

    @staticmethod
    def of(day: date, start: time | None, end: time | None, now: datetime) -> "Span":
        midnight, next_midnight = map(_millis, day_bounds(day))
        first = midnight if start is None else _millis(datetime.combine(day, start, UTC))
        last = next_midnight if end is None else _millis(datetime.combine(day, end, UTC))
        if last <= first:
            raise Refusal(f"{start} to {end} is not a range of the day: the start comes first")
        if _millis(now) <= first:
            raise Refusal(f"{iso_millis(_instant(first))} is not over yet: events are made for what has passed")
        return Span(midnight, first, min(last, _millis(now)), _millis(now))


def plan_events(
    pipeline: Pipeline,
    declaration: ProduceDeclaration,
    day: date,
    events: int,
    seed: int,
    shares: Shares | None,
    start: time | None,
    end: time | None,
    now: datetime,
) -> Iterator[Event]:
    """The messages of a day, or of a part of it, in the order in which they arrive; none arrives after `now`.

    `events` is how many happen, over all sources; duplicates come on top. A fault for which there is no time left
    before `now` does not happen. Messages are made while they are taken: planning a million takes 150 MB.
    """
    if events < 0:
        raise Refusal(f"{events} events cannot be made")
    span = Span.of(day, start, end, now)
    run = f"{day:%Y%m%d}{f'T{start.isoformat()}'.replace(':', '') if start else ''}-{seed}"
    sources: dict[str, _SourceRun] = {}
    for name, number in _allot(events, {name: source.weight for name, source in declaration.sources.items()}).items():
        source, contract = declaration.sources[name], pipeline.sources[name]
        rng = Random(f"{run}/{name}")  # noqa: S311 (simulated events need seeds, not secrets)
        made = _SourceRun(name, source, contract, shares or declaration.shares, span, rng, run)
        made.schedule = _curve_times(rng, declaration.busy, span, number)
        if source.follows is not None:
            made.follow(sources[source.follows.source], source.follows)
        sources[name] = made
    return _in_order_of_arrival(list(sources.values()))


def _in_order_of_arrival(sources: "list[_SourceRun]") -> Iterator[Event]:
    """Walk through the day; what has happened waits until it arrives."""
    underway: list[tuple[int, int, Event]] = []
    tie = count()
    for at, rank, number, leader in merge(*[source.moments(rank) for rank, source in enumerate(sources)]):
        while underway and underway[0][0] <= at:
            yield heappop(underway)[2]
        for arrives, event in sources[rank].happen(at, number, leader):
            heappush(underway, (arrives, next(tie), event))
    while underway:
        yield heappop(underway)[2]


class _SourceRun:
    """One source in one run: when its events happen, what each looks like, and when it arrives."""

    def __init__(self, name: str, source: Source, contract: Stream | Table, shares: Shares, span: Span, rng: Random, run: str) -> None:
        self.name, self.topic, self.identity = name, contract.topic, contract.identity
        self.span, self.rng, self.random = span, rng, rng.random
        self.make_row = row_maker(source, contract, rng, run)
        self.schedule: list[int] = []
        self.leaders: list[int] = []
        """What each event of the schedule follows; empty where none follows anything."""
        self.followed: _SourceRun | None = None
        self.follows_after = (0, 0)
        self.wanted: Counter[int] = Counter()
        """By number of an own event: how many are still to follow it."""
        self.kept: dict[int, Row] = {}
        """The rows of those events, until the last follower is made."""

        lateness = _ms(contract.lateness if isinstance(contract, Stream) else TABLE_LATENESS)
        # An event that is out of order, behind one whose clock is ahead, must still be within the lateness.
        self.skew = min(SKEW_MS, lateness * 4 // 10)
        longest = min(OUT_OF_ORDER_MS[1], lateness // 2)
        self.delays = {
            "out_of_order": (min(OUT_OF_ORDER_MS[0], longest), longest),
            "late": (lateness + LATE_MS[0], lateness + LATE_MS[1]),
        }
        given = shares.model_dump()
        self.faults, self.fault_bounds = [*given, ""], list(accumulate(given.values()))
        self.shape = Shape.of(contract)
        ways: dict[str, Dirty | None] = {name: None for name in BROKEN if can_break(name, self.shape)} | source.dirty
        # Dealt in turn instead of drawn, so that a small sample too has one of each.
        self.dirt = cycle(rng.sample(list(ways.items()), len(ways)))

    def follow(self, followed: "_SourceRun", how: Follows) -> None:
        """Have a share of the events happen soon after one of another source, every such one as often as another."""
        shortest, longest = map(_ms, how.after)
        end, times = self.span.end, followed.schedule
        fitting = bisect_left(times, end - shortest)
        deck = cycle(self.rng.sample(range(fitting), fitting))
        moments = []
        for at in self.schedule:
            leader = ALONE if self.random() >= how.share else next(deck, UNSENT)
            if leader >= 0:
                at = times[leader] + self._between(shortest, min(longest, end - 1 - times[leader]))
                followed.wanted[leader] += 1
            moments.append((at, leader))
        moments.sort()
        self.followed, self.follows_after = followed, (shortest, longest)
        self.schedule, self.leaders = [at for at, _ in moments], [leader for _, leader in moments]

    def moments(self, rank: int) -> Iterator[tuple[int, int, int, int]]:
        leaders = self.leaders or cycle((ALONE,))
        return ((at, rank, number, leader) for number, (at, leader) in enumerate(zip(self.schedule, leaders, strict=False)))

    def happen(self, at: int, number: int, leader: int) -> list[tuple[int, Event]]:
        """The message of one event and when it arrives; where it is sent twice, both."""
        fault, occurred, arrives = self._times(at, self.faults[bisect(self.fault_bounds, self.random())])
        occurred_at = _instant(occurred)
        row = self.make_row(occurred_at, self._row_of(leader, at))
        if number in self.wanted:
            self.kept[number] = row
        identity: str | None = str(row[self.identity])
        key = str(identity).encode()
        if fault == "dirty":
            fault, value, identity = self._spoil(row)
        else:
            value = encode(row)
        event = Event(self.name, self.topic, key, value, identity, occurred_at, _instant(arrives), fault)
        if fault != "duplicate":
            return [(arrives, event)]
        again = min(arrives + self._between(0, DUPLICATE_MS), self.span.now)
        return [(arrives, event._replace(wrong="")), (again, event._replace(arrives_at=_instant(again)))]

    def _times(self, at: int, fault: str) -> tuple[str, int, int]:
        """The fault, when the event claims to have occurred, and when it arrives."""
        prompt = min(at + self._between(0, PROMPT_MS), self.span.now)
        if fault in self.delays:
            shortest, longest = self.delays[fault]
            longest = min(longest, self.span.now - at)
            return (fault, at, at + self._between(shortest, longest)) if shortest <= longest else ("", at, prompt)
        if fault == "skewed":
            return fault, prompt + self._between(-self.skew, self.skew), prompt
        if fault == "future":
            nearest, farthest = FUTURE_MS
            return fault, prompt + int(nearest * (farthest / nearest) ** self.random()), prompt
        return fault, at, prompt

    def _row_of(self, leader: int, at: int) -> Row | None:
        if leader == ALONE or self.followed is None:
            return None
        if leader == UNSENT:
            return self.followed._unsent_row(at - self._between(*self.follows_after))
        self.followed.wanted[leader] -= 1
        if self.followed.wanted[leader]:
            return self.followed.kept[leader]
        del self.followed.wanted[leader]
        return self.followed.kept.pop(leader)

    def _unsent_row(self, at: int) -> Row:
        return self.make_row(_instant(at), self._row_of(UNSENT, at))

    def _spoil(self, row: Row) -> tuple[str, bytes | None, str | None]:
        """The name of the dirt, the message with it, and the identity that the message still has."""
        name, dirty = next(self.dirt)
        if dirty is None:
            return f"dirty:{name}", BROKEN[name](self.shape, row), str(row[self.identity])
        spoilt = dirty.spoil(row)
        identity = spoilt.get(self.identity)
        return f"dirty:{name}", encode(spoilt), None if identity is None else str(identity)

    def _between(self, low: int, high: int) -> int:
        return low + int(self.random() * (high - low + 1))


def _allot(events: int, weights: dict[str, float]) -> dict[str, int]:
    """Divide the events by weight, to the last one."""
    exact = {name: events * weight / sum(weights.values()) for name, weight in weights.items()}
    allotted = {name: int(share) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: allotted[name] - exact[name])
    for name in by_rest[: events - sum(allotted.values())]:
        allotted[name] += 1
    return allotted


def _curve_times(rng: Random, busy: list[float], span: Span, number: int) -> list[int]:
    """So many moments of the span, in order, dense where the day is busy."""
    pieces = []
    for piece in range(86_400_000 // PIECE_MS):
        start = span.midnight + piece * PIECE_MS
        first, last = max(start, span.start), min(start + PIECE_MS, span.end)
        if first < last:
            hour, into = divmod(piece * PIECE_MS, 3_600_000)
            level = busy[hour] + (busy[(hour + 1) % 24] - busy[hour]) * into / 3_600_000
            pieces.append((level * (last - first), first, last - first))
    bounds = list(accumulate(weight for weight, _, _ in pieces))
    times = []
    for _ in range(number):
        _, first, length = pieces[bisect(bounds, rng.random() * bounds[-1], 0, len(pieces) - 1)]
        times.append(first + int(rng.random() * length))
    return sorted(times)


def _millis(instant: datetime) -> int:
    """Rounded down, so that nothing arrives after now."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def _instant(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def encode(row: Row) -> bytes:
    """The row as a JSON message."""
    return to_json(row, inf_nan_mode="constants")


@dataclass(frozen=True)
class Shape:
    """Which columns of a contract the broken messages spoil; None where there is no such column."""

    identity: str
    occurred_at: str
    plain: str
    """Required, and where possible neither the identity nor the event time."""
    number: str | None
    words: str | None
    time_is_text: bool

    @staticmethod
    def of(contract: Stream | Table) -> "Shape":
        required = {name: column.wire_type for name, column in contract.columns.items() if not column.optional}
        special = (contract.identity, contract.occurred_at)
        plain_first = sorted(required, key=lambda name: name in special)
        return Shape(
            *special,
            plain=next(iter(plain_first), contract.occurred_at),
            number=next((name for name in plain_first if is_number(required[name])), None),
            words=next((name for name in plain_first if required[name] == "string"), None),
            time_is_text=contract.columns[contract.occurred_at].wire_type == "string",
        )


def _as_epoch_millis(shape: Shape, row: Row) -> bytes:
    instant = datetime.fromisoformat(row[shape.occurred_at])
    return encode(row | {shape.occurred_at: round(instant.timestamp() * 1000)})


BROKEN: dict[str, Callable[[Shape, Row], bytes | None]] = {
    "truncated": lambda shape, row: encode(row)[: len(encode(row)) // 2],
    "not_json": lambda shape, row: b"503 Service Unavailable: upstream timed out",
    "empty": lambda shape, row: b"",
    "tombstone": lambda shape, row: None,
    "null_document": lambda shape, row: b"null",
    "array": lambda shape, row: b"[" + encode(row) + b"]",
    "two_documents": lambda shape, row: encode(row) + b"\n" + encode(row),
    "bom": lambda shape, row: b"\xef\xbb\xbf" + encode(row),
    "not_utf8": lambda shape, row: encode(row | {str(shape.words): f"{row[str(shape.words)]} für München"}).replace("ü".encode(), b"\xfc"),
    "duplicate_key": lambda shape, row: encode({shape.plain: None})[:-1] + b"," + encode(row)[1:],
    "wrong_key_case": lambda shape, row: encode({name.upper(): value for name, value in row.items()}),
    "missing_field": lambda shape, row: encode({name: value for name, value in row.items() if name != shape.plain}),
    "unknown_field": lambda shape, row: encode(row | {"unknown_field_of_a_newer_version": True}),
    "nan": lambda shape, row: encode(row | {shape.number or shape.plain: math.nan}),
    "number_as_string": lambda shape, row: encode(row | {str(shape.number): str(row[str(shape.number)])}),
    "epoch_millis": _as_epoch_millis,
    "zoneless": lambda shape, row: encode(row | {shape.occurred_at: row[shape.occurred_at].removesuffix("Z")}),
}
"""Messages that no contract allows, whatever the stream. Spark reads half of them without a word (missing_field, two_documents, …)."""


def can_break(name: str, shape: Shape) -> bool:
    """Whether this broken message can be made of such rows: only a number can be sent as a string."""
    match name:
        case "number_as_string":
            return shape.number is not None
        case "not_utf8":
            return shape.words is not None
        case "epoch_millis" | "zoneless":
            return shape.time_is_text
    return True


def send_events(
    bootstrap: str, events: Iterable[Event], sent_file: Path, rate: float | None, on_sent: Callable[[int], None]
) -> Counter[tuple[str, str]]:
    """Send in this order, at most `rate` a second, and append to `sent_file` what was acknowledged. Counts by stream and fault.

    `on_sent` hears how many more were acknowledged. What cannot be sent is refused in one line, after all that was
    acknowledged is in the file. A message can be in the log and not in the file only if this process or the broker dies in between.
    """
    with _connected(bootstrap, linger_ms=20 if rate else 200) as producer, closing(_Acknowledgements(sent_file, on_sent)) as acknowledged:
        started = clock.monotonic()
        try:
            for number, event in enumerate(events):
                if rate and (pause := started + number / rate - clock.monotonic()) > 0:
                    acknowledged.settle(MAX_WAITING)
                    clock.sleep(pause)
                acknowledged.expect(event, _send(bootstrap, producer, event))
                if acknowledged.waiting_for >= MAX_WAITING:
                    acknowledged.settle(MAX_WAITING // 2)
            producer.flush()
            acknowledged.settle(0)
        finally:
            with suppress(KafkaError):
                producer.flush(timeout=CLOSE_TIMEOUT_SECONDS)
            acknowledged.settle_what_succeeded()
        return acknowledged.counts


@contextmanager
def _connected(bootstrap: str, linger_ms: int) -> Iterator[KafkaProducer]:
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=linger_ms,
            batch_size=262_144,
            # kafka-python reckons checksums in Python: a fifth of the bytes is a fifth of that time.
            compression_type="gzip",
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            bootstrap_timeout_ms=CONNECT_TIMEOUT_MS,
            max_block_ms=CONNECT_TIMEOUT_MS,
            # A topic that the broker made up would not have the declared number of partitions.
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
    except KafkaError as error:
        raise Refusal(f"{bootstrap}: no Kafka broker answers ({_one_line(error)})") from None
    try:
        yield producer
    finally:
        with suppress(KafkaError):
            producer.close(timeout=CLOSE_TIMEOUT_SECONDS)


def _send(bootstrap: str, producer: KafkaProducer, event: Event) -> Any:
    try:
        return producer.send(event.topic, event.value, event.key, timestamp_ms=_millis(event.arrives_at))
    except KafkaTimeoutError:
        raise Refusal(f"{bootstrap}: topic '{event.topic}' is not there, or nobody answers for it") from None
    except KafkaError as error:
        raise _not_taken(event, error) from None


class _Acknowledgements:
    """Waits for the broker's word on each message, and appends what it has acknowledged to a file that only the owner reads."""

    def __init__(self, file: Path, on_sent: Callable[[int], None]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)
        self._file = os.fdopen(descriptor, "ab")
        self._on_sent = on_sent
        self._waiting: deque[tuple[Event, Any]] = deque()
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def waiting_for(self) -> int:
        return len(self._waiting)

    def expect(self, event: Event, future: Any) -> None:
        self._waiting.append((event, future))

    def settle(self, leave: int) -> None:
        """Note what is acknowledged, in the order of sending, and wait until at most so many are not. Refuses at the first failure."""
        settled = []
        try:
            while self._waiting and (self._waiting[0][1].is_done or len(self._waiting) > leave):
                event, future = self._waiting[0]
                settled.append((event, future.get(timeout=DELIVERY_TIMEOUT_MS / 1000)))
                self._waiting.popleft()
        except KafkaError as error:
            raise _not_taken(event, error) from None
        finally:
            self._note(settled)

    def settle_what_succeeded(self) -> None:
        """Note, after a failure, what was acknowledged all the same."""
        self._note([(event, future.value) for event, future in self._waiting if future.succeeded()])
        self._waiting.clear()

    def _note(self, settled: list[tuple[Event, Any]]) -> None:
        if settled:
            self._file.write(b"".join([_sent_line(event, metadata) for event, metadata in settled]))
            self._file.flush()
            self.counts.update([(event.stream, event.wrong) for event, _ in settled])
            self._on_sent(len(settled))

    def close(self) -> None:
        self._file.close()


def _sent_line(event: Event, metadata: Any) -> bytes:
    line = {
        "topic": metadata.topic,
        "partition": metadata.partition,
        "offset": metadata.offset,
        "identity": event.identity,
        "stream": event.stream,
        "occurred_at": iso_millis(event.occurred_at),
        "received_at": iso_millis(_instant(metadata.timestamp)),
        "wrong": event.wrong,
    }
    try:
        line["value"] = None if event.value is None else event.value.decode()
    except UnicodeDecodeError:
        line["value_base64"] = base64.b64encode(event.value or b"").decode()
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _not_taken(event: Event, error: KafkaError) -> Refusal:
    return Refusal(f"topic '{event.topic}' did not take {event.key.decode()}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""The drill: a day with a known number of every fault, on parts of its own, and whether each was named and repaired.

1. send most of the day; the stream reads it, is killed in the middle and started again
2. while it is stopped, change customers for the past, under orders that are counted already; let the log drop messages that nobody
   has read
3. send the rest, and at last the events that come too late
4. refine; mend the rule that rejected some payments, release them; the stream reads the payments anew
5. tamper with one streamed number
6. the night: it must name everything, and block because of that one number
7. a person accepts it; the night settles, and what is served is what was recomputed
"""

import json
import os
import random
import re
import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as dt_time
from pathlib import Path
from typing import Any

from weir import settling, stack
from weir.event_time import day_bounds, utc_now
from weir.generator import Row, Shares, iso_millis, load_produce
from weir.jars import fetch_jars
from weir.jobs import Job, JobFailed, start_stream, stop_stream, wait_until_running
from weir.lake_files import lake_path, remove_folder
from weir.layout import INTAKE_QUERY, Home
from weir.loader import load_named
from weir.pipeline import Pipeline
from weir.processes import Say
from weir.produce import Event, encode, plan_events, send_events
from weir.records.driver import Control, Heartbeat
from weir.records.night import LedgerLine, NightlyReport, Settlement, ViewComparison, ViewVersion
from weir.refusal import Refusal
from weir.serving import answer_query, differences, tamper_with_cell
from weir.spark_cluster import start_cluster, stop_cluster

PIPELINE, TAMPERED, RELEASED = "shop", "revenue_per_minute", "payments"
LOOKED_UP, TABLE, LOOKING = "revenue_per_segment", "customers", "orders"
"""The view whose events look something up, the table in which they do, and their stream."""
MOVED_TO = "loyal"
"""What every customer that is changed becomes, and none was: no two of their orders can cancel each other out."""
SHARE = 0.005
"""Of the events of a stream, for each fault."""
WAIT_SECONDS = 1_800
"""For whatever the stream does. A machine that is busy with other things is no fault that a drill looks for."""
BATCHES = 10
"""Into so many batches the day is cut at least: with one large batch nothing could be late, and nothing killed in the middle."""
LATENESS = "1 hour"
LAST_HOUR = dt_time(21)
"""Everything arrives on its own day, so that one ledger has it all."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how often it was injected, found by the night, and put right."""

    fault: str
    injected: int
    named: int
    repaired: int
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Drilled:
    """How the drill ended."""

    day: date
    events: int
    seconds: int
    faults: list[Fault]
    unexplained: int
    """Cells without a cause, beside the one that was tampered with."""
    blocked: list[str]
    """What the night said of the tampered number."""
    served_is_recomputed: bool

    @property
    def passed(self) -> bool:
        named = all(own.injected == own.named for own in self.faults)
        return named and self.unexplained == 0 and bool(self.blocked) and self.served_is_recomputed


class Drill:
    """One drill in a home of its own, which is kept for looking around."""

    def __init__(self, home: Home, day: date, events: int, seed: int, say: Say, workers: int = 0, connected: bool = False) -> None:
        self.home, self.day, self.events, self.seed, self.say = home, day, events, seed, say
        self.workers, self.connected = workers, connected
        self.chance = random.Random(seed)  # noqa: S311
        self.pipeline: Pipeline = load_named(home.pipelines, PIPELINE)
        self.topics = self.pipeline.partitions
        self.injected: Counter[tuple[str, str]] = Counter()
        """By fault and stream."""
        self.kafka = ""
        self.kills = 0

    def run(self) -> Drilled:
        began = time.monotonic()
        if not self.connected:
            self.say("starting Kafka")
            stack.start_kafka(self.home, say=self.say)
        try:
            if self.workers:
                start_cluster(self.home, self.workers, say=self.say)
            self.kafka = stack.bootstrap(self.home)
            stack.create_topics(self.kafka, self.topics)
            first, unread, rest, late = self._plan()
            self._stream_with_a_kill(first)
            self._lose(unread)
            self._stream(rest, "the rest of the day")
            self._stream(late, "the events that come too late")
            self._stop()
            self._release()
            cell = tamper_with_cell(self.home.lake, self.pipeline, TAMPERED, "orders")
            self.say(f"tampered with {TAMPERED} {cell}; the night has to find it")
            blocked = self._night()
            self._accept(blocked)
            settled = self._night()
            served = all(self._served_is_recomputed(view) for view in self.pipeline.views)
        finally:
            with suppress(JobFailed):
                stop_stream(self.home, PIPELINE, "the drill ends")
            stop_cluster(self.home)
            if self.connected and self.kafka:
                stack.delete_topics(self.kafka, list(self.topics))
            if not self.connected:
                stack.stop_kafka(self.home)
        return Drilled(
            day=self.day,
            events=self.events,
            seconds=round(time.monotonic() - began),
            faults=list(self._faults(blocked, settled)),
            unexplained=sum(view.unexplained for view in blocked.views) - sum(view.view == TAMPERED for view in blocked.views),
            blocked=[reason for view in blocked.views if view.decision == "BLOCK" for reason in view.gate],
            served_is_recomputed=served,
        )

    # What is sent

    def _plan(self) -> tuple[list[Event], list[Event], list[Event], list[Event]]:
        """The day in four parts, with the faults put in: before the loss, what will be lost or read after it, the rest, the late ones.

        What the table says of the day is sent first, so that nothing changes under an order but by the drill.
        """
        declaration = load_produce(self.home.pipelines / PIPELINE, self.pipeline)
        shares = Shares(dirty=0, late=0, duplicate=0, out_of_order=0.05, skewed=0, future=0)
        everything = plan_events(self.pipeline, declaration, self.day, self.events, self.seed, shares, None, LAST_HOUR, utc_now())
        planned = sorted(everything, key=lambda event: event.stream != TABLE)
        cut, end = len(planned) * 7 // 10, len(planned) * 8 // 10
        first, late_first = self._with_faults(planned[:cut])
        rest, late_rest = self._with_faults(planned[end:])
        late, last = late_first + late_rest, planned[-1].arrives_at
        moved = [event._replace(arrives_at=last + timedelta(milliseconds=n)) for n, event in enumerate(late)]
        for event in moved:
            self._note("late", event)
        return first, self._change_the_past(first) + planned[cut:end], rest, moved

    def _with_faults(self, events: list[Event]) -> tuple[list[Event], list[Event]]:
        """The events with faults put in, and those that are held back to come late."""
        viewed = {name for view in self.pipeline.views for name in self.pipeline.streams_of(view)}
        can_be_late = day_bounds(self.day)[0] + timedelta(hours=LAST_HOUR.hour * 0.8)
        sent: list[Event] = []
        late: list[Event] = []
        again: list[tuple[int, Event]] = []
        for event in events:
            again = [(after - 1, copy) for after, copy in again]
            sent += [copy for after, copy in again if after == 0]
            again = [(after, copy) for after, copy in again if after > 0]
            dice = self.chance.random() / SHARE if event.stream in viewed and not event.wrong else 99
            if dice < 1 and event.occurred_at < can_be_late:
                late.append(event)
                continue
            if 1 <= dice < 2:
                again.append((20, self._note("duplicate", event)))
            elif 2 <= dice < 3 and event.value:
                event = self._note("undecodable", event._replace(value=event.value[: len(event.value) // 2]))
            elif 3 <= dice < 4:
                event = self._note("rejected", self._spoilt(event, self.pipeline.streams[event.stream].occurred_at, "2100-01-01T00:00:00Z"))
            elif 4 <= dice < 8 and event.stream == RELEASED:
                event = self._note("quarantine", self._spoilt(event, "method", "barter"))
            sent.append(event)
        return sent + [copy for _, copy in again], late

    def _change_the_past(self, read: list[Event]) -> list[Event]:
        """Changes from just before orders that are counted when the changes arrive. Notes how many orders find another row by them."""
        said = [event for event in read if event.stream == TABLE]
        orders = [_order(event) for event in read if event.stream == LOOKING and event.wrong in ("", "out_of_order")]
        before = _Versions(said)
        can_move = [order for order in orders if before.held(*order).get("segment") != MOVED_TO]
        changes = [
            _change(self.pipeline.tables[TABLE].topic, *order, read[-1])
            for order in self.chance.sample(can_move, max(1, round(len(orders) * SHARE)))
        ]
        after = _Versions(said + changes)
        self.injected["table", LOOKING] = sum(before.held(*order) != after.held(*order) for order in orders)
        return changes

    def _note(self, fault: str, event: Event) -> Event:
        self.injected[fault, event.stream] += 1
        return event._replace(wrong=fault)

    @staticmethod
    def _spoilt(event: Event, column: str, value: str) -> Event:
        return event._replace(value=encode(json.loads(event.value or b"{}") | {column: value}))

    def _send(self, events: list[Event], what: str) -> None:
        self.say(f"sending {len(events):,} events: {what}")
        send_events(self.kafka, events, self.home.sent(PIPELINE, str(self.day), self.seed), None, lambda _: None)

    # What happens to the stream

    def _start(self) -> Job:
        most = max(100, self.events // BATCHES)
        job = start_stream(self.home, PIPELINE, self.kafka, ["--max-batch", str(most), "--trigger-seconds", "0.2", "--no-watch"])
        wait_until_running(self.home, PIPELINE, job, WAIT_SECONDS)
        return job

    def _stop(self) -> None:
        self.say("stopping the stream at a batch border")
        stop_stream(self.home, PIPELINE, "the drill", WAIT_SECONDS)

    def _stream_with_a_kill(self, events: list[Event]) -> None:
        half = len(events) // 2
        self._send(events[:half], "the first part of the day")
        self.say("the stream reads them, and is killed in the middle")
        job = self._start()
        self._wait(lambda beat: (beat.queries[INTAKE_QUERY].batch or 0) >= 1, "two batches")
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        self.kills += 1
        self._stream(events[half:], "the second part, while it is started again")

    def _stream(self, events: list[Event], what: str) -> None:
        """Send, and have the stream read everything."""
        self._send(events, what)
        if not self._is_running():
            self._start()
        self._wait_until_read()

    def _is_running(self) -> bool:
        beat = Control(self.home.lake.control(PIPELINE)).heartbeat()
        return beat is not None and beat.is_of_a_runner

    def _wait_until_read(self) -> None:
        ends = stack.end_offsets(self.kafka, self.topics)
        self.say("waiting until archive and views have read everything")
        self._wait(lambda beat: beat.has_read(ends), "reading it all")

    def _wait(self, is_so: Callable[[Heartbeat], bool], what: str) -> None:
        control, deadline = Control(self.home.lake.control(PIPELINE)), time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            beat = control.heartbeat()
            if beat and beat.error:
                raise JobFailed(f"the stream failed: {beat.error}")
            if beat and beat.state == "running" and beat.queries and is_so(beat):
                return
            time.sleep(0.5)
        raise JobFailed(f"{what} took more than {WAIT_SECONDS} s; the logs are in {self.home.log('x').parent}")

    def _lose(self, events: list[Event]) -> None:
        """Send while nobody reads, then let one partition of the tampered view's stream forget what came."""
        self._stop()
        stream = self.pipeline.streams_of(TAMPERED)[0]
        topic = self.pipeline.streams[stream].topic
        before = stack.end_offsets(self.kafka, [topic])
        self._send(events, "while the stream is stopped")
        after = stack.end_offsets(self.kafka, [topic])
        place = min(before)
        lost = self.injected["lost", stream] = (after[place] - before[place]) // 2
        stack.drop_messages(self.kafka, {place: before[place] + lost})
        self.say(f"the log has dropped {lost:,} messages of {place} that nobody has read")

    def _release(self) -> None:
        """Refine, mend the rule, replay, and let the stream read the payments by the new rule."""
        self.say("the micro-batch sets the rejected rows aside")
        Job(self.home, "refine_job", PIPELINE).wait()
        file = self.home.pipelines / PIPELINE / "pipeline.yaml"
        file.write_text(file.read_text().replace("[card, invoice, wallet]", "[card, invoice, wallet, barter]"))
        self.pipeline = load_named(self.home.pipelines, PIPELINE)
        self.say(f"the rule is mended, the rows of {RELEASED} are released")
        options = ["--act", "replay", "--stream", RELEASED, "--apply"]
        Job(self.home, "quarantine_job", PIPELINE, options=options).wait()
        self._start()
        self._wait_until_read()
        self._stop()

    # The night

    def _night(self) -> NightlyReport:
        self.say(f"the night of {self.day}")
        job = Job(self.home, "nightly_job", PIPELINE, self.kafka, ["--day", str(self.day)])
        outcome = job.wait(raises=False)
        if outcome.report is None:
            job.outcome()
            raise JobFailed(f"the night ended without a report; see {job.log}")
        return outcome.report

    def _accept(self, report: NightlyReport) -> None:
        for view in report.views:
            if view.unexplained:
                file = self.home.lake.settlement(PIPELINE, view.view, view.fingerprint)
                settled = Settlement.read(file)
                assert settled is not None
                settling.accept(settled, view, self.day, "the drill has tampered with it", "drill", utc_now()).write(file)

    def _served_is_recomputed(self, view: str) -> bool:
        names = ", ".join(
            f'"{name}"' for name in answer_query(self.home.lake, [self.pipeline], f"SELECT * FROM {view} LIMIT 0").columns[:-1]
        )
        served, batch = f"SELECT {names} FROM {view}", f"SELECT {names} FROM {view}__batch"
        sql = f"SELECT count(*) FROM (({served} EXCEPT ALL {batch}) UNION ALL ({batch} EXCEPT ALL {served}))"
        return bool(answer_query(self.home.lake, [self.pipeline], sql).rows[0][0] == 0)

    def _faults(self, blocked: NightlyReport, settled: NightlyReport) -> Iterator[Fault]:
        is_settled = all(view.settled_until is not None and view.decision != "BLOCK" for view in settled.views)
        short = {(line.view, line.stream) for line in blocked.ledger if _is_cut_short(line)}
        lines = [line for line in blocked.ledger if line.view in self.pipeline.views and (line.view, line.stream) not in short]
        waiting = {view for view in self.pipeline.views if not self._counts_late_events(view)}
        for fate in ("late", "duplicate", "rejected", "undecodable"):
            note = "set aside with their reasons" if fate in ("rejected", "undecodable") else "counted by the night"
            note = "counted once" if fate == "duplicate" else note
            own = [line for line in lines if fate != "late" or line.view in waiting]
            named = self._named(fate, [(line.view, line.stream, line.fates[fate]) for line in own])
            yield Fault(fate, self._injected(fate), named, named if is_settled else 0, "events", note)
        released = [(view.view, RELEASED, own.released) for view in blocked.views for own in view.versions]
        named = self._named("quarantine", released)
        yield Fault("quarantine", self._injected("quarantine"), named, named if is_settled else 0, "events", "released and counted")
        found = self._named("table", [(LOOKED_UP, LOOKING, events) for events in self._events_of_changed_rows()])
        yield Fault("table", self._injected("table"), found, found if is_settled else 0, "events", "looked up once more")
        ranges = [(line, own) for line in lines for own in line.lost_ranges if own.reason == "retention"]
        lost = self._named("lost", [(line.view, line.stream, own.until_offset - own.from_offset) for line, own in ranges])
        yield Fault("lost", self._injected("lost"), lost, 0, "offsets", "gone from the log: named, and nothing can bring them back")
        seen = self._kills_seen()
        yield Fault("killed", self.kills, seen, seen if is_settled else 0, "drivers", "replaced, and went on where it was")
        tampered = [view for view in blocked.views if view.view == TAMPERED]
        alone = sum(view.unexplained for view in tampered)
        yield Fault(
            "tampered", 1, alone, sum(_is_repaired(view) for view in settled.views if view.view == TAMPERED), "cells", "blocked the night"
        )

    def _counts_late_events(self, view: str) -> bool:
        """Whether the intake computes the view: then late events are in its speed cells, and nothing has to be repaired."""
        version = ViewVersion.read(self.home.lake.view_version(PIPELINE, view, self.pipeline.fingerprint(view)))
        return version is not None and version.is_aggregate

    def _injected(self, fault: str) -> int:
        return sum(count for (own, _), count in self.injected.items() if own == fault)

    def _named(self, fault: str, found: list[tuple[str, str, int]]) -> int:
        """How many events the night has named, each once. Every view that reads a stream must name the same: the worst one counts."""
        by_view: Counter[tuple[str, str]] = Counter()
        for view, stream, count in found:
            by_view[stream, view] += count
        named = 0
        for stream in {stream for stream, _ in by_view}:
            counts = [count for (own, _), count in by_view.items() if own == stream]
            named += max(counts, key=lambda count: abs(count - self.injected[fault, stream]))
        return named

    def _events_of_changed_rows(self) -> Iterable[int]:
        """By the hour, the events that the night names for the cause 'table': each differing cell of an hour names all of that hour."""
        cells = differences(self.home.lake, self.pipeline, LOOKED_UP, self.day)
        return {cell.grain["hour"]: own.events for cell in cells for own in cell.causes if own.cause == "table"}.values()

    def _kills_seen(self) -> int:
        """Drivers that were replaced because their process was gone: what the next one said when it took the lease."""
        logs = self.home.log("x").parent.glob(f"{PIPELINE}-stream_job-*.log")
        return sum(log.read_text(errors="replace").count("is dead") for log in logs)


class _Versions:
    """What a table holds of a key at a moment: the night's own look-up once more, in plain Python."""

    def __init__(self, changes: list[Event]) -> None:
        self._by_key: dict[Any, list[tuple[datetime, Row]]] = {}
        for change in sorted(changes, key=lambda event: event.occurred_at):
            row = json.loads(change.value or b"{}")
            self._by_key.setdefault(row["customer_id"], []).append((change.occurred_at, row))

    def held(self, key: int, at: datetime) -> Row:
        """Empty where it holds none."""
        return next((row for since, row in reversed(self._by_key.get(key, [])) if since <= at), {})


def _order(event: Event) -> tuple[int, datetime]:
    return json.loads(event.value or b"{}")["customer_id"], event.occurred_at


def _change(topic: str, customer: int, ordered_at: datetime, after: Event) -> Event:
    """A change from before the order, which arrives when that event does."""
    at = ordered_at - timedelta(milliseconds=1)
    row = {"customer_id": customer, "email": f"customer{customer}@example.com", "country": "DE", "segment": MOVED_TO}
    value = encode(row | {"updated_at": iso_millis(at)})
    return Event(TABLE, topic, str(customer).encode(), value, str(customer), at, after.arrives_at, "table")


def _is_cut_short(line: LedgerLine) -> bool:
    """Whether a view has lost what others have read: one that the mended rule has started anew finds a log that begins later."""
    return line.fates["lost"] != sum(own.until_offset - own.from_offset for own in line.lost_ranges)


def _is_repaired(view: ViewComparison) -> bool:
    return view.decision != "BLOCK" and view.settled_until is not None


@contextmanager
def own_settings(home: Home, pipelines: Path, connected: bool = False) -> Iterator[None]:
    """An empty home, and a declaration of its own, because the drill mends a rule; and nothing that the environment names.

    Connected, it goes to the brokers, the master and the lake that are named there, with topics and a folder of its own: it makes the
    log drop messages, and tampers with numbers.
    """
    names = ("WEIR_LAKE", "WEIR_MAX_BATCH", "WEIR_PIPELINES") + (() if connected else ("WEIR_KAFKA", "WEIR_SPARK_MASTER"))
    kept = {name: os.environ.pop(name, None) for name in names}
    own = {"WEIR_PIPELINES": str(home.root / "pipelines")}
    own |= {} if "JAVA_TOOL_OPTIONS" in os.environ else {"JAVA_TOOL_OPTIONS": stack.QUICK_JAVA}
    own |= {"WEIR_LAKE": f"{kept['WEIR_LAKE']}/drill"} if connected and kept["WEIR_LAKE"] else {}
    os.environ.update(own)
    with suppress(JobFailed):
        stop_stream(home, PIPELINE, "a new drill begins")
    stop_cluster(home)
    stack.stop_kafka(home)
    remove_folder(lake_path(home.lake.root))
    for part in (home.kafka, home.sent("x", "y", 0).parent, home.log("x").parent, home.root / "pipelines"):
        shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(pipelines / PIPELINE, home.root / "pipelines" / PIPELINE)
    declared = home.root / "pipelines" / PIPELINE / "pipeline.yaml"
    # Of few events the partitions of a topic hold times that are minutes apart: only what the drill sends late may be late.
    declared.write_text(declared.read_text().replace("lateness: 10 minutes", f"lateness: {LATENESS}"))
    if connected:
        declared.write_text(re.sub(r"(?m)^( *topic: )", rf"\1drill-{secrets.token_hex(3)}.", declared.read_text()))
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
        os.environ.update({name: value for name, value in kept.items() if value is not None})


def run_drill(events: int, seed: int, workers: int, connected: bool, say: Say) -> tuple[Home, Drilled]:
    """Empty the drill's home, drill, and keep it."""
    if connected and workers:
        raise Refusal("--connected is for brokers and a Spark master that are there already: leave out --workers")
    home = Home(Home.from_environment().root / "drill")
    pipelines = home.pipelines
    fetch_jars(say=say)
    with own_settings(home, pipelines, connected):
        return home, Drill(home, utc_now().date() - timedelta(days=2), events, seed, say, workers, connected).run()

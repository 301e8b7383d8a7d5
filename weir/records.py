"""The JSON that one process writes and another reads: heartbeat, lease, stop request, reports. Small files, whole or absent."""

import os
import secrets
import socket
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from weir.event_time import Run, utc_now
from weir.lake_files import sign, write_new, write_whole
from weir.layout import watch_query

Severity = Literal["critical", "warning", "info"]
Decision = Literal["PASS", "WARN", "BLOCK"]
State = Literal["starting", "running", "stopping", "stopped", "failed"]
"""Of a driver, as it tells it."""
Fate = Literal["counted", "late", "duplicate", "rejected", "undecodable", "lost", "pending"]
"""What became of one event in one view. A pending one was not read by the view yet."""
FATES: tuple[Fate, ...] = get_args(Fate)
Cause = Literal["late", "duplicate", "quarantine", "table", "version", "cut", "lost", "pending", "unexplained"]
"""Why speed and batch say different things of a cell."""


class Record(BaseModel):
    """Written atomically and only for its owner's eyes (0600 in a 0700 folder)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def write(self, file: Path) -> None:
        write_whole(file, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None where there is no such record; a record that cannot be read is an error, never a guess."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ValueError(f"{file}: not a {cls.__name__} record ({error.error_count()} errors)") from None


_READ: dict[Path, tuple[tuple[Any, ...], Record | None]] = {}
_MOST_READ = 512
R = TypeVar("R", bound=Record)


def read_once(of: type[R], file: Path) -> R | None:
    """The record, parsed again only when its file is another one: records are replaced whole, and never changed."""
    try:
        signed = sign(file)
    except FileNotFoundError:
        return None
    known = _READ.get(file)
    if known is None or known[0] != signed or not isinstance(known[1], of):
        if len(_READ) >= _MOST_READ:
            _READ.clear()
        known = _READ[file] = (signed, of.read(file))
    return known[1]  # type: ignore[return-value]


class Identity(Record):
    """Who a process is. A pid alone can be reused, and a clock can jump: host, boot, pid and start together are one process."""

    host: str
    pid: int
    started_at: float
    """Seconds since the boot, which no clock changes; where the system does not tell that, since 1970."""
    nonce: str
    boot: str = ""

    @staticmethod
    def of_this_process(nonce: str | None = None) -> "Identity":
        return Identity.of(os.getpid(), nonce)

    @staticmethod
    def of(pid: int, nonce: str | None = None) -> "Identity":
        nonce = nonce or secrets.token_hex(8)
        return Identity(host=socket.gethostname(), pid=pid, started_at=_started_at(pid), nonce=nonce, boot=_boot())

    def is_on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    def is_known_dead(self) -> bool:
        """Of a process on another host nothing is known."""
        return self.is_on_this_host() and not self.is_alive()

    def is_alive(self) -> bool:
        """Whether that very process still runs on this host (a zombie does not)."""
        try:
            same = self.is_on_this_host() and self.boot == _boot() and abs(_started_at(self.pid) - self.started_at) < 1
            return same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def _started_at(pid: int) -> float:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        return psutil.Process(pid).create_time()


def _boot() -> str:
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else ""


class Lease(Record):
    """Who may write for a pipeline. The highest generation is the one that holds."""

    generation: int
    holder: Identity
    taken_at: datetime


class QueryPulse(Record):
    """What one query of a driver did last."""

    batch: int | None
    rows_per_second: float
    behind: int
    """Messages in the log that it has not read yet."""
    until: dict[str, int]
    """The offset up to which it has committed, by topic/partition."""
    watermark: datetime | None
    state_rows: int
    state_bytes: int
    caught_up_at: datetime | None = None
    """When it last began a batch that left nothing unread: no older message is missing in what it writes."""

    def has_read(self, ends: dict[str, int]) -> bool:
        """Whether it has committed everything up to these ends of the log."""
        return bool(self.until) and all(offset >= ends[place] for place, offset in self.until.items())


class Heartbeat(Record):
    """What a driver writes every few seconds to say that it lives, and at its end how it ended."""

    holder: Identity
    generation: int
    state: State
    written_at: datetime
    error: str | None = None
    queries: dict[str, QueryPulse] = {}
    arriving: float | None = None
    """Messages a second that the archive has taken in of late."""
    retention_seconds: float | None = None
    """How long the log keeps a message, of the topic that keeps it shortest."""
    spark_ui: str | None = None
    """Where Spark's own pages of the driver are, if they are switched on."""

    @property
    def keepers(self) -> dict[str, QueryPulse]:
        """The queries that keep something: archive, tables and views. A watch keeps nothing."""
        return {name: own for name, own in self.queries.items() if not name.startswith(watch_query(""))}

    @property
    def is_of_a_runner(self) -> bool:
        """Whether its driver runs, as far as anybody here can know."""
        return self.state in ("starting", "running") and not self.holder.is_known_dead()

    def has_read(self, ends: dict[str, int]) -> bool:
        """Whether all that keeps something has read up to these ends."""
        return bool(self.keepers) and all(own.has_read(ends) for own in self.keepers.values())


class StopRequest(Record):
    """Asks the driver of this generation, or an earlier one, to stop at a batch border."""

    generation: int
    requested_at: datetime
    reason: str
    hold: bool = False
    """Nothing but a person's act is to start it again."""


class Launch(Record):
    """A driver that was started, told before it can tell anything itself. Its lease, once it has one, says the rest."""

    nonce: str
    """The driver's lease will bear it."""
    identity: Identity
    """Of the process that was started here: spark-submit, whose child or remote ward the driver is."""
    log: str
    outcome: str
    launched_at: datetime


class DriverEnd(Record):
    """A driver that ended without having been asked to."""

    nonce: str
    ended_at: datetime
    lived_seconds: float
    error: str
    given_up: bool = False
    """No restart followed: whoever starts the stream after this begins a new count."""


class DriverHistory(Record):
    """The last ends of a pipeline's drivers."""

    ends: list[DriverEnd] = []


class CellCause(Record):
    """One cause of a cell's difference, with the events responsible: how many, and some of their identities."""

    cause: Cause
    events: int
    identities: list[str]


class Cell(Record):
    """One differing cell of a view: its grain value, what the two layers say, and why."""

    grain: dict[str, str]
    speed: dict[str, str] | None
    batch: dict[str, str] | None
    causes: list[CellCause] = []

    @property
    def is_unexplained(self) -> bool:
        return any(own.cause == "unexplained" for own in self.causes)


class LatenessChoice(Record):
    """What a stream's day would have been with another lateness."""

    seconds: int
    late: int
    """Events that the view would not have waited for."""
    state: int
    """Identities that the view would have to remember at a time, on average."""


class VersionComparison(Record):
    """What was streamed of a day by an earlier declaration of the view, against what is true by the present one."""

    fingerprint: str
    compared: int
    equal: int
    causes: dict[str, int]
    """Differing cells by cause."""
    released: int
    """Events of the day that this version had rejected and that were released since."""


class ViewComparison(Record):
    """Speed against batch for one view and day. `pending` cells cannot be expected from the speed layer yet."""

    view: str
    fingerprint: str
    compared: int
    equal: int
    different: int
    only_speed: int
    only_batch: int
    pending: int
    causes: dict[str, int] = {}
    """Differing cells by cause. A cell with two causes stands in both."""
    unexplained: int = 0
    unexplained_digest: str = ""
    """Of these cells and what both layers say of them: what a person accepts is this and nothing else."""
    examples: list[Cell]
    decision: Decision = "PASS"
    """Of the gate over the recomputed cells. A blocked day is not replaced."""
    gate: list[str] = []
    settled_before: date | None = None
    settled_until: date | None = None
    """The exclusive bound before and after this night."""
    corrections: int = 0
    """Cells of which another number is served now."""
    versions: list[VersionComparison] = []
    lateness: dict[str, list[LatenessChoice]] = {}
    """By stream, what to choose from. Measured on all events of the day that a batch has read."""

    @property
    def differing(self) -> int:
        return self.different + self.only_speed + self.only_batch


class LostRange(Record):
    """Offsets that nobody can read any more, half open."""

    from_offset: int
    until_offset: int
    reason: Literal["retention", "gap"]
    """retention: the log had dropped them before they were read. gap: the log has no message there (a transaction's mark, compaction)."""


class LedgerLine(Record):
    """What became of the offsets of one partition that arrived on a day, in one view. Balanced when each has exactly one fate."""

    view: str
    """`raw` for a stream that no view reads."""
    stream: str
    topic: str
    partition: int
    day: str
    first_offset: int
    until_offset: int
    offsets: int
    """Of the log, that belong to this day: messages, and those lost before them."""
    fates: dict[Fate, int]
    lost_ranges: list[LostRange] = []
    wrong: list[str] = []
    """Why it does not balance, one line each."""


class Loss(Record):
    """Messages that a query could not read because the log had dropped them. Noted by the driver, once."""

    query: str
    topic: str
    partition: int
    from_offset: int
    until_offset: int
    noticed_at: datetime


class Search(Record):
    """A condition on the rows of a stream that somebody has saved, to be told of each row that meets it."""

    name: str
    stream: str
    when: str
    added_at: datetime


class Searches(Record):
    saved: list[Search] = []

    def of(self, stream: str) -> dict[str, str]:
        return {own.name: own.when for own in self.saved if own.stream == stream}


class Losses(Record):
    found: list[Loss] = []


class Arrivals(Record):
    """What arrived on one day: by stream, the days on which it occurred, with the last offset of each by topic/partition."""

    day: date
    streams: dict[str, dict[date, dict[str, int]]]


class DayVerdict(Record):
    """What the nights have found of one day of a view."""

    day: date
    decision: Decision
    reasons: list[str] = []
    equal: int
    repaired: int
    pending: int
    unexplained: int
    causes: dict[str, int] = {}
    cut: dict[str, int]
    """By topic/partition the offset up to which the recomputation had read raw."""
    written_at: datetime


class Acceptance(Record):
    """A person's word that a blocked day may be settled although cells are unexplained. Kept for ever."""

    day: date
    digest: str
    """Of the unexplained cells that are meant: others block again."""
    reason: str
    who: str
    accepted_at: datetime


class Settlement(Record):
    """How far a view is settled: batch is served for the days from `since` on and before `until`, speed for all others."""

    view: str
    fingerprint: str
    since: date | None = None
    until: date | None = None
    ahead: list[date] = []
    """Days that passed while one before them did not: they wait for it."""
    days: dict[date, DayVerdict] = {}
    """Of the last days; all of them have reports."""
    acceptances: list[Acceptance] = []

    @property
    def run(self) -> Run | None:
        return Run(self.since, self.until, frozenset(self.ahead)) if self.since and self.until else None

    def with_run(self, run: Run | None) -> "Settlement":
        told = {"since": run.since, "until": run.until, "ahead": sorted(run.ahead)} if run else {"since": None, "until": None, "ahead": []}
        return self.model_copy(update=told)


class StreamDay(Record):
    """What became of the messages of one stream that belong to a day."""

    stream: str
    archived: int
    accepted: int
    duplicates: int
    rejected: int
    undecodable: int
    reasons: dict[str, int]


class NightlyReport(Record):
    pipeline: str
    day: str
    written_at: datetime
    seconds: float
    streams: list[StreamDay]
    views: list[ViewComparison]
    ledger: list[LedgerLine] = []
    also: list[str] = []
    """Dirty days that the same night has recomputed. Each has its own report."""


class ExpectationResult(Record):
    """What Great Expectations found of one expectation in one closed batch. A broken validation has its `error` and no success."""

    expectation: str
    rule: str
    """The short name that verdicts use: `amount:be_between`."""
    arguments: dict[str, Any]
    severity: Severity
    success: bool
    observed: str | None = None
    unexpected: int = 0
    checked: int = 0
    error: str | None = None


class Sample(Record):
    """One row that was set aside, as people may see it: private columns are masked, long texts cut."""

    place: str
    """topic/partition/offset"""
    received_at: datetime
    row: dict[str, str | None]
    payload: str


class Drift(Record):
    """Something in the messages that the contract does not know, seen in so many of the rows that were looked at."""

    kind: Literal["new_field", "missing_field", "renamed_field", "changed_type", "new_value"]
    field: str
    detail: str
    rows: int


class DayQuality(Record):
    """The quality of what arrived on one day for one stream, over all micro-batches that published it. Its size is bounded."""

    stream: str
    day: str
    batches: int = 0
    rows: int = 0
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    undecodable: int = 0
    reasons: dict[str, int] = {}
    samples: dict[str, list[Sample]] = {}
    results: list[ExpectationResult] = []
    """Of the last batch."""
    drift: list[Drift] = []


class GateReport(Record):
    """What a gate decided on one micro-batch of one stream, and why."""

    stream: str
    batch: int
    decision: Decision
    reasons: list[str]
    """Why it is not PASS, one line each."""
    rows: int
    accepted: int
    duplicates: int
    rejected: int
    undecodable: int
    broken: dict[str, int]
    """Rows set aside, by reason."""
    results: list[ExpectationResult]
    drift: list[Drift]
    written_at: datetime
    seconds: float


class RefineCursor(Record):
    """How far a stream is refined. Replaced as a whole by each batch, so its counts hold each batch once."""

    id: str
    """Part of Delta's transaction id: a new cursor must not look like the old one."""
    batch: int = -1
    until: dict[str, int] = {}
    """The offset up to which raw is published, by topic/partition."""
    days: dict[str, DayQuality] = {}


class PublishPlan(Record):
    """A staged batch that passed its gate. Once this is written the batch will be published, if need be by the next run."""

    way: Literal["refine", "replay"]
    stage: str
    cursor: RefineCursor
    """What the cursor will be."""
    dirty: dict[str, str] = {}
    """Days that the nightly has to recompute, with the reason."""


class RefineReport(Record):
    """One run of the micro-batch over all streams of a pipeline."""

    pipeline: str
    streams: list[GateReport]
    site: str
    seconds: float


class ReplayReport(Record):
    """What a replay would change, or has changed."""

    pipeline: str
    source: str
    applied: bool
    rows: int
    released: int
    """Rows that now pass."""
    duplicates: int
    """Rows that now pass, but whose event has been accepted meanwhile."""
    remaining: dict[str, int]
    """Rows that still do not, by reason."""
    days: dict[str, int]
    """Released rows by the day on which they occurred."""
    views: list[str]
    blocked: list[str] = []


class DirtyDay(Record):
    """A day whose batch cells are no longer the last word: the nightly has to recompute it."""

    day: str
    reason: str
    marked_at: datetime


class RawKept(Record):
    """Since when raw is whole. Days before may have been dropped: what reads them cannot be recomputed."""

    since: date
    keep_raw: str
    written_at: datetime


class TableFiles(Record):
    """What housekeeping did to the files of one table. Those removed are files on disk that no version of the last week needs."""

    table: str
    files_before: int
    files_after: int
    compacted: int
    """Partitions that were rewritten."""
    files_removed: int
    bytes_removed: int


class ExpiredRows(Record):
    """Open quarantined rows of one stream with one reason whose time has passed. A row with two reasons stands in two of these."""

    stream: str
    reason: str
    rows: int
    marked: int
    """Of them, those that this run has marked: they are no longer open."""


class HousekeepingReport(Record):
    """What one housekeeping of a pipeline has tidied away, and what it left for a person to look at."""

    pipeline: str
    tables: list[TableFiles]
    days_dropped: dict[str, list[str]]
    """Of raw, by stream."""
    days_held: dict[str, str]
    """Days of raw that are old enough and stay, with the reason."""
    expired: list[ExpiredRows]
    removed: list[str]
    """Old reports, outcomes and stages, by their path below the lake."""
    seconds: float


class CaseResult(Record):
    """One test case in one form: `of` is a view, or the stream whose rejected rows were looked at."""

    case: str
    of: str
    form: str
    missing: list[dict[str, str | None]] = []
    unexpected: list[dict[str, str | None]] = []

    @property
    def passed(self) -> bool:
        return not self.missing and not self.unexpected


class Outcome(Record):
    """How a Spark job ended, for whoever started it: a refusal is one line for a person."""

    refusal: str | None = None
    failure: str | None = None
    report: NightlyReport | None = None
    refined: RefineReport | None = None
    replayed: ReplayReport | None = None
    housekept: HousekeepingReport | None = None
    cases: list[CaseResult] = []
    lines: list[str] = []


KEPT_ENDS = 20


class Control:
    """The control folder of one pipeline: the only place where its lease, heartbeat and stop request are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def heartbeat(self) -> Heartbeat | None:
        return Heartbeat.read(self.folder / "heartbeat.json")

    def beat(self, heartbeat: Heartbeat) -> None:
        heartbeat.write(self.folder / "heartbeat.json")

    def stop_request(self) -> StopRequest | None:
        return StopRequest.read(self.folder / "stop.json")

    def request_stop(self, generation: int, reason: str, hold: bool = False) -> None:
        StopRequest(generation=generation, requested_at=utc_now(), reason=reason, hold=hold).write(self.folder / "stop.json")

    def launch(self) -> Launch | None:
        return Launch.read(self.folder / "launch.json")

    def note_launch(self, launch: Launch) -> None:
        launch.write(self.folder / "launch.json")

    def history(self) -> list[DriverEnd]:
        found = DriverHistory.read(self.folder / "history.json")
        return found.ends if found else []

    def note_end(self, end: DriverEnd) -> None:
        DriverHistory(ends=[*self.history(), end][-KEPT_ENDS:]).write(self.folder / "history.json")

    def note_giving_up(self) -> None:
        if ends := self.history():
            DriverHistory(ends=[*ends[:-1], ends[-1].model_copy(update={"given_up": True})]).write(self.folder / "history.json")

    def lease(self) -> Lease | None:
        generations = sorted(self._leases())
        return Lease.read(generations[-1][1]) if generations else None

    def take_lease(self, generation: int, holder: Identity) -> Lease | None:
        """Take this generation, or None when another took it first: creating its file is the one atomic step."""
        lease = Lease(generation=generation, holder=holder, taken_at=utc_now())
        if not write_new(self.folder / "lease" / f"{generation:010d}.json", lease.model_dump_json(indent=1)):
            return None
        for number, older in self._leases():
            if number < generation - 10:
                older.unlink(missing_ok=True)
        return lease

    def _leases(self) -> list[tuple[int, Path]]:
        return [(int(file.stem), file) for file in (self.folder / "lease").glob("[0-9]*.json")]

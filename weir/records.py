"""The JSON that one process writes and another reads: heartbeat, lease, stop request, reports. Small files, whole or absent."""

import os
import secrets
import socket
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from weir.event_time import utc_now

Severity = Literal["critical", "warning", "info"]
Decision = Literal["PASS", "WARN", "BLOCK"]


def write_whole(file: Path, text: str) -> None:
    """Write a file that readers see whole or not at all, and only its owner sees."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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


class Identity(Record):
    """Who a process is. A pid alone can be reused, and a host's clock can jump: all of it together is one process."""

    host: str
    pid: int
    started_at: float
    nonce: str

    @staticmethod
    def of_this_process() -> "Identity":
        return Identity.of(os.getpid())

    @staticmethod
    def of(pid: int) -> "Identity":
        return Identity(host=socket.gethostname(), pid=pid, started_at=psutil.Process(pid).create_time(), nonce=secrets.token_hex(8))

    def is_on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether that very process still runs on this host (a zombie does not)."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


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


class Heartbeat(Record):
    """What a driver writes every few seconds to say that it lives, and at its end how it ended."""

    holder: Identity
    generation: int
    state: Literal["starting", "running", "stopping", "stopped", "failed"]
    written_at: datetime
    error: str | None = None
    queries: dict[str, QueryPulse] = {}


class StopRequest(Record):
    """Asks the driver of this generation, or an earlier one, to stop at a batch border."""

    generation: int
    requested_at: datetime
    reason: str


class Cell(Record):
    """One differing cell of a view: its grain value and what the two layers say."""

    grain: dict[str, str]
    speed: dict[str, str] | None
    batch: dict[str, str] | None


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
    examples: list[Cell]
    decision: Decision = "PASS"
    """Of the gate over the recomputed cells. A blocked day is not replaced."""
    gate: list[str] = []


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


class Outcome(Record):
    """How a Spark job ended, for whoever started it: a refusal is one line for a person."""

    refusal: str | None = None
    failure: str | None = None
    report: NightlyReport | None = None
    refined: RefineReport | None = None
    replayed: ReplayReport | None = None
    lines: list[str] = []


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

    def request_stop(self, generation: int, reason: str) -> None:
        StopRequest(generation=generation, requested_at=utc_now(), reason=reason).write(self.folder / "stop.json")

    def lease(self) -> Lease | None:
        generations = sorted(self._leases())
        return Lease.read(generations[-1][1]) if generations else None

    def take_lease(self, generation: int, holder: Identity) -> Lease | None:
        """Take this generation, or None when another took it first: creating its file is the one atomic step."""
        lease = Lease(generation=generation, holder=holder, taken_at=utc_now())
        file = self.folder / "lease" / f"{generation:010d}.json"
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = self.folder / "lease" / f".{generation}.{holder.nonce}"
        lease.write(written)
        try:
            os.link(written, file)
        except FileExistsError:
            return None
        finally:
            written.unlink()
        for number, older in self._leases():
            if number < generation - 10:
                older.unlink(missing_ok=True)
        return lease

    def _leases(self) -> list[tuple[int, Path]]:
        return [(int(file.stem), file) for file in (self.folder / "lease").glob("[0-9]*.json")]

"""What is told of a pipeline's driver: lease, heartbeat, stop request, how it began and ended."""

import os
import secrets
import socket
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

from weir.event_time import utc_now
from weir.lake_files import write_new
from weir.layout import watch_query
from weir.records.record import Record

State = Literal["starting", "running", "stopping", "stopped", "failed"]
"""Of a driver, as it tells it."""


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
    batch_seconds: float | None = None
    """How long its last batch took."""

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

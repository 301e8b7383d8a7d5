"""What the nights find: cells and their causes, the ledger, and how far a view is settled."""

from datetime import date, datetime
from typing import Literal, get_args

from weir.event_time import Run
from weir.records.quality import Decision
from weir.records.record import Record

Fate = Literal["counted", "late", "duplicate", "rejected", "undecodable", "lost", "pending"]
"""What became of one event in one view. A pending one was not read by the view yet."""
FATES: tuple[Fate, ...] = get_args(Fate)
Cause = Literal["late", "duplicate", "quarantine", "table", "version", "cut", "lost", "pending", "unexplained"]
"""Why speed and batch say different things of a cell."""
CAUSES: tuple[Cause, ...] = get_args(Cause)


class ViewVersion(Record):
    """How the stream computes a view in one form of its declaration. Written when it is first started."""

    contracts: dict[str, str]
    """The fingerprint of the contract by which each of its streams is judged."""
    is_aggregate: bool
    """Whether the intake computes it within its batches; else it has a query of its own."""


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


class DirtyDay(Record):
    """A day whose batch cells are no longer the last word: the nightly has to recompute it."""

    day: str
    reason: str
    marked_at: datetime

"""How a Spark job ended, and what those did that tidy and try."""

from datetime import date, datetime

from weir.records.night import NightlyReport
from weir.records.quality import RefineReport, ReplayReport
from weir.records.record import Record


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

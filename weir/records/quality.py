"""What gates decide on micro-batches, and the quality of each day."""

from datetime import datetime
from typing import Any, Literal

from weir.records.record import Record

Severity = Literal["critical", "warning", "info"]
Decision = Literal["PASS", "WARN", "BLOCK"]


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
    """The offset up to which messages are published, by topic/partition."""
    contract: str = ""
    """The fingerprint of the contract that the last batch was judged by."""
    intake_batch: int = -1
    """Up to this batch of the journal there is nothing left to publish of that contract."""
    days: dict[str, DayQuality] = {}


class JournalRange(Record):
    """The messages of one source with offsets from `since` up to `until`, as one contract judged them. Its rows never change.

    It says all by itself where its columns are: the declaration may have changed since.
    """

    contract: str
    struct: str
    """The column of the journal that holds the typed columns."""
    columns: list[str]
    since: dict[str, int]
    """By topic/partition, inclusive; 0 for a partition that is not named."""
    until: dict[str, int]
    """By topic/partition, exclusive."""
    after_batch: int = -1
    """All its rows are in later batches of the journal: files of earlier ones need not be read."""
    judged_before: dict[str, int] = {}
    """By topic/partition the offset up to which another contract has judged these messages too, and its rejected ones are in quarantine."""


class PublishPlan(Record):
    """A batch that passed its gate. Once this is written the batch will be published, if need be by the next run."""

    way: Literal["refine", "replay"]
    rows: JournalRange | None = None
    """What a refine publishes."""
    stage: str = ""
    """Where the rows are that a replay publishes."""
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

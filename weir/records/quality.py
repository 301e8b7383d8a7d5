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

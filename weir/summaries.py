"""What the jobs tell the pages in short: the quality of the last days, and what the nights have proved. Bounded, however long it runs."""

from collections.abc import Mapping
from datetime import date, datetime

from weir.event_time import utc_now
from weir.records.night import NightlyReport, ViewComparison
from weir.records.quality import DayQuality, Decision, GateReport
from weir.records.record import Record

DAYS_KEPT = 31
REASONS_KEPT = 20
"""A day has more only when somebody sends garbage of ever new kinds; its report page has them all."""


class QualityDay(Record):
    """One stream's day by arrival: what became of its rows, and which rules were broken most."""

    day: str
    rows: int
    accepted: int
    duplicates: int
    rejected: int
    undecodable: int
    reasons: dict[str, int]
    not_met: int
    """Expectations that the last micro-batch did not meet."""
    drift: int

    @property
    def set_aside(self) -> int:
        return self.rejected + self.undecodable

    @property
    def share_set_aside(self) -> float | None:
        return self.set_aside / self.rows if self.rows else None


class BlockedGate(Record):
    batch: int
    reasons: list[str]
    rows: int
    written_at: datetime


class QualitySummary(Record):
    """Of all streams of a pipeline, the last month; the newest day last."""

    streams: dict[str, list[QualityDay]] = {}
    blocked: dict[str, BlockedGate] = {}
    written_at: datetime

    def share_set_aside(self) -> dict[str, float | None]:
        """Of each stream's last day."""
        return {name: days[-1].share_set_aside if days else None for name, days in self.streams.items()}


def summarise_quality(quality: Mapping[str, Mapping[str, DayQuality]], blocked: Mapping[str, GateReport]) -> QualitySummary:
    return QualitySummary(
        streams={name: [_quality_day(days[day]) for day in sorted(days)[-DAYS_KEPT:]] for name, days in quality.items()},
        blocked={
            name: BlockedGate(batch=gate.batch, reasons=gate.reasons[:REASONS_KEPT], rows=gate.rows, written_at=gate.written_at)
            for name, gate in blocked.items()
        },
        written_at=utc_now(),
    )


def _quality_day(of_day: DayQuality) -> QualityDay:
    worst = sorted(of_day.reasons.items(), key=lambda reason: (-reason[1], reason[0]))[:REASONS_KEPT]
    return QualityDay(
        day=of_day.day,
        rows=of_day.rows,
        accepted=of_day.accepted,
        duplicates=of_day.duplicates,
        rejected=of_day.rejected,
        undecodable=of_day.undecodable,
        reasons=dict(worst),
        not_met=sum(not result.success for result in of_day.results),
        drift=len(of_day.drift),
    )


class NightView(Record):
    """What a night has found of one view."""

    view: str
    decision: Decision
    word: str
    """blocked, not settled, proved or repaired."""
    compared: int
    equal: int
    differing: int
    pending: int
    unexplained: int
    causes: dict[str, int]
    settled_until: date | None


class NightRow(Record):
    """One proved day."""

    day: str
    written_at: datetime
    seconds: float
    views: list[NightView]
    offsets: int
    lost: int
    balanced: bool

    def causes(self) -> dict[str, int]:
        """Differing cells of all views by cause, the most frequent first."""
        found: dict[str, int] = {}
        for view in self.views:
            for cause, cells in view.causes.items():
                found[cause] = found.get(cause, 0) + cells
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def total(self, of: str) -> int:
        return sum(getattr(view, of) for view in self.views)


class NightSummary(Record):
    """The last month of proved days, the newest last."""

    nights: list[NightRow] = []

    def with_reports(self, reports: list[NightlyReport]) -> "NightSummary":
        known = {night.day: night for night in self.nights} | {report.day: summarise_night(report) for report in reports}
        return NightSummary(nights=[known[day] for day in sorted(known)[-DAYS_KEPT:]])


def summarise_night(report: NightlyReport) -> NightRow:
    return NightRow(
        day=report.day,
        written_at=report.written_at,
        seconds=report.seconds,
        views=[_night_view(view) for view in report.views],
        offsets=sum(line.offsets for line in report.ledger),
        lost=sum(line.fates.get("lost", 0) for line in report.ledger),
        balanced=not any(line.wrong for line in report.ledger),
    )


def _night_view(view: ViewComparison) -> NightView:
    return NightView(
        view=view.view,
        decision=view.decision,
        word=word_of(view),
        compared=view.compared,
        equal=view.equal,
        differing=view.differing,
        pending=view.pending,
        unexplained=view.unexplained,
        causes=view.causes,
        settled_until=view.settled_until,
    )


def word_of(view: ViewComparison) -> str:
    """What the night says of a view, in a word."""
    if view.decision == "BLOCK":
        return "blocked"
    if view.settled_until is None:
        return "not settled"
    return "proved" if not view.differing else "repaired"

"""Whether a day may be settled, and how far a view is: decisions over records, and nothing else."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta

from weir.event_time import ONE_DAY, Run
from weir.records.night import Acceptance, Arrivals, DayVerdict, Settlement, ViewComparison
from weir.records.quality import Decision
from weir.refusal import Refusal

KEPT_DAYS = 60


def judge_day(
    comparison: ViewComparison, gate: tuple[Decision, list[str]], unbalanced: list[str], early: list[str], acceptances: Iterable[Acceptance]
) -> tuple[Decision, list[str]]:
    """The night's decision on one view and day, with every reason. What a person has accepted only warns."""
    decision, reasons = gate
    reasons = [*reasons]
    blocks = [f"the ledger does not balance: {line}" for line in unbalanced]
    blocks += [f"the batch is early: {line}" for line in early]
    if comparison.unexplained:
        cells = "1 cell is" if comparison.unexplained == 1 else f"{comparison.unexplained:,} cells are"
        what = f"{cells} unexplained (`weir explain {comparison.view}`)"
        by = next((a for a in acceptances if a.digest == comparison.unexplained_digest), None)
        if by:
            reasons.append(f"{what}, accepted by {by.who}: {by.reason}")
            decision = "WARN" if decision == "PASS" else decision
        else:
            blocks.append(what)
    return ("BLOCK", [*blocks, *reasons]) if blocks else (decision, reasons)


def settle(settlement: Settlement, verdict: DayVerdict) -> Settlement:
    """Note the verdict; a day that passed joins the run. One that was settled before and is blocked now keeps what is served."""
    kept = sorted({*settlement.days, verdict.day})[-KEPT_DAYS:]
    days = {day: verdict if day == verdict.day else settlement.days[day] for day in kept if day == verdict.day or day in settlement.days}
    noted = settlement.model_copy(update={"days": days})
    if verdict.decision == "BLOCK":
        return noted
    return noted.with_run(noted.run.with_day(verdict.day) if noted.run else Run.of(verdict.day))


def accept(settlement: Settlement, comparison: ViewComparison, day: date, reason: str, who: str, now: datetime) -> Settlement:
    """Keep a person's word on exactly the cells that are unexplained now. The next night of the day settles it."""
    if not comparison.unexplained:
        raise Refusal(f"nothing of {settlement.view} on {day} is unexplained: there is nothing to accept")
    if not reason.strip():
        raise Refusal("say why: the reason is kept for ever")
    word = Acceptance(day=day, digest=comparison.unexplained_digest, reason=reason.strip(), who=who, accepted_at=now)
    return settlement.model_copy(update={"acceptances": [*settlement.acceptances, word]})


def revert(settlement: Settlement, day: date) -> Settlement:
    """Take back the settlement of this day and all after it: speed is served for them until they are settled again."""
    run = settlement.run
    if run is None or not run.since <= day < run.until:
        until = f"settled until {run.until}" if run else "not settled at all"
        raise Refusal(f"{settlement.view} of {day} cannot be reverted: it is {until}")
    return settlement.with_run(run.before(day))


def is_settled(settlement: Settlement | None, day: date) -> bool:
    run = settlement.run if settlement else None
    return run is not None and (run.since <= day < run.until or day in run.ahead)


def dirtied_days(settlement: Settlement, streams: Iterable[str], tables: Iterable[str], reach: timedelta, arrivals: Arrivals) -> set[date]:
    """The settled days that what arrived could change, and that had not seen it yet when they were recomputed.

    An event changes the days within reach of it; a change of a table every day from its own on.
    """
    around = -(-reach // ONE_DAY)
    found = set()

    def add(day: date, ends: dict[str, int]) -> None:
        verdict = settlement.days.get(day)
        seen = verdict.cut if verdict else {}
        if is_settled(settlement, day) and any(last >= seen.get(place, 0) for place, last in ends.items()):
            found.add(day)

    for stream in streams:
        for occurred_on, ends in arrivals.streams.get(stream, {}).items():
            for step in range(-around, around + 1):
                add(occurred_on + step * ONE_DAY, ends)
    for table in tables:
        for changed_on, ends in arrivals.streams.get(table, {}).items():
            for step in range(-around, (arrivals.day - changed_on).days + 1):
                add(changed_on + step * ONE_DAY, ends)
    return found

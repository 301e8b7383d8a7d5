"""What people see: records as tables. Each screen takes a record and prints it; programs use --json instead."""

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.layout import Home
from weir.pipeline import Stream, View
from weir.records.driver import Heartbeat, Search
from weir.records.jobs import CaseResult, HousekeepingReport
from weir.records.night import FATES, Cell, Fate, LatenessChoice, LedgerLine, NightlyReport, Settlement, ViewComparison
from weir.records.quality import RefineReport, ReplayReport
from weir.serving import Answer, QuarantineGroup
from weir.wording import LOST, WHY

if TYPE_CHECKING:
    from weir.drill import Drilled

MAX_ROWS = 200
"""More rows than anybody reads on a screen; --json has all."""


def show_answer(console: Console, answer: Answer) -> None:
    table = _table("", *answer.columns)
    for row in answer.rows[:MAX_ROWS]:
        table.add_row(*(Text(_value(value)) for value in row))
    console.print(table)
    rest = len(answer.rows) - MAX_ROWS
    console.print(f"{len(answer.rows):,} rows" + (f", {rest:,} not shown (--json has all)" if rest > 0 else ""))


def show_sent(console: Console, sent: Counter[tuple[str, str]]) -> None:
    """What was sent, by stream and by what is wrong with it."""
    sent = _by_kind(sent)
    kinds = sorted({kind for _, kind in sent}, key=lambda kind: (kind != "", kind))
    table = _table("Sent", "stream", *(kind or "good" for kind in kinds), "all")
    for stream in sorted({stream for stream, _ in sent}):
        counts = [sent[stream, kind] for kind in kinds]
        table.add_row(stream, *map(_number, counts), _number(sum(counts)))
    table.add_section()
    table.add_row("all", *(_number(sum(n for (_, k), n in sent.items() if k == kind)) for kind in kinds), _number(sum(sent.values())))
    console.print(table)


def _by_kind(sent: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """'dirty:amount_text' and its like as one kind: dirty."""
    merged: Counter[tuple[str, str]] = Counter()
    for (stream, wrong), count in sent.items():
        merged[stream, wrong.split(":")[0].replace("_", " ")] += count
    return merged


def show_nightly(console: Console, report: NightlyReport) -> None:
    streams = _table(f"Archived, {report.day}", "stream", "archived", "accepted", "duplicate", "rejected", "undecodable")
    for stream in report.streams:
        counts = (stream.archived, stream.accepted, stream.duplicates, stream.rejected, stream.undecodable)
        streams.add_row(stream.stream, *map(_number, counts))
    console.print(streams)
    reasons = _table("Set aside, by reason", "stream", "reason")
    for stream in report.streams:
        most_first = sorted(stream.reasons.items(), key=lambda item: (-item[1], item[0]))
        reasons.add_row(stream.stream, Text(", ".join(f"{reason} {count:,}" for reason, count in most_first) or "none"))
    console.print(reasons)
    if report.ledger:
        show_ledger(console, report.day, report.ledger)
    views = _table(
        f"Speed against batch, {report.day}", "view", "cells", "equal", "differ", "pending", "unexplained", "settled until", "causes"
    )
    for view in report.views:
        cells = (view.compared, view.equal, view.differing, view.pending, view.unexplained)
        until = "not yet" if view.settled_until is None else str(view.settled_until)
        views.add_row(view.view, *map(_number, cells), until, Text(_by_count(view.causes)))
    console.print(views)
    for view in report.views:
        for reason in view.gate:
            console.print(Text(f"{view.view}: {reason}", style="red" if view.decision == "BLOCK" else "yellow"), soft_wrap=True)
    for view in report.views:
        if view.examples:
            _show_differences(console, view)
    for view in report.views:
        for version in view.versions:
            what = f"{view.view}: of {version.compared:,} cells by an earlier declaration {version.equal:,} are true by this one"
            how = f"`weir explain {view.view} --day {report.day} --version {version.fingerprint}`"
            console.print(Text(f"{what}; the others: {_by_count(version.causes)} ({how})"), soft_wrap=True)
    for day in report.also:
        console.print(f"{day} was dirty and has been recomputed too: `weir reconcile {report.pipeline} --day {day}`", markup=False)


def show_story(console: Console, report: NightlyReport) -> None:
    """A day in two tables and an example of each cause: what became of the messages, what differed and why, what was repaired."""
    fates = _table(f"What became of them, {report.day}", "stream", "messages", "accepted", "of them late", *FATES_ASIDE, "lost")
    for stream in report.streams:
        lines = [line for line in report.ledger if line.stream == stream.stream]
        late, lost = (max((count_fate(lines, view, fate) for view in {own.view for own in lines}), default=0) for fate in ("late", "lost"))
        counts = (stream.archived, stream.accepted, late, stream.duplicates, stream.rejected, stream.undecodable, lost)
        fates.add_row(stream.stream, *map(_number, counts))
    console.print(fates)
    columns = ("view", "cells", "equal", "repaired", "still open", "unexplained", "causes")
    views = _table(f"Streamed against recomputed, {report.day}", *columns)
    for view in report.views:
        cells = (view.compared, view.equal, view.differing, view.pending, view.unexplained)
        differing = {cause: count for cause, count in view.causes.items() if cause != "pending"}
        views.add_row(view.view, *map(_number, cells), Text(_by_count(differing)))
    console.print(views)
    shown: set[str] = set()
    for view in report.views:
        for cell in view.examples:
            causes = {own.cause for own in cell.causes}
            if not causes <= shown:
                shown |= causes
                _show_explained_cell(console, view.view, cell, 3)


FATES_ASIDE = ("duplicate", "rejected", "undecodable")


def count_fate(lines: list[LedgerLine], view: str, fate: Fate) -> int:
    return sum(line.fates.get(fate, 0) for line in lines if line.view == view)


def show_ledger(console: Console, day: str, lines: list[LedgerLine], by_partition: bool = False) -> None:
    """Every offset that arrived on the day, by its fate in each view."""
    ledger = _table(f"Ledger of what arrived on {day}", "view ← stream", "offsets", *FATES, "balance")
    ledger.collapse_padding = True  # many columns
    groups: dict[str, list[LedgerLine]] = {}
    for line in lines:
        place = f"/{line.partition} [{line.first_offset:,}, {line.until_offset:,})" if by_partition else ""
        groups.setdefault(f"{line.view} ← {line.stream}{place}", []).append(line)
    for name, own in groups.items():
        fates = [sum(line.fates.get(fate, 0) for line in own) for fate in FATES]
        balance = Text("✗", style="bold red") if any(line.wrong for line in own) else Text("✓", style="green")
        ledger.add_row(Text(name), *map(_number, (sum(line.offsets for line in own), *fates)), balance)
    console.print(ledger)
    for text in dict.fromkeys(wrong for line in lines for wrong in line.wrong):
        console.print(Text(text, style="red"))
    lost = dict.fromkeys(
        f"{line.topic}/{line.partition}: offsets {own.from_offset:,} to {own.until_offset - 1:,} are lost: {LOST[own.reason]}"
        for line in lines
        for own in line.lost_ranges
    )
    for text in list(lost)[:MAX_LOST]:
        console.print(Text(text, style="yellow"), soft_wrap=True)
    if len(lost) > MAX_LOST:
        console.print(f"and {len(lost) - MAX_LOST:,} more lost ranges (--json has all)")


MAX_LOST = 10
MAX_NAMED = 20
"""Identities of the events behind a cause."""


def show_cases(console: Console, results: list[CaseResult], remarks: list[str]) -> None:
    """Each case with its forms; of one that failed, what was expected beside what was found."""
    for case in dict.fromkeys(result.case for result in results):
        own = [result for result in results if result.case == case]
        told = ", ".join(dict.fromkeys(f"{result.of}" for result in own))
        good = all(result.passed for result in own)
        console.print(Text.assemble(("✓ " if good else "✗ ", "green" if good else "red"), case, (f"  {told}, {len(own)} runs", "dim")))
        for result in own:
            if not result.passed:
                table = _table(
                    f"{result.of}, as {result.form}" if result.form != "rejected" else f"{result.of}: rejected", "expected", "found"
                )
                for left, right in zip_longest(result.missing, result.unexpected):
                    table.add_row(Text(_cell_text(left), "green"), Text(_cell_text(right), "red"))
                console.print(table)
    for remark in remarks:
        console.print(Text(f"  {remark}", "dim"), soft_wrap=True)
    failed = {result.case for result in results if not result.passed}
    cases = {result.case for result in results}
    console.print(f"{len(cases)} cases, {len(results)} runs" + (f", [red]{len(failed)} cases failed[/]" if failed else ", all as expected"))


def _cell_text(cell: dict[str, str | None] | None) -> str:
    return "" if cell is None else ", ".join(f"{name} {'null' if value is None else value}" for name, value in cell.items())


def show_searches(console: Console, saved: list[Search]) -> None:
    table = _table("", "name", "stream", "when", "since")
    for own in saved:
        table.add_row(own.name, own.stream, Text(own.when), f"{own.added_at:%Y-%m-%d %H:%M}")
    console.print(table if saved else "no searches are saved")


def show_settlements(console: Console, settlements: list[Settlement]) -> None:
    """What the nights found, day by day, and how far each view is settled."""
    for own in settlements:
        until = f"settled from {own.since} until {own.until}" if own.until else "not settled yet"
        table = _table(f"{own.view}: {until}", "day", "verdict", "equal", "repaired", "pending", "unexplained", "causes")
        for day, verdict in sorted(own.days.items(), reverse=True)[:MAX_DAYS]:
            word = Text.from_markup(VERDICTS[verdict.decision])
            counts = (verdict.equal, verdict.repaired, verdict.pending, verdict.unexplained)
            table.add_row(str(day), word, *map(_number, counts), Text(_by_count(verdict.causes)))
        console.print(table)
        for by in own.acceptances[-5:]:
            console.print(Text(f"{own.view} of {by.day}: accepted by {by.who} on {by.accepted_at:%Y-%m-%d}: {by.reason}", style="yellow"))


MAX_DAYS = 30
VERDICTS = {"PASS": "[green]settled[/]", "WARN": "[yellow]settled, with warnings[/]", "BLOCK": "[bold red]BLOCKED[/]"}


def show_explained(console: Console, view: str, day: str, cells: list[Cell], at_most: int) -> None:
    """Cell by cell: what was streamed, what is true, and which events make the difference."""
    if not cells:
        console.print(f"{view} of {day}: no cell differs")
        return
    for cell in cells[:at_most]:
        _show_explained_cell(console, view, cell, MAX_NAMED)
    rest = len(cells) - at_most
    console.print(
        f"{len(cells):,} {'cell differs' if len(cells) == 1 else 'cells differ'}"
        + (f", {rest:,} not shown (--limit, --json)" if rest > 0 else "")
    )


def _show_explained_cell(console: Console, view: str, cell: Cell, identities: int) -> None:
    console.print(Text(f"{view}  {_pairs(cell.grain)}", style="bold"), soft_wrap=True)
    speed, batch = ("—" if own is None else _pairs(own) for own in _sides(cell))
    console.print(Text(f"    streamed  {speed}"), soft_wrap=True)
    console.print(Text(f"    true      {batch}"), soft_wrap=True)
    for cause in cell.causes:
        word, named = "event" if cause.events == 1 else "events", cause.identities[:identities]
        events = f" {cause.events:,} {word}: {', '.join(named)}" if cause.events else ""
        more = ", …" if cause.events > len(named) > 0 else ""
        style = "red" if cause.cause == "unexplained" else "cyan"
        console.print(Text(f"    {cause.cause}: {WHY[cause.cause]}.{events}{more}", style=style), soft_wrap=True)


def show_lateness(console: Console, view: View, name: str, stream: str, contract: Stream, choices: list[LatenessChoice]) -> None:
    """One line for each lateness that somebody would choose; the declared one is marked."""
    declared = int(contract.lateness.total_seconds())
    table = _table(f"{name} ← {stream}: another lateness", "lateness", "late events", "identities kept", "cell")
    table.columns[-1].header = "a cell is told"
    for own in choices:
        mark = " ◄ declared" if own.seconds == declared else ""
        told = f"{_seconds(own.seconds)} after its end" if view.is_told_when_closed else "at once, and again at each change"
        table.add_row(f"{_seconds(own.seconds)}{mark}", _number(own.late), _number(own.state), told)
    console.print(table)


def _seconds(seconds: int) -> str:
    for unit, length in (("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def show_drill(console: Console, drilled: "Drilled", home: Home) -> None:
    table = _table(
        f"Drill of {drilled.day}: {drilled.events:,} events, {drilled.seconds} s", "fault", "injected", "named", "repaired", "cause"
    )
    table.columns[-1].header = "what was done"
    for own in drilled.faults:
        named = Text(f"{own.named:,}", style="green" if own.named == own.injected else "bold red")
        table.add_row(own.fault, f"{own.injected:,} {own.unit}", named, _number(own.repaired), Text(own.note))
    console.print(table)
    for reason in drilled.blocked:
        console.print(Text(f"The night was blocked, as it should: {reason}", style="yellow"))
    word = "none" if drilled.unexplained == 0 else f"[bold red]{drilled.unexplained:,}[/]"
    console.print(f"Unexplained beside the tampered cell: {word}. Served is recomputed: {'yes' if drilled.served_is_recomputed else 'NO'}.")
    verdict = "[green]passed[/]" if drilled.passed else "[bold red]NOT passed[/]"
    console.print(f"{verdict}. Look around: WEIR_HOME={home.root} WEIR_PIPELINES={home.root / 'pipelines'} weir reconcile", soft_wrap=True)


def _by_count(causes: dict[str, int]) -> str:
    return ", ".join(f"{cause} {count:,}" for cause, count in causes.items()) or "—"


WORDS = {"PASS": "[green]published[/]", "WARN": "[yellow]published, with warnings[/]", "BLOCK": "[bold red]BLOCKED[/]"}


def show_refined(console: Console, report: RefineReport) -> None:
    """One screen: what came, what was set aside and why, and whether it was published."""
    if not report.streams:
        console.print(f"{report.pipeline}: nothing new in the archive")
    else:
        table = _table(
            f"Refined {report.pipeline}", "stream", "batch", "rows", "accepted", "duplicate", "rejected", "undecodable", "reason"
        )
        table.columns[-1].header = "gate"
        for gate in report.streams:
            counts = (gate.rows, gate.accepted, gate.duplicates, gate.rejected, gate.undecodable)
            table.add_row(gate.stream, str(gate.batch), *map(_number, counts), Text.from_markup(WORDS[gate.decision]))
        console.print(table)
    for gate in report.streams:
        for reason in gate.reasons:
            colour = "red" if gate.decision == "BLOCK" else "yellow"
            console.print(Text(f"{gate.stream}: {reason}", style=colour))
        if gate.decision == "BLOCK":
            rows = f"its {gate.rows:,} rows stay in the archive, nothing of them was published"
            console.print(Text(f"{gate.stream}: {rows}; the next run tries again"))
    if aside := [gate for gate in report.streams if gate.broken]:
        reasons = _table("Set aside, by reason", "stream", "reason")
        for gate in aside:
            most_first = sorted(gate.broken.items(), key=lambda item: (-item[1], item[0]))
            reasons.add_row(gate.stream, Text(", ".join(f"{reason} {count:,}" for reason, count in most_first)))
        console.print(reasons)
        console.print(f"Look at them with `weir quarantine show {report.pipeline} --stream …`", markup=False)
    for gate in report.streams:
        for drift in gate.drift[:5]:
            console.print(
                Text(f"{gate.stream}: {drift.kind.replace('_', ' ')} {drift.field}: {drift.detail} ({drift.rows:,} rows)", style="cyan")
            )
    console.print(f"Report: {report.site}  ({report.seconds:.0f} s)", markup=False, soft_wrap=True)


def show_runs(console: Console, runs: list[tuple[str, str, float | None]]) -> None:
    """Runs of DAGs: which, how they ended, and how long they took where that is known."""
    table = _table("Airflow runs", "DAG", "state", "seconds")
    for dag, state, seconds in runs:
        table.add_row(dag, state, "" if seconds is None else f"{seconds:.0f}")
    console.print(table)


def show_quarantine(console: Console, pipeline: str, groups: list[QuarantineGroup]) -> None:
    if not groups:
        console.print(f"{pipeline}: nothing in quarantine")
        return
    table = _table(f"In quarantine, {pipeline}", "stream", "reason", "rows", "oldest", "newest")
    for group in groups:
        table.add_row(group.stream, Text(group.reason), _number(group.rows), _value(group.oldest), _value(group.newest))
    console.print(table)
    if expiring := max(group.expiring for group in groups):
        console.print(f"[yellow]{expiring:,} rows or more will not be kept for longer than three days: replay or discard them[/]")


def show_quarantined_rows(console: Console, rows: list[dict[str, Any]], at_most: int) -> None:
    for row in rows:
        place = f"{row['stream']}  {row['topic']}/{row['partition']}/{row['offset']}  {_value(row['received_at'])}"
        console.print(Text(place, style="bold"), Text(", ".join(row["reasons"]), style="red"), soft_wrap=True)
        console.print(Text(f"    {row['payload']}"), soft_wrap=True)
    console.print(f"{len(rows)} rows" + (", there may be more (--limit)" if len(rows) == at_most else ""))


def show_replay(console: Console, report: ReplayReport) -> None:
    word = "Replayed" if report.applied else "A replay would"
    console.print(f"{word}: of {report.rows:,} rows of {report.source} in quarantine", highlight=False)
    rows = [("now pass", f"{report.released:,}"), ("accepted meanwhile, as duplicates", f"{report.duplicates:,}")]
    rows += [(f"still break {reason}", f"{count:,}") for reason, count in report.remaining.items()]
    console.print(pairs_table("", rows))
    for line in report.blocked:
        console.print(Text(f"blocked: {line}", style="red"))
    if report.days:
        days = ", ".join(f"{day} ({count:,} rows)" for day, count in report.days.items())
        verb = "are dirty and wait" if report.applied else "would wait"
        console.print(Text(f"Days that {verb} for `weir nightly`: {days}; views: {', '.join(report.views) or 'none'}"), soft_wrap=True)


def show_housekept(console: Console, report: HousekeepingReport) -> None:
    """One screen: what became of the files, which days went, and what waits for somebody."""
    if not report.tables:
        console.print(f"{report.pipeline}: has no tables yet")
    else:
        table = _table(
            f"Files of {report.pipeline}", "table", "days merged", "files before", "files after", "old files removed", "kB removed"
        )
        for own in report.tables:
            counts = (own.compacted, own.files_before, own.files_after, own.files_removed, own.bytes_removed / 1_000)
            table.add_row(own.table, *map(_number, counts))
        console.print(table)
    for stream, days in report.days_dropped.items():
        span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        console.print(f"Dropped from raw: {len(days):,} days of {stream}, {span}", highlight=False)
    for reason in sorted(set(report.days_held.values())):
        days = [day for day, why in report.days_held.items() if why == reason]
        console.print(Text(f"Old, but stays in raw: {_few(days)} ({reason})", style="yellow"))
    if report.expired:
        expired = _table("Expired in quarantine", "stream", "reason", "rows", "marked now")
        for group in report.expired:
            expired.add_row(group.stream, Text(group.reason), _number(group.rows), _number(group.marked))
        console.print(expired)
        if any(group.rows > group.marked for group in report.expired):
            console.print("[yellow]What is not marked yet will be, a week after its time: replay or discard it[/]")
    if report.removed:
        console.print(Text(f"Removed: {_few(report.removed)}"), soft_wrap=True)
    console.print(f"({report.seconds:.0f} s)")


def _few(words: list[str], at_most: int = 5) -> str:
    rest = len(words) - at_most
    return ", ".join(words[:at_most]) + (f" and {rest:,} more" if rest > 0 else "")


def _show_differences(console: Console, view: ViewComparison, at_most: int = 5) -> None:
    table = _table(f"Cells of {view.view} that differ", "cell", "speed", "batch", "cause")
    for cell in view.examples[:at_most]:
        speed, batch = (Text("—" if own is None else _pairs(own, "\n")) for own in _sides(cell))
        causes = ", ".join(f"{cause.cause} {cause.events:,}" if cause.events else cause.cause for cause in cell.causes)
        table.add_row(Text(_pairs(cell.grain, "\n")), speed, batch, Text(causes), end_section=True)
    console.print(table)


def _sides(cell: Cell) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Both sides, of two that are there only what is not the same."""
    if cell.speed is None or cell.batch is None:
        return cell.speed, cell.batch
    differing = [column for column in cell.speed if cell.speed[column] != cell.batch[column]]
    return {c: cell.speed[c] for c in differing}, {c: cell.batch[c] for c in differing}


def _pairs(values: dict[str, str], between: str = "  ") -> str:
    return between.join(f"{column} {value}" for column, value in values.items())


def heartbeat_table(pipeline: str, heartbeat: Heartbeat) -> Table:
    title = f"{pipeline}: {heartbeat.state}, process {heartbeat.holder.pid}, generation {heartbeat.generation}"
    table = _table(title, "query", "batch", "messages/s", "behind", "watermark", "state rows")
    for name, pulse in heartbeat.queries.items():
        batch = "" if pulse.batch is None else _number(pulse.batch)
        watermark = f"{pulse.watermark:%Y-%m-%d %H:%M:%S}" if pulse.watermark else ""
        table.add_row(name, batch, _number(pulse.rows_per_second), _number(pulse.behind), watermark, _number(pulse.state_rows))
    return table


def pairs_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


WORDY = {
    "reason",
    "gate",
    "oldest",
    "newest",
    "watermark",
    "speed",
    "batch",
    "cell",
    "causes",
    "cause",
    "settled until",
    "verdict",
    "stream",
}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = index > 0 and column not in WORDY and title != ""
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=index == 0 and title != "")
    return table


def _number(value: float) -> str:
    return "·" if value == 0 else f"{value:,.0f}"


def _value(value: Any) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "hour") else str(value)

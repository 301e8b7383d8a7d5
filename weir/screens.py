"""What people see: records as tables. Each screen takes a record and prints it; programs use --json instead."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.records import Cell, Heartbeat, HousekeepingReport, NightlyReport, RefineReport, ReplayReport, ViewComparison
from weir.serving import Answer, QuarantineGroup

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
    views = _table(f"Speed against batch, {report.day}", "view", "cells", "equal", "different", "only speed", "only batch", "pending")
    for view in report.views:
        cells = (view.compared, view.equal, view.different, view.only_speed, view.only_batch, view.pending)
        views.add_row(view.view, *map(_number, cells))
    console.print(views)
    for view in report.views:
        for reason in view.gate:
            console.print(Text(f"{view.view}: {reason}", style="red" if view.decision == "BLOCK" else "yellow"))
    for view in report.views:
        if view.examples:
            _show_differences(console, view)


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
    table = _table(f"The first cells of {view.view} that differ", "cell", "speed", "batch")
    for cell in view.examples[:at_most]:
        speed, batch = _sides(cell)
        table.add_row(Text(_pairs(cell.grain)), Text(speed), Text(batch))
    console.print(table)


def _sides(cell: Cell) -> tuple[str, str]:
    """Both sides, of two that are there only what is not the same."""
    if cell.speed is None or cell.batch is None:
        return _pairs(cell.speed), _pairs(cell.batch)
    differing = [column for column in cell.speed if cell.speed[column] != cell.batch[column]]
    return _pairs({c: cell.speed[c] for c in differing}), _pairs({c: cell.batch[c] for c in differing})


def _pairs(values: dict[str, str] | None) -> str:
    return "—" if values is None else "  ".join(f"{column} {value}" for column, value in values.items())


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


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = (
            index > 0 and column not in ("reason", "gate", "oldest", "newest", "watermark", "speed", "batch", "cell") and title != ""
        )
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=index == 0 and title != "")
    return table


def _number(value: float) -> str:
    return "·" if value == 0 else f"{value:,.0f}"


def _value(value: Any) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "hour") else str(value)

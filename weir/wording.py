"""Sentences that screens and pages share."""

from weir.event_time import format_duration
from weir.pipeline import Pattern, Step

WHY: dict[str, str] = {
    "late": "events came after the watermark, the stream did not wait for them",
    "duplicate": "the stream counted a copy of an event that the recomputation does not count",
    "quarantine": "rows were released from quarantine since",
    "table": "a row of a table changed later",
    "version": "the declaration changed during the day",
    "cut": "events came after the cut: the batch was early",
    "lost": "the log dropped messages before the view had read them",
    "pending": "the stream has not told it yet",
    "unexplained": "no cause was found: somebody has to look at it",
}
LOST = {"retention": "the log had dropped them before they were read", "gap": "the log has no message there"}


def pattern_words(pattern: Pattern) -> tuple[str, list[str]]:
    """A pattern for people, in Markdown: what holds of all of it, and its steps."""
    steps = [
        f"{f'no `{step.not_when}`' if step.not_when else f'`{step.when}`'} in {step.of or pattern.of}{_times(step)}"
        for step in pattern.steps
    ]
    return f"By `{pattern.by}`, within {format_duration(pattern.within)}:", steps


def _times(step: Step) -> str:
    least, most = step.times
    if step.times == (1, 1):
        return ""
    return f", {least} times" if least == most else f", {least} times or more" if most is None else f", {least} to {most} times"

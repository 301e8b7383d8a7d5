"""The journal once more in plain Python: what it must say of messages, given only in which batch the intake read each."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import oracle
from oracle import Message, Row


@dataclass(frozen=True)
class Judged:
    """A message of a stream with its row, its fate, and whether the intake had to call it late."""

    message: Message
    row: Row | None
    fate: str
    is_late: bool
    batch: int

    @property
    def is_accepted(self) -> bool:
        return self.fate == "accepted"


def judge_by_batches(
    stream: str,
    messages: Iterable[Message],
    journal: Iterable[dict[str, Any]],
    lateness: timedelta,
    breaks_rule: Callable[[Row], bool] = lambda row: False,
) -> list[Judged]:
    """Fate and lateness of every message, in the order of the intake.

    Of each identity the first accepted message counts, in the order of the batches, within a batch in that of arrival. It is late when
    it occurred at or before the watermark: the newest event time of the batches before, in whole milliseconds, less the lateness.
    `breaks_rule` is a rule that a test has added to the declaration.
    """
    batches = {(row["partition"], row["offset"]): row["batch"] for row in journal}
    by_batch: dict[int, list[Message]] = {}
    for message in messages:
        by_batch.setdefault(batches[message.partition, message.offset], []).append(message)
    found: list[Judged] = []
    seen: set[str] = set()
    newest: datetime | None = None
    for batch in sorted(by_batch):
        watermark = newest and newest.replace(microsecond=newest.microsecond // 1_000 * 1_000) - lateness
        for message in sorted(by_batch[batch], key=lambda own: (own.received_at, own.partition, own.offset)):
            fate, row = oracle.fate_of(stream, message)
            if row and breaks_rule(row):
                fate, row = "rejected", None
            if row is None or row["identity"] in seen:
                found.append(Judged(message, row, "duplicate" if row else fate, False, batch))
                continue
            seen.add(row["identity"])
            found.append(Judged(message, row, "accepted", watermark is not None and row["at"] <= watermark, batch))
        accepted = [own.row["at"] for own in found if own.batch == batch and own.row and own.is_accepted]
        newest = max([*accepted, *([newest] if newest else [])], default=None)
    return found


def rows_of(judged: Iterable[Judged], with_late: bool = True) -> list[Row]:
    """The accepted rows."""
    return [own.row for own in judged if own.row and own.is_accepted and (with_late or not own.is_late)]


def as_judged(judged: Iterable[Judged]) -> Counter[tuple[int, int, str, bool]]:
    """As a multiset of partition, offset, fate, late."""
    return Counter((own.message.partition, own.message.offset, own.fate, own.is_late) for own in judged)


def as_journaled(journal: Iterable[dict[str, Any]]) -> Counter[tuple[int, int, str, bool]]:
    """The same of the journal's rows."""
    return Counter((row["partition"], row["offset"], row["fate"], row["late"]) for row in journal)

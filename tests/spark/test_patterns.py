"""A pattern says the same as a batch, as a stream however it is cut, and by trying every way in plain Python."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from spark_jobs.cases_job import as_batch, as_stream, cut
from spark_jobs.patterns import Finder
from weir.cases import CaseMessage
from weir.pipeline import Pipeline

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
CARD = {"payment_id": "string", "card": "string", "amount": "int", "paid_at": "timestamp"}
LOCK = {"lock_id": "string", "card": "string", "locked_at": "timestamp"}
STREAMS = {
    "payments": {"topic": "p", "identity": "payment_id", "occurred_at": "paid_at", "columns": CARD},
    "locks": {"topic": "l", "identity": "lock_id", "occurred_at": "locked_at", "columns": LOCK},
}
SMALL, LARGE = "amount < 2", "amount > 200"
PATTERNS: dict[str, list[dict[str, Any]]] = {
    "card_testing": [{"when": SMALL, "times": 3}, {"when": LARGE}],
    "many_small": [{"when": SMALL, "times": "2+"}, {"when": LARGE}],
    "not_locked_between": [{"when": SMALL}, {"of": "locks", "not": "true"}, {"when": LARGE}],
    "not_locked_after": [{"when": LARGE}, {"of": "locks", "not": "true"}],
}


def declare(name: str) -> Pipeline:
    pattern = {"of": "payments", "by": "card", "within": "5 minutes", "steps": PATTERNS[name]}
    return Pipeline.model_validate({"pipeline": "bank", "streams": STREAMS, "views": {name: {"pattern": pattern}}})


Events = list[tuple[str, str, datetime, str, int]]


def some_events(chance: Random) -> Events:
    """Stream, identity, time, card and amount, in the order of their arrival: out of order within the lateness, some twice."""
    events: Events = []
    for number in range(240):
        at = START + timedelta(seconds=number * 10 + chance.random() * 60, microseconds=chance.randrange(1_000))
        card = chance.choice("abc")
        amount = chance.choice([1, 1, 1, 50, 300])
        locks = chance.random() < 0.1
        events.append(("locks" if locks else "payments", f"{'l' if locks else 'p'}-{number}", at, card, amount))
    twice = [event for event in events if chance.random() < 0.05]
    return sorted([*events, *twice], key=lambda event: event[2] + timedelta(seconds=chance.randrange(200)))


def messages(events: Events) -> dict[str, list[CaseMessage]]:
    found: dict[str, list[CaseMessage]] = {"payments": [], "locks": []}
    offset = itertools.count()
    for place, (stream, identity, at, card, amount) in enumerate(events):
        own = f'"payment_id":"{identity}","card":"{card}","amount":{amount},"paid_at":"{at.isoformat()}"'
        if stream == "locks":
            own = f'"lock_id":"{identity}","card":"{card}","locked_at":"{at.isoformat()}"'
        arrives = START + timedelta(hours=1, seconds=place)
        found[stream].append(CaseMessage(next(offset), arrives, f"{{{own}}}".encode()))
    return found


def expected(name: str, events: Events) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Four patterns spelled out, each in its own plain way."""
    within = timedelta(minutes=5)
    once = {identity: (at, identity, card, stream, amount) for stream, identity, at, card, amount in events}
    cells = {}
    for card in "abc":
        own = sorted(event for event in once.values() if event[2] == card)
        small = [(at, i) for at, i, _, stream, amount in own if stream == "payments" and amount < 2]
        large = [(at, i) for at, i, _, stream, amount in own if stream == "payments" and amount > 200]
        locks = [(at, i) for at, i, _, stream, _ in own if stream == "locks"]
        for last in large:
            before = [event for event in small if last[0] - within <= event[0] and event < last]
            if name == "card_testing" and len(before) >= 3:
                cells[last[0], card, last[1]] = (before[0][0], [i for _, i in before[:3]] + [last[1]])
            if name == "many_small" and len(before) >= 2:
                cells[last[0], card, last[1]] = (before[0][0], [i for _, i in before] + [last[1]])
            unlocked = [event for event in before if not any(event < lock < last for lock in locks)]
            if name == "not_locked_between" and unlocked:
                cells[last[0], card, last[1]] = (unlocked[0][0], [unlocked[0][1], last[1]])
            if name == "not_locked_after" and not any(last < lock and lock[0] <= last[0] + within for lock in locks):
                cells[last[0] + within, card, last[1]] = (last[0], [last[1]])
    return cells


def as_cells(rows: list[Any]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    def utc(value: Any) -> Any:
        return value.replace(tzinfo=None).astimezone(UTC) if isinstance(value, datetime) else value

    return {tuple(map(utc, row[:3])): tuple(map(utc, row[3:])) for row in rows}


@pytest.mark.parametrize(
    "name",
    ["card_testing", "not_locked_after", *(pytest.param(own, marks=pytest.mark.soak) for own in ("many_small", "not_locked_between"))],
)
def test_stream_and_batch_find_what_is_there(spark: SparkSession, tmp_path: Path, name: str) -> None:
    chance = Random(name)
    pipeline, events = declare(name), some_events(chance)
    truth = expected(name, events)
    assert len(truth) > 5
    assert as_cells(as_batch(spark, pipeline, name, messages(events)).collect()) == truth
    pieces = {own: cut(messages(events)[own], chance) for own in pipeline.streams_of(name)}
    assert as_cells(as_stream(spark, pipeline, name, pieces, tmp_path / "run", crash_in=1)) == truth


class State:
    """What Spark keeps for one key: events, and timers, each of which fires once the watermark has reached it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.timers: set[int] = set()
        self.watermark = 0
        self.again = 0
        """Timers that were set although they were: each is a line in the driver's log."""

    def getListState(self, name: str, schema: str) -> "State":
        return self

    def exists(self) -> bool:
        return bool(self.kept)

    def get(self) -> Iterator[Any]:
        return iter(self.kept)

    def put(self, rows: list[Any]) -> None:
        self.kept = rows

    def clear(self) -> None:
        self.kept = []

    def registerTimer(self, time: int) -> None:
        self.again += time in self.timers
        self.timers.add(time)

    def getCurrentWatermarkInMs(self) -> int:
        return self.watermark

    def getExpiryTimeInMs(self) -> int:
        return self.watermark


@pytest.mark.parametrize("name", PATTERNS)
def test_timers_are_set_once_and_none_is_missing(name: str) -> None:
    declared, chance, state = declare(name).views[name].pattern, Random(name), State()
    assert declared is not None
    finder = Finder(declared)
    finder.init(state)  # type: ignore[arg-type]
    newest = 0
    for number in range(300):
        at = 1_000_000 * (number * 10 + chance.randrange(120))
        newest = max(newest, at)
        rows = pd.DataFrame({"at": [at], "identity": [f"e-{number}"], "meets": [chance.randrange(1, 1 << len(declared.steps))]})
        list(finder.handleInputRows(("a",), iter([rows]), state))
        assert state.timers or not state.kept, "what is kept is forgotten some time"
        watermark = max(0, newest // 1_000 - 120_000)
        for time in sorted(own for own in state.timers if own <= watermark):
            state.timers.remove(time)
            state.watermark = time
            list(finder.handleExpiredTimer(("a",), state, state))
        state.watermark = watermark
    assert len(state.kept) < 100, "and was forgotten"
    assert state.again <= 3, "but where a match was taken away, and another one ends with the same event"

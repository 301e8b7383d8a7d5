"""Patterns on Spark: the events of a key are kept as long as a match can need them, and weir.patterns finds the matches.

In the stream a pattern without a `not` is told as soon as its last event has come: more events can only make a match begin earlier,
and then it is told again, as the last word about the same cell. One with a `not` is told when the watermark says that nothing can come
any more that would take it away. A closed frame is searched at once.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import reduce
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from weir.patterns import Happened, Match, build_steps, find_matches
from weir.pipeline import MATCH_KEY, MATCH_TIME, Pattern, Pipeline

KEPT = "at bigint, identity string, meets bigint"


def find_pattern(pipeline: Pipeline, pattern: Pattern, streams: dict[str, DataFrame]) -> DataFrame:
    """One row for each match: when, the key, the last event, since when, and the identities of the events that made it."""
    events = reduce(DataFrame.unionByName, (_seen(pipeline, pattern, name, streams[name]) for name in pattern.streams))
    key = events.schema["_key"].dataType.simpleString()
    found = f"_key {key}, {MATCH_TIME} bigint, started_at bigint, events array<string>"
    finder = Finder(pattern)
    if events.isStreaming:
        matches = events.groupBy("_key").transformWithStateInPandas(finder, found, "update", "EventTime")
    else:
        matches = events.groupBy("_key").applyInPandas(lambda key, rows: finder.in_batch(key, rows), found)
    return matches.select(
        F.timestamp_micros(MATCH_TIME).alias(MATCH_TIME),
        F.col("_key").alias(pattern.by),
        F.element_at("events", -1).alias(MATCH_KEY),
        F.timestamp_micros("started_at").alias("started_at"),
        "events",
    )


def _seen(pipeline: Pipeline, pattern: Pattern, name: str, rows: DataFrame) -> DataFrame:
    """The events of one stream that have a key and meet a step."""
    stream = pipeline.streams[name]
    meets = F.lit(0).cast("bigint")
    for number, step in enumerate(pattern.steps):
        if (step.of or pattern.of) == name:
            met = F.coalesce(F.expr(step.condition).cast("boolean"), F.lit(False))
            meets = meets + F.when(met, F.lit(1 << number)).otherwise(F.lit(0))
    seen = rows.select(
        F.col(pattern.by).alias("_key"),
        F.col(stream.occurred_at).alias("_at"),
        F.unix_micros(stream.occurred_at).alias("at"),
        F.col(stream.identity).cast("string").alias("identity"),
        meets.alias("meets"),
    )
    return seen.filter("_key IS NOT NULL AND meets > 0")


class Finder(StatefulProcessor):
    """Keeps the events of each key, and tells the matches among them."""

    def __init__(self, pattern: Pattern) -> None:
        self._within, self._reach, self._waits = _micros(pattern.within), _micros(pattern.reach), pattern.waits
        self._steps = build_steps([None if step.not_when is not None else step.times for step in pattern.steps])

    def in_batch(self, key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return _told(key[0], self._matches(_events_in(rows)))

    def _matches(self, events: Iterable[Happened]) -> Iterator[Match]:
        return find_matches(self._steps, self._within, sorted(events))

    # In the stream

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getListState("kept", KEPT)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Remember the new events. The matches that they make or change are told now, or set down for when nothing can change them."""
        kept, watermark = self._remembered(), timerValues.getCurrentWatermarkInMs()
        events = [*kept, *(event for frame in rows for event in _events_in(frame))]
        known = set(self._matches(kept))
        new = [own for own in self._matches(events) if own not in known]
        if not self._waits:
            events = self._needed(events, watermark)
        self._remember(events)
        # Spark tells of each timer that is there already in the driver's log: a line for every other event.
        there = {time for time in self._timers(kept, known) if time > watermark}
        for time in self._timers(events, new) - there:
            self._handle.registerTimer(time)
        yield _told(key[0], [] if self._waits else new)

    def _timers(self, events: list[Happened], matches: Iterable[Match]) -> set[int]:
        """When these matches are to be told, and when the last of these events can be forgotten, in milliseconds."""
        told = {_milliseconds(own.matched_at) for own in matches} if self._waits else set()
        return told | ({_milliseconds(max(events).at + self._reach) + 2} if events else set())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Tell what nothing can change any more, and forget what no later match can need."""
        kept, now = self._remembered(), expiredTimerInfo.getExpiryTimeInMs()
        yield _told(key[0], [own for own in self._matches(kept) if self._waits and _milliseconds(own.matched_at) == now])
        needed = self._needed(kept, now)
        if len(needed) < len(kept):
            self._remember(needed)

    def _needed(self, events: Iterable[Happened], until: int) -> list[Happened]:
        """What a match can need that is told at this time (in milliseconds) or later."""
        return [event for event in events if _milliseconds(event.at + self._reach) + 1 >= until]

    def _remembered(self) -> list[Happened]:
        return [Happened(*row) for row in self._kept.get()] if self._kept.exists() else []

    def _remember(self, events: list[Happened]) -> None:
        if events:
            self._kept.put([tuple(event) for event in events])
        else:
            self._kept.clear()

    def close(self) -> None:
        pass


def _micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _milliseconds(micros: int) -> int:
    """The first at which the moment has passed."""
    return -(-micros // 1_000)


def _events_in(rows: pd.DataFrame) -> Iterator[Happened]:
    for at, identity, meets in zip(rows["at"], rows["identity"], rows["meets"], strict=True):
        yield Happened(int(at), str(identity), int(meets))


def _told(key: Any, matches: Iterable[Match]) -> pd.DataFrame:
    rows = [(key, own.matched_at, own.events[0].at, [event.identity for event in own.events]) for own in matches]
    return pd.DataFrame(rows, columns=["_key", MATCH_TIME, "started_at", "events"])

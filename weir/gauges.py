"""What a driver measures of itself, reading by reading, for the last hours: enough for a picture, and never more."""

from datetime import datetime

from weir.layout import ARCHIVE_QUERY, view_query
from weir.records.driver import Heartbeat
from weir.records.record import Record

EVERY_SECONDS = 20
KEPT_SECONDS = 6 * 3_600
RATE_SECONDS = 30
"""The archive writes every ten seconds: a rate over less would jump between nothing and too much."""


class Readings(Record):
    """Numbers side by side, the oldest first: small to store, quick to draw."""

    at: list[int] = []
    """Seconds since 1970."""
    taken_in: list[int] = []
    """Messages that the archive has taken in, in all."""
    behind: list[int] = []
    """Messages that the slowest query has not read."""
    stale_seconds: list[int] = []
    """Of the view that is furthest behind."""
    state_bytes: list[int] = []

    def with_beat(self, beat: Heartbeat, now: datetime) -> "Readings":
        """One reading more, without those that are too old."""
        second = int(now.timestamp())
        first = next((place for place, at in enumerate(self.at) if at > second - KEPT_SECONDS), len(self.at))
        archive = beat.queries.get(ARCHIVE_QUERY)
        return Readings(
            at=[*self.at[first:], second],
            taken_in=[*self.taken_in[first:], sum(archive.until.values()) if archive else 0],
            behind=[*self.behind[first:], max((own.behind for own in beat.keepers.values()), default=0)],
            stale_seconds=[*self.stale_seconds[first:], round(stalest_seconds(beat, now) or 0)],
            state_bytes=[*self.state_bytes[first:], sum(own.state_bytes for own in beat.queries.values())],
        )

    def is_due(self, now: datetime) -> bool:
        return not self.at or now.timestamp() - self.at[-1] >= EVERY_SECONDS

    def arriving(self, now: datetime) -> float | None:
        """Messages a second over the last readings; None while there are too few of them."""
        recent = [place for place, at in enumerate(self.at) if at >= now.timestamp() - RATE_SECONDS - EVERY_SECONDS]
        if len(recent) < 2 or self.at[recent[-1]] == self.at[recent[0]]:
            return None
        more = self.taken_in[recent[-1]] - self.taken_in[recent[0]]
        return max(0.0, more / (self.at[recent[-1]] - self.at[recent[0]]))

    def series(self, of: str) -> list[tuple[float, float]]:
        """One of the numbers over time (seconds since 1970); `arriving` is what came between two readings, by the second."""
        if of != "arriving":
            return list(zip(self.at, getattr(self, of), strict=True))
        found: list[tuple[float, float]] = []
        for place in range(1, len(self.at)):
            more, seconds = self.taken_in[place] - self.taken_in[place - 1], self.at[place] - self.at[place - 1]
            found.append((self.at[place], more / seconds if more > 0 and seconds > 0 else 0.0))
        return found


def stale_seconds(beat: Heartbeat, query: str, now: datetime) -> float | None:
    """How old a message may be that the query has not taken in; None before its first batch."""
    pulse = beat.queries.get(query)
    return max(0.0, (now - pulse.caught_up_at).total_seconds()) if pulse and pulse.caught_up_at else None


def stalest_seconds(beat: Heartbeat, now: datetime) -> float | None:
    """Of the view that is furthest behind."""
    found = [stale_seconds(beat, name, now) for name in beat.queries if name.startswith(view_query(""))]
    return max((seconds for seconds in found if seconds is not None), default=None)


def headroom_seconds(beat: Heartbeat, now: datetime) -> float | None:
    """How long nobody may read before the log drops what the archive has not taken in. At least: it counts from the last time that
    nothing was unread. None where that is not known."""
    stale = stale_seconds(beat, ARCHIVE_QUERY, now)
    return None if stale is None or beat.retention_seconds is None else beat.retention_seconds - stale

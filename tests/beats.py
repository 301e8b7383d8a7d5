"""What drivers say of themselves, for tests that decide over it."""

from datetime import UTC, datetime, timedelta

from weir.records.driver import Heartbeat, Identity, QueryPulse

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def pulse(read: int = 0, behind: int = 0, caught_up: float | None = 0, state_bytes: int = 0) -> QueryPulse:
    """`caught_up` seconds ago."""
    at = None if caught_up is None else NOW - timedelta(seconds=caught_up)
    return QueryPulse(
        batch=1,
        rows_per_second=0,
        behind=behind,
        until={"t/0": read},
        watermark=None,
        state_rows=0,
        state_bytes=state_bytes,
        caught_up_at=at,
    )


def beat(retention: float | None = None, **queries: QueryPulse) -> Heartbeat:
    holder = Identity(host="h", pid=1, started_at=1, nonce="n")
    return Heartbeat(holder=holder, generation=1, state="running", written_at=NOW, queries=queries, retention_seconds=retention)

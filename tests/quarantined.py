"""A quarantine as the intake would have left it, written without Spark."""

import json
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from events import NOON

from weir.layout import Lake


def aside(
    offset: int,
    reasons: list[str],
    payload: Any = None,
    stream: str = "orders",
    received_at: datetime = NOON,
    quarantined_at: datetime | None = None,
    identity: str | None = None,
) -> dict[str, Any]:
    """One quarantined row. A document is set aside as JSON, bytes and None as they are."""
    return {
        "stream": stream,
        "topic": f"shop.{stream}",
        "partition": offset % 2,
        "offset": offset,
        "received_at": received_at,
        "payload": payload if payload is None or isinstance(payload, bytes) else json.dumps(payload).encode(),
        "reasons": reasons,
        "identity": identity,
        "occurred_at": received_at,
        "batch": 0,
        "quarantined_at": quarantined_at or received_at + timedelta(minutes=5),
        "received_on": received_at.date(),
    }


def set_aside(lake: Lake, *rows: dict[str, Any], pipeline: str = "shop") -> None:
    at = pa.timestamp("us", "UTC")
    types = {"partition": pa.int32(), "payload": pa.binary(), "received_at": at, "occurred_at": at, "quarantined_at": at}
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    columns["identity"] = pa.array([row["identity"] for row in rows], pa.string())
    write_deltalake(lake.quarantined(pipeline), pa.table(columns), mode="append", partition_by=["stream", "received_on"])


def act_on(lake: Lake, *rows: dict[str, Any], pipeline: str = "shop") -> None:
    """What a discard leaves behind."""
    columns = {name: [row[name] for row in rows] for name in ("topic", "partition", "offset", "stream")}
    table = pa.table(columns | {"act": ["discarded"] * len(rows), "note": ["why"] * len(rows)})
    write_deltalake(lake.quarantine_acts(pipeline), table, mode="append", partition_by=["stream"])

"""What people may see of a message: private columns masked, long texts cut."""

import json
from collections.abc import Mapping
from typing import Any

from weir.pipeline import Contract, Pipeline
from weir.records.night import Cell

MASK = "•••"
MAX_VALUE, MAX_PAYLOAD = 200, 2_000


def shown_row(contract: Contract, row: Mapping[str, str | None]) -> dict[str, str | None]:
    """A row's columns as text. That a private value is missing may be seen, its content not."""
    shown: dict[str, str | None] = {}
    for name, value in row.items():
        shown[name] = None if value is None else MASK if contract.columns[name].private else _cut(value, MAX_VALUE)
    return shown


def shown_payload(contract: Contract, payload: bytes | bytearray | None) -> str:
    """The message as text. Where a private field may be in it but cannot be found, nothing is shown."""
    if payload is None:
        return "(no value)"
    text = bytes(payload).decode("utf-8", errors="backslashreplace")
    if not contract.private_columns:
        return _cut(text, MAX_PAYLOAD)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    # A field in another spelling is no declared one, yet it holds what the private one would hold.
    known = {name for name, column in contract.columns.items() if not column.private}
    if not isinstance(document, dict):
        return f"({len(payload):,} bytes, not shown: the stream has private columns)"
    return _cut(json.dumps({key: value if key in known else MASK for key, value in document.items()}, ensure_ascii=False), MAX_PAYLOAD)


def shown_quarantined(pipeline: Pipeline, row: Mapping[str, Any]) -> dict[str, Any]:
    """A quarantined row as people may see it; nothing of one whose stream is no longer declared, since nobody knows what is private."""
    contract = pipeline.sources.get(row["stream"])
    hidden = contract is None or contract.columns[contract.identity].private
    payload = shown_payload(contract, row["payload"]) if contract else "(not shown: the stream is no longer declared)"
    return dict(row) | {"payload": payload, "identity": MASK if hidden and row["identity"] else row["identity"]}


def private_columns(pipeline: Pipeline, view: str) -> set[str]:
    """The names under which a view may hold what is private in its streams, or in the tables that it looks up."""
    sources = [*pipeline.streams_of(view), *pipeline.views[view].as_of]
    return {column for name in sources for column in pipeline.sources[name].private_columns}


def masked_column(name: str) -> str:
    """For DuckDB's SELECT. That a private value is missing may be seen, its content not."""
    return f"""CASE WHEN "{name}" IS NOT NULL THEN '{MASK}' END AS "{name}\""""


def shown_cell(pipeline: Pipeline, view: str, cell: Cell) -> Cell:
    """A differing cell as people may see it: values that have the name of a private column, and private identities, are masked."""
    private = private_columns(pipeline, view)
    if not private:
        return cell

    def masked(values: dict[str, str] | None) -> dict[str, str] | None:
        return None if values is None else {name: MASK if name in private else value for name, value in values.items()}

    hides = any(pipeline.streams[name].identity in private for name in pipeline.streams_of(view))
    causes = [own.model_copy(update={"identities": [MASK] * len(own.identities)}) if hides else own for own in cell.causes]
    return Cell(grain=masked(cell.grain) or {}, speed=masked(cell.speed), batch=masked(cell.batch), causes=causes)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"

"""A pipeline's test cases: rows in, cells out. `<name>_test.yaml` beside the declaration; run by `weir test`.

A case names only what it is about. What its rows do not say is taken from `usual`; columns that it does not expect are not looked at.
"""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from weir.loader import Where, read_yaml
from weir.pipeline import Declared, Name, Pipeline, Stream, Table, nearest
from weir.refusal import Refusal

Row = dict[str, Any]
Text = str | None
CellText = dict[str, Text]


class DeclaredCase(Declared):
    """Rows of streams in the order of their arrival, and all cells that each view then has.

    A row is a mapping, or the text of a message as it comes. `received_at` is when it arrives; a second after it occurred if not said.
    """

    given: dict[Name, list[Row | str]] = Field(min_length=1)
    expect: dict[Name, list[Row]] = Field(default={})
    rejected: dict[Name, dict[str, list[str]]] = Field(default={})
    """By stream: the identity of a row that is set aside, "?" where it has none → the rules that it breaks."""


class CaseFile(Declared):
    usual: dict[Name, Row] = Field(default={})
    cases: dict[str, DeclaredCase] = Field(min_length=1)


@dataclass(frozen=True)
class CaseMessage:
    """A message of a case."""

    offset: int
    received_at: datetime
    value: bytes


@dataclass(frozen=True)
class Case:
    name: str
    file: Path
    line: int
    messages: dict[str, list[CaseMessage]]
    """By stream and table, in the order of arrival; also of those of which it gives none."""
    expect: dict[str, list[Row]]
    rejected: dict[str, dict[str, list[str]]]
    late: str | None
    """A row that a stream may drop as late, however the day is cut: then only the batch can be held to what is expected."""


def load_cases(folder: Path, pipeline: Pipeline) -> list[Case]:
    """All cases of a pipeline, file by file. What is wrong in them is said with file and line."""
    cases = []
    for file in sorted(folder.glob("*_test.yaml")):
        given, where = read_yaml(file)
        try:
            declared = CaseFile.model_validate(given)
        except ValidationError as error:
            raise Refusal("\n".join(_say(file, where, own) for own in error.errors())) from None
        for name, case in declared.cases.items():
            cases.append(_case(file, where, pipeline, declared.usual, name, case))
    if not cases:
        raise Refusal(f"{folder}: holds no test cases: write them into a file that ends with _test.yaml")
    return cases


def _say(file: Path, where: Where, error: Any) -> str:
    path = tuple(error["loc"])
    known = path
    while known and known not in where:
        known = known[:-1]
    return f"{file}:{where.get(known, 1)}: {'.'.join(map(str, path))}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _case(file: Path, where: Where, pipeline: Pipeline, usual: dict[str, Row], name: str, declared: DeclaredCase) -> Case:
    def refuse(path: tuple[str | int, ...], what: str) -> Refusal:
        return Refusal(f"{file}:{where.get(('cases', name, *path), 1)}: {what}")

    for word, known, kind in (
        ("given", pipeline.sources, "stream or table"),
        ("expect", pipeline.views, "view"),
        ("rejected", pipeline.streams, "stream"),
    ):
        for own in getattr(declared, word):
            if own not in known:
                raise refuse((word, own), f"'{own}' is no {kind} of {pipeline.name}{nearest(own, known)}")
    if not declared.expect and not declared.rejected:
        raise refuse((), f"case '{name}' expects nothing: add `expect:` with the cells of a view")
    messages, late = {}, None
    for stream, contract in pipeline.sources.items():
        rows = declared.given.get(stream, [])
        for place, row in enumerate(rows):
            for column in row if isinstance(row, dict) else ():
                if column not in contract.columns and column != "received_at" and contract.unknown_fields == "reject":
                    raise refuse(
                        ("given", stream, place, column), f"'{column}' is no column of {stream}{nearest(column, contract.columns)}"
                    )
        messages[stream], own_late = _messages(contract, usual.get(stream, {}), rows)
        late = late or own_late
    line = where.get(("cases", name), 1)
    return Case(name, file, line, messages, declared.expect, declared.rejected, late)


def _messages(contract: Stream | Table, usual: Row, rows: list[Row | str]) -> tuple[list[CaseMessage], str | None]:
    """The rows as messages, and the identity of the first that could be late."""
    found: list[CaseMessage] = []
    before = newest = datetime(1970, 1, 2, tzinfo=UTC)
    late = None
    for offset, row in enumerate(rows):
        if isinstance(row, str):
            found.append(CaseMessage(offset, before, row.encode()))
            continue
        whole = usual | row
        occurred_at = _time(whole.get(contract.occurred_at))
        received_at = _time(whole.pop("received_at", None)) or (occurred_at and occurred_at + timedelta(seconds=1)) or before
        before = max(before, received_at)
        if occurred_at:
            if isinstance(contract, Stream) and newest - occurred_at >= contract.lateness:
                late = late or str(whole.get(contract.identity))
            newest = max(newest, occurred_at)
        found.append(CaseMessage(offset, before, json.dumps(whole, ensure_ascii=False).encode()))
    return found, late


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else None


def as_text(value: Any, sql_type: str) -> Text:
    """One spelling for one value, whoever wrote it: a person into YAML, or Spark."""
    if value is None:
        return None
    try:
        if sql_type == "timestamp":
            at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        if sql_type.startswith("decimal"):
            return format(Decimal(str(value)).normalize(), "f")
        if sql_type in ("double", "float"):
            return f"{float(value):.12g}"
    except (ValueError, InvalidOperation):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)


def compare(
    expected: list[Row], found: list[dict[str, Text]], types: dict[str, str]
) -> tuple[list[dict[str, Text]], list[dict[str, Text]]]:
    """The expected cells that are missing, and those found that nobody expected; in the columns that are spoken of."""
    spoken_of = list(dict.fromkeys(column for row in expected for column in row)) or list(types)
    wanted = Counter(tuple(as_text(row.get(column), types[column]) for column in spoken_of) for row in expected)
    there = Counter(tuple(row[column] for column in spoken_of) for row in found)

    def rows(counted: Counter[tuple[Text, ...]]) -> list[CellText]:
        return [dict(zip(spoken_of, row, strict=True)) for row in sorted(counted.elements(), key=str)]

    return rows(wanted - there), rows(there - wanted)

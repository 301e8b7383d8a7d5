"""An answer on its way to people and programs: plain values with the kind of each column, as JSON carries them; and as CSV."""

import csv
import io
import math
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from weir.records.record import Record

MOST_CHARACTERS = 4_000
"""Of one value; the rest is cut off."""
MOST_BYTES = 64 * 2**20
"""Of one answer."""
NUMBER, TIME, TEXT = "number", "time", "text"
_NUMBERS = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\(.*|DOUBLE|FLOAT|BIGNUM)")
_FORMULA = tuple("=+-@\t\r")

Value = str | int | float | bool | None


class PlainColumn(Record):
    name: str
    kind: str
    """number, time or text."""


class PlainAnswer(Record):
    columns: list[PlainColumn]
    rows: list[list[Value]]
    is_cut: bool = False
    """Whether there are more rows than may be shown."""
    seconds: float = 0.0

    def place(self, name: str) -> int:
        return next(place for place, column in enumerate(self.columns) if column.name == name)

    def of_kind(self, kind: str) -> list[str]:
        return [column.name for column in self.columns if column.kind == kind]


def kind_of(duck_type: str) -> str:
    if _NUMBERS.fullmatch(duck_type):
        return NUMBER
    return TIME if duck_type == "DATE" or duck_type.startswith("TIMESTAMP") else TEXT


def plain_answer(
    columns: list[str], types: list[str], rows: list[tuple[Any, ...]], is_cut: bool = False, seconds: float = 0.0
) -> PlainAnswer:
    """Names twice in an answer are numbered, so that each column has one of its own."""
    names: list[str] = []
    for name in columns:
        again = sum(own == name or own.startswith(f"{name}:") for own in names)
        names.append(f"{name}:{again}" if again else name)
    told = [PlainColumn(name=name[:200], kind=kind_of(own)) for name, own in zip(names, types, strict=True)]
    return PlainAnswer(columns=told, rows=[[plain_value(value) for value in row] for row in rows], is_cut=is_cut, seconds=seconds)


def plain_value(value: Any) -> Value:
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ").removesuffix("+00:00") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text):,} characters)"


def csv_lines(answer: PlainAnswer) -> Iterator[str]:
    """One line at a time. No spreadsheet takes a text for a formula: those that look like one get an apostrophe in front."""
    yield _line([_defused(column.name, TEXT) for column in answer.columns])
    kinds = [column.kind for column in answer.columns]
    for row in answer.rows:
        yield _line([_defused(value, kind) for value, kind in zip(row, kinds, strict=True)])


def _defused(value: Value, kind: str) -> Value:
    return f"'{value}" if kind == TEXT and isinstance(value, str) and value.startswith(_FORMULA) else value


def _line(values: list[Value]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()

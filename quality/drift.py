"""What raw messages hold that their contract does not know: fields, types and values that came, went or changed.

A verdict says that a row is wrong; drift says what its producer did. It looks at a sample, so its counts are of the rows
looked at, and at messages before `clean`, so it judges values generously.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from weir.pipeline import Stream, Table
from weir.records.quality import Drift

MAX_DRIFTS = 50
MAX_CHARACTERS = 80
_MAX_NEW_FIELDS = 1_000
"""Messages can invent names without end: those that come after so many are not looked at."""
_MIN_ROWS_TOGETHER = 3
"""Two fields of unlike names that change places in fewer rows may do so by chance."""
_SIMILAR = 0.75
"""SequenceMatcher's ratio from which two names count as spellings of one: customer_id and customerid, not amount and account_id."""

_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
Rows = Mapping[str, set[int]]
"""Field → the rows it was seen (or missed) in."""


def find_drift(contract: Stream | Table, payloads: Iterable[bytes | None]) -> list[Drift]:
    """What differs from the contract in these messages, most frequent first, at most 50. What is no JSON object is passed over.

    Never holds a value of a private column, nor one of an undeclared field, which may be a private one renamed.
    """
    documents = [document for payload in payloads if (document := _read(payload)) is not None]
    found = [*_fields(contract, documents), *_types(contract, documents), *_values(contract, documents)]
    return sorted(found, key=lambda drift: (-drift.rows, drift.kind, drift.field, drift.detail))[:MAX_DRIFTS]


def _read(payload: bytes | None) -> dict[str, Any] | None:
    """The message's document as Spark would read it: UTF-8 without a mark, one object, numbers that are numbers."""
    if payload is None:
        return None
    try:
        document = json.loads(payload.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _fields(contract: Stream | Table, documents: list[dict[str, Any]]) -> Iterator[Drift]:
    absent: dict[str, set[int]] = {name: set() for name in contract.columns}
    new: dict[str, set[int]] = {}
    for row, document in enumerate(documents):
        for name in contract.columns:
            if name not in document:
                absent[name].add(row)
        for name in document:
            if name not in contract.columns and (name in new or len(new) < _MAX_NEW_FIELDS):
                new.setdefault(name, set()).add(row)
    for old, name in _renamed(contract, documents, absent, new):
        yield Drift(kind="renamed_field", field=old, detail=f"{old} → {_cut(name)}", rows=len(new[name]))
        absent[old] -= new.pop(name)
    for name, rows in absent.items():
        if rows and not contract.columns[name].optional:
            yield Drift(kind="missing_field", field=name, detail=_cut(f"declared {contract.columns[name].wire_type}"), rows=len(rows))
    for name, rows in new.items():
        types = sorted({_json_type(documents[row][name]) for row in rows})
        yield Drift(kind="new_field", field=_cut(name), detail=f"not declared, holds {' or '.join(types)}", rows=len(rows))


def _renamed(contract: Stream | Table, documents: list[dict[str, Any]], absent: Rows, new: Rows) -> list[tuple[str, str]]:
    """Pairs (declared, new) where the new field stands only in rows that lack the declared one.

    Either the names are alike, or each stands exactly where the other does not, with the declared type, and nothing else does.
    """
    open_pairs = [(old, name) for old, gone in absent.items() if gone for name, rows in new.items() if rows <= gone]
    by_name = sorted(((_likeness(old, name), old, name) for old, name in open_pairs), reverse=True)
    pairs: dict[str, str] = {}
    for likeness, old, name in by_name:
        if likeness >= _SIMILAR and old not in pairs and name not in pairs.values():
            pairs[old] = name
    swapped = [
        (old, name)
        for old, name in open_pairs
        if old not in pairs and name not in pairs.values() and not contract.columns[old].optional
        if new[name] == absent[old] and len(new[name]) >= _MIN_ROWS_TOGETHER
        if all(_fits(contract.columns[old].wire_type, documents[row][name]) for row in new[name])
    ]
    olds, names = Counter(old for old, _ in swapped), Counter(name for _, name in swapped)
    pairs |= {old: name for old, name in swapped if olds[old] == names[name] == 1}
    return list(pairs.items())


def _likeness(old: str, name: str) -> float:
    """1 for another spelling of the same words; 0 early for names that cannot be alike."""
    a, b = _letters(old), _letters(name[:MAX_CHARACTERS])
    if a == b:
        return 1.0
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= _SIMILAR and matcher.quick_ratio() >= _SIMILAR else 0.0


def _letters(name: str) -> str:
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def _types(contract: Stream | Table, documents: list[dict[str, Any]]) -> Iterator[Drift]:
    found: Counter[tuple[str, str]] = Counter()
    for document in documents:
        for name, column in contract.columns.items():
            value = document.get(name)
            if not _fits(column.wire_type, value):
                found[name, _json_type(value)] += 1
    for (name, held), rows in found.items():
        declared = contract.columns[name].wire_type
        beyond = " beyond its range" if held == "integer" and declared in _INTEGERS else ""
        yield Drift(kind="changed_type", field=name, detail=_cut(f"declared {declared}, holds {held}{beyond}"), rows=rows)


def _fits(wire_type: str, value: Any) -> bool:
    """Whether a JSON value has the declared type. A null has every type: whether it may be null is for an expectation."""
    if value is None:
        return True
    held = _json_type(value)
    if wire_type in _INTEGERS:
        bound = 1 << (_INTEGERS[wire_type] - 1)
        return held == "integer" and -bound <= value < bound
    if wire_type in ("float", "double") or wire_type.startswith("decimal"):
        return held in ("integer", "number")
    if wire_type.startswith("array"):
        return held == "array"
    if wire_type.startswith(("map", "struct")):
        return held == "object"
    return held == ("boolean" if wire_type == "boolean" else "string")


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _values(contract: Stream | Table, documents: list[dict[str, Any]]) -> Iterator[Drift]:
    """Values outside of a declared set. What `clean` would make of them cannot be known here, so blanks and case do not count."""
    for expectation in contract.expectations:
        if expectation.name != "expect_column_values_to_be_in_set":
            continue
        arguments: Any = expectation.arguments
        column = arguments.column
        known = {_plain(value) for value in arguments.value_set}
        rows: Counter[str] = Counter()
        shown: dict[str, str] = {}
        for document in documents:
            value = document.get(column)
            if value is None or isinstance(value, list | dict) or (plain := _plain(value)) in known:
                continue
            if contract.columns[column].private:
                plain, value = "", "a value that is not in the set (private)"
            rows[plain] += 1
            shown.setdefault(plain, _cut(_text(value).strip()) or "(empty)")
        for plain, count in rows.items():
            yield Drift(kind="new_value", field=column, detail=shown[plain], rows=count)


def _plain(value: Any) -> str:
    return _text(value).strip().casefold()


def _text(value: Any) -> str:
    """As a message and a declaration would both write it: 1.0 is 1, True is true."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _cut(text: str) -> str:
    """At most 80 characters, and none that no file can hold: JSON can spell half of a pair of surrogates."""
    whole = text[: MAX_CHARACTERS + 1].encode(errors="replace").decode()
    return whole if len(whole) <= MAX_CHARACTERS else whole[: MAX_CHARACTERS - 1] + "…"

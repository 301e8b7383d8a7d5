"""What can be told of a view's SQL from its text, before any engine has seen it."""

import re
from datetime import timedelta

from weir.event_time import divides_a_day, parse_duration

_STRING_OR_COMMENT = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CLAUSE = (
    r"(?:join|inner|left|right|full|cross|semi|anti|natural|lateral|on|using|where|group|having|window|order|union|except|intersect|limit)"
)
_RELATION = rf"`?\w+`?(?:\s+(?:as\s+)?(?!{_CLAUSE}\b)`?\w+`?)?"
_RELATIONS = re.compile(rf"\b(?:from|join)\s+({_RELATION}(?:\s*,\s*{_RELATION})*)", re.IGNORECASE)


def normal_sql(sql: str) -> str:
    """The SQL without comments and with single spaces, so that a reformatted file is the same view."""
    kept = _STRING_OR_COMMENT.sub(lambda m: m.group(1) or " ", sql)
    parts = _STRING_OR_COMMENT.split(kept)
    return "".join(p if i % 2 else re.sub(r"\s+", " ", p) for i, p in enumerate(p or "" for p in parts)).strip()


def bare_sql(sql: str) -> str:
    """In small letters, without texts and comments."""
    return re.sub(r"\s+", " ", _STRING_OR_COMMENT.sub(" ", sql.lower()))


def relations_in(sql: str) -> list[str]:
    """The names that stand after FROM, JOIN or a comma behind them, in order; also those of common table expressions."""
    bare = _STRING_OR_COMMENT.sub(" ", sql)
    found = []
    for match in _RELATIONS.finditer(bare):
        for part in match.group(1).split(","):
            found.append(part.split()[0].strip("`").lower())
    return list(dict.fromkeys(found))


def looks_beyond_its_day(sql: str) -> str | None:
    """Names the construct by which events of another day can change a cell, or None."""
    text, bare = normal_sql(sql).lower(), bare_sql(sql)
    if "session_window" in bare:
        return "a session window"
    if re.search(r"\bjoin\b", bare) or any("," in match for match in _RELATIONS.findall(bare)):
        return "a join"
    for call in re.finditer(r"(?<![_\w])window\s*\(", text):
        _, *lengths = _arguments(text[call.end() :])
        if len(lengths) > 1:
            return "a hopping window"
        if lengths and not divides_a_day(parse_duration(lengths[0].strip(" '\""))):
            return f"a window of {lengths[0].strip()}, which does not divide a day,"
    return None


def window_length(sql: str) -> timedelta | None:
    """Of the longest window in the SQL, or None where there is none."""
    text = normal_sql(sql).lower()
    lengths = [_arguments(text[call.end() :])[1:2] for call in re.finditer(r"(?<![_\w])(?:session_)?window\s*\(", text)]
    return max((parse_duration(length.strip(" '\"")) for found in lengths for length in found), default=None)


def _arguments(text: str) -> list[str]:
    """The arguments of a call whose opening bracket stands before the text, split at its own commas only."""
    found, depth, start = [], 0, 0
    for position, sign in enumerate(text):
        if sign in "([":
            depth += 1
        elif sign in ")]" and depth:
            depth -= 1
        elif sign in ",)" and not depth:
            found.append(text[start:position])
            start = position + 1
            if sign == ")":
                break
    return found or [text]

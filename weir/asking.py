"""What may be asked by SQL, and what an answer may cost.

DuckDB's own parser says what a text is: one SELECT, over names that are declared. So nothing that DuckDB can do beside, such as reading
files, is reached by a name that somebody has forgotten to forbid.
"""

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb

from weir.expectations import nearest
from weir.refusal import Refusal

MOST_CHARACTERS = 20_000
"""Of a question; people write shorter ones."""
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_FUNCTIONS = {"range", "generate_series", "unnest"}
"""Those after FROM that make rows out of nothing else."""


@dataclass(frozen=True)
class Limits:
    """Of one question."""

    rows: int
    seconds: float
    memory_mb: int
    threads: int


COMMAND = Limits(rows=1_000_000, seconds=3_600, memory_mb=4_096, threads=os.cpu_count() or 1)
"""On a person's own terminal, who can stop it."""
PAGE = Limits(rows=1_000, seconds=10, memory_mb=512, threads=2)
DOWNLOAD = Limits(rows=100_000, seconds=30, memory_mb=512, threads=2)


def too_long_line(limits: Limits) -> str:
    return f"the answer took longer than {limits.seconds:g} s: ask for fewer days, or group less finely"


@cache
def locked_database(limits: Limits) -> duckdb.DuckDBPyConnection:
    """An empty database that can reach no file, no network and no extension, and cannot be told otherwise. Ask through a cursor of it:
    what one of them has registered the others do not see."""
    config: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "memory_limit": f"{limits.memory_mb}MB",
        "threads": limits.threads,
        "temp_directory": "",
    }
    database = duckdb.connect(config=config)
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def names_asked(connection: duckdb.DuckDBPyConnection, sql: str, known: Collection[str]) -> list[str]:
    """The known names that the SQL reads; refuses all that is not one SELECT over them."""
    if len(sql) > MOST_CHARACTERS:
        raise Refusal(f"a question has {MOST_CHARACTERS:,} characters at most, this one has {len(sql):,}")
    try:
        ((text,),) = connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
        parsed = json.loads(text)
        if parsed["error"]:
            raise Refusal(_refused(parsed))
        if not parsed["statements"]:
            raise Refusal("nothing is asked: write a SELECT")
        if len(parsed["statements"]) > 1:
            raise Refusal(f"ask one thing at a time: these are {len(parsed['statements'])} statements")
        nodes = list(_nodes(parsed["statements"][0]))
    except (RecursionError, UnicodeError, duckdb.Error):
        raise Refusal("the SQL cannot be read: it is nested too deeply, or no text") from None
    own = {entry["key"].lower() for node in nodes for entry in node.get("map", []) if isinstance(entry, dict) and "key" in entry}
    found = []
    for node in nodes:
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _QUERIES:
            raise Refusal("only a SELECT can be asked: nothing can be written here")
        if kind == "SHOW_REF" and node.get("table_name"):
            raise Refusal(f"there is nothing to show but {', '.join(sorted(known))}")
        if kind == "TABLE_FUNCTION" and (name := str(node["function"]["function_name"]).lower()) not in _FUNCTIONS:
            raise Refusal(f"'{name}' cannot be asked: only views, tables and served queries can")
        if kind == "BASE_TABLE":
            found.append(_known_name(node, known, own))
    return [name for name in dict.fromkeys(found) if name in known]


def _known_name(node: dict[str, Any], known: Collection[str], own: set[str]) -> str:
    """Of a relation; `own` are those that the SQL names itself. Names with an underscore in front are behind the declared ones."""
    name, within = str(node["table_name"]).lower(), [part for part in (node["catalog_name"], node["schema_name"]) if part]
    if within or name.startswith("_") or (name not in known and name not in own):
        whole = ".".join([*within, name])
        raise Refusal(f"there is no view, table or served query '{whole}'{nearest(name, sorted(known))}")
    return name


def _refused(parsed: dict[str, Any]) -> str:
    if parsed["error_type"] == "not implemented":
        return "only one SELECT can be asked: nothing can be written, loaded or set here"
    return f"{str(parsed['error_type']).capitalize()} Error: {parsed['error_message']}".splitlines()[0]


def _nodes(found: Any) -> Iterator[dict[str, Any]]:
    """All objects in a parsed statement."""
    waiting = [found]
    while waiting:
        own = waiting.pop()
        if isinstance(own, dict):
            yield own
            waiting.extend(own.values())
        elif isinstance(own, list):
            waiting.extend(own)

"""Reads views from Delta without a JVM: deltalake finds the files, DuckDB answers the SQL."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from weir.layout import Lake
from weir.pipeline import Pipeline, nearest, relations_in
from weir.refusal import Refusal

FORMS = ("speed", "batch")
"""`<view>` is the served view; `<view>__speed` and `<view>__batch` are its two layers as they stand."""


@dataclass(frozen=True)
class Answer:
    columns: list[str]
    rows: list[tuple[Any, ...]]


def answer_query(lake: Lake, pipelines: list[Pipeline], sql: str) -> Answer:
    """Run one SELECT over views. Nothing can be written, no file and no network reached."""
    known = {name: (pipeline, view, form) for pipeline in pipelines for view in pipeline.views for name, form in _names(view)}
    connection = duckdb.connect(config={"python_enable_replacements": False})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for name in relations_in(sql):
            if name in known:
                _register(connection, lake, name, *known[name])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        found = connection.execute(sql)
        return Answer([column[0] for column in found.description or []], found.fetchall())
    except duckdb.CatalogException as error:
        missing = next((word for word in relations_in(sql) if word not in known and f"name {word} " in str(error)), None)
        hint = nearest(missing, known) if missing else ""
        raise Refusal(f"{str(error).splitlines()[0]}{hint}") from None
    except duckdb.Error as error:
        raise Refusal(str(error).splitlines()[0]) from None
    finally:
        connection.close()


def _names(view: str) -> list[tuple[str, str]]:
    return [(view, "served"), *((f"{view}__{form}", form) for form in FORMS)]


def _register(connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, pipeline: Pipeline, view: str, form: str) -> None:
    """Make one form of a view readable under its name. Until a day is settled the speed layer is what is served."""
    fingerprint = pipeline.fingerprint(view)
    layer = "batch" if form == "batch" else "speed"
    path = lake.batch(pipeline.name, view, fingerprint) if layer == "batch" else lake.speed(pipeline.name, view, fingerprint)
    if not Path(path, "_delta_log").is_dir():
        how = f"weir nightly {pipeline.name} --day …" if layer == "batch" else f"weir stream {pipeline.name}"
        raise Refusal(f"view '{view}' has no {layer} cells yet: run `{how}`")
    connection.register(f"_{name}", DeltaTable(path).to_pyarrow_dataset())
    if layer == "batch":
        connection.execute(f'CREATE VIEW "{name}" AS SELECT * EXCLUDE (_day) FROM "_{name}"')
        return
    grain = ", ".join(f'"{column}"' for column in pipeline.views[view].grain)
    status = ", 'provisional' AS status" if form == "served" else ""
    connection.execute(
        f'CREATE VIEW "{name}" AS SELECT * EXCLUDE (_day, _generation, _batch){status} FROM "_{name}" '
        f"QUALIFY row_number() OVER (PARTITION BY {grain} ORDER BY _generation DESC, _batch DESC) = 1"
    )

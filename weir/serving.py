"""Reads views and the quarantine from Delta without a JVM: deltalake finds the files, DuckDB answers the SQL."""

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from weir.layout import Lake
from weir.pipeline import Pipeline, nearest, relations_in
from weir.refusal import Refusal

FORMS = ("speed", "batch")
"""`<view>` is the served view; `<view>__speed` and `<view>__batch` are its two layers as they stand."""


EXPIRY_WARNING_DAYS = 3


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


@dataclass(frozen=True)
class QuarantineFilter:
    """Which quarantined rows are meant. Days are days of arrival, both inclusive."""

    stream: str | None = None
    rule: str | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True)
class QuarantineGroup:
    """Open quarantined rows of one stream with one reason."""

    stream: str
    reason: str
    rows: int
    oldest: datetime
    newest: datetime
    expiring: int
    """Rows that will be kept for three more days at most."""


def quarantine_groups(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter) -> list[QuarantineGroup]:
    """What is in quarantine, by stream and reason, most rows first. A row with two reasons stands in two groups."""
    keep = [f"WHEN '{name}' THEN INTERVAL '{source.keep_quarantined.total_seconds()} seconds'" for name, source in pipeline.sources.items()]
    keep_until = f"quarantined_at + CASE stream {' '.join(keep)} END"
    rows = _ask_quarantine(
        lake,
        pipeline,
        asked,
        "SELECT stream, reason, count(*), min(received_at), max(received_at), "
        f"count(*) FILTER ({keep_until} < now() + INTERVAL {EXPIRY_WARNING_DAYS} DAY) "
        "FROM (SELECT unnest(reasons) AS reason, * FROM open_rows) WHERE $rule IS NULL OR reason = $rule "
        "GROUP BY ALL ORDER BY 3 DESC, 1, 2",
    )
    return [QuarantineGroup(*row) for row in rows]


def quarantine_rows(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter, at_most: int) -> list[dict[str, Any]]:
    """Open quarantined rows, oldest first, with their payload as it came: mask it before anybody sees it."""
    names = ["stream", "topic", "partition", "offset", "received_at", "reasons", "identity", "occurred_at", "quarantined_at", "payload"]
    columns = ", ".join(f'"{name}"' for name in names)
    sql = f'SELECT {columns} FROM open_rows WHERE $rule IS NULL OR list_contains(reasons, $rule) ORDER BY received_at, partition, "offset"'
    return [dict(zip(names, row, strict=True)) for row in _ask_quarantine(lake, pipeline, asked, f"{sql} LIMIT {at_most:d}")]


def _ask_quarantine(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter, sql: str) -> list[tuple[Any, ...]]:
    if asked.stream is not None and asked.stream not in pipeline.sources:
        raise Refusal(f"'{asked.stream}' is no stream or table of {pipeline.name}{nearest(asked.stream, pipeline.sources)}")
    path, acts = lake.quarantined(pipeline.name), lake.quarantine_acts(pipeline.name)
    if not Path(path, "_delta_log").is_dir():
        return []
    connection = duckdb.connect(config={"python_enable_replacements": False})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("quarantined", DeltaTable(path).to_pyarrow_dataset())
        acted_on = ""
        if Path(acts, "_delta_log").is_dir():
            connection.register("acts", DeltaTable(acts).to_pyarrow_dataset())
            acted_on = 'ANTI JOIN acts USING (stream, topic, partition, "offset")'
        connection.execute(
            f"CREATE TEMP TABLE open_rows AS SELECT * FROM quarantined {acted_on} WHERE ($stream IS NULL OR stream = $stream) "
            "AND ($since IS NULL OR received_on >= $since) AND ($until IS NULL OR received_on <= $until)",
            {"stream": asked.stream, "since": asked.since, "until": asked.until},
        )
        return connection.execute(sql, {"rule": asked.rule}).fetchall()
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

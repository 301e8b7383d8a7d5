"""Reads views and the quarantine from Delta without a JVM: deltalake finds the files, DuckDB answers the SQL."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable

from weir.asking import COMMAND, PAGE, Limits, locked_database, names_asked, too_long_line
from weir.event_time import Run, utc_now
from weir.lake_files import delta_options, lake_path, object_store
from weir.layout import Lake
from weir.masking import masked_column, private_columns
from weir.open_tables import DAY, MOST_TABLES, OpenTables, Snapshot
from weir.pipeline import Pipeline, history_of, nearest
from weir.quarantine import QuarantinedStream, QuarantineFilter, QuarantineSummary
from weir.records.night import Cell, Settlement
from weir.refusal import Refusal
from weir.sql_text import relations_in

RECENT_DAYS = 31
"""People mostly ask about these: days before them are told apart by one comparison, not file by file."""
FORMS = ("speed", "batch")
"""`<view>` is the served view; `<view>__speed` and `<view>__batch` are its two layers as they stand."""


EXPIRY_WARNING_DAYS = 3
QUARANTINE_MEMORY = "512MB"
"""Of one question about the quarantine, however much is in it."""

_TABLES = OpenTables()
"""Those that were asked for last stay open."""


@dataclass(frozen=True)
class Answer:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    types: list[str] = field(default_factory=list)
    """DuckDB's, by column."""
    is_cut: bool = False
    """Whether there are more rows than may be shown."""


def answer_query(lake: Lake, pipelines: list[Pipeline], sql: str, limits: Limits = COMMAND) -> Answer:
    """Run one SELECT over views, tables and served queries. Nothing can be written, no file and no network reached, and private columns
    cannot be seen. What one call of a function takes in time and memory is not bounded here: strangers ask through asking_process.py."""
    known = {name: (pipeline, view, form) for pipeline in pipelines for view in pipeline.views for name, form in _names(view)}
    tables = {name: (pipeline, table) for pipeline in pipelines for table in pipeline.tables for name in (table, history_of(table))}
    declared = {name: query.sql for pipeline in pipelines for name, query in pipeline.serve.items()}
    connection = locked_database(limits).cursor()
    too_long = threading.Timer(limits.seconds, connection.interrupt)
    try:
        asked = names_asked(connection, sql, [*known, *tables, *declared])
        too_long.start()
        for name in _with_read(asked, declared):
            if name in known:
                _register(connection, lake, name, *known[name])
            elif name in tables:
                _register_table(connection, lake, name, *tables[name])
            elif name in declared:
                connection.execute(f'CREATE TEMP VIEW "{name}" AS {declared[name]}')
        found = connection.execute(sql)
        rows = found.fetchmany(limits.rows + 1)
        told = found.description or []
        return Answer([own[0] for own in told], rows[: limits.rows], [str(own[1]) for own in told], len(rows) > limits.rows)
    except duckdb.InterruptException:
        raise Refusal(too_long_line(limits)) from None
    except duckdb.Error as error:
        raise Refusal(str(error).splitlines()[0]) from None
    finally:
        too_long.cancel()
        connection.close()


def _read_by(sql: str, declared: dict[str, str]) -> list[str]:
    """All that the SQL reads, also through served queries, each behind what it reads itself."""
    return _with_read(relations_in(sql), declared)


def _with_read(names: list[str], declared: dict[str, str]) -> list[str]:
    found: list[str] = []
    for name in names:
        if name in declared and name not in found:
            found += [own for own in _read_by(declared[name], declared) if own not in found]
        found += [name] if name not in found else []
    return found


def check_served(pipeline: Pipeline, columns: dict[str, dict[str, str]]) -> dict[str, str]:
    """What is wrong with each served query, by name; the columns of the views are given with Spark's types."""
    wrong = {}
    connection = duckdb.connect(config={"python_enable_replacements": False, "enable_external_access": False})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for view, own in columns.items():
            for name, form in _names(view):
                status = ', "status" VARCHAR' if form == "served" else ""
                connection.execute(f'CREATE TABLE "{name}" ({", ".join(f""""{c}" {_duck_type(t)}""" for c, t in own.items())}{status})')
        for table, contract in pipeline.tables.items():
            shown = {c: own.type for c, own in contract.columns.items() if not own.private}
            of_version = {"valid_from": "timestamp", "recorded_at": "timestamp"}
            history = {"valid_to": "timestamp", "deleted": "boolean"}
            for name, own in ((table, shown | of_version), (history_of(table), shown | of_version | history)):
                connection.execute(f'CREATE TABLE "{name}" ({", ".join(f""""{c}" {_duck_type(t)}""" for c, t in own.items())})')
        declared = {name: query.sql for name, query in pipeline.serve.items()}
        for name in dict.fromkeys(own for query in declared for own in [*_read_by(declared[query], declared), query] if own in declared):
            try:
                connection.execute(f'CREATE VIEW "{name}" AS {declared[name]}')
                connection.execute(f'SELECT * FROM "{name}"').fetchall()
            except duckdb.Error as error:
                wrong[name] = str(error).splitlines()[0]
        return wrong
    finally:
        connection.close()


def _duck_type(spark_type: str) -> str:
    if spark_type.startswith("array<"):
        return f"{_duck_type(spark_type[6:-1])}[]"
    return {"string": "VARCHAR", "timestamp": "TIMESTAMPTZ", "binary": "BLOB"}.get(spark_type, spark_type)


class ServedView:
    """One served view, kept open: gives a cell by its key in milliseconds. Sees what was written up to a second ago."""

    FRESH_SECONDS = 1.0

    def __init__(self, lake: Lake, pipeline: Pipeline, view: str) -> None:
        fingerprint = pipeline.fingerprint(view)
        self._grain = pipeline.views[view].grain
        self._settlement = lake.settlement(pipeline.name, view, fingerprint)
        self._paths = {"batch": lake.batch(pipeline.name, view, fingerprint), "speed": lake.speed(pipeline.name, view, fingerprint)}
        self._run: Run | None = None
        self._tables = OpenTables()
        self._snapshots: dict[str, Snapshot | None] = {}
        self._looked_at = float("-inf")
        self._connection = duckdb.connect(config={"python_enable_replacements": False})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET parquet_metadata_cache = true")
        if lake.is_remote:
            self._connection.register_filesystem(object_store())

    def look_up(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The cell with exactly this grain value, with its status; None where there is none."""
        if list(key) != self._grain:
            raise Refusal(f"a cell has the key {', '.join(self._grain)}, not {', '.join(key)}")
        self._refresh()
        day = key[self._grain[0]].astimezone(UTC).date()
        layer = "batch" if self._run and self._run.since <= day < self._run.until else "speed"
        snapshot = self._snapshots[layer]
        if not (files := snapshot.paths_of(day) if snapshot else []):
            return None
        same = " AND ".join(f'"{column}" IS NOT DISTINCT FROM ?' for column in self._grain)
        last = "" if layer == "batch" else " ORDER BY _generation DESC, _batch DESC LIMIT 1"
        found = self._connection.execute(f"SELECT * FROM read_parquet(?) WHERE {same}{last}", [files, *key.values()])
        row = found.fetchone()
        if row is None:
            return None
        cell = dict(zip((column[0] for column in found.description or []), row, strict=True))
        status = cell.pop("_status", "provisional")
        return {name: value for name, value in cell.items() if not name.startswith("_")} | {"status": status}

    def _refresh(self) -> None:
        if time.monotonic() - self._looked_at < self.FRESH_SECONDS:
            return
        settled = Settlement.read(self._settlement)
        self._run = settled.run if settled else None
        self._snapshots = {layer: self._tables.now(path, self._grain[0]) for layer, path in self._paths.items()}
        self._looked_at = time.monotonic()


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
    with _open_rows(lake, pipeline, asked) as rows:
        if rows is None:
            return []
        found = rows.ask(
            f"SELECT stream, reason, count(*), min(received_at), max(received_at), {_expiring(pipeline)} "
            f"FROM (SELECT stream, received_at, quarantined_at, unnest(reasons) AS reason FROM {rows.source}) "
            "WHERE $rule IS NULL OR reason = $rule GROUP BY ALL ORDER BY 3 DESC, 1, 2",
            rule=asked.rule,
        )
        return [QuarantineGroup(*row) for row in found]


def count_quarantined(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter) -> dict[str, QuarantinedStream]:
    """The open rows of each stream that has any. A row with two reasons counts once."""
    with _open_rows(lake, pipeline, asked) as rows:
        if rows is None:
            return {}
        found = rows.ask(
            f"SELECT stream, count(*), min(received_at), {_expiring(pipeline)}, min({_kept_until(pipeline)}) FROM {rows.source} "
            "WHERE $rule IS NULL OR list_contains(reasons, $rule) GROUP BY stream ORDER BY stream",
            rule=asked.rule,
        )
        return {
            stream: QuarantinedStream(rows=count, oldest=oldest, expiring=expiring, expires_at=expires_at)
            for stream, count, oldest, expiring, expires_at in found
        }


def summarise_quarantine(lake: Lake, pipeline: Pipeline) -> QuarantineSummary:
    return QuarantineSummary(streams=count_quarantined(lake, pipeline, QuarantineFilter()), written_at=utc_now())


_SHOWN = ("stream", "topic", "partition", "offset", "received_at", "reasons", "identity", "occurred_at", "quarantined_at")


def quarantine_rows(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter, at_most: int, behind: int = 0) -> list[dict[str, Any]]:
    """Open quarantined rows, oldest first, with their payload as it came: mask it before anybody sees it.

    Payloads are most of the table: they are read of the rows that were found, and of no others.
    """
    with _open_rows(lake, pipeline, asked) as rows:
        if rows is None:
            return []
        columns = ", ".join(f'"{name}"' for name in (*_SHOWN, "filename", "file_row_number"))
        found = rows.ask(
            f"SELECT {columns} FROM {rows.source} WHERE $rule IS NULL OR list_contains(reasons, $rule) "
            f'ORDER BY received_at, partition, "offset", topic LIMIT {at_most:d} OFFSET {behind:d}',
            rule=asked.rule,
        )
        payloads: dict[tuple[str, int], Any] = {}
        for file in {row[-2] for row in found}:
            numbers = [row[-1] for row in found if row[-2] == file]
            of_file = "SELECT file_row_number, payload FROM read_parquet($file, file_row_number = true)"
            for number, payload in rows.ask(f"{of_file} WHERE list_contains($numbers, file_row_number)", file=file, numbers=numbers):
                payloads[file, number] = payload
        return [dict(zip(_SHOWN, row, strict=False)) | {"payload": payloads[row[-2], row[-1]]} for row in found]


def _kept_until(pipeline: Pipeline) -> str:
    """A stream that is no longer declared has no time."""
    keep = [f"WHEN '{name}' THEN INTERVAL '{source.keep_quarantined.total_seconds()} seconds'" for name, source in pipeline.sources.items()]
    return f"quarantined_at + CASE stream {' '.join(keep)} END"


def _expiring(pipeline: Pipeline) -> str:
    return f"count(*) FILTER ({_kept_until(pipeline)} < now() + INTERVAL {EXPIRY_WARNING_DAYS} DAY)"


@dataclass(frozen=True)
class _OpenRows:
    """The open rows as something to select from. Only what a question names is read, from the files of the streams and days meant."""

    connection: duckdb.DuckDBPyConnection
    files: dict[str, list[str]]

    @property
    def source(self) -> str:
        hive = "hive_partitioning = true, hive_types = {'stream': VARCHAR, 'received_on': DATE}, filename = true, file_row_number = true"
        acted = "read_parquet($acts, hive_partitioning = true, hive_types = {'stream': VARCHAR})"
        without = f' ANTI JOIN {acted} AS acts USING (stream, topic, partition, "offset")' if self.files["acts"] else ""
        # Spark writes times in a form that names no zone: they are UTC. A producer's clock may be further off than Python can tell.
        within = "least(greatest({0}::TIMESTAMPTZ, TIMESTAMPTZ '0001-01-02 00:00Z'), TIMESTAMPTZ '9999-12-30 00:00Z') AS {0}"
        times = ", ".join(within.format(name) for name in ("received_at", "quarantined_at", "occurred_at"))
        return f"(SELECT * REPLACE ({times}) FROM read_parquet($quarantined, {hive}) AS quarantined{without})"

    def ask(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        files = {name: own for name, own in self.files.items() if f"${name}" in sql}
        return self.connection.execute(sql, given | files).fetchall()


@contextmanager
def _open_rows(lake: Lake, pipeline: Pipeline, asked: QuarantineFilter) -> Iterator[_OpenRows | None]:
    """None where nothing was ever set aside of what is meant."""
    if asked.stream is not None and asked.stream not in pipeline.sources:
        raise Refusal(f"'{asked.stream}' is no stream or table of {pipeline.name}{nearest(asked.stream, pipeline.sources)}")
    of_stream = [("stream", "=", asked.stream)] if asked.stream else []
    days = [("received_on", sign, str(day)) for sign, day in ((">=", asked.since), ("<=", asked.until)) if day]
    files = {
        "quarantined": _files(lake.quarantined(pipeline.name), [*of_stream, *days]),
        "acts": _files(lake.quarantine_acts(pipeline.name), of_stream),
    }
    if not files["quarantined"]:
        yield None
        return
    connection = duckdb.connect(config={"python_enable_replacements": False, "memory_limit": QUARANTINE_MEMORY, "temp_directory": ""})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        if lake.is_remote:
            connection.register_filesystem(object_store())
        yield _OpenRows(connection, files)
    except duckdb.Error as error:  # a file that was compacted away meanwhile, more than the memory holds
        raise Refusal(f"the quarantine of {pipeline.name} cannot be read now: {str(error).splitlines()[0]}") from None
    finally:
        connection.close()


def _files(path: str, of: list[tuple[str, str, str]]) -> list[str]:
    if not lake_path(f"{path}/_delta_log").is_dir():
        return []
    return [unquote(file) for file in DeltaTable(path, storage_options=delta_options(path)).file_uris(partition_filters=of or None)]


def _names(view: str) -> list[tuple[str, str]]:
    return [(view, "served"), *((f"{view}__{form}", form) for form in FORMS)]


def _register(connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, pipeline: Pipeline, view: str, form: str) -> None:
    """Make one form of a view readable under its name. Served are the batch cells of the settled days and the speed cells of all others."""
    connection.execute(f'CREATE TEMP VIEW "{name}" AS {_cells(connection, lake, name, pipeline, view, form)}')


@dataclass(frozen=True)
class LastCells:
    """The last cells of a served view."""

    since: date
    """The first of the days that were looked at."""
    cells: Answer
    statuses: dict[str, int]
    """All cells of these days, by status."""


def last_cells(lake: Lake, pipeline: Pipeline, view: str, days: int, rows: int) -> LastCells | None:
    """From the last days that have cells, however many there are before; None where there are none. Read again when they have changed."""
    asked = (lake, pipeline.name, view, days, rows)
    basis = (settled_run(lake, pipeline, view), *_layers(lake, pipeline, view), private_columns(pipeline, view))
    known = _LAST_CELLS.get(asked)
    if known is None or known[0] != basis:
        known = _LAST_CELLS[asked] = (basis, _read_last_cells(lake, pipeline, view, days, rows))
        while len(_LAST_CELLS) > MOST_TABLES:
            _LAST_CELLS.pop(next(iter(_LAST_CELLS)), None)
    return known[1]


_LAST_CELLS: dict[tuple[Any, ...], tuple[tuple[Any, ...], LastCells | None]] = {}
"""What was asked → on what the answer stands, and the answer."""


def _read_last_cells(lake: Lake, pipeline: Pipeline, view: str, days: int, rows: int) -> LastCells | None:
    known = cell_days(lake, pipeline, view)
    if not known:
        return None
    since = known[-days:][0]
    connection = locked_database(PAGE).cursor()
    try:
        cells = _cells(connection, lake, view, pipeline, view, "served", since)
        connection.execute(f"CREATE TEMP TABLE few AS {cells}")
        statuses = connection.execute("SELECT status, count(*) FROM few GROUP BY status ORDER BY 2 DESC").fetchall()
        found = connection.execute(f'SELECT * FROM few ORDER BY "{pipeline.views[view].time}" DESC LIMIT {rows:d}')
        told = found.description or []
        answer = Answer([own[0] for own in told], found.fetchall(), [str(own[1]) for own in told])
        return LastCells(since, answer, dict(statuses))
    except duckdb.Error as error:
        raise Refusal(str(error).splitlines()[0]) from None
    finally:
        connection.close()


def _layers(lake: Lake, pipeline: Pipeline, view: str) -> tuple[Snapshot | None, Snapshot | None]:
    """Batch and speed of a view."""
    fingerprint, time_column = pipeline.fingerprint(view), pipeline.views[view].time
    paths = lake.batch(pipeline.name, view, fingerprint), lake.speed(pipeline.name, view, fingerprint)
    return _TABLES.now(paths[0], time_column), _TABLES.now(paths[1], time_column)


def cell_days(lake: Lake, pipeline: Pipeline, view: str) -> list[date]:
    """The days of which cells are served, from the tables' logs."""
    run, (batch, speed) = settled_run(lake, pipeline, view), _layers(lake, pipeline, view)
    settled = {day for day in batch.days() if run.since <= day < run.until} if batch and run else set()
    streamed = {day for day in speed.days() if run is None or not run.since <= day < run.until} if speed else set()
    return sorted(settled | streamed)


def settled_cells(lake: Lake, pipeline: Pipeline, view: str) -> int:
    """How many there are, from the table's log."""
    run, (batch, _) = settled_run(lake, pipeline, view), _layers(lake, pipeline, view)
    return sum(batch.rows_of(day) for day in batch.days() if run.since <= day < run.until) if batch and run else 0


def settled_run(lake: Lake, pipeline: Pipeline, view: str) -> Run | None:
    settled = Settlement.read(lake.settlement(pipeline.name, view, pipeline.fingerprint(view)))
    return settled.run if settled else None


def _cells(
    connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, pipeline: Pipeline, view: str, form: str, first: date | None = None
) -> str:
    """The SQL that reads one form of a view's cells, from the first day on; what is private is masked."""
    cells, columns = _cells_of(connection, lake, name, pipeline, view, form, first)
    masks = [masked_column(column) for column in columns if column in private_columns(pipeline, view)]
    shown = f" REPLACE ({', '.join(masks)})" if masks else ""
    return f"SELECT * EXCLUDE (_day){shown} FROM ({cells})"


def _cells_of(
    connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, pipeline: Pipeline, view: str, form: str, first: date | None
) -> tuple[str, list[str]]:
    """As they are, each with its day, and the names of their columns."""
    fingerprint, declared = pipeline.fingerprint(view), pipeline.views[view]
    run = settled_run(lake, pipeline, view) if form == "served" else None
    parts: list[str] = []
    columns: list[str] = []
    if form == "batch" or run:
        within = f" WHERE _day >= DATE '{run.since}' AND _day < DATE '{run.until}'" if run else ""
        status = ", _status AS status" if run else ""
        batch = _TABLES.now(lake.batch(pipeline.name, view, fingerprint), declared.time)
        if batch is None:
            raise Refusal(_missing(pipeline, view, "batch"))
        columns += batch.columns
        days = batch.days()
        border = first or (days[-RECENT_DAYS] if len(days) > RECENT_DAYS else date.min)
        connection.register(f"_{name}_batch", batch.since(border))
        parts.append(f'SELECT * EXCLUDE (_status){status} FROM "_{name}_batch"{within}')
        if first is None and border > date.min:
            connection.register(f"_{name}_before", batch.before(border))
            within += f"{' AND' if within else ' WHERE'} \"{declared.time}\" < TIMESTAMPTZ '{border} 00:00:00+00'"
            parts.append(f'SELECT * EXCLUDE (_status){status} FROM "_{name}_before"{within}')
    if form != "batch":
        speed = _TABLES.now(lake.speed(pipeline.name, view, fingerprint), declared.time)
        if speed is None and not parts:
            raise Refusal(_missing(pipeline, view, "speed"))
        if speed is not None:
            connection.register(f"_{name}_speed", speed.since(first) if first else speed.dataset)
            columns += speed.columns
            without = f" WHERE _day < DATE '{run.since}' OR _day >= DATE '{run.until}'" if run else ""
            status = ", 'provisional' AS status" if form == "served" else ""
            parts.append(f"SELECT *{status} FROM ({_last_words(f'_{name}_speed', speed.columns, declared.grain, without)})")
    return " UNION ALL BY NAME ".join(parts), list(dict.fromkeys(columns))


def _last_words(table: str, columns: list[str], grain: list[str], where: str) -> str:
    """Of each cell that was told several times, the last word. By grouping: half the cost of a window, and as well cut to a few days."""
    keys = ", ".join(f'"{column}"' for column in (DAY, *grain))
    values = [column for column in columns if column not in (DAY, "_generation", "_batch", *grain)]
    packed = ", ".join(f'"{column}" := "{column}"' for column in values) or "nothing := NULL"
    shown = ", ".join(
        f'_last."{column}" AS "{column}"' if column in values else f'"{column}"'
        for column in columns
        if column not in ("_generation", "_batch")
    )
    last = f"arg_max(struct_pack({packed}), struct_pack(generation := _generation, batch := _batch)) AS _last"
    return f'SELECT {shown} FROM (SELECT {keys}, {last} FROM "{table}"{where} GROUP BY {keys})'


def _register_table(connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, pipeline: Pipeline, table: str) -> None:
    """Make a table readable: the row of each key, or under its history's name every version. Private columns are not shown."""
    kept = f"_{table}_kept"
    if _table(connection, lake.history(pipeline.name, table, pipeline.table_fingerprint(table)), kept) is None:
        raise Refusal(f"nothing of table '{table}' is known yet: run `weir stream {pipeline.name}` first")
    declared = pipeline.tables[table]
    shown = ", ".join(f'"{column}"' for column in declared.columns if column not in declared.private_columns)
    order = f'"{declared.changed_at}", received_at, topic, partition, "offset"'
    versions = (
        f'SELECT {shown}, "{declared.changed_at}" AS valid_from, lead("{declared.changed_at}") OVER (PARTITION BY "{declared.key}" '
        f'ORDER BY {order}) AS valid_to, received_at AS recorded_at, _deleted AS deleted FROM "{kept}"'
    )
    if name == table:
        versions = f"SELECT * EXCLUDE (valid_to, deleted) FROM ({versions}) WHERE valid_to IS NULL AND NOT deleted"
    connection.execute(f'CREATE TEMP VIEW "{name}" AS {versions}')


def _table(connection: duckdb.DuckDBPyConnection, path: str, name: str) -> str | None:
    found = _TABLES.now(path)
    if found is None:
        return None
    connection.register(name, found.dataset)
    return name


def _missing(pipeline: Pipeline, view: str, layer: str) -> str:
    how = f"weir nightly {pipeline.name} --day …" if layer == "batch" else f"weir stream {pipeline.name}"
    return f"view '{view}' has no {layer} cells yet: run `{how}`"


def ledger_lines(lake: Lake, pipeline: Pipeline, day: date, view: str | None = None) -> list[dict[str, Any]]:
    """The ledger of a day of arrival, in the table's words."""
    return _select(
        lake.ledger(pipeline.name), "_day = $day AND ($view IS NULL OR view = $view)", "view, stream, partition", day=day, view=view
    )


def differences(lake: Lake, pipeline: Pipeline, view: str, day: date, fingerprint: str | None = None) -> list[Cell]:
    """The cells of a view and day of which speed and batch said different things, the unexplained first, then those with most events.

    With a fingerprint, those of an earlier declaration of the view.
    """
    which = fingerprint or pipeline.fingerprint(view)
    where = "_day = $day AND view = $view AND fingerprint = $which"
    rows = _select(lake.differences(pipeline.name), where, "grain", day=day, view=view, which=which)
    names = pipeline.views[view].grain
    cells = [
        Cell(grain={name: row["grain"][name] for name in names}, **{side: row[side] for side in ("speed", "batch", "causes")})
        for row in rows
    ]
    return sorted(cells, key=lambda cell: (not cell.is_unexplained, -sum(cause.events for cause in cell.causes)))


def tamper_with_cell(lake: Lake, pipeline: Pipeline, view: str, column: str) -> dict[str, str]:
    """Change one streamed number behind the stream's back, for a drill. Gives the cell."""
    path = lake.speed(pipeline.name, view, pipeline.fingerprint(view))
    grain = pipeline.views[view].grain
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("speed", DeltaTable(path, storage_options=delta_options(path)).to_pyarrow_dataset())
        names = ", ".join(f'CAST("{name}" AS VARCHAR)' for name in grain)
        row = connection.execute(f"SELECT {names} FROM speed ORDER BY hash({names}) LIMIT 1").fetchone()
    finally:
        connection.close()
    if row is None:
        raise Refusal(f"view '{view}' has no speed cells yet")
    cell = dict(zip(grain, (str(value).removesuffix("+00") for value in row), strict=True))
    quoted = " AND ".join(f"CAST({name} AS VARCHAR) LIKE '{_like(value)}%'" for name, value in cell.items())
    DeltaTable(path, storage_options=delta_options(path)).update(updates={column: f"{column} + 1"}, predicate=quoted)
    return cell


def _like(value: str) -> str:
    return value.replace("'", "''").replace(" ", "_")  # a time may stand there with a T


def _select(path: str, where: str, order: str, **given: Any) -> list[dict[str, Any]]:
    connection = duckdb.connect(config={"python_enable_replacements": False})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        if _table(connection, path, "asked") is None:
            return []
        found = connection.execute(f"SELECT * FROM asked WHERE {where} ORDER BY {order}", given)
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    finally:
        connection.close()

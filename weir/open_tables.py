"""Delta tables that are kept open: what their log says is read once, and then only what was added to it.

To open a table of a thousand nights costs a second, to look whether it has changed two milliseconds. All tables of cells are cut into
days, and the day is known of every file before it is read: so a question about a few days reads those days only.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from weir.event_time import day_bounds
from weir.lake_files import arrow_file, delta_options, is_remote, lake_path

DAY = "_day"
MOST_TABLES = 64


@dataclass(frozen=True)
class File:
    """One file of a table: the day that all its rows belong to, where the table is cut into days, and how many they are."""

    path: str
    day: date | None
    rows: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A table as it was at one version. The same one is given until the table changes."""

    version: int
    by_day: dict[date | None, list[File]]
    dataset: Any
    """For DuckDB: an Arrow dataset that skips files by day, and by the time of their cells."""
    fragments: dict[str, Any] = field(default_factory=dict)
    """Of the dataset, by path."""

    @property
    def columns(self) -> list[str]:
        return list(self.dataset.schema.names)

    def since(self, day: date) -> Any:
        """The dataset of this day, those after it, and rows without a day, where the table is cut into days."""
        return self._part([own for own in self.by_day if own is None or own >= day])

    def before(self, day: date) -> Any:
        """The dataset of the days before this one."""
        return self._part([own for own in self.by_day if own is not None and own < day])

    def _part(self, days: list[date | None]) -> Any:
        if not self.fragments:
            return self.dataset
        return _dataset([self.fragments[file.path] for day in days for file in self.by_day[day]], self.dataset.schema)

    def days(self) -> list[date]:
        return sorted(day for day in self.by_day if day is not None)

    def rows_of(self, day: date) -> int:
        """From the log alone."""
        return sum(file.rows for file in self.by_day.get(day, []))

    def paths_of(self, day: date) -> list[str]:
        return [file.path for file in self.by_day.get(day, [])]


class OpenTable:
    """One table. `time` is the column whose UTC day is the row's day, where it has one."""

    def __init__(self, path: str, time_column: str | None) -> None:
        self._path, self._time = path, time_column
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._identity: tuple[Any, ...] | None = None
        self._fragments: dict[str, Any] = {}
        self._snapshot: Snapshot | None = None

    def now(self) -> Snapshot | None:
        """As it is; None where there is no table."""
        with self._lock:
            self._snapshot = self._look()
            return self._snapshot

    def _look(self) -> Snapshot | None:
        try:
            identity = self._identify()
        except (FileNotFoundError, NotADirectoryError):
            self._table, self._fragments = None, {}
            return None
        if self._table is not None and self._identity == identity:
            self._table.update_incremental()
        else:  # not opened yet, or another table stands in its place
            self._table, self._fragments, self._snapshot = DeltaTable(self._path, storage_options=delta_options(self._path)), {}, None
            self._identity = identity
        if self._snapshot is not None and self._snapshot.version == self._table.version():
            return self._snapshot
        return self._read(self._table)

    def _identify(self) -> tuple[Any, ...]:
        """Of the table that is there. In an object store only whether there is one can be told: nobody replaces tables there."""
        log = lake_path(f"{self._path}/_delta_log")
        if is_remote(self._path):
            if not log.is_dir():
                raise FileNotFoundError(self._path)
            return (self._path,)
        stat = log.stat()
        return stat.st_dev, stat.st_ino

    def _read(self, table: DeltaTable) -> Snapshot:
        by_day: dict[date | None, list[File]] = {}
        files = [
            File(f"{self._path}/{unquote(own['path'])}", own.get(f"partition.{DAY}"), own["num_records"] or 0)
            for own in pa.table(table.get_add_actions(flatten=True)).to_pylist()
        ]
        for file in files:
            by_day.setdefault(file.day, []).append(file)
        if table.metadata().partition_columns != [DAY]:
            return Snapshot(table.version(), by_day, table.to_pyarrow_dataset())
        self._fragments = {file.path: self._fragments.get(file.path) or self._fragment(file) for file in files}
        schema = pa.schema(table.schema().to_arrow())
        return Snapshot(table.version(), by_day, _dataset(list(self._fragments.values()), schema), self._fragments)

    def _fragment(self, file: File) -> Any:
        if file.day is None:
            return _make_fragment(file.path, pc.field(DAY).is_null())
        holds = pc.field(DAY) == pa.scalar(file.day, pa.date32())
        if self._time:
            start, end = (pa.scalar(bound, pa.timestamp("us", "UTC")) for bound in day_bounds(file.day))
            holds = holds & (pc.field(self._time) >= start) & (pc.field(self._time) < end)
        return _make_fragment(file.path, holds)


class OpenTables:
    """The tables that were asked for last. Safe to share between threads."""

    def __init__(self, most: int = MOST_TABLES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[str, str | None], OpenTable] = OrderedDict()

    def now(self, path: str, time_column: str | None = None) -> Snapshot | None:
        with self._lock:
            table = self._tables.setdefault((path, time_column), OpenTable(path, time_column))
            self._tables.move_to_end((path, time_column))
            while len(self._tables) > self._most:
                self._tables.popitem(last=False)
        return table.now()


@cache
def _formats() -> tuple[Any, Any]:
    """Imported when a table is read: it takes pandas along, for which no other command has to wait."""
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat

    return FileSystemDataset, ParquetFileFormat()


def _dataset(fragments: list[Any], schema: Any) -> Any:
    file_system_dataset, parquet = _formats()
    return file_system_dataset(fragments, schema, parquet, fragments[0].filesystem if fragments else None)


def _make_fragment(path: str, holds: Any) -> Any:
    """A file, and what is known to hold of all its rows."""
    filesystem, name = arrow_file(path)
    return _formats()[1].make_fragment(name, filesystem, partition_expression=holds)

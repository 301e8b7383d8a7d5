"""Small appends to Delta tables from Arrow data in this process, without a Spark job: about 10 ms instead of most of a second.

Each append is numbered by its writer and happens once. deltalake records such a number but does not refuse a repeated one, so the
commit is a compare-and-swap: it is only valid on top of the table version whose numbers were read, and is tried anew on a newer one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from weir.lake_files import delta_options

METADATA_KEY = "weir"
"""The field of a commit's info that holds what Weir says about it."""
ATTEMPTS = 50
"""Other commits to one table (compaction, another view's maintenance) are rare: this many in a row do not get in between."""


@dataclass
class ArrowTable:
    """An existing Delta table that this process appends to."""

    path: str
    _table: DeltaTable | None = field(default=None, repr=False)

    def table(self) -> DeltaTable:
        """The table in its newest version."""
        if self._table is None:
            self._table = DeltaTable(self.path, storage_options=delta_options(self.path))
        else:
            self._table.update_incremental()
        return self._table

    def last_appended(self, app_id: str) -> int:
        """The number of the last append of this writer, or -1."""
        found = self.table().transaction_version(app_id)
        return -1 if found is None else int(found)

    def append_once(self, rows: pa.Table, app_id: str, number: int, metadata: dict[str, Any]) -> bool:
        """Append, unless this writer has appended this number or a later one. Says whether rows were appended now."""
        said, whole = {METADATA_KEY: json.dumps(metadata, sort_keys=True)}, _in_one_piece(rows)
        for _ in range(ATTEMPTS):
            table = self.table()
            if (found := table.transaction_version(app_id)) is not None and found >= number:
                return False
            properties = CommitProperties(said, max_commit_retries=0, app_transactions=[Transaction(app_id, number)])
            try:
                write_deltalake(table, whole, mode="append", commit_properties=properties)
                return True
            except CommitFailedError:
                self._table = None
        raise CommitFailedError(f"{self.path}: {ATTEMPTS} commits in a row were overtaken by others")

    def append(self, rows: pa.Table, app_id: str, number: int, metadata: dict[str, Any]) -> None:
        """Append rows that may come twice: readers keep the last row of each key. Records the number."""
        properties = CommitProperties({METADATA_KEY: json.dumps(metadata, sort_keys=True)}, app_transactions=[Transaction(app_id, number)])
        write_deltalake(self.table(), _in_one_piece(rows), mode="append", commit_properties=properties)

    def last_metadata(self, search: int = 50) -> dict[str, Any] | None:
        """What Weir said about the newest commit of its own; None where the last commits have no such field."""
        for commit in self.table().history(search):
            if METADATA_KEY in commit:
                found: dict[str, Any] = json.loads(commit[METADATA_KEY])
                return found
        return None

    def read(self, columns: Iterable[str], partition: str, value: object) -> pa.Table:
        """These columns of one partition."""
        return self.table().to_pyarrow_dataset().to_table(columns=list(columns), filter=pc.field(partition) == value)

    def compact(self, partition: str, value: str) -> None:
        """Merge the small files of one partition, in a commit that changes no row."""
        self.table().optimize.compact([(partition, "=", value)])

    def compact_sometimes(self, every_versions: int) -> None:
        """Merge small files after every so many commits."""
        table = self.table()
        if table.version() % every_versions == every_versions - 1:
            table.optimize.compact()


def _in_one_piece(rows: pa.Table) -> pa.Table:
    """Columns in chunks of different lengths would be sliced on their way, and deltalake aborts the process on sliced structs."""
    return rows.combine_chunks()

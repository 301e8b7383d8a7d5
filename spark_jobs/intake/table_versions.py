"""All versions of a table's rows in memory: finds the row of a key as of a moment, at a cost that does not grow with the table."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Micros = NDArray[np.int64]

MERGE_RATIO = 4


@dataclass(frozen=True)
class _Run:
    """Versions sorted by key hash, valid_from, arrival. `rows` are the table's rows, null where the key was deleted."""

    hashes: Micros
    valid_from: Micros
    arrival: Micros
    rows: pa.StructArray

    def sorted(self) -> "_Run":
        order = np.lexsort((self.arrival, self.valid_from, self.hashes))
        return _Run(self.hashes[order], self.valid_from[order], self.arrival[order], self.rows.take(pa.array(order)))


@dataclass
class TableVersions:
    """The versions of one table. Of two of one key and moment the one that arrived later is valid."""

    row_type: pa.DataType
    _runs: list[_Run] = field(default_factory=list)
    _arrivals: int = 0

    def __len__(self) -> int:
        return sum(len(run.hashes) for run in self._runs)

    def add(self, hashes: Micros, valid_from: Micros, rows: pa.StructArray) -> None:
        """Add changes in the order of their arrival; a deletion is a null row."""
        if not len(hashes):
            return
        arrival = np.arange(self._arrivals, self._arrivals + len(hashes), dtype=np.int64)
        self._arrivals += len(hashes)
        run = _Run(hashes, valid_from, arrival, rows)
        while self._runs and len(self._runs[-1].hashes) < MERGE_RATIO * len(run.hashes):
            run = _joined([self._runs.pop(), run])
        self._runs.append(run.sorted())

    def has_key(self, hashes: Micros) -> NDArray[np.bool_]:
        """Whether there ever was a row of these keys."""
        known = np.zeros(len(hashes), dtype=bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run.hashes, hashes), len(run.hashes) - 1)
            known |= run.hashes[at] == hashes
        return known

    def as_of(self, hashes: Micros, at: Micros, is_wanted: NDArray[np.bool_]) -> pa.StructArray:
        """The row of each key as of each moment, null where there is none."""
        found_run = np.full(len(hashes), -1, dtype=np.int64)
        found_row, found_from, found_arrival = (np.full(len(hashes), -(2**62), dtype=np.int64) for _ in range(3))
        for number, run in enumerate(self._runs):
            row = _last_at_or_before(run, hashes, at)
            known = is_wanted & (row >= 0)
            valid_from = np.where(known, run.valid_from[row], -(2**62))
            arrival = np.where(known, run.arrival[row], -(2**62))
            newer = known & ((valid_from > found_from) | ((valid_from == found_from) & (arrival > found_arrival)))
            found_run[newer], found_row[newer] = number, row[newer]
            found_from[newer], found_arrival[newer] = valid_from[newer], arrival[newer]
        parts, position, taken = [pa.array([], self.row_type)], np.zeros(len(hashes), dtype=np.int64), 0
        for number, run in enumerate(self._runs):
            (own,) = np.nonzero(found_run == number)
            parts.append(run.rows.take(pa.array(found_row[own])))
            position[own] = np.arange(taken, taken + len(own))
            taken += len(own)
        return pa.concat_arrays(parts).take(pa.array(position, mask=found_run < 0))


def _joined(runs: list[_Run]) -> _Run:
    hashes, valid_from, arrival = (np.concatenate([getattr(run, name) for run in runs]) for name in ("hashes", "valid_from", "arrival"))
    return _Run(hashes, valid_from, arrival, pa.concat_arrays([run.rows for run in runs]))


def _last_at_or_before(run: _Run, hashes: Micros, at: Micros) -> NDArray[np.int64]:
    """The index of the last version of each key that is valid from `at` or earlier; -1 where there is none."""
    start, end = np.searchsorted(run.hashes, hashes, "left"), np.searchsorted(run.hashes, hashes, "right")
    row = end - 1
    while (too_new := (row >= start) & (run.valid_from[np.maximum(row, 0)] > at)).any():
        row = np.where(too_new, row - 1, row)
    return np.where(row >= start, row, -1)

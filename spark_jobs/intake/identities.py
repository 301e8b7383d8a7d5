"""Which identities were accepted lately. The cost of a look-up does not grow with what is remembered.

Identities are kept as 128 bits of hash in sorted arrays (runs). A batch is looked up in each run by binary search and becomes a new
run; runs of like size are merged, so that there are few. Runs are grouped by the event time at which they expire and dropped whole.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.int64]

MERGE_RATIO = 2
"""A run is merged into the one before it as long as that one is not this many times larger."""


@dataclass(frozen=True)
class Keys:
    """Identities of rows, as two independent hashes, and a hash of the rows' content."""

    first: Hashes
    second: Hashes
    content: Hashes

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Keys":
        return Keys(self.first[rows], self.second[rows], self.content[rows])

    def sorted(self) -> "Keys":
        return self.take(np.argsort(self.first, kind="stable"))

    @staticmethod
    def concatenate(parts: "list[Keys]") -> "Keys":
        return Keys(*(np.concatenate([getattr(own, name) for own in parts]) for name in ("first", "second", "content")))


@dataclass
class IdentityIndex:
    """The accepted identities of one stream. `granularity` (micros) is how exactly expiry is kept."""

    granularity: int
    _runs: dict[int, list[Keys]] = field(default_factory=dict)
    """By expiry, in units of the granularity."""

    def __len__(self) -> int:
        return sum(len(run) for runs in self._runs.values() for run in runs)

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], Hashes]:
        """Which of these are remembered, and the content that each was accepted with."""
        known, content = np.zeros(len(keys), dtype=bool), np.zeros(len(keys), dtype=np.int64)
        for runs in self._runs.values():
            for run in runs:
                at = np.minimum(np.searchsorted(run.first, keys.first), len(run) - 1)
                same = (run.first[at] == keys.first) & (run.second[at] == keys.second) & ~known
                content[same] = run.content[at[same]]
                known |= same
        return known, content

    def add(self, keys: Keys, expires_at: int) -> None:
        """Remember accepted identities until the stream's watermark (micros) has passed `expires_at`."""
        if not len(keys):
            return
        runs = self._runs.setdefault(expires_at // self.granularity, [])
        run = keys.sorted()
        while runs and len(runs[-1]) < MERGE_RATIO * len(run):
            run = Keys.concatenate([runs.pop(), run]).sorted()
        runs.append(run)

    def expire(self, watermark: int) -> None:
        for bucket in [own for own in self._runs if (own + 1) * self.granularity <= watermark]:
            del self._runs[bucket]


def mark_repeated(keys: Keys, order: Hashes, index: IdentityIndex) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of accepted rows: which repeat an earlier one with the same content (duplicates), and which with other content (conflicts).

    Earlier is remembered by the index, or comes before in this batch by `order`.
    """
    known, content = index.find(keys)
    by_identity = np.lexsort((order, keys.second, keys.first))
    first, second = keys.first[by_identity], keys.second[by_identity]
    starts = np.ones(len(keys), dtype=bool)
    starts[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    leader = by_identity[np.maximum.accumulate(np.where(starts, np.arange(len(keys)), 0))] if len(keys) else by_identity
    leaders = np.empty(len(keys), dtype=np.intp)
    leaders[by_identity] = leader
    repeated = known | (leaders != np.arange(len(keys)))
    original = np.where(known, content, keys.content[leaders])
    differs = repeated & (original != keys.content)
    return repeated & ~differs, differs

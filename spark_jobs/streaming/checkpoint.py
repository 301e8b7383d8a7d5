"""What a streaming query's checkpoint says of its batches: Spark writes `offsets/<N>` before batch N runs, `commits/<N>` after it."""

import json
from typing import Any

from weir.lake_files import lake_path


def checkpoint_id(checkpoint: str) -> str:
    """The id that Spark gave the checkpoint when it was new: another one after a reset."""
    return str(json.loads((lake_path(checkpoint) / "metadata").read_text())["id"])


def committed_batch(checkpoint: str) -> int:
    """The last batch that is done, or -1."""
    return max((int(file.name) for file in (lake_path(checkpoint) / "commits").glob("*") if file.name.isdigit()), default=-1)


def next_offsets(checkpoint: str) -> dict[str, int]:
    """By topic/partition where a Kafka query goes on: behind its last committed batch, or where it began."""
    if (last := committed_batch(checkpoint)) >= 0:
        return planned_offsets(checkpoint, last)
    return _initial_offsets(checkpoint)


def planned_offsets(checkpoint: str, batch: int) -> dict[str, int]:
    """By topic/partition the offsets up to which a batch reads, all sources of the query together."""
    return _by_partition(source_offsets(checkpoint, batch))


def offsets_before(checkpoint: str, batch: int) -> dict[str, int]:
    """The offsets from which a batch reads."""
    return _initial_offsets(checkpoint) if batch == 0 else planned_offsets(checkpoint, batch - 1)


def source_offsets(checkpoint: str, batch: int) -> list[dict[str, Any]]:
    """The offset of each source up to which a batch reads. A source that had nothing new yet stands there as '-'."""
    lines = (lake_path(checkpoint) / "offsets" / str(batch)).read_text().splitlines()[2:]
    return [json.loads(line) for line in lines if line.startswith("{")]


def watermark_millis(checkpoint: str, batch: int) -> int:
    """The watermark that is in force during a batch."""
    header: dict[str, int] = json.loads((lake_path(checkpoint) / "offsets" / str(batch)).read_text().splitlines()[1])
    return header["batchWatermarkMs"]


def _initial_offsets(checkpoint: str) -> dict[str, int]:
    files = sorted((lake_path(checkpoint) / "sources").glob("*/0"))
    return _by_partition([json.loads(line) for file in files if (line := file.read_text().splitlines()[-1]).startswith("{")])


def _by_partition(sources: list[dict[str, Any]]) -> dict[str, int]:
    return {f"{topic}/{partition}": offset for source in sources for topic, part in source.items() for partition, offset in part.items()}

"""What may go and what must stay, as data."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from weir.housekeeping import PartitionFiles, RawDay, crowded_partitions, outdated, raw_cutoff, retire_raw
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.refusal import Refusal

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
TODAY = NOW.date()
ROOT = Path(__file__).resolve().parents[2]


def day(ago: int) -> date:
    return TODAY - timedelta(days=ago)


def partition(ago: int | None, small: int, files: int | None = None, stream: str = "orders") -> PartitionFiles:
    on = None if ago is None else day(ago)
    return PartitionFiles((("received_on", on and str(on)), ("stream", stream)), on, small if files is None else files, small)


def test_only_closed_days_with_many_small_files_are_crowded() -> None:
    crowded = [partition(2, 5), partition(1, 9), partition(1, 5, stream="clicks")]
    others = [partition(0, 99), partition(-1, 99), partition(1, 4, stream="payments"), partition(None, 99), partition(3, 1, files=99)]
    assert crowded_partitions([*others, *crowded], TODAY, 4) == [crowded[0], crowded[2], crowded[1]]


WEEK = timedelta(days=7)


@pytest.mark.parametrize(
    ("keep", "dirty", "reach", "kept_since", "cutoff"),
    [
        (WEEK, [], timedelta(0), None, day(7)),
        (WEEK + timedelta(hours=13), [], timedelta(0), None, day(8)),  # a part of a day counts for its youngest row
        (WEEK, [day(3)], timedelta(0), None, day(7)),
        (WEEK, [day(9), day(3)], timedelta(0), None, day(10)),  # the day before a dirty day can hold its events
        (WEEK, [day(9)], timedelta(hours=1), None, day(11)),
        (WEEK, [day(40)], timedelta(0), day(20), day(7)),  # what cannot be recomputed any more holds nothing back
    ],
)
def test_raw_goes_when_it_is_old_and_no_dirty_day_reads_it(
    keep: timedelta, dirty: list[date], reach: timedelta, kept_since: date | None, cutoff: date
) -> None:
    assert raw_cutoff(NOW, keep, dirty, reach, kept_since) == cutoff


def test_what_is_not_refined_and_the_last_message_of_each_partition_stay() -> None:
    old = [RawDay("orders", day(30), {"o/0": 10, "o/1": 5}), RawDay("orders", day(29), {"o/0": 20}), RawDay("orders", day(28), {"o/0": 30})]
    young = RawDay("orders", day(1), {"o/0": 40, "o/1": 9})
    silent = RawDay("clicks", day(30), {"c/0": 7})
    unread = RawDay("payments", day(30), {"p/0": 7})
    refined = {"orders": {"o/0": 25, "o/1": 9}, "clicks": {"c/0": 7}}
    found = retire_raw([young, *old, silent, unread], day(7), refined)
    assert found.drop == old[:2]
    assert found.held == {
        f"orders {day(28)}": "not refined yet",
        f"clicks {day(30)}": "holds the last message of a partition",
        f"payments {day(30)}": "not refined yet",
    }
    assert retire_raw([old[0], old[2]], day(7), refined).drop == [], "partition 1 has been silent since"
    assert retire_raw([*old, young], day(31), refined).drop == []


def test_what_is_old_is_removed_unless_it_is_in_use() -> None:
    written = {Path("young"): NOW - WEEK, Path("old"): NOW - WEEK - timedelta(seconds=1), Path("used"): NOW - 9 * WEEK}
    assert outdated(written, NOW, WEEK, [Path("used")]) == [Path("old")]


def test_keep_raw_changes_no_fingerprint_and_has_a_least_value(tmp_path: Path, shop: Pipeline) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    for file in (ROOT / "pipelines" / "shop").glob("*.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    text = (folder / "pipeline.yaml").read_text()

    def declare(keep: str) -> Pipeline:
        (folder / "pipeline.yaml").write_text(f"keep_raw: {keep}\n{text}")
        return load_pipeline(folder)

    least = -(-(timedelta(days=7) + shop.reach) // timedelta(days=1))
    kept = declare(f"{least} days")
    assert kept.keep_raw == timedelta(days=least) and shop.keep_raw is None
    assert {view: kept.fingerprint(view) for view in kept.views} == {view: shop.fingerprint(view) for view in shop.views}
    with pytest.raises(Refusal, match=rf"pipeline\.yaml:1: keep_raw: must be at least {least} days"):
        declare("6 days")
    with pytest.raises(Refusal, match=r"pipeline\.yaml:1: keep_raw: 'for ever' is not a duration"):
        declare("for ever")

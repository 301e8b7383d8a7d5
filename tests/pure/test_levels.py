"""Service levels: what is declared against what is measured, told once when it breaks and once when it is mended."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from beats import NOW, beat, pulse

from weir.levels import Breaches, Level, compare_breaches, measure_levels
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.refusal import Refusal

DECLARED: dict[str, Any] = {
    "pipeline": "shop",
    "streams": {
        "orders": {
            "topic": "o",
            "identity": "id",
            "occurred_at": "at",
            "lateness": "1 minute",
            "columns": {"id": "string", "at": "timestamp"},
            "levels": {"behind": 100, "rejected": "5 %"},
        }
    },
    "views": {
        "v": {
            "grain": ["minute"],
            "sql": "SELECT window(at, '1 minute').start AS minute, count(*) AS n FROM orders GROUP BY window(at, '1 minute')",
            "levels": {"freshness": "2 minutes"},
        }
    },
}


def declared(tmp_path: Path, **streams: Any) -> Pipeline:
    folder = tmp_path / "shop"
    folder.mkdir()
    given = DECLARED | {"streams": {"orders": DECLARED["streams"]["orders"] | streams}}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(given))
    return load_pipeline(folder)


def by_name(levels: list[Level]) -> dict[str, Level]:
    return {level.name: level for level in levels}


def test_each_level_is_measured_where_it_is_declared(tmp_path: Path) -> None:
    pipeline = declared(tmp_path)
    own = beat(4_000, archive=pulse(behind=3, caught_up=3_500), view_v=pulse(behind=101, caught_up=121))
    found = by_name(measure_levels(pipeline, own, {"orders": 0.04}, NOW))
    assert {name: (level.measured, level.is_breached) for name, level in found.items()} == {
        "v freshness": (121, True),
        "orders behind": (101, True),
        "orders rejected": (0.04, False),
        "shop headroom": (500, True),
    }
    assert found["v freshness"].line == "v is stale by 2 min 1 s (promised: at most 2 min)"
    assert found["orders rejected"].line == "orders has rows set aside: 4 % (promised: at most 5 %)"
    assert "at least 16 min 40 s" in found["shop headroom"].line


def test_what_is_not_measured_is_not_broken(tmp_path: Path) -> None:
    found = measure_levels(declared(tmp_path), None, {}, NOW)
    assert len(found) == 3 and not any(level.is_breached for level in found)


def test_a_bound_that_is_just_met_is_met() -> None:
    assert not Level(of="v", kind="freshness", bound=60, measured=60).is_breached
    assert not Level(of="p", kind="headroom", bound=60, measured=60).is_breached


def test_a_breach_is_told_once_and_so_is_its_end() -> None:
    bad, good = Level(of="v", kind="behind", bound=1, measured=2), Level(of="v", kind="behind", bound=1, measured=0)
    first, new, mended = compare_breaches(Breaches(), [bad], NOW)
    assert (first.since, new, mended) == ({"v behind": NOW}, [bad], [])
    later = NOW + timedelta(minutes=5)
    still, new, mended = compare_breaches(first, [bad], later)
    assert (still, new, mended) == (first, [], []), "since when it is broken stays"
    over, new, mended = compare_breaches(still, [good], later)
    assert (over.since, new, mended) == ({}, [], [good])
    assert compare_breaches(still, [], later)[0].since == {}, "a level that is declared no more is forgotten"


def test_levels_change_no_number(tmp_path: Path) -> None:
    with_levels = declared(tmp_path)
    (tmp_path / "b").mkdir()
    assert with_levels.fingerprint("v") == declared(tmp_path / "b", levels={}).fingerprint("v")


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ({"rejected": "500 %"}, "rejected"),
        ({"behind": -1}, "behind"),
        ({"behnd": 1}, "behind"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, levels: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=rf"pipeline\.yaml:\d+.*{words}"):
        declared(tmp_path, levels=levels)

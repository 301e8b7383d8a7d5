"""Numbers as people read them, and lines that have gaps where nothing was measured."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from weir.look import ago, lasting, page_environment, short, size, whole
from weir.look.charts import Frame, time_chart

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (90_061, "1 d 1 h"), (-40, "−40 s")],
)
def test_durations(seconds: float, told: str) -> None:
    assert lasting(seconds) == told


def test_sizes_and_numbers() -> None:
    assert (size(0), size(1_023), size(16.1 * 2**20), size(3 * 2**30)) == ("0 B", "1023 B", "16.1 MiB", "3 GiB")
    assert (short(0), short(12.345), short(1_600), short(2.5e6)) == ("0", "12.3", "1.6k", "2.5M")
    assert ago(NOW + timedelta(seconds=5), NOW) == "0 s ago", "clocks differ; nothing was in the future"


def test_a_silence_breaks_the_line() -> None:
    points = [(NOW.timestamp() + s, float(v)) for s, v in ((0, 1), (20, 3), (200, 2), (220, 4))]
    chart = time_chart(points, NOW, NOW + timedelta(seconds=400), Frame(100, 50, left=0, right=100, top=0, bottom=40), gap_seconds=60)
    assert chart.lines == [[(0.0, 30.0), (5.0, 10.0)], [(50.0, 20.0), (55.0, 0.0)]]
    assert chart.areas == ["0,40 0,30 5,10 5,40", "50,40 50,20 55,0 55,40"] and chart.last == "4"
    assert time_chart([], NOW, NOW, Frame(9, 9, 0, 9, 0, 9), 60).lines == []


def test_a_picture_has_no_more_points_than_it_is_wide_and_keeps_its_peaks() -> None:
    points = [(NOW.timestamp() + second, 7.0 if second == 4_321 else 1.0) for second in range(10_000)]
    chart = time_chart(points, NOW, NOW + timedelta(seconds=10_000), Frame(100, 50, left=0, right=100, top=0, bottom=40), gap_seconds=60)
    (line,) = chart.lines
    assert len(line) == 50 and min(y for _, y in line) == 5.0 and chart.most == "7"


def test_every_value_of_every_page_is_text(tmp_path: Path) -> None:
    environment = page_environment(tmp_path)
    hostile = "<script>alert(1)</script>\u202e\x00"
    told = environment.from_string("{{ value }}|{{ value|whole }}").render(value=hostile)
    assert "<script" not in told and "\\u202e" in told and "\x00" not in told
    assert len(environment.from_string("{{ value }}").render(value="x" * 100_000)) < 5_000
    assert len(whole("x" * 100_000)) == 100_000, "what we declare ourselves is shown whole"

"""What a driver measures of itself: rates, staleness, headroom; bounded whatever the time."""

from datetime import timedelta

from beats import NOW, beat, pulse
from hypothesis import given
from hypothesis import strategies as st

from weir.gauges import EVERY_SECONDS, KEPT_SECONDS, Readings, headroom_seconds, stale_seconds, stalest_seconds


def test_the_rate_is_what_the_archive_took_in_between_readings() -> None:
    readings = Readings()
    for step in range(4):
        at = NOW + timedelta(seconds=EVERY_SECONDS * step)
        assert readings.is_due(at) and not readings.with_beat(beat(archive=pulse()), at).is_due(at + timedelta(seconds=1))
        readings = readings.with_beat(beat(archive=pulse(read=1_000 * step)), at)
    assert readings.arriving(at) == 1_000 / EVERY_SECONDS
    assert [rate for _, rate in readings.series("arriving")] == [1_000 / EVERY_SECONDS] * 3
    assert readings.arriving(at + timedelta(hours=1)) is None, "old readings say nothing about now"


def test_a_log_that_was_made_anew_gives_no_negative_rate() -> None:
    readings = Readings().with_beat(beat(archive=pulse(read=500)), NOW)
    readings = readings.with_beat(beat(archive=pulse(read=3)), NOW + timedelta(seconds=EVERY_SECONDS))
    assert readings.arriving(NOW + timedelta(seconds=EVERY_SECONDS)) == 0


@given(st.lists(st.integers(1, 20_000), max_size=60))
def test_readings_never_grow_beyond_their_hours(gaps: list[int]) -> None:
    readings, at = Readings(), NOW
    for gap in gaps:
        at += timedelta(seconds=gap)
        readings = readings.with_beat(beat(archive=pulse()), at)
        assert all(own > at.timestamp() - KEPT_SECONDS - 1 for own in readings.at)
        assert len({len(getattr(readings, name)) for name in type(readings).model_fields}) == 1, "they stand side by side"


def test_staleness_counts_from_the_last_time_that_nothing_was_unread() -> None:
    own = beat(archive=pulse(caught_up=5), view_a=pulse(caught_up=90), view_b=pulse(caught_up=None), watch_c=pulse(caught_up=999))
    assert stale_seconds(own, "view_a", NOW) == 90 and stale_seconds(own, "view_b", NOW) is None and stale_seconds(own, "no", NOW) is None
    assert stalest_seconds(own, NOW) == 90, "a watch keeps nothing, so it cannot be stale"


def test_headroom_is_what_is_left_of_the_retention() -> None:
    assert headroom_seconds(beat(3_600, archive=pulse(caught_up=600)), NOW) == 3_000
    assert headroom_seconds(beat(None, archive=pulse(caught_up=600)), NOW) is None, "a log that keeps everything"
    assert headroom_seconds(beat(3_600, archive=pulse(caught_up=None)), NOW) is None
    assert headroom_seconds(beat(60, archive=pulse(caught_up=100)), NOW) == -40, "something may be lost already"


def test_the_slowest_query_counts_but_no_watch() -> None:
    readings = Readings().with_beat(beat(archive=pulse(behind=3), view_a=pulse(behind=9), watch_b=pulse(behind=99)), NOW)
    assert readings.behind == [9]

"""Batches come to take seconds, whatever a message costs, and then stay as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.backlog import FEWEST_MESSAGES, TARGET_SECONDS, next_limit

MOST = 200_000


@pytest.mark.parametrize(
    ("limit", "messages", "seconds", "then"),
    [
        (200_000, 200_000, 15, 200_000),
        (200_000, 200_000, 29, 200_000),
        (200_000, 200_000, 60, 50_000),
        (200_000, 40_000, 60, 6_250),
        (200_000, 200_000, 2, 200_000),
        (50_000, 50_000, 3, 200_000),
        (12_500, 12_490, 3, 50_000),  # ten partitions, and the share of each rounded down
        (3_125, 3_120, 1, 25_000),
        (150_000, 150_000, 2, 200_000),
        (50_000, 44_000, 2, 50_000),  # nothing was left to read: larger batches would be no larger
        (50_000, 1_000, 300, 50_000),  # so few messages are not what takes long
        (3_000, 3_000, 300, 3_000),
    ],
)
def test_the_next_limit(limit: int, messages: int, seconds: float, then: int) -> None:
    assert next_limit(limit, MOST, messages, seconds) == then


@given(
    per_message=st.floats(1e-6, 0.1),
    overhead=st.floats(0, TARGET_SECONDS / 4),
    first=st.integers(FEWEST_MESSAGES, MOST),
    partitions=st.integers(1, 100),
)
def test_a_backlog_comes_to_batches_that_stay(per_message: float, overhead: float, first: int, partitions: int) -> None:
    limit, seen = first, []
    for _ in range(20):
        seen.append(limit)
        limit = next_limit(limit, MOST, limit - partitions, overhead + limit * per_message)
    assert seen[-1] == seen[-5] and FEWEST_MESSAGES <= limit <= MOST
    seconds = overhead + limit * per_message
    assert seconds <= 2 * TARGET_SECONDS or limit < 2 * FEWEST_MESSAGES
    assert seconds >= TARGET_SECONDS / 4 or limit == MOST, "and is not small for ever because it once was"

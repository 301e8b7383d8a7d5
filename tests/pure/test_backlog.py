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
        (50_000, 50_000, 2, 100_000),
        (150_000, 150_000, 2, 200_000),
        (50_000, 49_999, 2, 50_000),  # nothing was left to read: larger batches would be no larger
        (50_000, 1_000, 300, 50_000),  # so few messages are not what takes long
        (3_000, 3_000, 300, 3_000),
    ],
)
def test_the_next_limit(limit: int, messages: int, seconds: float, then: int) -> None:
    assert next_limit(limit, MOST, messages, seconds) == then


@given(per_message=st.floats(1e-6, 0.1), overhead=st.floats(0, TARGET_SECONDS / 4))
def test_a_backlog_comes_to_batches_that_stay(per_message: float, overhead: float) -> None:
    limit, seen = MOST, []
    for _ in range(20):
        seen.append(limit)
        limit = next_limit(limit, MOST, limit, overhead + limit * per_message)
    assert seen[-1] == seen[-5] and FEWEST_MESSAGES <= limit <= MOST
    assert overhead + limit * per_message <= 2 * TARGET_SECONDS or limit < 2 * FEWEST_MESSAGES

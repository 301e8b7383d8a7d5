"""How many messages a batch may read: so many that it takes seconds, neither minutes nor moments, however large the backlog."""

TARGET_SECONDS = 15
"""What a batch may take: a driver stops at its border, and its cells are seen when it is done."""
FEWEST_MESSAGES = 2_000
"""Below this a batch takes what Spark takes for any."""
FULL = 0.9


class Resized(Exception):
    """The query is to start again with another number of messages in a batch. Nothing of this batch was written."""


def next_limit(limit: int, most: int, messages: int, seconds: float) -> int:
    """The limit from now on, after a batch of so many messages took so long.

    Only by halves and doubles, and only where it is off by more than that: a query has to start again for it. A full batch has a few
    messages less than the limit, because Spark gives each partition its share, rounded down.
    """
    fitting = messages * TARGET_SECONDS / max(seconds, 0.1)
    if messages > FEWEST_MESSAGES and seconds > 2 * TARGET_SECONDS:
        while limit > fitting and limit // 2 >= FEWEST_MESSAGES:
            limit //= 2
        return limit
    if messages > FULL * limit and seconds < TARGET_SECONDS / 4:
        while limit < most and limit * 2 <= fitting:
            limit = min(most, limit * 2)
    return limit

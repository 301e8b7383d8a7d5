"""What the tests on real parts share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Callable[..., Workplace]]:
    opened: list[Workplace] = []

    def open_workplace(*only: str, brokers: int = 1) -> Workplace:
        opened.append(Workplace(tmp_path, only, brokers))
        return opened[-1]

    yield open_workplace
    for place in opened:
        place.close()

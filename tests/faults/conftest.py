"""The servers that all tests of faults share, each started at its first use."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.faults.grounds import GROUNDS, Ground
from tests.kills.conftest import seed as seed


@pytest.fixture(scope="session")
def ground_of() -> Iterator[Callable[[str], Ground]]:
    started: dict[str, Ground] = {}
    with ExitStack() as stack:

        def ground(name: str) -> Ground:
            if name not in started:
                started[name] = stack.enter_context(GROUNDS[name]())
            return started[name]

        yield ground

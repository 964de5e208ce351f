"""A seed that is printed when a test fails, so that its run can be repeated."""

import random
import sys

import pytest


@pytest.fixture
def seed() -> int:
    drawn = random.getrandbits(32)
    sys.stdout.write(f"seed {drawn}\n")
    return drawn

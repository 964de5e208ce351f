"""Servers that several test modules share, started when the first of them asks."""

from collections.abc import Iterator

import pytest

from tests.stores import postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    with postgres_server.running() as server:
        yield server

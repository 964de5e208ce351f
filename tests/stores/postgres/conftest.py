"""A store for transactions, and a table for the effects of its handlers."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncegate import open_store
from oncegate.stores.postgres import PostgresStore
from oncegate.testing import ManualClock
from tests.stores.postgres_server import PostgresServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    postgres.empty("transactions")
    with postgres.connect() as db:
        db.execute("DROP TABLE IF EXISTS effects")
        db.execute("CREATE TABLE effects (event text UNIQUE DEFERRABLE INITIALLY IMMEDIATE)")
    return f"{postgres.url()}?oncegate_schema=transactions"


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    with closing(open_store(url, clock=clock)) as opened:
        assert isinstance(opened, PostgresStore)
        yield opened


@pytest.fixture
def role(postgres: PostgresServer) -> Iterator[str]:
    """A role whose only privilege is to log in."""
    with postgres.connect() as db:
        db.execute("CREATE ROLE guest LOGIN")
        yield "guest"
        db.execute("DROP OWNED BY guest")
        db.execute("DROP ROLE guest")

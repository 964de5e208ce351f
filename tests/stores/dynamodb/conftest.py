"""A store on a new table with a manual clock, and the requests that it sends."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncegate import open_store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from tests.stores.dynamo_server import DynamoServer, Wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str, clock: ManualClock) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table), clock=clock)) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


@pytest.fixture
def wire(store: DynamoStore) -> Wire:
    return Wire(store)

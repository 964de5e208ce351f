"""The DynamoDB store against the contract."""

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.testing import SharedStoreContract
from tests.stores.dynamo_server import DynamoServer


class TestDynamoStore(SharedStoreContract):
    # Every key is a request of its own, and the emulator answers a few hundred of them in a second.
    histories = 15
    crowd = 100

    @pytest.fixture(autouse=True)
    def _server(self, dynamo_server: DynamoServer) -> None:
        self.server = dynamo_server
        self.table = dynamo_server.new_table()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.table = self.server.new_table()
        return self.open(clock)

    def url(self) -> str:
        return self.server.url(self.table)

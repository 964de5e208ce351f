"""The Postgres store against the contract."""

import itertools

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.testing import SharedStoreContract
from tests.stores.postgres_server import PostgresServer

_NUMBERS = itertools.count()


class TestPostgresStore(SharedStoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, postgres: PostgresServer) -> None:
        self.server, self.schema = postgres, f"contract_{next(_NUMBERS)}"

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.schema = f"contract_{next(_NUMBERS)}"
        return self.open(clock)

    def url(self) -> str:
        return f"{self.server.url()}?oncegate_schema={self.schema}"

    def kept(self, store: Store) -> int:
        with self.server.connect() as db:
            return int(db.execute(f"SELECT count(*) FROM {self.schema}.claims").fetchone()[0])

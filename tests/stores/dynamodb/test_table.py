"""Creating and checking the table."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.errors import StoreError, StoreRefused
from oncegate.stores.dynamodb import DynamoStore
from oncegate.stores.dynamodb import table as table_module
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    granted,
)
from tests.stores.dynamo_server import DynamoServer, Wire, reply


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table, timeout="1s"), clock=ManualClock())) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


def test_created(dynamo_server: DynamoServer, table: str) -> None:
    """A new table is billed per request, has `expiresAt` as TTL, and an index of keys only."""
    with closing(open_store(dynamo_server.url(table))):
        described = dynamo_server.client.describe_table(TableName=table)["Table"]
        ttl = dynamo_server.client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert [index["Projection"]["ProjectionType"] for index in described["GlobalSecondaryIndexes"]] == ["KEYS_ONLY"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expiresAt"}


class TestTables:
    """The table is created, or checked."""

    def create(self, server: DynamoServer, table: str, keys: dict[str, str], **more: Any) -> None:
        server.client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            **more,
        )

    def test_a_missing_table(self, dynamo_server: DynamoServer, table: str) -> None:
        """Opening a table that does not exist with create=False is refused, and no table is created."""
        with pytest.raises(StoreRefused, match=f"table {table} .* does not exist; check its name, region and endpoint"):
            open_store(dynamo_server.url(table), create=False)
        assert table not in dynamo_server.client.list_tables()["TableNames"]

    def test_an_existing_table(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """An existing table is opened with create=False."""
        granted(store)
        with closing(open_store(dynamo_server.url(table), create=False)) as again:
            assert len(again.browse()) == 1

    def test_a_table_of_another_program(self, dynamo_server: DynamoServer, table: str) -> None:
        """A table with another key is refused, and the message names its key."""
        self.create(dynamo_server, table, {"pk": "HASH", "sk": "RANGE"})
        with pytest.raises(StoreRefused, match="is not an Oncegate table: its key is pk, sk, not id; name another"):
            open_store(dynamo_server.url(table))

    def test_without_the_index(self, dynamo_server: DynamoServer, table: str) -> None:
        """A table without the index is refused when it is opened."""
        self.create(dynamo_server, table, {"id": "HASH"})
        with pytest.raises(StoreRefused, match="lacks the index unfinished"):
            open_store(dynamo_server.url(table))

    def test_a_deleted_table(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A table that is deleted while the store is open is reported as missing."""
        dynamo_server.client.delete_table(TableName=table)
        with pytest.raises(StoreRefused, match="does not exist"):
            granted(store)

    def test_created_by_several_processes(self, dynamo_server: DynamoServer, table: str) -> None:
        """Several stores that open a missing table at the same time create one table."""
        errors: list[Exception] = []

        def open_one() -> None:
            try:
                open_store(dynamo_server.url(table)).close()
            except StoreError as error:
                errors.append(error)

        threads = [threading.Thread(target=open_one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_without_permission_for_the_ttl(self, store: DynamoStore, wire: Wire) -> None:
        """If the TTL cannot be enabled, creating the table fails: the table would grow forever."""
        answers = {
            "DescribeTable": iter([reply(400, "ResourceNotFoundException")]),
            "UpdateTimeToLive": iter([reply(400, "AccessDeniedException")]),
        }
        wire.before = lambda action: next(answers.get(action, iter(())), None)
        with pytest.raises(StoreRefused, match="does not allow dynamodb:UpdateTimeToLive"):
            table_module.prepare(store._client, create=True, time_to_live=True)

    def test_being_created(self, store: DynamoStore, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        """A new table is used only when it is active."""
        monkeypatch.setattr(table_module, "_POLL_INTERVAL", 0.01)
        responses = iter([reply(400, "ResourceNotFoundException"), None])
        wire.before = lambda action: next(responses, None) if action == "DescribeTable" else None
        table_module.prepare(store._client, create=True, time_to_live=True)
        assert wire.sent == ["DescribeTable", "CreateTable", "DescribeTable", "UpdateTimeToLive"]

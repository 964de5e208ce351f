"""Reads of records through the index, by key, and with a scan."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncegate import open_store
from oncegate.claims import Address
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Change
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    KEY,
    NAMESPACE,
    RETENTION,
    bury,
    granted,
    redrive,
    take,
)
from tests.stores.dynamo_server import DynamoServer, Wire, reply


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table, timeout="1s"), clock=ManualClock())) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


class TestPartialResponses:
    """DynamoDB may return a part of a batch."""

    def test_a_partial_response(self, store: DynamoStore, wire: Wire) -> None:
        """Documents that are missing from a response are requested again."""
        assert store.swap([Change(NAMESPACE, KEY, 0, b"one", RETENTION)]) == [True]
        (item,) = store._client.call_table("scan")["Items"]
        key = {"id": item["id"]}
        partial = reply(200, "", Responses={}, UnprocessedKeys={store._client.table: {"Keys": [key]}})
        answers = iter([partial] * 2)
        wire.before = lambda _action: next(answers, None)
        (document,) = store.load([Address(NAMESPACE, KEY)])
        assert document.body == b"one"
        assert wire.sent.count("BatchGetItem") == 3

    def test_only_partial_responses(self, store: DynamoStore, wire: Wire) -> None:
        """If a key is missing from every response, the store is unavailable."""
        partial = {store._client.table: {"Keys": [{"id": {"S": "x"}}]}}
        wire.before = lambda _action: reply(200, "", Responses={}, UnprocessedKeys=partial)
        with pytest.raises(StoreUnavailable, match="did not return all keys in time"):
            store.load([Address(NAMESPACE, KEY)])


class TestRequests:
    """The requests that a read needs."""

    def test_take(self, store: DynamoStore, wire: Wire) -> None:
        """Taking from an empty index is one query; a waiting event needs a read and a write in addition."""
        granted(store)
        assert take(store) is None
        assert wire.sent == ["PutItem", "Query"]
        wire.sent.clear()
        assert bury(store, granted(store, key=b"x" * 16), key=b"x" * 16)
        assert redrive(store, b"x" * 16)
        wire.sent.clear()
        assert take(store) is not None
        assert wire.sent == ["Query", "GetItem", "PutItem"]

    def test_browse_by_key(self, store: DynamoStore, wire: Wire) -> None:
        """A key with its namespace is one read; without a namespace the table is scanned."""
        granted(store)
        wire.sent.clear()
        assert len(store.browse(NAMESPACE, key=KEY)) == 1
        assert len(store.browse(key=KEY)) == 1
        assert wire.sent == ["GetItem", "Scan"]

    def test_count_of_dead_letters(self, store: DynamoStore, wire: Wire) -> None:
        """A count is one query of the index. It reads no records."""
        for key in (b"x" * 16, b"y" * 16):
            assert bury(store, granted(store, key=key), key=key)
        wire.sent.clear()
        assert store.count_dead_letters(NAMESPACE, 10) == 2
        assert wire.sent == ["Query"]

    def test_count_in_several_responses(self, store: DynamoStore, wire: Wire) -> None:
        """A response ends after 1 MB of the index. The count continues where the response ended, up to the limit."""
        key = {"id": {"S": "x"}, "shelf": {"S": "dead"}, "place": {"B": "eA=="}}
        wire.before = lambda _action: reply(200, "", Count=4, LastEvaluatedKey=key)
        assert store.count_dead_letters(NAMESPACE, 10) == 10
        assert wire.sent == ["Query"] * 3

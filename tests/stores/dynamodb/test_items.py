"""Records and documents as items of the table."""

from typing import Any

import pytest

from oncegate.claims import EventSummary
from oncegate.errors import StoreRefused
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    KEY,
    NAMESPACE,
    bury,
    complete,
    granted,
    owner,
    redrive,
    stored,
    take,
)
from tests.stores.dynamo_server import DynamoServer

SECOND = 1_000_000


def items(server: DynamoServer, table: str) -> list[dict[str, Any]]:
    return list(server.client.scan(TableName=table)["Items"])


def test_the_largest_result(store: DynamoStore) -> None:
    """The largest result that a gate stores by default fits, even if it cannot be compressed."""
    result = b"".join(owner(str(number)) for number in range(16_384))
    assert len(result) == 256 * 1024
    assert complete(store, granted(store), result)
    assert stored(store).result == result  # type: ignore[union-attr]


class TestItems:
    """The attributes of items."""

    def test_readable(self, store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock) -> None:
        """The description of a record is readable in the table by people and their queries."""
        assert complete(store, granted(store), b'{"case":7}')
        (item,) = items(dynamo_server, table)
        texts = {name: value["S"] for name, value in item.items() if "S" in value}
        assert len(texts.pop("id")) == 32
        assert texts == {
            "namespace": NAMESPACE,
            "key": KEY.hex(),
            "status": "completed",
            "source": "plain",
            "type": "call.ended",
            "conversationId": "conversation-1",
            "timestamp": "2025-12-12T15:02:32.433000+00:00",
            "deliveryId": "evt-1",
            "firstSeen": "2027-01-15T08:00:00.000000+00:00",
            "processedAt": "2027-01-15T08:00:00.000000+00:00",
            "result": '{"case":7}',
        }

    def test_the_sparse_index(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A record is in the index only while it is a dead letter or waits with its payload."""

        def shelf() -> Any:
            (item,) = items(dynamo_server, table)
            return item["shelf"]["S"] if "shelf" in item else None

        record = granted(store)
        assert shelf() is None
        bury(store, record)
        assert shelf() == "dead"
        redrive(store)
        assert shelf() == "waiting"
        entry = take(store)
        assert shelf() == "waiting"
        assert entry is not None
        complete(store, entry.record)
        assert shelf() is None

    @pytest.mark.parametrize("past", [0, 1, 999_999])
    def test_the_ttl_is_not_before_the_expiry(
        self, store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock, past: int
    ) -> None:
        """The second in which DynamoDB may delete a record is not before the microsecond in which it expires."""
        clock.advance(past + 1)
        record = granted(store)
        (item,) = items(dynamo_server, table)
        assert record.expires_at is not None
        assert 0 <= int(item["expiresAt"]["N"]) * SECOND - record.expires_at < SECOND

    def test_waiting_records_have_no_ttl(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A record with an unprocessed payload has no expiry, so DynamoDB does not delete it."""
        assert bury(store, granted(store))
        assert redrive(store)
        (item,) = items(dynamo_server, table)
        assert "expiresAt" not in item
        assert "expires" not in item

    @pytest.mark.parametrize("name", ["", "a\0b", "\1", "a#b", "ü\N{SNOWMAN}", "n" * 900])
    def test_any_namespace(self, store: DynamoStore, name: str) -> None:
        """Any text can be a namespace: its records are found, listed and separate from other namespaces."""
        assert bury(store, granted(store, namespace=name), namespace=name)
        assert bury(store, granted(store, namespace=name + "\1"), namespace=name + "\1")
        assert [entry.namespace for entry in store.browse(name)] == [name]
        assert [entry.namespace for entry in store.dead_letters(name)] == [name]
        assert [entry.namespace for entry in store.dead_letters()] == sorted([name, name + "\1"])

    @pytest.mark.parametrize("time", [-(10**18), -1, 0, 1, 10**19])
    def test_any_time(self, store: DynamoStore, time: int) -> None:
        """The time of an event is read back unchanged, even if it is out of the range of `datetime`."""
        about = EventSummary("plain", "", None, time, "")
        granted(store, about=about)
        assert stored(store).about == about  # type: ignore[union-attr]


def test_too_long_a_namespace(store: DynamoStore) -> None:
    """A dead letter whose namespace is too long for the index is refused."""
    name = "n" * 1_020
    with pytest.raises(StoreRefused, match="shorten the namespace"):
        bury(store, granted(store, namespace=name), namespace=name)

"""Taking waiting events."""

import os

from oncegate.claims import Redrive
from oncegate.stores.base import Store, TakeRequest
from oncegate.stores.redis.codec import encode_namespace
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, bury, granted, redrive, take
from tests.stores.redis_server import RedisServer


def test_a_record_that_an_operator_deleted(server: RedisServer, store: Store) -> None:
    """When an operator deletes a waiting record with DEL, take returns nothing and removes the key from the list."""
    assert bury(store, granted(store))
    assert redrive(store)
    server.client.delete(b"oncegate:r" + encode_namespace(NAMESPACE) + KEY)
    assert take(store) is None
    assert server.client.keys("oncegate:w*") == []


def test_fewer_events_than_requests(store: Store) -> None:
    """Requests beyond the number of waiting events get None, and no event is taken twice."""
    keys = [b"%016d" % number for number in range(3)]
    for key in keys:
        assert bury(store, granted(store, key=key), key=key)
    assert all(store.redrive([Redrive(NAMESPACE, key) for key in keys]))
    entries = store.take([TakeRequest(NAMESPACE, os.urandom(16), LEASE) for _ in range(5)])
    assert sorted(entry.key for entry in entries if entry is not None) == keys
    assert entries.count(None) == 2


def test_an_empty_store_is_only_read(server: RedisServer, store: Store) -> None:
    """If nothing waits, a take writes nothing."""
    before = server.client.info("persistence")["rdb_changes_since_last_save"]
    assert take(store) is None
    assert server.client.info("persistence")["rdb_changes_since_last_save"] == before

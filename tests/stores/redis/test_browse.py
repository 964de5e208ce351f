"""Pages of records and dead letters."""

from contextlib import closing

import pytest

from oncegate import open_store
from oncegate.claims import Address
from oncegate.stores.base import Store, count_dead_letters
from oncegate.stores.redis.browse import _lex_range
from oncegate.testing.requests import KEY, NAMESPACE, bury, granted
from tests.stores.redis_server import RedisServer


@pytest.mark.parametrize("name", ["", "a\0b", "\1", "*", "[a]?", "\\", "ü\N{SNOWMAN}", "n" * 1_000])
def test_any_namespace(store: Store, name: str) -> None:
    """Any text is a namespace: its records are listed, and are separate from those of other namespaces."""
    assert bury(store, granted(store, namespace=name), namespace=name)
    granted(store, namespace="a")
    assert [entry.namespace for entry in store.browse(name)] == [name]
    assert [entry.namespace for entry in store.browse(name, key=KEY)] == [name]
    assert [entry.namespace for entry in store.dead_letters(name)] == [name]
    assert len(store.browse()) == 2


def test_keys_of_another_program(server: RedisServer) -> None:
    """Keys of another program that start with the prefix are skipped."""
    server.client.set("oncegate:requests", "12")
    with closing(open_store(server.url)) as store:
        granted(store)
        assert len(store.browse()) == 1


def test_pages_of_dead_letters(store: Store) -> None:
    """Each page starts after the last address of the page before."""
    keys = [b"%016d" % number for number in range(5)]
    for key in reversed(keys):
        assert bury(store, granted(store, key=key), key=key)
    first = store.dead_letters(limit=2)
    rest = store.dead_letters(after=Address(first[-1].namespace, first[-1].key))
    assert [entry.key for entry in (*first, *rest)] == keys


def test_bounds_of_a_page() -> None:
    """A page of one namespace ends before the next namespace; `after` in an earlier namespace has no effect."""
    assert _lex_range(None, None) == (b"-", b"+")
    assert _lex_range("crm", None) == (b"[crm\0", b"(crm\1")
    assert _lex_range("crm", Address("crm", b"k")) == (b"(crm\0k", b"(crm\1")
    assert _lex_range("crm", Address("a", b"k")) == (b"[crm\0", b"(crm\1")


def test_expired_dead_letter_whose_key_is_claimed_again(server: RedisServer) -> None:
    """Redis deletes an expired dead letter, but its address stays in the list until a later burial. If the key is
    claimed again in the meantime, the new record is neither listed nor counted as a dead letter."""
    with closing(open_store(server.url)) as store:
        assert bury(store, granted(store))
        (key,) = server.client.keys("oncegate:r*")
        server.client.delete(key)
        granted(store)
        assert store.dead_letters() == []
        assert count_dead_letters(store, NAMESPACE, 10) == 0

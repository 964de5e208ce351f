"""The functions that use an optional ability of a store, or do without it: `scan` and `count_dead_letters`."""

from collections.abc import Iterator
from typing import cast

import pytest

from oncegate.stores import base
from oncegate.stores.base import Entry, Store, count_dead_letters, scan
from oncegate.stores.memory import MemoryStore
from oncegate.testing.requests import NAMESPACE, bury, claim_of, granted


def fill(store: MemoryStore) -> list[bytes]:
    keys = [bytes([number]) * 16 for number in range(7)]
    store.claim([claim_of(key=key) for key in keys])
    return keys


@pytest.mark.parametrize("page", [1, 3, 7, 100])
def test_pages(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """A store without `scan` is read page by page: each record comes once, in order."""
    monkeypatch.setattr(base, "_PAGE", page)
    store = MemoryStore()
    keys = fill(store)
    assert [entry.key for entry in scan(store)] == keys


def test_one_namespace() -> None:
    """With a namespace, only its records come."""
    store = MemoryStore()
    keys = fill(store)
    assert [entry.key for entry in scan(store, claim_of().namespace)] == keys
    assert list(scan(store, "another")) == []


def test_a_store_that_can_scan() -> None:
    """A store that can scan does so, and is not read in pages."""

    class Scannable(MemoryStore):
        def scan(self, namespace: str | None = None) -> Iterator[Entry]:
            return iter(reversed(self.browse(namespace)))

    store = Scannable()
    keys = fill(store)
    assert [entry.key for entry in scan(store)] == keys[::-1]


class Uncounted:
    """A memory store that cannot count its dead letters."""

    def __init__(self, store: MemoryStore) -> None:
        self.dead_letters = store.dead_letters


@pytest.mark.parametrize("page", [1, 3, 5, 100])
def test_count_in_pages(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """The dead letters of a store that cannot count them are read in pages, up to the limit."""
    monkeypatch.setattr(base, "_DEAD_LETTER_PAGE", page)
    store = MemoryStore()
    for number in range(5):
        key = bytes([number]) * 16
        assert bury(store, granted(store, key=key), key=key)
    uncounted = cast(Store, Uncounted(store))
    assert [count_dead_letters(uncounted, NAMESPACE, limit) for limit in (0, 1, 4, 5, 9)] == [0, 1, 4, 5, 5]
    assert count_dead_letters(uncounted, "another", 9) == 0
    assert bury(store, granted(store, namespace="another"), namespace="another")
    assert [count_dead_letters(uncounted, None, limit) for limit in (5, 6, 7)] == [5, 6, 6]

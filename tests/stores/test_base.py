"""`scan`: all records of a store, in the fastest order."""

from collections.abc import Iterator

import pytest

from oncegate.stores import base
from oncegate.stores.base import Entry, scan
from oncegate.stores.memory import MemoryStore
from oncegate.testing.requests import claim_of


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

"""Walking over all records of a store, for people who look for one by what is no key."""

from collections.abc import Iterator

from oncegate.claims import Address
from oncegate.stores.base import Entry, Store, Walkable

_PAGE = 1_000


def walk(store: Store, namespace: str | None = None) -> Iterator[Entry]:
    """All records, in whatever order is the fastest; one that changes meanwhile may come twice."""
    return store.walk(namespace) if isinstance(store, Walkable) else _in_pages(store, namespace)


def _in_pages(store: Store, namespace: str | None) -> Iterator[Entry]:
    after = None
    while page := store.browse(namespace, after=after, limit=_PAGE):
        yield from page
        after = Address(page[-1].namespace, page[-1].key)

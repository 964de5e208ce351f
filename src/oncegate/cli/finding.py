"""Finding the records of an event: by a key at once, by any other id in a walk over all of them."""

from itertools import islice

from msgspec import Struct

from oncegate.canonical import HASH_SIZE
from oncegate.cli.output import Progress
from oncegate.gate.job import known_by
from oncegate.stores.base import Entry, Store, walk

_MOST_FOUND = 1_000


class Search(Struct, frozen=True):
    """What was found, among how many records; `cut`: there are more that were not looked at."""

    entries: list[Entry]
    looked_through: int = 0
    cut: bool = False


def search(store: Store, namespace: str | None, wanted: str, most: int) -> Search:
    """The records whose key, event id or entity this is. No store has an index by ids, which would cost every claim a
    write for a question that is asked seldom."""
    key, name = _key(wanted), known_by(wanted)
    if key is not None and (entries := store.browse(namespace, key=key)):
        return Search(entries)
    found: dict[tuple[str, bytes], Entry] = {}
    count = 0
    walked = walk(store, namespace)
    with Progress("records") as progress:
        for entry in islice(walked, most):
            count += 1
            progress.at(count)
            if name in (entry.record.about.delivery_id, entry.record.about.entity) and len(found) < _MOST_FOUND:
                found[entry.namespace, entry.key] = entry
        cut = next(walked, None) is not None
    return Search(sorted(found.values(), key=happened), count, cut)


def _key(written: str) -> bytes | None:
    try:
        key = bytes.fromhex(written)
    except ValueError:
        return None
    return key if len(key) == HASH_SIZE else None


def happened(entry: Entry) -> tuple[int, int, bytes]:
    """The order in which things happened, as far as it is known; stores give an entity's events out in the same."""
    record = entry.record
    at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return at, record.first_seen, entry.key

"""A record in words and in fields."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from oncegate.canonical import HASH_SIZE
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, Record
from oncegate.cli.output import Progress, moment, stamp, state_name
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.gate.job import shortened, stage_digest
from oncegate.stores.base import Entry, Store, scan

NOT_TAKEN_THERE: Final = "Nothing has taken it from there yet, in this store and namespace."
# Who runs what the store keeps with its payload.
WHO_RUNS: Final = "the service or a worker of the inbox"


def sentence(record: Record) -> str:
    """What the record means for the next delivery of its event."""
    now = wall()
    until = f"until {moment(record.expires_at)}" if record.expires_at is not None else "for as long as it is kept"
    if record.state == COMPLETED:
        done = spoken(now - (record.completed_at or now))
        if record.handed_to is not None:
            return (
                f"It was published to {record.handed_to} {done} ago; a copy delivered to its publisher now is a"
                f" duplicate, {until}."
            )
        return f"It was processed {done} ago; a copy delivered now is a duplicate, {until}."
    if record.state == DEAD:
        tried = times(record.attempts, "attempt")
        return f"It is a dead letter after {tried}; nothing runs it until it is redriven or dropped."
    if record.state == IN_PROGRESS and now < record.lease_until:
        return f"A worker holds it, for up to {spoken(record.lease_until - now)} more unless it renews."
    if record.state == IN_PROGRESS:
        who = "the next delivery" if record.payload is None else WHO_RUNS
        return f"Its worker's lease ended {spoken(now - record.lease_until)} ago; {who} runs it again."
    if record.payload is not None:
        return f"It is kept with its payload and waits for {WHO_RUNS} to run it."
    if record.unavailable_since is not None:
        since = spoken(now - record.unavailable_since)
        return f"It was released: what its handler calls has been unavailable for {since}; the next delivery runs it."
    return f"It was released after {times(record.attempts, 'attempt')}; the next delivery runs it again."


def fields(entry: Entry, spell: Callable[[int | None], str | None] = stamp) -> dict[str, Any]:
    """All that is known of a record but its payload; times are spelt for a program, or as is asked."""
    record, about = entry.record, entry.record.about
    return {
        "key": entry.key.hex(),
        "namespace": entry.namespace,
        "state": state_name(record.state),
        "attempts": record.attempts,
        "lost": record.lost,
        "source": about.source,
        "type": about.type,
        "entity": about.entity,
        "event_id": about.delivery_id,
        "occurred_at": spell(about.occurred_at),
        "first_seen": spell(record.first_seen),
        "completed_at": spell(record.completed_at),
        "handed_to": record.handed_to,
        "unavailable_since": spell(record.unavailable_since),
        "lease_until": spell(record.lease_until) if record.state == IN_PROGRESS else None,
        "expires_at": spell(record.expires_at),
        "fence": record.fence,
        "payload_hash": record.payload_hash.hex(),
        "error": record.error,
        "result": None if record.result is None else msgspec.json.decode(record.result),
    }


def stages(store: Store, entry: Entry) -> list[Entry]:
    """What is known of an event where it was handed on to, and on from there."""
    found: list[Entry] = []
    while entry.record.handed_to is not None:
        known = store.browse(entry.namespace, key=stage_digest(entry.key, entry.record.handed_to))
        if not known:
            break
        entry = known[0]
        found.append(entry)
    return found


def payload_text(record: Record) -> str | None:
    """The payload as text; bytes that are no text are shown by their escapes."""
    return None if record.payload is None else record.payload.decode("utf-8", "backslashreplace")


# Finding the records of an event: by a key at once, by any other id in a walk over all of them.


_MOST_FOUND = 1_000


class Search(Struct, frozen=True):
    """What was found, among how many records; `cut`: there are more that were not looked at."""

    entries: list[Entry]
    looked_through: int = 0
    cut: bool = False


def search(store: Store, namespace: str | None, wanted: str, most: int) -> Search:
    """The records whose key, event id or entity this is. No store has an index by ids, which would cost every claim a
    write for a question that is asked seldom."""
    key, name = _key(wanted), shortened(wanted)
    if key is not None and (entries := store.browse(namespace, key=key)):
        return Search(entries)
    found: dict[tuple[str, bytes], Entry] = {}
    count = 0
    walked = scan(store, namespace)
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

"""Describe the records of a store, and find them."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from oncegate.canonical import HASH_SIZE
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, Record
from oncegate.cli.output import Progress, readable_time, rfc3339, state_name
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.gate.job import shortened, stage_digest
from oncegate.stores.base import Entry, Store, scan

_MOST_FOUND: Final = 1_000
NOT_CONSUMED: Final = "No consumer with this store and namespace has claimed the published event yet."
# The programs that run events which are stored with their payload.
RUNNERS: Final = "the service or an inbox worker"


def sentence(record: Record) -> str:
    """The state of a record, and what happens to the next delivery of its event."""
    now = wall()
    if record.state == COMPLETED:
        done = spoken(now - (record.completed_at or now))
        if record.is_seeded:
            return f"{seeded(done)} {further_deliveries(record)} is a duplicate, whatever its content."
        if record.handed_to is not None:
            return f"Published to {record.handed_to} {done} ago. {further_deliveries(record)} there is a duplicate."
        return f"Processed {done} ago. {further_deliveries(record)} is a duplicate."
    if record.state == DEAD:
        if record.attempts <= 1:  # a conflict or a refused event was claimed once, only to be stored
            return "Dead letter. It does not run until it is redriven or dropped."
        attempts = times(record.attempts, "attempt")
        return f"Dead letter after {attempts}. It does not run again until it is redriven or dropped."
    if record.state == IN_PROGRESS and now < record.lease_until:
        return f"In progress: the lease ends in {spoken(record.lease_until - now)} unless the worker renews it."
    if record.state == IN_PROGRESS:
        runner = "the next delivery" if record.payload is None else RUNNERS
        ended = spoken(now - record.lease_until)
        return f"In progress, but the lease ended {ended} ago: {runner} runs the event again."
    if record.payload is not None:
        return f"Waiting: the event is stored with its payload until {RUNNERS} runs it."
    if record.unavailable_since is not None:
        since = spoken(now - record.unavailable_since)
        return f"Released: what the handler calls has been unavailable for {since}. The next delivery runs the event."
    return f"Released after {times(record.attempts, 'attempt')}. The next delivery runs the event again."


def seeded(age: str) -> str:
    """The origin of a record of unknown content. `age` says how long ago it was written."""
    return f"Seeded {age} ago from an earlier deduplication table: earlier code processed the event; content unknown."


def further_deliveries(record: Record) -> str:
    """The start of a sentence about later deliveries, with the time until which the record is remembered."""
    if record.expires_at is None:
        return "Every further delivery"
    return f"Until {readable_time(record.expires_at)}, every further delivery"


def fields(entry: Entry, spell: Callable[[int | None], str | None] = rfc3339) -> dict[str, Any]:
    """The fields of a record without its payload. `spell` formats times."""
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


def stage_records(store: Store, entry: Entry) -> list[Entry]:
    """The records that the consumers of a published event have. The first record is from the consumer of the event. If
    that consumer published the event again, the next record is from the next consumer, and so on."""
    found: list[Entry] = []
    while entry.record.handed_to is not None:
        known = store.browse(entry.namespace, key=stage_digest(entry.key, entry.record.handed_to))
        if not known:
            break
        entry = known[0]
        found.append(entry)
    return found


def payload_text(record: Record) -> str | None:
    """The payload as text; bytes that are not UTF-8 are escaped."""
    return None if record.payload is None else record.payload.decode("utf-8", "backslashreplace")


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────


class Search(Struct, frozen=True):
    """The records that were found, and how many were scanned. `cut`: the store has more records than were scanned.
    `full`: more than 1,000 records match, and only 1,000 of them are in `entries`."""

    entries: list[Entry]
    looked_through: int = 0
    cut: bool = False
    full: bool = False


def search(store: Store, namespace: str | None, id_: str, limit: int) -> Search:
    """The records with this key, event id or entity. If `id_` is a known key, its record is looked up. Otherwise up to
    `limit` records are scanned. No store has an index by id, because an index would add a write to every claim, and
    such a search is rare."""
    key, name = _key(id_), shortened(id_)
    if key is not None and (entries := store.browse(namespace, key=key)):
        return Search(entries)
    found: dict[tuple[str, bytes], Entry] = {}
    count, full = 0, False
    entries_in_store = scan(store, namespace)
    with Progress("records") as progress:
        for entry in islice(entries_in_store, limit):
            count += 1
            progress.update(count)
            if name not in (entry.record.about.delivery_id, entry.record.about.entity):
                continue
            if len(found) < _MOST_FOUND or (entry.namespace, entry.key) in found:
                found[entry.namespace, entry.key] = entry
            else:
                full = True
        cut = next(entries_in_store, None) is not None
    return Search(sorted(found.values(), key=event_order), count, cut, full)


def _key(written: str) -> bytes | None:
    try:
        key = bytes.fromhex(written)
    except ValueError:
        return None
    return key if len(key) == HASH_SIZE else None


def event_order(entry: Entry) -> tuple[int, int, bytes]:
    """A sort key for the order in which events happened. An event without a time counts from when it was first seen.
    Stores run the events of an entity in this order."""
    record = entry.record
    at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return at, record.first_seen, entry.key

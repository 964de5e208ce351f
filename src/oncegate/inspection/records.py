"""Describe the records of a store, and find them."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.canonical import HASH_SIZE
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Record, State
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.gate.job import shortened, stage_digest
from oncegate.stores.base import Entry, Store, scan
from oncegate.times import readable_time, rfc3339

# How a completed event was completed.
Completion: TypeAlias = Literal["erased", "seeded", "published", "marked", "processed"]

_STATES: Final = {IN_PROGRESS: "in progress", RELEASED: "waiting", COMPLETED: "completed", DEAD: "dead letter"}
_MOST_FOUND: Final = 1_000
NOT_CONSUMED: Final = "No consumer with this store and namespace has claimed the published event yet."
# The programs that run events which are stored with their payload.
RUNNERS: Final = "the service or an inbox worker"


def state_name(state: State) -> str:
    return _STATES[state]


def sentence(record: Record) -> str:
    """The state of a record, and what happens to the next delivery of its event."""
    now = wall()
    if record.state == COMPLETED:
        return _completed_sentence(record, spoken(now - (record.completed_at or now)))
    if record.state == DEAD:
        if record.attempts <= 1:  # a conflict or a refused event was claimed once, only to be stored
            return "Dead letter. It runs only if it is redriven."
        attempts = times(record.attempts, "attempt")
        return f"Dead letter after {attempts}. It runs again only if it is redriven."
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


def completion(record: Record) -> Completion:
    """How the event of a completed record was completed. An erased event was never processed. A seeded event was
    processed by earlier code. A marked event was recorded in one write, before or without a run of its handler."""
    if record.is_erased:
        return "erased"
    if record.is_seeded:
        return "seeded"
    if record.handed_to is not None:
        return "published"
    return "marked" if record.completed_at == record.first_seen else "processed"


def _completed_sentence(record: Record, age: str) -> str:
    further = further_deliveries(record)
    match completion(record):
        case "erased":
            return f"{erased(age)} {further} is a duplicate."
        case "seeded":
            return f"{seeded(age)} {further} is a duplicate."
        case "published":
            return f"Published to {record.handed_to} {age} ago. {further} to the publisher is a duplicate."
        case "marked":
            return f"Marked as done {age} ago. {further} is a duplicate."
        case "processed":
            return f"Processed {age} ago. {further} is a duplicate."


def erased(age: str) -> str:
    """What happened to an event that an operator erased before it was processed. `age` says how long ago."""
    return f"Erased {age} ago, before it was processed."


def seeded(age: str) -> str:
    """The origin of a record of unknown content. `age` says how long ago it was written."""
    return f"Seeded {age} ago from an earlier deduplication table: earlier code processed the event; content unknown."


def further_deliveries(record: Record, *, binds: bool = True) -> str:
    """The start of a sentence about the later deliveries that are duplicates, with the time until which the record is
    remembered. With `binds`, the key binds the content: a delivery with other content is a conflict. A record does not
    say whether its key binds the content, so the sentence must be true for both kinds of keys by default."""
    which = "with the same content" if binds and not record.is_seeded else "with this key, whatever its content,"
    if record.expires_at is None:
        return f"Every further delivery {which}"
    return f"Until {readable_time(record.expires_at)}, every further delivery {which}"


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


def no_progress(count: int) -> None:
    """The progress of a search that nobody watches."""


class Search(Struct, frozen=True):
    """The records that were found, and how many were scanned. `cut`: the store has more records than were scanned.
    `full`: more than 1,000 records match, and only 1,000 of them are in `entries`."""

    entries: list[Entry]
    looked_through: int = 0
    cut: bool = False
    full: bool = False


def search(
    store: Store, namespace: str | None, id_: str, limit: int, progress: Callable[[int], object] = no_progress
) -> Search:
    """The records with this key, event id or entity. If `id_` is a known key, its record is looked up. Otherwise up to
    `limit` records are scanned; none if `limit` is 0. No store has an index by id, because an index would add a write
    to every claim, and such a search is rare. `progress` is called with the number of records that were scanned."""
    key, name = key_of(id_), shortened(id_)
    if key is not None and (entries := store.browse(namespace, key=key)):
        return Search(entries)
    if not limit:
        return Search([])
    found: dict[tuple[str, bytes], Entry] = {}
    count, full = 0, False
    entries_in_store = scan(store, namespace)
    for entry in islice(entries_in_store, limit):
        count += 1
        progress(count)
        if name not in (entry.record.about.delivery_id, entry.record.about.entity):
            continue
        if len(found) < _MOST_FOUND or (entry.namespace, entry.key) in found:
            found[entry.namespace, entry.key] = entry
        else:
            full = True
    cut = next(entries_in_store, None) is not None
    return Search(sorted(found.values(), key=event_order), count, cut, full)


def key_of(written: str) -> bytes | None:
    """The key that is written as 32 hexadecimal digits; None if the text is not a key."""
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

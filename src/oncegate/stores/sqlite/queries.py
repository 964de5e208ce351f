"""Execute the statements of store.sql: write records and documents to rows, and read them from rows."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from oncegate.claims import COMPLETED, IN_PROGRESS, Address, EventSummary, Record
from oncegate.stores.base import Change, Document, TakeRequest
from oncegate.stores.entity_order import Entity
from oncegate.stores.sql_file import read_sql, sections

RowKey = tuple[str, bytes]  # namespace and key
SQL: Final = sections(read_sql("oncegate.stores.sqlite"))
_T = TypeVar("_T")

# Frequent blob parameters are bound as bytearray. For bytes, Python first searches for a registered adapter, which
# takes time.
_blob: Final = bytearray

# `IN` lists have one of these lengths. Shorter lists are padded with a repeated value. So there are few different
# statements, and SQLite keeps them prepared.
_LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_RECORDS: Final = {length: SQL["records"].replace("*", ", ".join("?" * length)) for length in _LENGTHS}
_BUSY: Final = {length: SQL["busy entities"].replace("*", ", ".join(["(?)"] * length)) for length in _LENGTHS}


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────


def find(db: sqlite3.Connection, wanted: Sequence[RowKey]) -> dict[RowKey, Record]:
    """Return the records of these rows that exist. One statement reads up to 128 records of a namespace."""
    found = {}
    for namespace, keys in _chunks(wanted):
        for row in db.execute(_RECORDS[len(keys)], (namespace, *map(_blob, keys))):
            found[row[0], row[1]] = record_of(row[2:])
    return found


def save(db: sqlite3.Connection, found: dict[RowKey, Record], current: dict[RowKey, Record | None]) -> int:
    """Write the records in `current` that differ from the records in `found`. None means: delete the record. Return the
    number of inserted rows."""
    changes: dict[str, list[tuple[Any, ...]]] = {}
    for row, record in current.items():
        before = found.get(row)
        if record is not before:
            statement, values = _change(before, record)
            changes.setdefault(statement, []).append((*values, row[0], _blob(row[1])))
    for statement, rows in changes.items():
        db.executemany(SQL[statement], rows)
    return sum(len(rows) for statement, rows in changes.items() if statement.startswith("insert"))


def _change(before: Record | None, record: Record | None) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the values of the statement that changes the row from `before` to `record`."""
    if record is None:
        return "delete", ()
    if before is None or before.about is not record.about or before.first_seen != record.first_seen:
        if record.state == IN_PROGRESS and record.payload is None and record.fence == record.first_seen:
            return "insert claimed", (*_first_grant(record), record.expires_at, *_summary(record))
        if record.payload is not None and _fits_insert_admitted(record):
            return "insert admitted", (
                record.state,
                record.attempts,
                _blob(record.payload),
                *_first_grant(record),
                *_summary(record),
            )
        return "insert", _claim(record) + _summary(record) + _result(record) + _history(record)
    if record.state == COMPLETED and record.result is not None and _is_plain_completion(before, record):
        return "update completed", (record.expires_at, record.completed_at, _blob(record.result))
    if record.state == IN_PROGRESS and _not_in_update_held(before) == _not_in_update_held(record):
        held = (record.state, record.owner, record.fence, record.lease_until, record.attempts)
        return "update held", (*held, record.lost)
    return "update", _claim(record) + _result(record) + _history(record)


def _fits_insert_admitted(record: Record) -> bool:
    """Return whether "insert admitted" can write the record: all columns that this statement does not write have their
    defaults."""
    ended = record.expires_at is not None or record.completed_at is not None or record.error is not None
    return not ended and not record.lost and record.unavailable_since is None


def _is_plain_completion(before: Record, record: Record) -> bool:
    """Return whether "update completed" can write the change: the same grant was in progress, and it ended with a
    result, without an error and without a place that the event was handed to."""
    is_same_grant = before.state == IN_PROGRESS and before.fence == record.fence
    return is_same_grant and record.error is None and record.handed_to is None


def record_of(row: tuple[Any, ...]) -> Record:
    return Record(*row[:7], EventSummary(*row[7:12]), *row[12:])  # type: ignore[call-arg]  # mypy cannot count a slice


# The columns of a record in groups. Each group has its columns in the order of the statements.


def _claim(record: Record) -> tuple[Any, ...]:
    return (
        record.state,
        record.owner,
        record.fence,
        record.lease_until,
        record.attempts,
        record.payload_hash,
        record.expires_at,
    )


def _first_grant(record: Record) -> tuple[Any, ...]:
    return _blob(record.owner), record.fence, record.lease_until, _blob(record.payload_hash)


def _summary(record: Record) -> tuple[Any, ...]:
    about = record.about
    return about.source, about.type, about.entity, about.occurred_at, about.delivery_id, record.first_seen


def _result(record: Record) -> tuple[Any, ...]:
    return record.completed_at, record.result, record.error, record.payload


def _history(record: Record) -> tuple[Any, ...]:
    return record.lost, record.unavailable_since, record.handed_to


def _not_in_update_held(record: Record) -> tuple[Any, ...]:
    """Return the columns that "update held" does not write."""
    return record.payload_hash, record.expires_at, record.unavailable_since, *_result(record)


def _chunks(wanted: Iterable[tuple[str, _T]]) -> Iterator[tuple[str, list[_T]]]:
    """Group the values by namespace, and split each group into padded lists of the lengths in `_LENGTHS`."""
    by_namespace: dict[str, list[_T]] = {}
    for namespace, value in wanted:
        by_namespace.setdefault(namespace, []).append(value)
    for namespace, values in by_namespace.items():
        for start in range(0, len(values), _LENGTHS[-1]):
            chunk = values[start : start + _LENGTHS[-1]]
            length = next(length for length in _LENGTHS if len(chunk) <= length)
            yield namespace, chunk + chunk[-1:] * (length - len(chunk))


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────


def count_dead_letters(
    namespace: str, after: bytes, limit: int, db: sqlite3.Connection, now: int
) -> tuple[int, bytes, bool]:
    """Read the next `limit` dead letters after a key. Return how many of them have not expired, the last key, and
    whether there are no more dead letters."""
    wanted = {"namespace": namespace, "after": after, "limit": limit, "now": now}
    rows, last, present = db.execute(SQL["count dead letters"], wanted).fetchone()
    return present, last, rows < limit


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────────


def read_document(db: sqlite3.Connection, address: Address, now: int) -> Document:
    row = db.execute(SQL["document"], (address.namespace, address.key)).fetchone()
    return Document() if row is None or now >= row[2] else Document(row[0], row[1])


def swap_document(db: sqlite3.Connection, change: Change, now: int) -> bool:
    current = read_document(db, change, now).version
    if current != change.version:
        return False
    version = current + 1 if current else now
    db.execute(SQL["save document"], (change.namespace, change.key, version, change.body, now + change.retention))
    return True


# ── events that wait for a dispatcher ─────────────────────────────────────────────────────────────────────

_MAX_DUE: Final = 500


def find_busy(db: sqlite3.Connection, entities: Collection[Entity]) -> set[Entity]:
    """Return the entities that have a record with a payload. One statement checks up to 128 entities of a namespace."""
    busy: set[Entity] = set()
    for namespace, names in _chunks(entities):
        busy.update((namespace, name) for (name,) in db.execute(_BUSY[len(names)], (*names, namespace)))
    return busy


def find_takeable(db: sqlite3.Connection, wants: Sequence[TakeRequest], now: int) -> Iterator[RowKey | None]:
    """Yield for each request a row that the request may take, or None. Rows that became due first are yielded first.

    Call this function inside a transaction, because it executes several statements. Without a transaction, another
    process could complete an event between two statements: the first statement would list the entity of the event, and
    the second statement would find no event of this entity."""
    counts = Counter(want.namespace for want in wants)
    in_order = {want.namespace for want in wants if want.in_order}
    due = {name: _due_keys(db, name, name in in_order, now, limit) for name, limit in counts.items()}
    for want in wants:
        key = next(due[want.namespace], None)
        yield None if key is None else (want.namespace, key)


def _due_keys(db: sqlite3.Connection, namespace: str, in_order: bool, now: int, limit: int) -> Iterator[bytes]:
    if in_order:
        return _due_keys_in_order(db, namespace, now)
    return (key for (key,) in db.execute(SQL["waiting"], (namespace, now, limit)).fetchall())


def _due_keys_in_order(db: sqlite3.Connection, namespace: str, now: int) -> Iterator[bytes]:
    """Yield the keys of due events without an entity. For each entity, also yield the key of its first event, if this
    event is due and no other event of the entity is in progress.

    The statement reads only the first `_MAX_DUE` due events, in the order of their due time. All of these can belong to
    one entity, and a call must not read all events of one entity, however many wait. So if there are more due events,
    the other entities follow in the order of their names, starting after the entity of the last event that was read."""
    seen: set[str] = set()
    due = db.execute(SQL["due"], (namespace, now, _MAX_DUE)).fetchall()
    for key, entity in due:
        if entity is None:
            yield key
        elif entity not in seen:
            seen.add(entity)
            yield from _first_due(db, namespace, entity, now)
    if len(due) == _MAX_DUE:
        yielded = {key for key, entity in due if entity is None}
        others = db.execute(SQL["due without entity"], (namespace, now, _MAX_DUE)).fetchall()
        yield from (key for (key,) in others if key not in yielded)
        for entity in _entities(db, namespace, due[-1][1] or ""):
            if entity not in seen:
                yield from _first_due(db, namespace, entity, now)


def _first_due(db: sqlite3.Connection, namespace: str, entity: str, now: int) -> Iterator[bytes]:
    held = db.execute(SQL["held of entity"], (namespace, entity)).fetchall()
    first = min(held + db.execute(SQL["released of entity"], (namespace, entity)).fetchall())
    if first[3] <= now and all(lease_until <= now for *_, lease_until in held):
        yield first[2]


def _entities(db: sqlite3.Connection, namespace: str, start: str) -> Iterator[str]:
    """Yield the entities with waiting events in the order of their names: first the entities after `start`, then the
    entities up to and including `start`."""
    for begin, end in ((start, None), ("", start)):
        last = begin
        while row := db.execute(SQL["next entity"], (namespace, last)).fetchone():
            (last,) = row
            if end is not None and last > end:
                break
            yield last

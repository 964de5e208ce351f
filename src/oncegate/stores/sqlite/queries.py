"""Records and documents as rows: the statements of store.sql, and how they are filled and read."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from oncegate.claims import COMPLETED, IN_PROGRESS, Address, EventSummary, Record
from oncegate.stores.base import Change, Document, TakeRequest
from oncegate.stores.entity_order import Line
from oncegate.stores.sql_file import read_sql, sections

Where = tuple[str, bytes]
_T = TypeVar("_T")

# What is bound often is bound so: for bytes, and for None, Python first looks at length for somebody who has taught it
# how to write them.
_blob: Final = bytearray


SQL: Final = sections(read_sql("oncegate.stores.sqlite"))


def find(db: sqlite3.Connection, wanted: Sequence[Where]) -> dict[Where, Record]:
    """Read records, a chunk of keys with one statement."""
    found = {}
    for namespace, keys in _chunks(wanted):
        for row in db.execute(_RECORDS[len(keys)], (namespace, *map(_blob, keys))):
            found[row[0], row[1]] = record_of(row[2:])
    return found


def busy_lines(db: sqlite3.Connection, lines: Collection[Line]) -> set[Line]:
    """Those that something is kept for, a chunk of them with one statement."""
    busy: set[Line] = set()
    for namespace, entities in _chunks(lines):
        busy.update((namespace, entity) for (entity,) in db.execute(_BUSY[len(entities)], (*entities, namespace)))
    return busy


def save(db: sqlite3.Connection, found: dict[Where, Record], current: dict[Where, Record | None]) -> int:
    """Write what changed; tell how many rows are new."""
    changes: dict[str, list[tuple[Any, ...]]] = {}
    for where, record in current.items():
        before = found.get(where)
        if record is not before:
            statement, values = _change(before, record)
            changes.setdefault(statement, []).append((*values, where[0], _blob(where[1])))
    for statement, rows in changes.items():
        db.executemany(SQL[statement], rows)
    return sum(len(rows) for statement, rows in changes.items() if statement.startswith("insert"))


def _change(before: Record | None, record: Record | None) -> tuple[str, tuple[Any, ...]]:
    """The statement that makes a record of what was there before, and its values."""
    if record is None:
        return "delete", ()
    if before is None or before.about is not record.about or before.first_seen != record.first_seen:
        if record.state == IN_PROGRESS and record.payload is None and record.fence == record.first_seen:
            return "insert claimed", (*_held(record), record.expires_at, *_explained(record))
        if record.payload is not None and _unended(record):
            first = (record.state, record.attempts, _blob(record.payload))
            return "insert kept", (*first, *_held(record), *_explained(record))
        return "insert", _claim_of(record) + _explained(record) + _end_of(record) + _tries_of(record)
    if record.state == COMPLETED and record.result is not None and _ends_plainly(before, record):
        return "update completed", (record.expires_at, record.completed_at, _blob(record.result))
    if record.state == IN_PROGRESS and _unmoved(before) == _unmoved(record):
        held = (record.state, record.owner, record.fence, record.lease_until, record.attempts)
        return "update held", (*held, record.lost)
    return "update", _claim_of(record) + _end_of(record) + _tries_of(record)


# Few statements of fixed length, filled up with something that is asked for anyway, so that all stay prepared.
_LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_RECORDS: Final = {length: SQL["records"].replace("*", ", ".join("?" * length)) for length in _LENGTHS}
_BUSY: Final = {length: SQL["busy lines"].replace("*", ", ".join(["(?)"] * length)) for length in _LENGTHS}


def _chunks(wanted: Iterable[tuple[str, _T]]) -> Iterator[tuple[str, list[_T]]]:
    """What is wanted of each namespace, in chunks of the lengths that there are statements for."""
    by_namespace: dict[str, list[_T]] = {}
    for namespace, each in wanted:
        by_namespace.setdefault(namespace, []).append(each)
    for namespace, all_of_it in by_namespace.items():
        for start in range(0, len(all_of_it), _LENGTHS[-1]):
            chunk = all_of_it[start : start + _LENGTHS[-1]]
            length = next(length for length in _LENGTHS if len(chunk) <= length)
            yield namespace, chunk + chunk[-1:] * (length - len(chunk))


def record_of(row: tuple[Any, ...]) -> Record:
    return Record(*row[:7], EventSummary(*row[7:12]), *row[12:])  # type: ignore[call-arg]  # mypy cannot count a slice


def _held(record: Record) -> tuple[Any, ...]:
    return _blob(record.owner), record.fence, record.lease_until, _blob(record.payload_hash)


def _ends_plainly(before: Record, record: Record) -> bool:
    """Whether it is one grant that was held and has ended with a result and nothing else."""
    is_same = before.state == IN_PROGRESS and before.fence == record.fence
    return is_same and record.error is None and record.handed_to is None


def _unended(record: Record) -> bool:
    ended = record.expires_at is not None or record.completed_at is not None or record.error is not None
    return not ended and not record.lost and record.unavailable_since is None


def _explained(record: Record) -> tuple[Any, ...]:
    about = record.about
    return about.source, about.type, about.entity, about.occurred_at, about.delivery_id, record.first_seen


def _claim_of(record: Record) -> tuple[Any, ...]:
    return (
        record.state,
        record.owner,
        record.fence,
        record.lease_until,
        record.attempts,
        record.payload_hash,
        record.expires_at,
    )


def _unmoved(record: Record) -> tuple[Any, ...]:
    """All that "update held" does not write."""
    return record.payload_hash, record.expires_at, record.unavailable_since, *_end_of(record)


def _end_of(record: Record) -> tuple[Any, ...]:
    return record.completed_at, record.result, record.error, record.payload


def _tries_of(record: Record) -> tuple[Any, ...]:
    return record.lost, record.unavailable_since, record.handed_to


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


# What waits: the records that a dispatcher may be given.


_LOOKED_AT: Final = 500


def given(db: sqlite3.Connection, wants: Sequence[TakeRequest], now: int) -> Iterator[Where | None]:
    """What each of these may be given, looked for one by one, those let go first in front.

    Several statements find it, so it is asked for in a transaction: what another process ends between two of them would
    be in a line by the first, and in none by the second."""
    counts = Counter(want.namespace for want in wants)
    in_order = {want.namespace for want in wants if want.in_order}
    due = {name: _due(db, name, name in in_order, now, most) for name, most in counts.items()}
    for want in wants:
        key = next(due[want.namespace], None)
        yield None if key is None else (want.namespace, key)


def _due(db: sqlite3.Connection, namespace: str, in_order: bool, now: int, most: int) -> Iterator[bytes]:
    if in_order:
        return _heads(db, namespace, now)
    return (key for (key,) in db.execute(SQL["waiting"], (namespace, now, most)).fetchall())


def _heads(db: sqlite3.Connection, namespace: str, now: int) -> Iterator[bytes]:
    """What has no entity, and of each entity the first in its line, if that is due and nobody is at another of it.

    Those let go first are in front. If many of few entities are, the rest is found by going from one entity to the
    next, from any of them on: what waits for one entity, however much, must not be gone through at every look."""
    seen: set[str] = set()
    due = db.execute(SQL["due"], (namespace, now, _LOOKED_AT)).fetchall()
    for key, entity in due:
        if entity is None:
            yield key
        elif entity not in seen:
            seen.add(entity)
            yield from _head(db, namespace, entity, now)
    if len(due) == _LOOKED_AT:
        before = {key for key, entity in due if entity is None}
        others = db.execute(SQL["due without a line"], (namespace, now, _LOOKED_AT)).fetchall()
        yield from (key for (key,) in others if key not in before)
        for entity in _lines(db, namespace, due[-1][1] or ""):
            if entity not in seen:
                yield from _head(db, namespace, entity, now)


def _head(db: sqlite3.Connection, namespace: str, entity: str, now: int) -> Iterator[bytes]:
    held = db.execute(SQL["held in line"], (namespace, entity)).fetchall()
    first = min(held + db.execute(SQL["released in line"], (namespace, entity)).fetchall())
    if first[3] <= now and all(lease_until <= now for *_, lease_until in held):
        yield first[2]


def _lines(db: sqlite3.Connection, namespace: str, start: str) -> Iterator[str]:
    """The entities that something waits for, from this one on, and round to it."""
    for begin, end in ((start, None), ("", start)):
        last = begin
        while row := db.execute(SQL["next line"], (namespace, last)).fetchone():
            (last,) = row
            if end is not None and last > end:
                break
            yield last

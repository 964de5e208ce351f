"""Records and documents as rows: the statements of store.sql, and how they are filled and read."""

import pkgutil
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from oncegate.claims import About, Address, Record
from oncegate.stores.base import Change, Document

Where = tuple[str, bytes]


def _sections(text: str) -> dict[str, str]:
    """The named statements of a .sql file, without their comments."""
    lines = [line for line in text.splitlines() if line.startswith("-- name: ") or not line.startswith("--")]
    named = "\n".join(lines).split("-- name: ")[1:]
    return {name.strip(): body.strip() for name, _, body in (section.partition("\n") for section in named)}


SQL: Final = _sections((pkgutil.get_data("oncegate.stores.sqlite", "store.sql") or b"").decode())


def find(db: sqlite3.Connection, wanted: Sequence[Where]) -> dict[Where, Record]:
    """Read records, a chunk of keys with one statement."""
    keys: dict[str, list[bytes]] = {}
    for namespace, key in wanted:
        keys.setdefault(namespace, []).append(key)
    found = {}
    for namespace, of_it in keys.items():
        for start in range(0, len(of_it), _CHUNKS[-1]):
            chunk = of_it[start : start + _CHUNKS[-1]]
            statement, marks = _records_statement(len(chunk))
            chunk += chunk[-1:] * (marks - len(chunk))
            for row in db.execute(statement, (namespace, *chunk)):
                found[row[0], row[1]] = record_of(row[2:])
    return found


def save(db: sqlite3.Connection, found: dict[Where, Record], current: dict[Where, Record | None]) -> int:
    """Write what changed; tell how many rows are new."""
    inserts, updates, deletes = [], [], []
    for where, record in current.items():
        before = found.get(where)
        if record is before:
            continue
        if record is None:
            deletes.append(where)
        elif before is not None and before.about is record.about and before.first_seen == record.first_seen:
            updates.append(_changes(record) + where)
        else:
            inserts.append(_row(record) + where)
    for statement, rows in (("insert", inserts), ("update", updates), ("delete", deletes)):
        if rows:
            db.executemany(SQL[statement], rows)
    return len(inserts)


# Few statements of fixed length, filled up with a key that is asked for anyway, so that all stay prepared.
_CHUNKS: Final = (1, 8, 32, 128)
_RECORDS: Final = {marks: SQL["records"].replace("*", ", ".join("?" * marks)) for marks in _CHUNKS}


def _records_statement(keys: int) -> tuple[str, int]:
    marks = next(marks for marks in _CHUNKS if keys <= marks)
    return _RECORDS[marks], marks


def record_of(row: tuple[Any, ...]) -> Record:
    return Record(*row[:7], About(*row[7:12]), *row[12:])  # type: ignore[call-arg]  # mypy cannot count a slice


def _row(record: Record) -> tuple[Any, ...]:
    about = record.about
    explained = (about.source, about.type, about.entity, about.occurred_at, about.delivery_id, record.first_seen)
    return _claim_of(record) + explained + _end_of(record)


def _changes(record: Record) -> tuple[Any, ...]:
    return _claim_of(record) + _end_of(record)


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


def _end_of(record: Record) -> tuple[Any, ...]:
    return record.completed_at, record.result, record.error, record.payload


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

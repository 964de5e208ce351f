"""The journal in an SQLite file, with a write-ahead log. Several processes can write to one file."""

import heapq
import os
import shutil
import sqlite3
import threading
import time
import zlib
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from oncegate import forks
from oncegate.errors import NoStore, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.journal.base import (
    ALL_ROWS,
    MINUTE,
    OPERATOR_ROWS,
    PAGE,
    SHAPE_AGE,
    AllExcept,
    JournalBounds,
    NewRow,
    NewRows,
    Page,
    RowFilter,
    Total,
    matching,
    totals_of,
)
from oncegate.journal.leaves import SECRET_SIZE, Shape, packed_shape, unpacked_shape
from oncegate.journal.rows import ID_BITS, Label, Row, RowErasure, Term, packed, shapes_of, term_hashes, unpacked
from oncegate.stores.sql_file import read_sql, sections
from oncegate.stores.sqlite.connection import (
    BUSY_SLICE,
    FAILURES,
    OpenFiles,
    as_store_error,
    connect,
    create_file,
    is_busy,
    is_full,
    overwriting,
    purge,
    read_version,
    set_busy_timeout,
    transaction,
    use_wal,
)
from oncegate.stores.sqlite.read_only import is_absent, read_mode

APPLICATION_ID: Final = 0x4F4E434A  # "ONCJ"
_SCHEMA: Final = sections(read_sql("oncegate.journal", "sqlite.sql"))["schema 1"]
_VERSION: Final = 1
_BUSY_TIMEOUT: Final = 2_000_000  # microseconds
_PAUSE: Final = 0.005  # seconds; without a pause, another thread that waits for the connection would not get it
# A statement inserts one of these numbers of rows. For each executed statement, Python releases the interpreter lock
# and acquires it again, which takes up to 5 ms while other threads are busy. So few statements insert many rows.
_LENGTHS: Final = (256, 64, 16, 4, 1)
_BLOCK: Final = 512  # rows of one block of terms
_PRUNE_ROWS: Final = 2_000  # rows that one step deletes
_FULL: Final = 0.9  # the share of the largest size at which the oldest rows are deleted
_LOG_SIZE: Final = 4 * 1024 * 1024  # bytes of the write-ahead log that are kept after a checkpoint
_VACUUM_PAGES: Final = 1_000  # pages that one step returns to the file system
_MOST_SHAPES: Final = 5_000
_ALL_OF_IT: Final = 2**63 - 1
_LAST: Final = "last"  # the name of a value in `meta`
_NO_LABEL: Final[Label] = ("", "", "", "", "", "")
_COLUMNS: Final = ("place", "namespace", "source", "type", "status", "kind")

_INSERT_ROWS: Final = "INSERT INTO rows (id, label, fields) VALUES "
_INSERT_PAYLOADS: Final = "INSERT INTO payloads (id, payload) VALUES "
_READ_ROWS: Final = "SELECT id, label, fields FROM rows WHERE id > ? AND id < ? ORDER BY id DESC LIMIT ?"
_READ_COUNTERS: Final = "SELECT minute / ?1, events FROM counters WHERE label = ?2 AND minute BETWEEN ?3 AND ?4"
# The sums of a label by interval of ?1 minutes. `found` has the first minute with events of each interval: from there,
# one step searches the first minute after the interval. GROUP BY would sort all minutes, which takes twice as long.
_SUM_COUNTERS: Final = """
WITH RECURSIVE found (minute) AS (
    SELECT min(minute) FROM counters WHERE label = ?2 AND minute BETWEEN ?3 AND ?4
    UNION ALL
    SELECT (
        SELECT min(minute) FROM counters WHERE label = ?2 AND minute BETWEEN (found.minute / ?1 + 1) * ?1 AND ?4
    ) FROM found WHERE found.minute IS NOT NULL
)
SELECT found.minute / ?1 * ?1, (
    SELECT sum(events) FROM counters
    WHERE label = ?2 AND minute BETWEEN found.minute AND min((found.minute / ?1 + 1) * ?1 - 1, ?4)
) FROM found WHERE found.minute IS NOT NULL
"""


class SqliteJournal:
    """A journal in a file. With `create=False`, the file must exist and is opened for reading only."""

    fork_order = 0  # a thread that holds the connection may wait for another lock

    def __init__(self, path: str, *, max_size: int | None = None, create: bool = True) -> None:
        self._path = path
        self._max_size = max_size
        self._create = create
        self._lock = threading.Lock()
        self._labels: dict[Label, int] = {}
        self._by_number: dict[int, Label] = {}
        self._secret: bytes | None = None
        self._is_replaced = False
        self._db: sqlite3.Connection | None = None
        self._files = OpenFiles(os.path.realpath(path))
        forks.watch(self)
        with self._connection():
            """The file is open, or an error was raised."""

    # ── the file ──────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> sqlite3.Connection:
        if not self._create:
            if is_absent(self._path):
                raise NoStore(f"there is no journal at {self._path}; check the setting journal")
            return connect(self._path, read_mode(self._path), _BUSY_TIMEOUT, self._prepare_reading)
        folder = os.path.dirname(self._path) or "."
        if not os.path.isdir(folder):
            raise StoreRefused(f"the folder {folder} for the journal {self._path} does not exist; create it first")
        create_file(self._path)
        return connect(self._path, "mode=rw", _BUSY_TIMEOUT, self._prepare)

    def _prepare_reading(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA query_only = ON")
        if read_version(db, self._path, APPLICATION_ID, _VERSION) < _VERSION:
            raise NoStore(f"there is no journal in {self._path} yet")

    def _prepare(self, db: sqlite3.Connection) -> None:
        with transaction(db, "BEGIN"):
            version = read_version(db, self._path, APPLICATION_ID, _VERSION)
        if version == 0:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first table
        use_wal(db, self._path, time.monotonic() + _BUSY_TIMEOUT / 1e6)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_SIZE}")
        if self._max_size is not None:
            (page_size,) = db.execute("PRAGMA page_size").fetchone()
            db.execute(f"PRAGMA max_page_count = {self._max_size // page_size}")
        if version == 0:
            self._create_schema(db)
        set_busy_timeout(db, BUSY_SLICE)  # see `_transaction`

    def _create_schema(self, db: sqlite3.Connection) -> None:
        """Create the tables. If the file was removed while it was open, the new file gets the secret of the old one,
        so that the hashes of later rows can be compared with those of rows that are about to be written."""
        with transaction(db, "BEGIN IMMEDIATE"):
            if read_version(db, self._path, APPLICATION_ID, _VERSION) == 0:
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('secret', ?)", (self._secret or os.urandom(SECRET_SIZE),))
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for the exclusive use of the caller. If the file was removed or replaced, open it
        again: rows that are written to a removed file are lost."""
        with self._lock:
            try:
                if self._db is not None and self._files.find_replaced(1 if not self._create else 2) is not None:
                    self._disconnect()
                    self._is_replaced = True
                if self._db is None:
                    self._connect()
                yield self._db  # type: ignore[misc]  # it is open now
            except FAILURES as error:
                if is_full(error) and self._is_at_limit():
                    raise StoreReadOnly(
                        f"the journal {self._path} has reached journal_max_size; nothing was written: the oldest rows"
                        " are deleted before the next rows are written"
                    ) from error
                raise as_store_error(error, self._path) from error

    def _is_at_limit(self) -> bool:
        """Whether the file has reached its largest size, and the disk is not full: SQLite reports both by one error.
        The oldest rows are deleted at 90 % of the largest size, so a file with much less is not at its limit."""
        if self._db is None or self._max_size is None:
            return False
        with suppress(sqlite3.Error, OSError):
            (page_size,) = self._db.execute("PRAGMA page_size").fetchone()
            left = self._max_size - _used_pages(self._db) * int(page_size)
            return left < self._max_size / 2 and left < shutil.disk_usage(os.path.dirname(self._path) or ".").free
        return False

    def _connect(self) -> None:
        self._db = self._open()
        self._files = OpenFiles(os.path.realpath(self._path))
        if self._secret is not None and self._secret != _read_secret(self._db):
            self._disconnect()
            raise StoreUnavailable(f"the journal {self._path} was replaced; nothing was written")

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction. If another process has the file locked, try again for 2 seconds. The
        connection is released between two tries, so that a fork of this process does not wait for the file lock."""
        deadline = time.monotonic() + _BUSY_TIMEOUT / 1e6
        while True:
            with self._connection() as db:
                if _begin(db, begin, deadline):
                    try:
                        yield db
                        db.execute("COMMIT")
                        return
                    finally:
                        if db.in_transaction:
                            db.execute("ROLLBACK")
            time.sleep(_PAUSE)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        self._labels, self._by_number = {}, {}
        if db is not None:
            db.close()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def before_fork(self) -> None:
        """Close the connection, because two processes must not share it. Both open a new one."""
        self._lock.acquire()
        try:
            self._disconnect()
        except BaseException:
            self._lock.release()
            raise

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # parent and child do the same
        self._lock.release()

    def secret(self) -> bytes:
        with self._connection() as db:
            self._secret = _read_secret(db)
            return self._secret

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: NewRows) -> bool:
        """See `oncegate.journal.base.Journal`. The id of the batch is not stored: after an error, nothing was
        written."""
        try:
            with self._transaction() as db:
                self._append_shapes(db, batch.shapes)
                self._append_rows(db, batch.rows)
                self._add_counts(db, batch.counts)
                if batch.rows:
                    _append_terms(db)
        except BaseException:
            self._labels, self._by_number = {}, {}  # labels of this transaction were rolled back
            raise
        was_replaced, self._is_replaced = self._is_replaced, False
        return not was_replaced

    def _append_rows(self, db: sqlite3.Connection, rows: Sequence[NewRow]) -> None:
        last = _highest_id(db)
        values: list[Any] = []
        payloads: list[Any] = []
        for row in rows:
            last = max(row.fields.at << ID_BITS, last + 1)
            # A bytearray is bound faster than bytes: for bytes, Python first searches for a registered adapter.
            values += (last, self._number(db, row.label), bytearray(packed(row.fields)))
            if row.payload is not None:
                payloads += (last, zlib.compress(row.payload, 1))
        _insert(db, _INSERT_ROWS, 3, values)
        _insert(db, _INSERT_PAYLOADS, 2, payloads)

    def _add_counts(self, db: sqlite3.Connection, counts: Mapping[tuple[int, Label], int]) -> None:
        values: list[int] = []
        for (minute, label), count in counts.items():
            values += (self._number(db, label), minute, count)
        add = " ON CONFLICT DO UPDATE SET events = events + excluded.events"
        _insert(db, "INSERT INTO counters (label, minute, events) VALUES ", 3, values, add)

    def _append_shapes(self, db: sqlite3.Connection, shapes: Mapping[bytes, Shape]) -> None:
        values: list[Any] = []
        for shape, paths in shapes.items():
            values += (shape, packed_shape(paths), int(time.time()))
        renew = " ON CONFLICT DO UPDATE SET seen = excluded.seen"
        _insert(db, "INSERT INTO shapes (shape, paths, seen) VALUES ", 3, values, renew)

    def _number(self, db: sqlite3.Connection, label: Label) -> int:
        number = self._labels.get(label)
        if number is None:
            insert = "INSERT INTO labels (place, namespace, source, type, status, kind) VALUES (?, ?, ?, ?, ?, ?)"
            db.execute(f"{insert} ON CONFLICT DO NOTHING", label)
            where = " AND ".join(f"{column} = ?" for column in _COLUMNS)
            (number,) = db.execute(f"SELECT label FROM labels WHERE {where}", label).fetchone()  # noqa: S608
            self._labels[label] = number
        return number

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def rows(
        self,
        where: RowFilter = ALL_ROWS,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        lowest, highest = where.ids(before, after)
        with self._transaction("BEGIN") as db:
            labels: Container[int]
            labels = wanted = _matching_labels(db, where) if where.label else {}
            if not where.label:
                labels = AllExcept(() if where.operators else _matching_labels(db, OPERATOR_ROWS))
            if terms := where.terms:
                entries = _entries_with(db, terms[0], lowest, highest)
            elif not where.label:
                entries = db.execute(_READ_ROWS, (lowest, highest, _ALL_OF_IT))
            else:
                ids = ", ".join(map(str, _newest_ids(db, wanted, lowest, highest, limit)))
                query = f"SELECT id, label, fields FROM rows WHERE id IN ({ids}) ORDER BY id DESC"  # noqa: S608  # numbers
                entries = db.execute(query)
            found, cursor = matching(entries, limit, labels, terms)
            return Page([self._row(db, each) for each in found], cursor)

    def _row(self, db: sqlite3.Connection, found: tuple[int, int, bytes]) -> Row:
        row_id, number, data = found
        return unpacked(row_id, self._label(db, number), data)

    def _label(self, db: sqlite3.Connection, number: int) -> Label:
        if number not in self._by_number:
            query = "SELECT place, namespace, source, type, status, kind FROM labels WHERE label = ?"
            self._by_number[number] = db.execute(query, (number,)).fetchone() or _NO_LABEL
        return self._by_number[number]

    def totals(self, where: RowFilter, start: int, end: int, every: int = MINUTE) -> list[Total]:
        first, last, step = start // MINUTE, (end - 1) // MINUTE, max(1, every // MINUTE)
        counts: dict[tuple[int, Label], int] = {}
        query = _READ_COUNTERS if step == 1 else _SUM_COUNTERS
        with self._transaction("BEGIN") as db:
            for number, label in _matching_labels(db, where).items():
                for minute, events in db.execute(query, (step, number, first, last)):
                    counts[minute, label] = events
        return totals_of(counts, every)

    def payload(self, row_id: int) -> bytes | None:
        with self._connection() as db:
            found = db.execute("SELECT payload FROM payloads WHERE id = ?", (row_id,)).fetchone()
        return None if found is None else zlib.decompress(found[0])

    def shape(self, shape_id: bytes) -> Shape:
        with self._connection() as db:
            found = db.execute("SELECT paths FROM shapes WHERE shape = ?", (shape_id,)).fetchone()
        return () if found is None else unpacked_shape(found[0])

    # ── erasure ───────────────────────────────────────────────────────────────────────────────────────────

    def erase(self, erasure: RowErasure, *, dry_run: bool = False) -> int:
        """See `oncegate.journal.base.Journal`. Each block is one transaction, so that other processes wait only a few
        milliseconds for the file lock. Another process can make blocks of new rows meanwhile. These blocks are read in
        another round, because their terms may be those of rows that are erased already."""
        count, done = 0, -1
        while True:
            with self._connection() as db:
                (indexed,) = db.execute("SELECT coalesce(max(last), 0) FROM terms").fetchone()
                if indexed == done or (dry_run and done >= 0):
                    return count
                blocks = db.execute("SELECT first, last, hashes FROM terms WHERE last > ?", (done,))
                ranges = [each[:2] for each in blocks if erasure.may_be_among(array("I", each[2]), *each[:2])]
            for first, last in [*ranges, (indexed + 1, _ALL_OF_IT - 1)]:
                count += self._erase_block(erasure, first, last, dry_run=dry_run)
            done = indexed

    def _erase_block(self, erasure: RowErasure, first: int, last: int, *, dry_run: bool) -> int:
        with self._transaction("BEGIN" if dry_run else "BEGIN IMMEDIATE") as db:
            found = db.execute(_READ_ROWS, (first - 1, last + 1, _ALL_OF_IT)).fetchall()
            labels = {number: self._label(db, number) for _, number, _ in found}
            erased = {row_id: data for row_id, number, data in found if erasure.includes(row_id, labels[number], data)}
            if dry_run:
                return len(erased)
            if erased:
                db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LAST, _highest_id(db).to_bytes(8)))
            with overwriting(db):
                for table in ("rows", "payloads"):
                    db.executemany(f"DELETE FROM {table} WHERE id = ?", [(row_id,) for row_id in erased])  # noqa: S608
                hashes = array("I", term_hashes([data for row_id, _, data in found if row_id not in erased])).tobytes()
                db.execute("UPDATE terms SET hashes = ? WHERE last = ? AND first = ?", (hashes, last, first))
                for shape in shapes_of(erased.values()):
                    stored = db.execute("SELECT paths FROM shapes WHERE shape = ?", (shape,)).fetchone()
                    if stored is not None and erasure.names(unpacked_shape(stored[0])):
                        db.execute("DELETE FROM shapes WHERE shape = ?", (shape,))
        return len(erased)

    def purge(self, *, rewrite: bool) -> bool:
        """See `oncegate.stores.base.KeepsDeletedData`."""
        return purge(self._path, rewrite=rewrite, busy_timeout=_BUSY_TIMEOUT)

    # ── pruning ───────────────────────────────────────────────────────────────────────────────────────────

    def size(self) -> int:
        """The size of the file, without the write-ahead log and without the free pages."""
        with self._connection() as db:
            return _used_pages(db) * int(db.execute("PRAGMA page_size").fetchone()[0])

    def prune(self, bounds: JournalBounds, now: int) -> bool:
        """Delete the oldest rows that exceed the bounds. One step deletes at most 2,000 rows, so that other processes
        wait only a few milliseconds for the file lock. Deleted pages are reused. If the file is larger than the bound,
        because the bound was lowered, a step also returns free pages to the file system."""
        oldest = (now - bounds.max_age) << ID_BITS
        with self._transaction() as db:
            (page_size,) = db.execute("PRAGMA page_size").fetchone()
            most_pages = bounds.max_size // page_size
            is_full = _used_pages(db) > most_pages * _FULL
            below = _half_or_step(db) if is_full else _step_below(db, oldest)
            _delete_rows(db, below)
            if bounds.payload_age is not None:
                _delete_payloads(db, now - bounds.payload_age)
            _delete_old_counts(db, now - bounds.max_age)
            left = _used_pages(db) > most_pages * _FULL or below < oldest
        with self._connection() as db:
            if db.execute("PRAGMA page_count").fetchone()[0] > most_pages:
                # execute() would stop after the first page: the pragma returns a result without columns for each page.
                db.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        return bool(left)


def _begin(db: sqlite3.Connection, begin: str, deadline: float) -> bool:
    """Begin a transaction. Returns False if another process has the file locked. After the deadline, raises the error
    of SQLite."""
    try:
        db.execute(begin)
    except sqlite3.OperationalError as error:
        if not is_busy(error) or time.monotonic() >= deadline:
            raise
        return False
    return True


def _read_secret(db: sqlite3.Connection) -> bytes:
    (secret,) = db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
    return bytes(secret)


def _insert(db: sqlite3.Connection, insert: str, width: int, values: Sequence[Any], end: str = "") -> None:
    """Insert values with few statements: `width` values make one row."""
    at, group = 0, f"({', '.join('?' * width)})"
    for length in _LENGTHS:
        while len(values) - at >= length * width:
            db.execute(insert + ", ".join([group] * length) + end, values[at : at + length * width])
            at += length * width


def _highest_id(db: sqlite3.Connection) -> int:
    """Returns the highest id of all rows, or of the rows at the last erasure: the newest row may be erased."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM rows").fetchone()
    (erased,) = db.execute("SELECT value FROM meta WHERE name = ?", (_LAST,)).fetchone() or (b"",)
    return max(int(last), int.from_bytes(erased))


def _append_terms(db: sqlite3.Connection) -> None:
    """Write a block of terms for each full block of rows that has none yet. Ids only rise, so no later row belongs into
    an earlier block."""
    (indexed,) = db.execute("SELECT coalesce(max(last), 0) FROM terms").fetchone()
    query = "SELECT id, fields FROM rows WHERE id > ? ORDER BY id LIMIT ?"
    while True:
        (end,) = db.execute(
            "SELECT id FROM rows WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (indexed, _BLOCK - 1)
        ).fetchone() or (None,)
        if end is None:
            return
        found = db.execute(query, (indexed, _BLOCK)).fetchall()
        blob = array("I", term_hashes([data for _, data in found])).tobytes()
        db.execute("INSERT INTO terms (last, first, hashes) VALUES (?, ?, ?)", (end, found[0][0], blob))
        indexed = end


def _entries_with(db: sqlite3.Connection, term: Term, lowest: int, highest: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields the rows between these two ids that may have the term, newest first: the rows that are in no block yet,
    and the rows of each block that has a hash of the term."""
    needles = [array("I", [each]).tobytes() for each in term.hashes]
    (indexed,) = db.execute("SELECT coalesce(max(last), 0) FROM terms").fetchone()
    yield from db.execute(_READ_ROWS, (max(indexed, lowest), highest, _ALL_OF_IT))
    query = "SELECT first, last, hashes FROM terms WHERE first < ? AND last > ? ORDER BY last DESC"
    for first, last, hashes in db.execute(query, (highest, lowest)):
        if any(_is_among(needle, hashes) for needle in needles):
            yield from db.execute(_READ_ROWS, (max(first - 1, lowest), min(last + 1, highest), _ALL_OF_IT))


def _is_among(needle: bytes, hashes: bytes) -> bool:
    at = hashes.find(needle)
    while at % 4 and at >= 0:
        at = hashes.find(needle, at + 1)
    return at >= 0


def _matching_labels(db: sqlite3.Connection, where: RowFilter) -> dict[int, Label]:
    parts = where.label
    condition = " AND ".join(f"{column} = ?" for column in parts) or "TRUE"
    query = f"SELECT label, place, namespace, source, type, status, kind FROM labels WHERE {condition}"  # noqa: S608
    found: dict[int, Label] = {number: tuple(label) for number, *label in db.execute(query, tuple(parts.values()))}
    return {number: label for number, label in found.items() if where.matches(label)}


def _newest_ids(
    db: sqlite3.Connection, labels: Mapping[int, Label], lowest: int, highest: int, limit: int
) -> list[int]:
    """Returns the newest ids of rows with these labels. After `limit` ids are found, only newer ids are read."""
    newest: list[int] = []
    query = "SELECT id FROM rows WHERE label = ? AND id > ? AND id < ? ORDER BY id DESC LIMIT ?"
    for number in labels:
        for (row_id,) in db.execute(query, (number, lowest, highest, limit)):
            if len(newest) < limit:
                heapq.heappush(newest, row_id)
            else:
                heapq.heappushpop(newest, row_id)
        if len(newest) == limit:
            lowest = newest[0]
    return newest


def _used_pages(db: sqlite3.Connection) -> int:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    return int(pages) - int(free)


def _step_below(db: sqlite3.Connection, oldest: int) -> int:
    """Returns the id below which one step deletes rows that are too old: at most 2,000 rows."""
    query = "SELECT id FROM rows WHERE id < ? ORDER BY id LIMIT 1 OFFSET ?"
    (row_id,) = db.execute(query, (oldest, _PRUNE_ROWS)).fetchone() or (oldest,)
    return int(row_id)


def _half_or_step(db: sqlite3.Connection) -> int:
    """Returns the id below which one step deletes rows of a full journal: at most 2,000 rows, and at most half of all
    rows."""
    (count,) = db.execute("SELECT count(*) FROM (SELECT 1 FROM rows LIMIT ?)", (2 * _PRUNE_ROWS,)).fetchone()
    (row_id,) = db.execute("SELECT id FROM rows ORDER BY id LIMIT 1 OFFSET ?", (count // 2,)).fetchone() or (0,)
    return int(row_id)


def _delete_rows(db: sqlite3.Connection, below: int) -> None:
    db.execute("DELETE FROM rows WHERE id < ?", (below,))
    db.execute("DELETE FROM payloads WHERE id < ?", (below,))
    db.execute("DELETE FROM terms WHERE last < ?", (below,))


def _delete_payloads(db: sqlite3.Connection, oldest: int) -> None:
    query = "SELECT id FROM payloads WHERE id < ? ORDER BY id LIMIT ?"
    db.execute(f"DELETE FROM payloads WHERE id IN ({query})", (oldest << ID_BITS, _PRUNE_ROWS))  # noqa: S608


def _delete_old_counts(db: sqlite3.Connection, oldest: int) -> None:
    """Delete counters and shapes that no row of the journal needs any more."""
    query = "DELETE FROM counters WHERE label IN (SELECT label FROM labels) AND minute < ?"
    db.execute(query, (oldest // MINUTE,))
    db.execute("DELETE FROM shapes WHERE seen < ?", ((oldest - SHAPE_AGE) // 1_000_000,))
    keep = "SELECT shape FROM shapes ORDER BY seen DESC LIMIT -1 OFFSET ?"
    db.execute(f"DELETE FROM shapes WHERE shape IN ({keep})", (_MOST_SHAPES,))  # noqa: S608

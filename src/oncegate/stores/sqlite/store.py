"""The SQLite store, the embedded default: one file, several threads and processes, durable when it answers.

Every batch is one `BEGIN IMMEDIATE` transaction: read the records, judge each with `oncegate.claims.step`,
write what changed, commit. SQLite lets one writer in at a time, so the judgement is atomic, and the rules
are not written a second time in SQL.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import repeat
from math import inf
from typing import Any, Final

from oncegate import forks
from oncegate.claims import (
    IN_PROGRESS,
    Address,
    Complete,
    Held,
    Operation,
    Record,
    Renew,
    Take,
    step,
)
from oncegate.clocks import Clock, store_clock
from oncegate.errors import SettingError, StoreRefused, StoreUnavailable
from oncegate.stores.base import Change, Document, Entry, Want
from oncegate.stores.judged import InboxStore, shown
from oncegate.stores.lines import behind, in_turn, step_behind
from oncegate.stores.sqlite.checkpoints import Checkpoints
from oncegate.stores.sqlite.file import explained, is_of_the_disk, opened, wait_for
from oncegate.stores.sqlite.lending import OwnConnection, is_closed, lend, take_back
from oncegate.stores.sqlite.rows import SQL, Where, busy_lines, find, read_document, record_of, save, swap_document
from oncegate.stores.sqlite.settings import checked_level
from oncegate.stores.sqlite.turns import SLICE, Occupied, Soon, Turn, Turns
from oncegate.stores.sqlite.waiting import given

_SWEEP: Final = 256
_MOST_HELD: Final = 20_000
_START: Final[Where] = ("", b"")


class SqliteStore(InboxStore):
    fork_order = 0

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        busy_timeout: int = 5_000_000,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._synchronous = checked_level(synchronous)
        self._busy_timeout = busy_timeout
        self._clock = store_clock(clock)
        self._swept = {"claims": _START, "documents": _START}
        self._unswept = {"claims": 0, "documents": 0}
        # Claims in progress as this connection wrote them: true while no other connection has written, which
        # SQLite tells by its data_version. It saves reading back what is about to be settled.
        self._held: dict[Where, Record] = {}
        self._version = 0
        self._closed = False
        self._lock = threading.Lock()
        self._turns = Turns(busy_timeout)
        self._slice = min(SLICE, self._turns.timeout)
        self._transacting: int | None = None  # the thread whose handler has the connection
        self._checkpoints = Checkpoints(path, self._synchronous)
        self._db: OwnConnection | None = None
        self._connected()
        forks.watch(self)

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        answers = []
        with self._writing() as (db, now):
            found = self._find(db, operations)
            places: Iterable[int] = repeat(0)
            if admits:
                operations, places = in_turn(operations, partial(busy_lines, db)), behind(operations)
            current: dict[Where, Record | None] = dict(found)
            for operation, place in zip(operations, places, strict=False):
                address = (operation.namespace, operation.key)
                before = current.get(address)
                judged = step_behind(before, operation, now, place) if place else step(before, operation, now)
                current[address], answer = judged
                answers.append(answer)
            self._sweep(db, "claims", save(db, found, current), now)
            self._remember(current)
        return answers

    def _find(self, db: sqlite3.Connection, operations: Sequence[Operation]) -> dict[Where, Record]:
        """The records these operations are about, from memory where nobody else can have changed them."""
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._held.clear()
        wanted = {(operation.namespace, operation.key): None for operation in operations}
        found = {where: self._held[where] for where in wanted if where in self._held}
        found.update(find(db, [where for where in wanted if where not in found]))
        return found

    def _remember(self, current: dict[Where, Record | None]) -> None:
        if len(self._held) > _MOST_HELD:
            self._held.clear()
        for where, record in current.items():
            if record is not None and record.state == IN_PROGRESS:
                self._held[where] = record
            else:
                self._held.pop(where, None)

    def take(self, wants: Sequence[Want]) -> list[Entry | None]:
        # Mostly nothing waits, and then a look that writes nothing costs the disk nothing.
        with self._reading() as (db, now):
            if not any(given(db, wants, now)):
                return [None] * len(wants)
        with self._writing() as (db, now):
            places = list(given(db, wants, now))
            found = find(db, [where for where in places if where is not None])
            takes = [Take(*where, want.owner, want.lease) for want, where in zip(wants, places, strict=True) if where]
            taken = {(take.namespace, take.key): step(found[take.namespace, take.key], take, now)[0] for take in takes}
            save(db, found, taken)
            self._remember(taken)
            return [_entry(where, taken) for where in places]

    def kept(self, namespace: str) -> int:
        with self._reading() as (db, _):
            (count,) = db.execute(SQL["kept"], (namespace,)).fetchone()
            return int(count)

    def transact(self, held: Held, effect: Callable[[sqlite3.Connection], Complete], connection: Any = None) -> bool:
        """See `oncegate.stores.base.Transactional`. The write lock keeps all others out until the commit."""
        if connection is not None:
            raise SettingError("SQLite's transactions are on the store's own connection; the handler is given it")
        where = (held.namespace, held.key)
        try:
            with self._writing() as (db, now):
                found = find(db, [where])
                self._still(found.get(where), Renew(*where, held.owner, held.fence, 1), now)
                complete = self._effected(db, effect)
                record = self._still(found.get(where), complete, self._clock())
                save(db, found, {where: record})
                self._remember({where: record})
        except _Lost:
            return False
        return True

    def _effected(self, db: OwnConnection, effect: Callable[[sqlite3.Connection], Complete]) -> Complete:
        self._transacting = threading.get_ident()
        try:
            return lend(db, effect)
        finally:
            self._transacting = None

    def _still(self, record: Record | None, operation: Renew | Complete, now: int) -> Record | None:
        """The record after an operation that only the holder of the claim may do."""
        after, answer = step(record, operation, now)
        if answer is not True or after is record:
            raise _Lost
        return after

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        with self._reading() as (db, now):
            return [read_document(db, address, now) for address in addresses]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        with self._writing() as (db, now):
            answers = [swap_document(db, change, now) for change in changes]
            self._sweep(db, "documents", sum(answers), now)
        return answers

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return self._page("browse dead", namespace, after, limit)

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        if key is None:
            return self._page("browse", namespace, after, limit)
        with self._reading() as (db, now):
            names = [name for (name,) in db.execute(SQL["namespaces"]) if namespace in (None, name)]
            found = find(db, [(name, key) for name in names])
        return [Entry(*w, record) for w, record in sorted(found.items()) if shown(w, record, after, now)][:limit]

    def _page(self, statement: str, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
        start = (after.namespace, after.key) if after else (namespace or "", b"")
        with self._reading() as (db, now):
            wanted = {
                "namespace": namespace,
                "after_namespace": start[0],
                "after_key": start[1],
                "now": now,
                "limit": limit,
            }
            rows = db.execute(SQL[statement], wanted).fetchall()
        return [Entry(row[0], row[1], record_of(row[2:])) for row in rows]

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        return self._turns.waited(seconds)

    def probe(self, within: int) -> None:
        """See `oncegate.stores.base.Probed`. What was written just now is proof enough, and so is a thread of ours that
        has the file and takes its time."""
        if self._turns.in_trouble:
            raise StoreUnavailable(f"the disk that holds {self._path} was full or failed a moment ago")
        if not self._turns.has_written:
            with suppress(Occupied), self._writing(Soon(self._lock, within / 2e6)):
                """That the clock has moved on is all that is written."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def before_fork(self) -> None:
        """A connection that two processes know of would lose what they write, so both start with one of their own.
        From within a transaction only the parent can go on."""
        if self._transacting == threading.get_ident():
            self._checkpoints.end()
        else:
            self._lock.acquire()
            try:
                self._disconnect()
            except BaseException:
                self._lock.release()
                raise

    def after_fork(self, *, in_child: bool) -> None:
        if self._transacting != threading.get_ident():
            self._lock.release()
        elif in_child:
            self._closed = True

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _writing(self, soon: Soon | None = None) -> Iterator[tuple[OwnConnection, int]]:
        with self._begun("BEGIN IMMEDIATE", soon) as (db, _):
            try:
                (high,) = db.execute(SQL["tick"], (self._clock(),)).fetchone()
                yield db, self._clock(high)
                db.execute("COMMIT")
            except BaseException as error:
                self._roll_back(db)
                if isinstance(error, sqlite3.Error) and is_of_the_disk(error):
                    self._turns.troubled()
                raise
            self._turns.written()
            self._checkpoints.written(db.total_changes)

    @contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """All that is read in here is of one moment."""
        with self._begun("BEGIN") as (db, _):
            try:
                (high,) = db.execute(SQL["time"]).fetchone()
                yield db, self._clock(high)
            finally:
                db.execute("COMMIT")

    @contextmanager
    def _begun(self, statement: str, soon: Soon | None = None) -> Iterator[tuple[OwnConnection, sqlite3.Cursor]]:
        """The connection, once this statement has been done with it."""
        if self._transacting == threading.get_ident():
            raise SettingError("a transaction's handler cannot ask the same store: it would wait for its own end")
        turn = Turn(self._turns, soon.seconds if soon else inf)
        while True:
            with soon or self._lock:
                db = self._usable()
                try:
                    # An interrupt can strike at any instruction, also between a transaction and its rollback.
                    if db.in_transaction:
                        take_back(db)
                        self._roll_back(db)
                    if (begun := turn.begin(db, statement)) is not None:
                        yield db, begun
                        return
                except sqlite3.Error as error:
                    raise explained(error, self._path) from error
                finally:
                    if is_closed(db):
                        self._db = None
            turn.pause()

    def _usable(self) -> OwnConnection:
        if self._closed:
            raise StoreRefused(f"the store {self._path} was closed")
        db = self._connected()
        if _identity(self._file) != self._opened:
            raise StoreUnavailable(f"{self._path} was removed or replaced while it was in use; start again on it")
        return db

    def _connected(self) -> OwnConnection:
        if self._db is None:
            self._held.clear()
            self._file = os.path.abspath(self._path)
            self._db = opened(self._path, self._synchronous, self._busy_timeout)
            wait_for(self._db, self._slice)
            self._opened = _identity(self._file)
        return self._db

    def _disconnect(self) -> None:
        self._checkpoints.end()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _roll_back(self, db: sqlite3.Connection) -> None:
        self._held.clear()
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _sweep(self, db: sqlite3.Connection, table: str, written: int, now: int) -> None:
        """Visit two rows for each one written, so that the expired ones stay fewer than half of the living."""
        self._unswept[table] += 2 * written
        while self._unswept[table] >= _SWEEP:
            self._unswept[table] -= _SWEEP
            start = self._swept[table]
            end = db.execute(SQL[f"{table} stretch"], (*start, _SWEEP - 1)).fetchone()
            if end is None:
                db.execute(SQL[f"{table} sweep rest"], (*start, now))
            else:
                db.execute(SQL[f"{table} sweep"], (*start, *end, now))
            self._swept[table] = end or _START


def _identity(file: str) -> tuple[int, int] | None:
    """What a file of the same name would not have. What is written to one that was removed is lost with the process."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _entry(where: Where | None, taken: dict[Where, Record | None]) -> Entry | None:
    record = None if where is None else taken[where]
    return None if where is None or record is None else Entry(*where, record)


class _Lost(Exception):
    """The claim is another's by now: whatever was written with it is rolled back."""

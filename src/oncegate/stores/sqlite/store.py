"""The SQLite store, the embedded default: one file, several threads and processes, durable when it answers.

Every batch is one `BEGIN IMMEDIATE` transaction: read the records, judge each with `oncegate.claims.step`,
write what changed, commit. SQLite lets one writer in at a time, so the judgement is atomic, and the rules
are not written a second time in SQL.
"""

import atexit
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import repeat
from math import inf
from typing import Any, Final, TypeVar
from weakref import WeakSet

from oncegate import forks
from oncegate.claims import (
    IN_PROGRESS,
    Abandon,
    Address,
    ClaimProof,
    Complete,
    InFlight,
    Operation,
    Record,
    Renew,
    Take,
    step,
)
from oncegate.clocks import Clock, store_clock
from oncegate.errors import SettingError, StoreRefused, StoreUnavailable
from oncegate.instances import instance, instance_of
from oncegate.stores.base import Change, Document, Entry, TakeRequest
from oncegate.stores.entity_order import batch_positions, keep_first_leases, step_at_position
from oncegate.stores.sqlite.connection import (
    FAILURES,
    SLICE,
    Checkpoints,
    LockAttempt,
    LockTimeout,
    LockWaiter,
    OpenFiles,
    damaged,
    explained,
    is_of_the_disk,
    opened,
    wait_for,
)
from oncegate.stores.sqlite.handler_connection import StoreConnection, is_closed, lend, take_back
from oncegate.stores.sqlite.instance_locks import InstanceLocks
from oncegate.stores.sqlite.queries import (
    SQL,
    Where,
    busy_lines,
    find,
    given,
    read_document,
    record_of,
    save,
    swap_document,
)
from oncegate.stores.sqlite.settings import checked_level
from oncegate.stores.step_store import InboxStepStore, is_listed

_SWEEP: Final = 256
_MOST_HELD: Final = 20_000
_LOOK_AT_FILES_EVERY: Final = 0.05
_START: Final[Where] = ("", b"")
_T = TypeVar("_T")
_Work = Callable[[StoreConnection, int], _T]


class SqliteStore(InboxStepStore):
    fork_order = 0
    transactions_exclude_others = True  # nobody else can write while a handler has a transaction
    _watched = 3  # files, as in `OpenFiles.moved`

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        busy_timeout: int = 5_000_000,
        secure_delete: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._synchronous = checked_level(synchronous)
        self._busy_timeout = busy_timeout
        self._secure_delete = secure_delete
        self._clock = store_clock(clock)
        self._swept = {"claims": _START, "documents": _START}
        self._unswept = {"claims": 0, "documents": 0}
        # Claims in progress as this connection wrote them: true while no other connection has written, which
        # SQLite tells by its data_version. It saves reading back what is about to be settled.
        self._held: dict[Where, Record] = {}
        self._version = 0
        self._closed = False
        self._lock = threading.Lock()
        self._turns = LockWaiter(busy_timeout)
        self._slice = min(SLICE, self._turns.timeout)
        self._transacting: int | None = None  # the thread whose handler has the connection
        self._checkpoints = Checkpoints(path, self._synchronous)
        self._instances = InstanceLocks(path)
        self._next_look = -inf
        self._db: StoreConnection | None = None
        self._connected()
        forks.watch(self)
        _open.add(self)

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        return self._write(partial(self._judge, operations, admits))

    def _judge(self, operations: Sequence[Operation], admits: bool, db: StoreConnection, now: int) -> list[Any]:
        found = self._find(db, operations)
        places: Iterable[int] = repeat(0)
        if admits:
            operations, places = keep_first_leases(operations, partial(busy_lines, db)), batch_positions(operations)
        current: dict[Where, Record | None] = dict(found)
        answers = []
        for operation, place in zip(operations, places, strict=False):
            address = (operation.namespace, operation.key)
            before = current.get(address)
            judged = step_at_position(before, operation, now, place) if place else step(before, operation, now)
            if type(judged[1]) is InFlight and self._instances.has_ended(judged[1].record.owner):
                judged = step(_abandoned(address, judged[1].record, now), operation, now)
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

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        if ended := self._instances.newly_ended():
            self._write(partial(self._abandon, ended))
            self._instances.note(ended)
        # Mostly nothing waits, and then a look that writes nothing costs the disk nothing.
        if not self._read(lambda db, now: any(given(db, wants, now))):
            return [None] * len(wants)
        return self._write(partial(self._take, wants))

    def _take(self, wants: Sequence[TakeRequest], db: StoreConnection, now: int) -> list[Entry | None]:
        places = list(given(db, wants, now))
        found = find(db, [where for where in places if where is not None])
        takes = [Take(*where, want.owner, want.lease) for want, where in zip(wants, places, strict=True) if where]
        taken = {(take.namespace, take.key): step(found[take.namespace, take.key], take, now)[0] for take in takes}
        save(db, found, taken)
        self._remember(taken)
        return [_entry(where, taken) for where in places]

    def _abandon(self, instances: Sequence[bytes], db: StoreConnection, now: int) -> None:
        """Free the events that these processes held with their payloads. A claim without a payload is freed when the
        event is delivered again: to list those would take an index that every claim has to be written into."""
        for name in instances:
            found = find(db, db.execute(SQL["held by"], (now, name)).fetchall())
            freed = {where: _abandoned(where, record, now) for where, record in found.items()}
            save(db, found, freed)
            self._remember(freed)

    def kept(self, namespace: str) -> int:
        (count,) = self._read(lambda db, _now: db.execute(SQL["kept"], (namespace,)).fetchone())
        return int(count)

    def transact(
        self, held: ClaimProof, effect: Callable[[sqlite3.Connection], Complete], connection: Any = None
    ) -> bool:
        """See `oncegate.stores.base.Transactional`. The write lock keeps all others out until the commit."""
        if connection is not None:
            raise SettingError("SQLite's transactions are on the store's own connection; the handler is given it")
        try:
            self._write(partial(self._transact, held, effect))
        except _Lost:
            return False
        return True

    def _transact(
        self, held: ClaimProof, effect: Callable[[sqlite3.Connection], Complete], db: StoreConnection, now: int
    ) -> None:
        where = (held.namespace, held.key)
        found = find(db, [where])
        self._still(found.get(where), Renew(*where, held.owner, held.fence, 1), now)
        complete = self._effected(db, effect)
        record = self._still(found.get(where), complete, self._tick(db))
        save(db, found, {where: record})
        self._remember({where: record})

    def _effected(self, db: StoreConnection, effect: Callable[[sqlite3.Connection], Complete]) -> Complete:
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
        return self._read(lambda db, now: [read_document(db, address, now) for address in addresses])

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._write(partial(self._swap, changes))

    def _swap(self, changes: Sequence[Change], db: StoreConnection, now: int) -> list[bool]:
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

        def look(db: StoreConnection, now: int) -> list[Entry]:
            names = [name for (name,) in db.execute(SQL["namespaces"]) if namespace in (None, name)]
            found = find(db, [(name, key) for name in names])
            return [Entry(*w, record) for w, record in sorted(found.items()) if is_listed(w, record, after, now)]

        return self._read(look)[:limit]

    def _page(self, statement: str, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
        start = (after.namespace, after.key) if after else (namespace or "", b"")
        wanted = {"namespace": namespace, "after_namespace": start[0], "after_key": start[1], "limit": limit}
        rows = self._read(lambda db, now: db.execute(SQL[statement], wanted | {"now": now}).fetchall())
        return [Entry(row[0], row[1], record_of(row[2:])) for row in rows]

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        return self._turns.waited(seconds)

    def probe(self, within: int) -> None:
        """See `oncegate.stores.base.Probed`. What was written just now is proof enough, and so is a thread of ours that
        has the file and takes its time."""
        if self._turns.in_trouble:
            raise StoreUnavailable(f"the disk that holds {self._path} was full or failed a moment ago")
        if not self._turns.has_written or self._files.moved(2):
            self._write_soon(within / 2e6)

    def _write_soon(self, seconds: float) -> None:
        """Write nothing but that the clock has moved on, unless another thread has the connection for that long."""
        turn = LockAttempt(self._turns, seconds)
        while self._lock.acquire(timeout=seconds):
            try:
                self._tried(partial(self._written, lambda _db, _now: None), turn)
                break
            except LockTimeout:
                pass
            finally:
                self._lock.release()
            turn.pause()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.let_go_of_lock()
            self._disconnect()

    def has_ended(self, owner: bytes) -> bool:
        """See `oncegate.stores.base.KnowsProcesses`."""
        return self._instances.has_ended(owner)

    def let_go_of_lock(self) -> None:
        """Remove the lock of this process, unless it still holds claims: these are free when it ends."""
        if not self._holds_claims():
            self._instances.drop()

    def _holds_claims(self) -> bool:
        """Whether this process holds claims that it has not settled, as far as that is easily known. Their handlers may
        still run, so that the claims must not be taken for abandoned before it ends."""
        mine = [where for where, record in self._held.items() if instance_of(record.owner) == instance()]
        if self._db is None:
            return bool(mine)
        try:
            found = find(self._db, mine).values()  # another connection may have settled them
            kept = self._db.execute(SQL["held by"], (self._clock(), instance())).fetchone()
        except sqlite3.Error:
            return bool(mine)
        return kept is not None or any(record.state == IN_PROGRESS for record in found)

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
        if in_child:
            self._checkpoints = Checkpoints(self._path, self._synchronous)
            self._instances = InstanceLocks(self._path)
        if self._transacting != threading.get_ident():
            self._lock.release()
        elif in_child:
            self._closed = True

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────

    def _write(self, work: _Work[_T]) -> _T:
        """What this answers, given the connection and the time, when all that it has written is committed."""
        return self._in_turn(partial(self._written, work))

    def _read(self, work: _Work[_T]) -> _T:
        """What this answers, given the same; all that it reads is of one moment."""
        return self._in_turn(partial(self._looked, work))

    def _written(self, work: _Work[_T], db: StoreConnection, turn: LockAttempt) -> _T:
        turn.begin(db, "BEGIN IMMEDIATE")
        answer = work(db, self._tick(db))
        db.execute("COMMIT")
        self._check_files(db, 2)
        self._turns.written()
        self._checkpoints.written(db.total_changes)
        return answer

    def _tick(self, db: StoreConnection) -> int:
        """The time to judge by. It is the one that is left in the file, so that nobody judges by an earlier one."""
        high = self._high(db.execute(SQL["tick"], (self._clock(),)).fetchone())
        self._clock(high)
        return high

    def _looked(self, work: _Work[_T], db: StoreConnection, turn: LockAttempt) -> _T:
        db.execute("BEGIN")
        answer = work(db, self._clock(self._high(turn.begin(db, SQL["time"]).fetchone())))
        db.execute("COMMIT")
        return answer

    def _high(self, row: tuple[int] | None) -> int:
        """It is given no cursor: an interrupt in here would leave it open, and with it the transaction."""
        if row is None:
            raise damaged(self._path, "the table clock is empty")
        return int(row[0])

    def _in_turn(self, transaction: Callable[[StoreConnection, LockAttempt], _T]) -> _T:
        """Have the connection for a transaction. No generator may have a part in that: one that an interrupt leaves
        suspended keeps the lock for as long as anybody keeps the traceback."""
        if self._transacting == threading.get_ident():
            raise SettingError("a transaction's handler cannot ask the same store: it would wait for its own end")
        turn = LockAttempt(self._turns)
        while True:
            try:
                with self._lock:
                    return self._tried(transaction, turn)
            except LockTimeout:
                turn.pause()

    def _tried(self, transaction: Callable[[StoreConnection, LockAttempt], _T], turn: LockAttempt) -> _T:
        db = self._usable()
        try:
            # An interrupt can strike at any instruction, also between a transaction and its rollback.
            if db.in_transaction:
                take_back(db)
                self._roll_back(db)
            return transaction(db, turn)
        except BaseException as error:
            self._roll_back(db)
            if not isinstance(error, FAILURES):
                raise
            if is_of_the_disk(error):
                self._turns.troubled()
            raise explained(error, self._path) from error
        finally:
            if is_closed(db):
                self._db = None

    def _usable(self) -> StoreConnection:
        if self._closed:
            raise StoreRefused(f"the store {self._path} was closed")
        db = self._connected()
        if time.monotonic() >= self._next_look:
            self._check_files(db, self._watched)
            self._next_look = time.monotonic() + _LOOK_AT_FILES_EVERY
        return db

    def _check_files(self, db: StoreConnection, count: int) -> None:
        """Refuse to go on with a file that was removed or replaced. What was written to a removed log is copied into
        the database file, as long as that is safe: it was acknowledged, and only this process can still read it."""
        moved = self._files.moved(count)
        if moved is None:
            return
        self._next_look = -inf
        if self._files.only_log_removed():
            with suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        raise StoreUnavailable(
            f"{moved} was removed or replaced while it was in use; stop all processes that use {self._path}, and start"
            " them again"
        )

    def _connected(self) -> StoreConnection:
        if self._db is None:
            self._held.clear()
            file = os.path.realpath(self._path)  # beside which SQLite has its log
            db = self._open()
            wait_for(db, self._slice)
            self._files = OpenFiles(file)
            self._next_look = -inf
            self._db = db
        return self._db

    def _open(self) -> StoreConnection:
        db = opened(self._path, self._synchronous, self._busy_timeout, secure_delete=self._secure_delete)
        self._instances.hold()
        return db

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


def _abandoned(where: Where, record: Record, now: int) -> Record | None:
    return step(record, Abandon(*where, record.owner, record.fence), now)[0]


def _entry(where: Where | None, taken: dict[Where, Record | None]) -> Entry | None:
    record = None if where is None else taken[where]
    return None if where is None or record is None else Entry(*where, record)


class _Lost(Exception):
    """The claim is another's by now: whatever was written with it is rolled back."""


# A program that ends without closing its store leaves no lock file behind.
_open: WeakSet[SqliteStore] = WeakSet()


@atexit.register
def _let_go_of_locks() -> None:
    for store in list(_open):
        store.let_go_of_lock()

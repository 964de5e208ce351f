"""The SQLite store is the embedded default. It is one file that threads and processes share. Each commit is durable.

Every batch is one `BEGIN IMMEDIATE` transaction: the store reads the records, judges each operation with
`oncegate.claims.step`, writes the changes and commits. SQLite allows one writer at a time, so these steps are atomic
together. The rules of the protocol are not repeated in SQL.
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
    Admission,
    Admit,
    Claim,
    ClaimProof,
    Complete,
    Forget,
    InFlight,
    Operation,
    Record,
    Redrive,
    Renew,
    Reset,
    Settlement,
    Take,
    Verdict,
    step,
)
from oncegate.clocks import Clock, store_clock
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.instances import instance, instance_of
from oncegate.stores.base import Change, Document, Entry, TakeRequest
from oncegate.stores.entity_order import batch_positions, keep_first_leases, step_at_position
from oncegate.stores.sqlite.connection import (
    BUSY_SLICE,
    FAILURES,
    BoundedLock,
    Checkpointer,
    ConnectionInUse,
    LockAttempt,
    LockTimeout,
    LockWaiter,
    OpenFiles,
    as_store_error,
    damaged,
    is_disk_error,
    open_file,
    overwriting,
    purge,
    set_busy_timeout,
)
from oncegate.stores.sqlite.handler_connection import StoreConnection, is_closed, reset_connection, run_effect
from oncegate.stores.sqlite.instance_locks import InstanceLocks
from oncegate.stores.sqlite.queries import (
    SQL,
    RowKey,
    count_dead_letters,
    find,
    find_busy,
    find_takeable,
    read_document,
    record_of,
    save,
    swap_document,
)
from oncegate.stores.sqlite.settings import check_synchronous
from oncegate.stores.step_store import is_listed

_SWEEP_ROWS: Final = 256
_MAX_CACHED: Final = 20_000
_FILE_CHECK_SECONDS: Final = 0.05
_COUNTED_ROWS: Final = 25
_COUNT_PAUSE: Final = 0.002  # seconds
_START: Final[RowKey] = ("", b"")
_T = TypeVar("_T")
_Work = Callable[[StoreConnection, int], _T]


class SqliteStore:
    fork_order = 0
    transactions_exclude_others = True  # no other connection can write while a handler has a transaction
    _checked_files = 3  # argument of `OpenFiles.find_replaced`

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
        self._synchronous = check_synchronous(synchronous)
        self._busy_timeout = busy_timeout
        self._secure_delete = secure_delete
        self._clock = store_clock(clock)
        self._sweep_position = {"claims": _START, "documents": _START}
        self._rows_to_sweep = {"claims": 0, "documents": 0}
        # A cache of claims in progress that this connection has written: a settlement need not read them from the file.
        # The cache is valid until another connection writes. `PRAGMA data_version` then changes.
        self._in_progress: dict[RowKey, Record] = {}
        self._data_version = 0
        self._closed = False
        self._lock = threading.Lock()
        self._lock_waiter = LockWaiter(busy_timeout)
        self._handler_thread: int | None = None  # the thread whose handler uses the connection
        self._checkpointer = Checkpointer(path, self._synchronous)
        self._instances = InstanceLocks(path)
        self._next_file_check = -inf
        self._db: StoreConnection | None = None
        self._get_connection()
        forks.watch(self)
        _open_stores.add(self)

    # ── claims ────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        return self._transaction(partial(self._apply, requests))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._transaction(partial(self._apply, settlements))

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._transaction(partial(self._apply, leases))

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._transaction(partial(self._apply, requests))

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._transaction(partial(self._apply, requests))

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        return self._transaction(partial(self._forget, requests))

    def _forget(self, requests: Sequence[Forget], db: StoreConnection, now: int) -> list[bool]:
        with overwriting(db):
            return self._apply(requests, db, now)

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        return self._transaction(partial(self._apply, requests, admits=True))

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        return self._transaction(partial(self._apply, operations, admits=True))

    def _apply(
        self, operations: Sequence[Operation], db: StoreConnection, now: int, *, admits: bool = False
    ) -> list[Any]:
        """Judge the operations in order, write the changed records and return the answers."""
        found = self._find(db, operations)
        positions: Iterable[int] = repeat(0)
        if admits and any(isinstance(item, Admit) and item.about.entity is not None for item in operations):
            positions = batch_positions(operations)
            operations = keep_first_leases(operations, partial(find_busy, db))
        current: dict[RowKey, Record | None] = dict(found)
        answers = []
        for operation, position in zip(operations, positions, strict=False):
            address = (operation.namespace, operation.key)
            before = current.get(address)
            judged = step_at_position(before, operation, now, position) if position else step(before, operation, now)
            if type(judged[1]) is InFlight and self._instances.has_ended(judged[1].record.owner):
                judged = step(_abandon_claim(address, judged[1].record, now), operation, now)
            current[address], answer = judged
            answers.append(answer)
        self._sweep(db, "claims", save(db, found, current), now)
        self._cache(current)
        return answers

    def _find(self, db: sqlite3.Connection, operations: Sequence[Operation]) -> dict[RowKey, Record]:
        """Return the records of the operations. Records in a valid cache are not read from the file."""
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            self._in_progress.clear()
        wanted = {(operation.namespace, operation.key): None for operation in operations}
        found = {row: self._in_progress[row] for row in wanted if row in self._in_progress}
        found.update(find(db, [row for row in wanted if row not in found]))
        return found

    def _cache(self, current: dict[RowKey, Record | None]) -> None:
        if len(self._in_progress) > _MAX_CACHED:
            self._in_progress.clear()
        for row, record in current.items():
            if record is not None and record.state == IN_PROGRESS:
                self._in_progress[row] = record
            else:
                self._in_progress.pop(row, None)

    # ── inbox ─────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        if ended := self._instances.newly_ended():
            self._transaction(partial(self._abandon, ended))
            self._instances.mark_freed(ended)
        # Usually no event waits. So look in a read transaction first, which needs no disk write.
        if not self._read(lambda db, now: any(find_takeable(db, wants, now))):
            return [None] * len(wants)
        return self._transaction(partial(self._take, wants))

    def _take(self, wants: Sequence[TakeRequest], db: StoreConnection, now: int) -> list[Entry | None]:
        rows = list(find_takeable(db, wants, now))
        found = find(db, [row for row in rows if row is not None])
        takes = [Take(*row, want.owner, want.lease) for want, row in zip(wants, rows, strict=True) if row]
        taken = {(take.namespace, take.key): step(found[take.namespace, take.key], take, now)[0] for take in takes}
        save(db, found, taken)
        self._cache(taken)
        return [_entry(row, taken) for row in rows]

    def _abandon(self, instances: Sequence[bytes], db: StoreConnection, now: int) -> None:
        """End the leases of the claims with a payload that these ended processes held. A claim without a payload
        becomes free when its event is delivered again. It is not freed here: to find such claims, the store would need
        an index that every claim has to update."""
        for name in instances:
            found = find(db, db.execute(SQL["held by"], (now, name)).fetchall())
            freed = {row: _abandon_claim(row, record, now) for row, record in found.items()}
            save(db, found, freed)
            self._cache(freed)

    def kept(self, namespace: str, limit: int | None = None) -> int:
        statement = SQL["count payloads" if limit is None else "count payloads up to"]
        wanted = (namespace,) if limit is None else (namespace, limit)
        (count,) = self._read(lambda db, _now: db.execute(statement, wanted).fetchone())
        return int(count)

    # ── a handler's transaction ───────────────────────────────────────────────────────────────────────────

    def transact(
        self, held: ClaimProof, effect: Callable[[sqlite3.Connection], Complete], connection: Any = None
    ) -> bool:
        """See `oncegate.stores.base.Transactional`. The write lock of the file blocks all other writers until the
        commit."""
        if connection is not None:
            raise SettingError("SQLite transactions use the store's connection, which the handler gets; pass no other")
        try:
            self._transaction(partial(self._complete_with_effect, held, effect))
        except _ClaimLost:
            return False
        return True

    def _complete_with_effect(
        self, held: ClaimProof, effect: Callable[[sqlite3.Connection], Complete], db: StoreConnection, now: int
    ) -> None:
        row = (held.namespace, held.key)
        found = find(db, [row])
        _step_as_holder(found.get(row), Renew(*row, held.owner, held.fence, 1), now)
        self._handler_thread = threading.get_ident()
        try:
            complete = run_effect(db, effect)
        finally:
            self._handler_thread = None
        record = _step_as_holder(found.get(row), complete, self._advance_clock(db))
        save(db, found, {row: record})
        self._cache({row: record})

    # ── documents ─────────────────────────────────────────────────────────────────────────────────────────

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        return self._read(lambda db, now: [read_document(db, address, now) for address in addresses])

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._transaction(partial(self._swap, changes))

    def _swap(self, changes: Sequence[Change], db: StoreConnection, now: int) -> list[bool]:
        answers = [swap_document(db, change, now) for change in changes]
        self._sweep(db, "documents", sum(answers), now)
        return answers

    # ── lists ─────────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return self._page("browse dead", namespace, after, limit)

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """See `oncegate.stores.base.CountsDeadLetters`. To find a row, SQLite reads the rows beside it with their
        payloads, a few milliseconds for payloads of 1 MB. So the rows are counted in pages, and other threads can use
        the connection between two pages."""
        if namespace is None:
            names = self._read(lambda db, _now: [name for (name,) in db.execute(SQL["namespaces"])])
            count = 0
            for name in names:
                count += self.count_dead_letters(name, limit - count)
            return count
        count, key, is_last = 0, b"", False
        while count < limit and not is_last:
            count_page = partial(count_dead_letters, namespace, key, min(limit - count, _COUNTED_ROWS))
            found, key, is_last = self._read(count_page)
            count += found
            if not is_last:
                time.sleep(_COUNT_PAUSE)  # without a pause, this thread would usually get the lock again
        return count

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

        def find_key(db: StoreConnection, now: int) -> list[Entry]:
            names = [name for (name,) in db.execute(SQL["namespaces"]) if namespace in (None, name)]
            found = find(db, [(name, key) for name in names])
            return [Entry(*row, record) for row, record in sorted(found.items()) if is_listed(row, record, after, now)]

        return self._read(find_key)[:limit]

    def _page(self, statement: str, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
        start = (after.namespace, after.key) if after else (namespace or "", b"")
        wanted = {"namespace": namespace, "after_namespace": start[0], "after_key": start[1], "limit": limit}
        rows = self._read(lambda db, now: db.execute(SQL[statement], wanted | {"now": now}).fetchall())
        return [Entry(row[0], row[1], record_of(row[2:])) for row in rows]

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        return self._lock_waiter.waited(seconds)

    def probe(self, within: int) -> None:
        """See `oncegate.stores.base.CanProbe`. A recent write proves that the store accepts writes. If other threads of
        this process use the connection during the whole check, the check also succeeds: the file is slow, but not
        locked."""
        if self._lock_waiter.has_recent_disk_error:
            raise StoreUnavailable(f"the disk of {self._path} was full or failed in the last seconds; check the disk")
        if not self._lock_waiter.has_recent_write or self._files.find_replaced(2):
            with suppress(ConnectionInUse):
                self._transaction(lambda _db, _now: None, within=within / 2e6)  # writes only the time

    def purge(self, *, rewrite: bool) -> bool:
        """See `oncegate.stores.base.KeepsDeletedData`."""
        return purge(self._path, rewrite=rewrite, busy_timeout=self._busy_timeout)

    def has_ended(self, owner: bytes) -> bool:
        """See `oncegate.stores.base.KnowsEndedProcesses`."""
        return self._instances.has_ended(owner)

    # ── close and fork ────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.release_instance_lock()
            self._disconnect()

    def release_instance_lock(self) -> None:
        """Remove the lock file of this process, unless the process still holds claims. The claims then become free when
        the process ends."""
        if not self._holds_claims():
            self._instances.release()

    def _holds_claims(self) -> bool:
        """Return whether this process is known to hold unsettled claims. The handlers of these claims may still run, so
        other processes must not treat the claims as abandoned before this process ends."""
        own_rows = [row for row, record in self._in_progress.items() if instance_of(record.owner) == instance()]
        if self._db is None:
            return bool(own_rows)
        try:
            found = find(self._db, own_rows).values()  # another connection may have settled these claims
            with_payload = self._db.execute(SQL["held by"], (self._clock(), instance())).fetchone()
        except sqlite3.Error:
            return bool(own_rows)
        return with_payload is not None or any(record.state == IN_PROGRESS for record in found)

    def before_fork(self) -> None:
        """Close the connection, because writes over a connection that two processes share would be lost. The parent and
        the child each open a new connection. If a handler forks inside its transaction, the connection stays open, and
        only the parent can use it."""
        if self._handler_thread == threading.get_ident():
            self._checkpointer.stop()
        else:
            self._lock.acquire()
            try:
                self._disconnect()
            except BaseException:
                self._lock.release()
                raise

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._checkpointer = Checkpointer(self._path, self._synchronous)
            self._instances = InstanceLocks(self._path)
        if self._handler_thread != threading.get_ident():
            self._lock.release()
        elif in_child:
            self._closed = True

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────

    def _transaction(self, work: _Work[_T], *, writes: bool = True, within: float = inf) -> _T:
        """Run `work(db, now)` in one transaction, commit, and return the answer of `work`.

        If another process has the file locked, try again until the timeout. Other threads can use the connection
        between two tries. `within` is the longest wait in seconds, both for the file lock and for the connection. If
        the connection is in use for this time, ConnectionInUse is raised.

        The lock is acquired in this function, not in a context manager that is a generator. An interrupt can leave a
        generator suspended, and the suspended generator would hold the lock as long as the traceback exists."""
        if self._handler_thread == threading.get_ident():
            raise SettingError("a transaction handler cannot use the same store: the call would wait for itself")
        lock = self._lock if within == inf else BoundedLock(self._lock, within)
        attempt = LockAttempt(self._lock_waiter, within)
        while True:
            try:
                with lock:
                    db = self._get_checked_connection()
                    try:
                        now = self._begin_write(db, attempt) if writes else self._begin_read(db, attempt)
                        answer = work(db, now)
                        db.execute("COMMIT")
                        if writes:
                            self._after_commit(db)
                    except BaseException as error:
                        self._roll_back(db)
                        if isinstance(error, FAILURES):
                            raise self._to_store_error(error) from error
                        raise
                    return answer
            except LockTimeout:
                attempt.pause()

    def _read(self, work: _Work[_T]) -> _T:
        """Run `work(db, now)` in a read transaction. All statements of `work` see the same snapshot."""
        return self._transaction(work, writes=False)

    def _begin_write(self, db: StoreConnection, attempt: LockAttempt) -> int:
        attempt.execute(db, "BEGIN IMMEDIATE")
        return self._advance_clock(db)

    def _begin_read(self, db: StoreConnection, attempt: LockAttempt) -> int:
        db.execute("BEGIN")
        return self._clock(self._clock_value(attempt.execute(db, SQL["time"]).fetchone()))

    def _advance_clock(self, db: StoreConnection) -> int:
        """Return the time of this transaction, and write it to the file. So no later transaction gets an earlier
        time."""
        latest = self._clock_value(db.execute(SQL["tick"], (self._clock(),)).fetchone())
        self._clock(latest)
        return latest

    def _clock_value(self, row: tuple[int] | None) -> int:
        if row is None:
            raise damaged(self._path, "the table clock is empty")
        return int(row[0])

    def _after_commit(self, db: StoreConnection) -> None:
        self._check_files(db, 2)
        self._lock_waiter.note_write()
        self._checkpointer.note_rows(db.total_changes)

    def _roll_back(self, db: StoreConnection) -> None:
        """Roll back a transaction that failed or was interrupted, also if a handler was using the connection."""
        self._in_progress.clear()
        reset_connection(db)
        if is_closed(db):
            self._db = None
            return
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _to_store_error(self, error: Exception) -> StoreError:
        if is_disk_error(error):
            self._lock_waiter.note_disk_error()
        return as_store_error(error, self._path)

    # ── the connection ────────────────────────────────────────────────────────────────────────────────────

    def _get_checked_connection(self) -> StoreConnection:
        if self._closed:
            raise StoreRefused(f"the store {self._path} was closed; open it again")
        db = self._get_connection()
        if time.monotonic() >= self._next_file_check:
            self._check_files(db, self._checked_files)
            self._next_file_check = time.monotonic() + _FILE_CHECK_SECONDS
        return db

    def _check_files(self, db: StoreConnection, count: int) -> None:
        """Raise StoreUnavailable if one of the first `count` files was removed or replaced.

        If only the write-ahead log was removed, first copy the log into the database file. The commits in this log were
        acknowledged, and only this process can still read them."""
        replaced = self._files.find_replaced(count)
        if replaced is None:
            return
        self._next_file_check = -inf
        if self._files.can_copy_log():
            with suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        raise StoreUnavailable(
            f"{replaced} was removed or replaced while it was in use; stop all processes that use {self._path}, and"
            " start them again"
        )

    def _get_connection(self) -> StoreConnection:
        if self._db is None:
            self._in_progress.clear()
            file = os.path.realpath(self._path)  # if the path is a link, SQLite puts the log beside its target
            db = self._open()
            set_busy_timeout(db, min(BUSY_SLICE, self._lock_waiter.timeout))
            self._files = OpenFiles(file)
            self._next_file_check = -inf
            self._db = db
        return self._db

    def _open(self) -> StoreConnection:
        db = open_file(self._path, self._synchronous, self._busy_timeout, secure_delete=self._secure_delete)
        self._instances.acquire()
        return db

    def _disconnect(self) -> None:
        self._checkpointer.stop()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _sweep(self, db: sqlite3.Connection, table: str, written: int, now: int) -> None:
        """Check two rows for each row that was written, and delete the expired rows among them. This keeps the expired
        rows fewer than half of the live rows."""
        self._rows_to_sweep[table] += 2 * written
        while self._rows_to_sweep[table] >= _SWEEP_ROWS:
            self._rows_to_sweep[table] -= _SWEEP_ROWS
            start = self._sweep_position[table]
            end = db.execute(SQL[f"{table} stretch"], (*start, _SWEEP_ROWS - 1)).fetchone()
            if end is None:
                db.execute(SQL[f"{table} sweep rest"], (*start, now))
            else:
                db.execute(SQL[f"{table} sweep"], (*start, *end, now))
            self._sweep_position[table] = end or _START


def _abandon_claim(row: RowKey, record: Record, now: int) -> Record | None:
    return step(record, Abandon(*row, record.owner, record.fence), now)[0]


def _step_as_holder(record: Record | None, operation: Renew | Complete, now: int) -> Record | None:
    """Return the record after an operation of the holder of the claim. Raises _ClaimLost if the caller no longer holds
    the claim."""
    after, answer = step(record, operation, now)
    if answer is not True or after is record:
        raise _ClaimLost
    return after


def _entry(row: RowKey | None, taken: dict[RowKey, Record | None]) -> Entry | None:
    record = None if row is None else taken[row]
    return None if row is None or record is None else Entry(*row, record)


class _ClaimLost(Exception):
    """The caller no longer holds the claim. It is raised inside the transaction, so that the writes are rolled back."""


# At exit, remove the lock files of stores that the program did not close.
_open_stores: WeakSet[SqliteStore] = WeakSet()


@atexit.register
def _release_instance_locks() -> None:
    for store in list(_open_stores):
        store.release_instance_lock()

"""The Postgres store keeps claims in one database server. Any number of processes and machines can use it. A write is
durable when the store has answered.

Each batch is one statement. The statement calls a function of store.sql, which applies the claim rules to the whole
batch on the server. The rules therefore exist twice, in store.sql and in `oncegate.claims`. If Python applied the
rules, the row locks would be held during a round trip.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from msgspec.structs import replace
from psycopg.rows import tuple_row

from oncegate.claims import (
    Address,
    Admission,
    Admit,
    Admitted,
    Buried,
    Claim,
    ClaimProof,
    Complete,
    Conflict,
    Duplicate,
    Forget,
    Granted,
    InFlight,
    Redrive,
    Renew,
    Reset,
    Settlement,
    Verdict,
)
from oncegate.clocks import Clock
from oncegate.errors import SettingError, StoreError, StoreUnavailable
from oncegate.stores.base import Change, Document, EffectFailed, Entry, TakeRequest
from oncegate.stores.entity_order import batch_positions, step_at_position
from oncegate.stores.postgres.arrays import (
    address_arrays,
    admission_arrays,
    blobs,
    change_arrays,
    claim_arrays,
    forget_arrays,
    numbers,
    record_of,
    register,
    reset_arrays,
    settlement_arrays,
    split_rounds,
    statements,
)
from oncegate.stores.postgres.connections import Connection, Connections
from oncegate.stores.postgres.errors import first_line, store_error
from oncegate.stores.postgres.schema import prepare
from oncegate.stores.postgres.settings import PostgresSettings
from oncegate.stores.postgres.user_connection import UserTransaction, begin

_SWEEP_ROWS: Final = 512  # rows that one sweep reads
_FIRST_ROW: Final = "(0,0)"
_MAX_TRIES: Final = 20
_VERDICTS: Final[dict[str, type[Verdict | Admission]]] = {
    "A": Admitted,
    "B": Buried,
    "C": Conflict,
    "D": Duplicate,
    "F": InFlight,
    "G": Granted,
}


class PostgresStore:
    remote = True

    def __init__(self, settings: PostgresSettings, *, create: bool = True, clock: Clock | None = None) -> None:
        self._settings = settings
        self._sql = statements(settings.schema)
        self._clock = clock
        self._connections = Connections(settings)
        # Handlers get separate connections. The session settings of a handler then cannot affect the store, and a slow
        # handler does not use up the connections for claims.
        self._handler_connections = Connections(settings)
        self._sweep_position = {"claims": _FIRST_ROW, "documents": _FIRST_ROW}
        self._rows_to_sweep = {"claims": 0, "documents": 0}
        try:
            with self._connections.borrow() as db:
                prepare(db, settings, create=create)
        except BaseException:
            self.close()
            raise

    # ── claims ────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        return self._claim_or_admit("claim", requests, lambda batch, _behind: claim_arrays(batch), [0] * len(requests))

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        """Admit the events, and grant none of them. A grant would need a lock on the entity: without the lock, the
        store cannot know whether other events of the entity wait."""
        ungranted = [replace(request, lease=0) for request in requests]
        return self._claim_or_admit("admit", ungranted, admission_arrays, batch_positions(ungranted))

    def _claim_or_admit(
        self,
        statement: str,
        requests: Sequence[Any],
        arrays_of: Callable[[Sequence[Any], Sequence[int]], Any],
        behind: Sequence[int],
    ) -> list[Any]:
        answers: dict[int, Any] = {}
        with self._connections.borrow() as db:
            for indexes in split_rounds(requests):
                self._answer_round(db, statement, requests, arrays_of, indexes, answers, behind)
        self._sweep("claims", sum(_is_new(answer) for answer in answers.values()))
        return [answers[index] for index in range(len(requests))]

    def _answer_round(
        self,
        db: Connection,
        statement: str,
        requests: Sequence[Any],
        arrays_of: Callable[[Sequence[Any], Sequence[int]], Any],
        indexes: list[int],
        answers: dict[int, Any],
        behind: Sequence[int],
    ) -> None:
        """Add the answers of one round to `answers`. If a record is deleted while the statement runs, its request gets
        no answer and is sent again."""
        for _ in range(_MAX_TRIES):
            batch = [requests[index] for index in indexes]
            arrays = arrays_of(batch, [behind[index] for index in indexes])
            rows = self._execute(db, statement, (self._now(), *arrays))
            if rows[0:1] and rows[0][0] is None:  # all keys were absent, so the requests determine the records
                now = rows[0][2]
                answers.update(
                    (index, step_at_position(None, requests[index], now, behind[index])[1]) for index in indexes
                )
                return
            answers.update((indexes[row[0] - 1], _VERDICTS[row[1]](record_of(row[3:]), row[2])) for row in rows)
            indexes = [index for index in indexes if index not in answers]
            if not indexes:
                return
        raise StoreUnavailable(
            f"records in {self._settings.place} were deleted {_MAX_TRIES} times while they were claimed; retry"
        )

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        taken: list[Entry] = []
        with self._connections.borrow() as db:
            for namespace in sorted({want.namespace for want in wants}):
                group = [want for want in wants if want.namespace == namespace]
                arrays = blobs([want.owner for want in group]), numbers([want.lease for want in group])
                statement = "take in order" if any(want.in_order for want in group) else "take"
                taken += _entries(self._execute(db, statement, (self._now(), namespace, *arrays)))
        return [_pop_taken(want, taken) for want in wants]

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._execute_batch("settle", settlements, settlement_arrays)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._execute_batch("settle", leases, settlement_arrays)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._execute_batch("redrive", requests, address_arrays)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._execute_batch("reset", requests, reset_arrays)

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        return self._execute_batch("forget", requests, forget_arrays)

    def _execute_batch(
        self, statement: str, batch: Sequence[Any], arrays_of: Callable[[Sequence[Any]], Any]
    ) -> list[bool]:
        """Execute a statement for a batch, and return for each item whether the statement accepted the item.

        The statement returns the accepted places."""
        answers = [False] * len(batch)
        with self._connections.borrow() as db:
            for indexes in split_rounds(batch):
                arrays = arrays_of([batch[index] for index in indexes])
                for place in self._execute_round(db, statement, (self._now(), *arrays), len(indexes)):
                    answers[indexes[place - 1]] = True
        return answers

    def _execute_round(self, db: psycopg.Connection[Any], statement: str, values: Any, count: int) -> Sequence[int]:
        """Execute a statement for one round of `count` items, and return the accepted places, counted from 1.

        The statement returns null if it accepted all items."""
        ((places,),) = self._execute(db, statement, values)
        return range(1, count + 1) if places is None else places

    # ── documents ─────────────────────────────────────────────────────────────────────────────────────────

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        if not addresses:
            return []
        with self._connections.borrow() as db:
            rows = self._execute(db, "load", (*address_arrays(addresses), self._now()))
        return [Document() if version is None else Document(version, body) for version, body in rows]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        answers = self._execute_batch("swap", changes, change_arrays)
        self._sweep("documents", sum(answers))
        return answers

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────

    def kept(self, namespace: str, limit: int | None = None) -> int:
        with self._connections.borrow() as db:
            ((count,),) = self._execute(db, "count waiting", (namespace, limit))
        return int(count)

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return self._page("browse dead", namespace, None, after, limit)

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """See `oncegate.stores.base.CountsDeadLetters`."""
        statement = "count all dead letters" if namespace is None else "count dead letters"
        wanted = (self._now(), limit) if namespace is None else (namespace, self._now(), limit)
        with self._connections.borrow() as db:
            ((count,),) = self._execute(db, statement, wanted)
        return int(count)

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        return self._page("browse" if key is None else "browse key", namespace, key, after, limit)

    def _page(
        self, statement: str, namespace: str | None, key: bytes | None, after: Address | None, limit: int
    ) -> list[Entry]:
        parameters = {
            "namespace": namespace,
            "key": key,
            "after_namespace": after.namespace if after else "",
            "after_key": after.key if after else b"",
            "clock": self._now(),
            "limit": limit,
        }
        with self._connections.borrow() as db:
            return _entries(self._execute(db, statement, parameters))

    def probe(self, within: int) -> None:  # noqa: ARG002  # the timeout of the connection bounds the answer
        """See `oncegate.stores.base.CanProbe`."""
        with self._connections.borrow() as db:
            self._execute(db, "probe", ())

    def close(self) -> None:
        self._connections.close()
        self._handler_connections.close()

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────

    def transact(self, held: ClaimProof, effect: Callable[[Any], Complete], connection: Any = None) -> bool:
        """See `oncegate.stores.base.Transactional`. Only the row of the claim stays locked until the commit."""
        if connection is not None:
            return self._transact_on(connection, held, effect)
        with self._handler_connections.borrow() as db:
            ((now,),) = self._execute(db, "tick", (self._now(),))
            db.autocommit = False
            try:
                done = self._transact(db, held, effect, now)
                if done:
                    _commit(db.commit)
            finally:
                with suppress(psycopg.Error):  # if the rollback fails, `borrow` closes the connection
                    db.rollback()
        return done

    def check_connection(self, connection: Any) -> None:
        """See `oncegate.stores.base.JoinsTransactions`."""
        with self._user_transaction(connection):
            pass

    @contextmanager
    def _user_transaction(self, connection: Any) -> Iterator[UserTransaction]:
        try:
            with begin(connection) as transaction:
                yield transaction
        except psycopg.errors.UndefinedTable as error:
            raise SettingError(
                f"the database of the connection has no schema {self._settings.schema} ({first_line(error)});"
                f" pass a connection to {self._settings.place}"
            ) from error
        except psycopg.Error as error:
            raise store_error(error, self._settings.place) from error

    def _transact_on(self, connection: Any, held: ClaimProof, effect: Callable[[Any], Complete]) -> bool:
        with self._connections.borrow() as db:
            ((now,),) = self._execute(db, "tick", (self._now(),))
        with self._user_transaction(connection) as transaction:
            done = self._transact(transaction.driver, held, lambda _: effect(connection), now)
            if done:
                _commit(transaction.commit)
        return done

    def _transact(
        self, db: psycopg.Connection[Any], held: ClaimProof, effect: Callable[[Any], Complete], now: int
    ) -> bool:
        (pledge,) = self._execute(db, "pledge", ())
        if not self._execute(db, "lock claim", (held.namespace, held.key, held.owner or None, held.fence, now)):
            return False
        complete = self._run_effect(db, effect)
        self._redeem(db, pledge)
        return bool(self._execute_round(db, "settle", (self._now(), *settlement_arrays([complete])), 1))

    def _run_effect(self, db: psycopg.Connection[Any], effect: Callable[[Any], Complete]) -> Complete:
        """Run the handler. The statements of the handler have no time limit."""
        if isinstance(db, Connection):
            db.limit = None
        try:
            return effect(db)
        except BaseException as error:
            raise EffectFailed(error) from error
        finally:
            if isinstance(db, Connection):
                db.limit = self._settings.timeout

    def _redeem(self, db: psycopg.Connection[Any], pledge: tuple[int, str]) -> None:
        """Delete the pledge, so that the transaction can commit.

        Raises EffectFailed if the handler ended the transaction that made the pledge, or if a statement of the handler
        failed and the handler ignored the error."""
        try:
            redeemed = self._execute(db, "redeem", pledge)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise
            raise EffectFailed(error) from error  # the failed statement of the handler has aborted the transaction
        if not redeemed:
            raise EffectFailed(RuntimeError("the handler ended the transaction; remove its commit or rollback"))

    # ── statements ────────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()

    def _execute(self, db: psycopg.Connection[Any], statement: str, values: Any) -> list[Any]:
        # db.cursor() is not used: a handler may have changed the cursor and row factories of the connection.
        cursor = psycopg.Cursor(db, row_factory=tuple_row)
        if not isinstance(db, Connection):
            register(cursor.adapters)
        return cursor.execute(self._sql[statement], values, binary=True).fetchall()

    def _sweep(self, table: str, written: int) -> None:
        """Delete expired rows. The sweep reads two rows for each row written, so the number of expired rows stays below
        half of the number of live rows.

        The request of the caller is already complete, so a failed sweep is ignored. There is no lock: threads that
        count at the same time may lose a count or sweep the same rows. The only effect is that slightly fewer rows are
        swept."""
        self._rows_to_sweep[table] += 2 * written
        with suppress(StoreError):
            while self._rows_to_sweep[table] >= _SWEEP_ROWS:
                self._rows_to_sweep[table] -= _SWEEP_ROWS
                with self._connections.borrow() as db:
                    values = (self._now(), self._sweep_position[table], _SWEEP_ROWS)
                    ((self._sweep_position[table],),) = self._execute(db, f"sweep {table}", values)


def _is_new(answer: Verdict | Admission) -> bool:
    """Return whether a row was inserted for this answer. If a reply was lost, the retry gets the same answer, and the
    row may be counted twice."""
    return isinstance(answer, Admitted) or (isinstance(answer, Granted) and answer.record.attempts == 1)


def _entries(rows: list[Any]) -> list[Entry]:
    return [Entry(row[0], row[1], record_of(row[2:])) for row in rows]


def _pop_taken(want: TakeRequest, taken: list[Entry]) -> Entry | None:
    for index, entry in enumerate(taken):
        if (entry.namespace, entry.record.owner) == (want.namespace, want.owner):
            return taken.pop(index)
    return None


def _commit(commit: Callable[[], None]) -> None:
    try:
        commit()
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy wraps the error of the driver
        # A deferred constraint or trigger of the user, or a flush of the SQLAlchemy session, can raise these errors.
        by_effect = isinstance(cause, psycopg.IntegrityError | psycopg.errors.RaiseException)
        if by_effect or not isinstance(cause, psycopg.Error):
            raise EffectFailed(error) from error
        raise cause from error if cause is not error else None

"""The Postgres store: one server, any number of processes and machines, durable when it answers.

Every batch is one statement, a call of a function in store.sql that judges the whole batch where the rows are. The
rules are stated there a second time: judging in Python would hold locks on the rows over a round trip.
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
    addresses,
    admissions_of,
    blobs,
    claims_of,
    flags,
    numbers,
    record_of,
    register,
    rounds,
    settlements_of,
    statements,
)
from oncegate.stores.postgres.connections import Connection, Connections
from oncegate.stores.postgres.errors import explained, line_of
from oncegate.stores.postgres.schema import prepare
from oncegate.stores.postgres.settings import PostgresSettings
from oncegate.stores.postgres.user_connection import UserConnection, begun

_SWEEP: Final = 512
_START: Final = "(0,0)"
_ASKED_AGAIN: Final = 20
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
        # Handlers have connections of their own: what they leave set in a session is theirs to meet again, and
        # however long they take, the claims of others go on.
        self._lent = Connections(settings)
        self._swept = {"claims": _START, "documents": _START}
        self._unswept = {"claims": 0, "documents": 0}
        try:
            with self._connections.borrowed() as db:
                prepare(db, settings, create=create)
        except BaseException:
            self.close()
            raise

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        return self._judged("claim", requests, lambda part, _behind: claims_of(part), [0] * len(requests))

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        """Nothing is granted: whether an entity has something kept would take a lock on it, as when it is taken."""
        asked = [replace(request, lease=0) for request in requests]
        return self._judged("admit", asked, admissions_of, batch_positions(asked))

    def _judged(
        self,
        statement: str,
        requests: Sequence[Any],
        arrays_of: Callable[[Sequence[Any], Sequence[int]], Any],
        behind: Sequence[int],
    ) -> list[Any]:
        answers: dict[int, Any] = {}
        with self._connections.borrowed() as db:
            for part in rounds(requests):
                self._judge(db, statement, requests, arrays_of, part, answers, behind)
        self._sweep("claims", sum(_is_new(answer) for answer in answers.values()))
        return [answers[place] for place in range(len(requests))]

    def _judge(
        self,
        db: Connection,
        statement: str,
        requests: Sequence[Any],
        arrays_of: Callable[[Sequence[Any], Sequence[int]], Any],
        part: list[int],
        answers: dict[int, Any],
        behind: Sequence[int],
    ) -> None:
        """Have a part of a batch judged. A record can be gone between two looks at it, and then it is asked again."""
        for _ in range(_ASKED_AGAIN):
            batch = [requests[place] for place in part]
            rows = self._ask(db, statement, (self._now(), *arrays_of(batch, [behind[place] for place in part])))
            if rows[0:1] and rows[0][0] is None:  # all were absent, so their records are known without reading them
                at = rows[0][2]
                answers.update((place, step_at_position(None, requests[place], at, behind[place])[1]) for place in part)
                return
            answers.update((part[row[0] - 1], _VERDICTS[row[1]](record_of(row[3:]), row[2])) for row in rows)
            part = [place for place in part if place not in answers]
            if not part:
                return
        raise StoreUnavailable(f"records in {self._settings.place} kept vanishing while they were claimed; try again")

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._settle(settlements)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._settle(leases)

    def _settle(self, batch: Sequence[Settlement | Renew]) -> list[bool]:
        return self._accepted("settle", batch, settlements_of)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._accepted("redrive", requests, addresses)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._accepted("forget", requests, _resets_of)

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        answers = self._accepted("swap", changes, _changes_of)
        self._sweep("documents", sum(answers))
        return answers

    def _accepted(self, statement: str, batch: Sequence[Any], arrays_of: Callable[[Sequence[Any]], Any]) -> list[bool]:
        """Whether each of a batch was accepted, by a function that answers with the places where it was."""
        answers = [False] * len(batch)
        with self._connections.borrowed() as db:
            for part in rounds(batch):
                arrays = arrays_of([batch[place] for place in part])
                for place in self._places(db, statement, (self._now(), *arrays), len(part)):
                    answers[part[place - 1]] = True
        return answers

    def _places(self, db: psycopg.Connection[Any], statement: str, values: Any, count: int) -> Sequence[int]:
        ((places,),) = self._ask(db, statement, values)
        return range(1, count + 1) if places is None else places

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        taken: list[Entry] = []
        with self._connections.borrowed() as db:
            for name in sorted({want.namespace for want in wants}):
                mine = [want for want in wants if want.namespace == name]
                given = blobs([want.owner for want in mine]), numbers([want.lease for want in mine])
                in_order = any(want.in_order for want in mine)
                rows = self._ask(db, "take in order" if in_order else "take", (self._now(), name, *given))
                taken += [Entry(row[0], row[1], record_of(row[2:])) for row in rows]
        return [_taken_by(want, taken) for want in wants]

    def kept(self, namespace: str) -> int:
        with self._connections.borrowed() as db:
            ((count,),) = self._ask(db, "kept", (namespace,))
        return int(count)

    def load(self, addresses_: Sequence[Address]) -> list[Document]:
        if not addresses_:
            return []
        with self._connections.borrowed() as db:
            rows = self._ask(db, "load", (*addresses(addresses_), self._now()))
        return [Document() if version is None else Document(version, body) for version, body in rows]

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return self._page("browse dead", namespace, None, after, limit)

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
        wanted = {
            "namespace": namespace,
            "key": key,
            "after_namespace": after.namespace if after else "",
            "after_key": after.key if after else b"",
            "clock": self._now(),
            "limit": limit,
        }
        with self._connections.borrowed() as db:
            rows = self._ask(db, statement, wanted)
        return [Entry(row[0], row[1], record_of(row[2:])) for row in rows]

    def probe(self, within: int) -> None:  # noqa: ARG002  # an answer takes no longer than the timeout
        """See `oncegate.stores.base.Probed`."""
        with self._connections.borrowed() as db:
            self._ask(db, "probe", ())

    def close(self) -> None:
        self._connections.close()
        self._lent.close()

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────

    def transact(self, held: ClaimProof, effect: Callable[[Any], Complete], connection: Any = None) -> bool:
        """See `oncegate.stores.base.Transactional`. The claim's row stays locked until the commit, and no other."""
        if connection is not None:
            return self._transact_on(connection, held, effect)
        with self._lent.borrowed() as db:
            ((now,),) = self._ask(db, "time", (self._now(),))
            db.autocommit = False
            try:
                done = self._transact(db, held, effect, now)
                if done:
                    _commit(db)
            finally:
                _roll_back(db)
        return done

    def check_connection(self, connection: Any) -> None:
        """See `oncegate.stores.base.Joining`."""
        with self._own(connection):
            pass

    @contextmanager
    def _own(self, connection: Any) -> Iterator[UserConnection]:
        try:
            with begun(connection) as own:
                yield own
        except psycopg.errors.UndefinedTable as error:
            raise SettingError(
                f"the connection is to a database without the schema {self._settings.schema} of the store"
                f" ({line_of(error)}); connect it to {self._settings.place}"
            ) from error
        except psycopg.Error as error:
            raise explained(error, self._settings.place) from error

    def _transact_on(self, connection: Any, held: ClaimProof, effect: Callable[[Any], Complete]) -> bool:
        """The same on a connection of the user's own, to the database that has the store."""
        with self._connections.borrowed() as db:
            ((now,),) = self._ask(db, "time", (self._now(),))
        with self._own(connection) as own:
            done = self._transact(own.driver, held, lambda _: effect(connection), now)
            if done:
                _commit(own)
        return done

    def _transact(
        self, db: psycopg.Connection[Any], held: ClaimProof, effect: Callable[[Any], Complete], now: int
    ) -> bool:
        (pledge,) = self._ask(db, "pledge", ())
        if not self._ask(db, "held", (held.namespace, held.key, held.owner or None, held.fence, now)):
            return False
        complete = self._effected(db, effect)
        self._redeem(db, pledge)
        return bool(self._places(db, "settle", (self._now(), *settlements_of([complete])), 1))

    def _effected(self, db: psycopg.Connection[Any], effect: Callable[[Any], Complete]) -> Complete:
        """Run the user's effect, for as long as it takes."""
        with self._unlimited(db):
            try:
                return effect(db)
            except BaseException as error:
                raise EffectFailed(error) from error

    @contextmanager
    def _unlimited(self, db: psycopg.Connection[Any]) -> Iterator[None]:
        if not isinstance(db, Connection):
            yield
            return
        db.limit = None
        try:
            yield
        finally:
            db.limit = self._settings.timeout

    def _redeem(self, db: psycopg.Connection[Any], pledge: tuple[int, str]) -> None:
        """The transaction may be committed now, if it still is the one that was begun."""
        try:
            redeemed = self._ask(db, "redeem", pledge)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise
            raise EffectFailed(error) from error  # a statement has failed, and the handler has overlooked it
        if not redeemed:
            raise EffectFailed(RuntimeError("the transaction was ended while the handler ran"))

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()

    def _ask(self, db: psycopg.Connection[Any], statement: str, values: Any) -> list[Any]:
        # A cursor of our own making: handlers may have changed what the connection makes.
        cursor = psycopg.Cursor(db, row_factory=tuple_row)
        if not isinstance(db, Connection):
            register(cursor.adapters)
        return cursor.execute(self._sql[statement], values, binary=True).fetchall()

    def _sweep(self, table: str, written: int) -> None:
        """Visit two rows for each one written, so that the expired ones stay fewer than half of the living. What was
        asked is done and answered by now, so a sweep that fails is left for later. There is no lock: of threads that
        count at once one may lose its count, or both visit the same rows, and a little less is swept."""
        self._unswept[table] += 2 * written
        with suppress(StoreError):
            while self._unswept[table] >= _SWEEP:
                self._unswept[table] -= _SWEEP
                with self._connections.borrowed() as db:
                    asked = (self._now(), self._swept[table], _SWEEP)
                    ((self._swept[table],),) = self._ask(db, f"sweep {table}", asked)


def _is_new(verdict: Verdict | Admission) -> bool:
    """Whether a row was written for it, or nearly: the copy of a request whose reply was lost may count twice."""
    return isinstance(verdict, Admitted) or (isinstance(verdict, Granted) and verdict.record.attempts == 1)


def _resets_of(batch: Sequence[Reset]) -> tuple[Any, ...]:
    return *addresses(batch), flags([reset.only_dead for reset in batch])


def _changes_of(batch: Sequence[Change]) -> tuple[Any, ...]:
    return (
        *addresses(batch),
        numbers([change.version for change in batch]),
        blobs([change.body for change in batch]),
        numbers([change.retention for change in batch]),
    )


def _taken_by(want: TakeRequest, taken: list[Entry]) -> Entry | None:
    for place, entry in enumerate(taken):
        if (entry.namespace, entry.record.owner) == (want.namespace, want.owner):
            return taken.pop(place)
    return None


def _commit(transaction: Connection | UserConnection) -> None:
    try:
        transaction.commit()
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy wraps what the driver raised
        checked = isinstance(cause, psycopg.IntegrityError | psycopg.errors.RaiseException)
        if checked or not isinstance(cause, psycopg.Error):
            raise EffectFailed(error) from error  # a constraint of the user's that is checked at the end, or a flush
        raise cause from error if cause is not error else None


def _roll_back(db: Connection) -> None:
    """A connection that cannot be rolled back is closed when it is given back."""
    with suppress(psycopg.Error):
        db.rollback()

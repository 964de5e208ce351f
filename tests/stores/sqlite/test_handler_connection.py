"""The connection of a transaction handler on SQLite: what the handler may do, and what remains afterwards."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.stores.sqlite import SqliteStore, handler_connection


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"))
    store._get_connection().execute("CREATE TABLE effects (event TEXT UNIQUE)")
    yield store
    store.close()


def effects(store: SqliteStore) -> list[str]:
    return [name for (name,) in store._get_connection().execute("SELECT event FROM effects ORDER BY event")]


def write(event: Event, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO effects VALUES (?)", (event.id,))


LATE = "INSERT INTO effects VALUES (?)"
WRITES: dict[str, Callable[[sqlite3.Connection, sqlite3.Cursor], Any]] = {
    "execute": lambda connection, cursor: connection.execute(LATE, ("late",)),
    "another statement": lambda connection, cursor: connection.execute("INSERT INTO effects VALUES ('late')"),
    "executemany": lambda connection, cursor: connection.executemany(LATE, [("late",)]),
    "executescript": lambda connection, cursor: connection.executescript("INSERT INTO effects VALUES ('late')"),
    "cursor": lambda connection, cursor: cursor.execute(LATE, ("late",)),
    "cursor, many": lambda connection, cursor: cursor.executemany(LATE, [("late",)]),
    "cursor, script": lambda connection, cursor: cursor.executescript("INSERT INTO effects VALUES ('late')"),
    "half of many": lambda connection, cursor: connection.executemany(LATE, rolling_back(connection)),
    "a cursor of its own": lambda connection, cursor: sqlite3.Cursor(connection).execute("DELETE FROM others"),
    "blob": lambda connection, cursor: connection.blobopen("others", "thing", 1).write(b"late"),
}


def roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO others VALUES (1, 'another')")


def rolling_back(connection: sqlite3.Connection) -> Iterator[tuple[str]]:
    yield ("early",)
    roll_back(connection)
    yield ("late",)


class TestRolledBack:
    @pytest.fixture(autouse=True)
    def others(self, store: SqliteStore) -> None:
        store._get_connection().execute("CREATE TABLE others (number INTEGER PRIMARY KEY, thing TEXT)")
        store._get_connection().execute("INSERT INTO others VALUES (1, 'thing')")

    @pytest.mark.parametrize("write_late", WRITES.values(), ids=WRITES)
    def test_nothing_is_written_after(self, store: SqliteStore, write_late: Callable[..., Any]) -> None:
        """After SQLite has rolled the transaction back by itself, the handler cannot write by any method."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            cursor = connection.cursor()
            cursor.execute(LATE, (event.id,))
            if write_late is not WRITES["half of many"]:
                roll_back(connection)
            with pytest.raises(sqlite3.DatabaseError):
                write_late(connection, cursor)

        outcome = Gate(store).transaction({"id": "a"}, handler)
        assert outcome.status == "failed"
        assert "SQLite has rolled the transaction back" in (outcome.error or "")
        assert effects(store) == []
        assert store._get_connection().execute("SELECT * FROM others").fetchall() == [(1, "thing")]

    def test_a_constraint_that_rolls_back(self, store: SqliteStore) -> None:
        """A handler that ignores the error of a ROLLBACK constraint and goes on fails with that reason."""
        store._get_connection().execute("CREATE TABLE seats (number INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
        store._get_connection().execute("INSERT INTO seats VALUES (1)")

        def book(event: Event, connection: sqlite3.Connection) -> None:
            try:
                connection.execute("INSERT INTO seats VALUES (1)")
            except sqlite3.IntegrityError:
                write(event, connection)

        outcomes = [Gate(store).transaction({"id": "a"}, book) for _ in range(2)]
        assert {outcome.status for outcome in outcomes} == {"failed"}
        assert (outcomes[0].error or "").startswith("ProgrammingError: SQLite has rolled the transaction back")
        assert effects(store) == []

    def test_kept_cursors(self, store: SqliteStore) -> None:
        """A cursor that a handler has kept cannot be used after its transaction."""
        kept: list[sqlite3.Cursor] = []
        Gate(store).transaction({"id": "a"}, lambda event, connection: kept.append(connection.cursor()))
        with pytest.raises(sqlite3.ProgrammingError, match="the transaction is over"):
            kept[0].execute(LATE, ("late",))
        assert effects(store) == []


REFUSED = {
    "COMMIT": "a handler cannot run COMMIT: the store commits the handler's writes with the completion",
    "END": "a handler cannot run COMMIT",
    "ROLLBACK": "a handler cannot run ROLLBACK",
    "DELETE FROM claims": "claims is a table of the store",
    "UPDATE clock SET high = 0": "clock is a table of the store",
    "DROP TABLE documents": "documents is a table of the store",
    "ALTER TABLE claims ADD COLUMN mine": "claims is a table of the store",
    "CREATE TEMP TABLE Claims (key)": "Claims is a table of the store",
    "CREATE INDEX mine ON claims (state)": "claims is a table of the store",
    "CREATE TRIGGER mine AFTER INSERT ON claims BEGIN SELECT 1; END": "claims is a table of the store",
    "PRAGMA query_only = 1": "a handler cannot run PRAGMA query_only = 1",
    "PRAGMA Foreign_Keys(ON)": "a handler cannot run PRAGMA Foreign_Keys = ON",
    "ATTACH ':memory:' AS other": "a handler cannot run ATTACH or DETACH",
}
ALLOWED = [
    "PRAGMA table_info(claims)",
    "PRAGMA user_version",
    "PRAGMA defer_foreign_keys = ON",
    "SELECT count(*) FROM claims",
    "SELECT name FROM pragma_table_info('claims')",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT max(i) FROM n",
    "CREATE TABLE mine (clock, claims)",
    "SAVEPOINT mine",
]


def _with(connection: sqlite3.Connection) -> None:
    with connection:
        pass


CALLS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "a handler cannot run COMMIT": lambda connection: connection.commit(),
    "a handler cannot run ROLLBACK": lambda connection: connection.rollback(),
    "`with connection:` would commit": _with,
    "executescript() would commit first": lambda connection: connection.executescript("SELECT 1"),
    "a handler cannot set the authorizer": lambda connection: connection.set_authorizer(None),
    "claims is a table of the store": lambda connection: connection.blobopen("claims", "key", 1),
    "a handler cannot call deserialize()": lambda connection: connection.deserialize(b""),
    "cursor() takes no factory in a handler": lambda connection: connection.cursor(sqlite3.Cursor),
}


class TestPermissions:
    @pytest.mark.parametrize(("statement", "reason"), REFUSED.items())
    def test_refused_statements(self, store: SqliteStore, statement: str, reason: str) -> None:
        """A handler can neither end the transaction nor change tables or settings of the store; the error says why."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            write(event, connection)
            connection.execute(statement)

        outcome = Gate(store).transaction({"id": "a"}, handler)
        assert (outcome.error or "").startswith(f"DatabaseError: {reason}")
        assert effects(store) == []
        assert Gate(store).transaction({"id": "a"}, write).status == "processed"

    @pytest.mark.parametrize(("reason", "call"), CALLS.items(), ids=CALLS)
    def test_refused_methods(self, store: SqliteStore, reason: str, call: Callable[[sqlite3.Connection], Any]) -> None:
        """The methods of the connection do not allow it either."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            write(event, connection)
            call(connection)

        assert f"Error: {reason}" in (Gate(store).transaction({"id": "a"}, handler).error or "")
        assert effects(store) == []

    @pytest.mark.parametrize("statement", ALLOWED)
    def test_allowed_statements(self, store: SqliteStore, statement: str) -> None:
        """A handler may read everything, also settings, and may create its own tables, columns and savepoints."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            connection.execute(statement).fetchall()
            write(event, connection)

        assert Gate(store).transaction({"id": "a"}, handler).status == "processed"
        assert effects(store) == ["a"]

    @pytest.mark.parametrize("fails", [False, True])
    def test_settings_are_reset(self, store: SqliteStore, fails: bool) -> None:
        """Settings that a handler makes on the connection work in the handler, and are then reset."""

        def handler(event: Event, connection: sqlite3.Connection) -> list[Any]:
            connection.row_factory = lambda cursor, row: {"row": row}
            connection.text_factory = bytes
            connection.isolation_level = None
            connection.isolation_level = "IMMEDIATE"
            write(event, connection)
            rows = connection.execute("SELECT event FROM effects").fetchall()
            connection.set_progress_handler(lambda: True, 1)
            if fails:
                raise ValueError(rows)
            return [row["row"][0].decode() for row in rows]

        gate = Gate(store, remember=None)
        outcome = gate.transaction({"id": "a"}, handler)
        assert outcome.result == (None if fails else ["a"])
        assert effects(store) == ([] if fails else ["a"])
        assert store._get_connection().isolation_level is None
        statuses = [gate.run({"id": "b"}, lambda event: None).status for _ in range(2)]
        assert statuses == ["processed", "duplicate"]

    def test_an_interrupt_during_the_reset(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the reset of the connection is interrupted, the transaction is rolled back and the connection is reset."""

        def interrupted(db: sqlite3.Connection) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(handler_connection, "reset_connection", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Gate(store).transaction({"id": "a"}, write)
        assert not store._get_connection().in_transaction
        assert Gate(store).transaction({"id": "b"}, write).status == "processed"
        assert effects(store) == ["b"]

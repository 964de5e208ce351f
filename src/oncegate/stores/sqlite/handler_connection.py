"""Lending: the store's connection while a handler has it. What it writes is part of the transaction, or is refused."""

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NoReturn

from oncegate.claims import Complete
from oncegate.stores.base import EffectFailed

_TABLES: Final = frozenset({"claims", "documents", "clock"})
_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_HARMLESS: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_SAVEPOINT,
    }
)
# Those whose value says what to look at. One that lasts no longer than the transaction is among them.
_ASKING: Final = frozenset(
    {
        "defer_foreign_keys",
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
_ENDS: Final = "what a handler writes is committed with the completion when it returns, and rolled back if it raises"
_ROLLED_BACK: Final = (
    "SQLite has rolled the transaction back, as a ROLLBACK constraint or trigger has it do; nothing more can be written"
)
_OVER: Final = "the transaction is over; a handler's connection and cursors are its own only while it runs"


class StoreConnection(sqlite3.Connection):
    """The connection in the hands of the store, which pays nothing for what is checked while it is lent."""


class HandlerCursor(sqlite3.Cursor):
    """A cursor that runs statements within the transaction or not at all."""

    def execute(self, sql: str, parameters: Any = (), /) -> "HandlerCursor":
        return self._within(super().execute, sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> "HandlerCursor":
        return self._within(super().executemany, sql, (_open(self.connection) and row for row in rows))

    def executescript(self, _script: str, /) -> NoReturn:
        raise sqlite3.ProgrammingError(
            f"executescript() would commit first, but {_ENDS}: run its statements one by one, with execute()"
        )

    def _within(self, ask: Callable[..., Any], *arguments: Any) -> "HandlerCursor":
        _open(self.connection)
        try:
            ask(*arguments)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
                error.args = (self.connection.__dict__.get("refusal", str(error)),)
            raise
        return self


class HandlerConnection(StoreConnection):
    """The connection in the hands of a handler."""

    # They tell Python when to begin a transaction by itself, and to set them may commit the one that there is. Here
    # they are mere attributes, which can be set, to no effect, and are gone when the connection is given back.
    isolation_level = None
    autocommit = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)

    def cursor(self, factory: Any = HandlerCursor) -> HandlerCursor:  # type: ignore[override]  # no other is given
        if factory is not HandlerCursor:
            raise sqlite3.ProgrammingError("a handler's cursors are those of connection.cursor(), without a factory")
        return super().cursor(HandlerCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> HandlerCursor:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> HandlerCursor:
        return self.cursor().executemany(sql, rows)

    def executescript(self, script: str, /) -> NoReturn:
        self.cursor().executescript(script)

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def __enter__(self) -> NoReturn:
        raise sqlite3.ProgrammingError(f"`with connection:` would commit, but {_ENDS}: leave it out")

    def set_authorizer(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise sqlite3.ProgrammingError("the authorizer of the connection is what keeps the transaction whole")

    def blobopen(self, table: str, *arguments: Any, **named: Any) -> Any:
        if _open(self) and table.lower() in _TABLES:  # the authorizer is not asked about blobs
            raise sqlite3.ProgrammingError(_own_table(table))
        return super().blobopen(table, *arguments, **named)

    def deserialize(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise sqlite3.ProgrammingError("deserialize() would put another database in the place of the store")


def lend(db: StoreConnection, effect: Callable[[sqlite3.Connection], Complete]) -> Complete:
    """Run the user's effect where it can neither end the transaction, nor write after it or to the store's tables."""
    try:
        db.set_authorizer(partial(_authorize, db))
        db.__class__ = HandlerConnection
        complete = effect(db)
    except BaseException as error:
        raise EffectFailed(error) from error
    finally:
        take_back(db)
    if is_closed(db):
        raise EffectFailed(RuntimeError("the handler closed the connection"))
    if not db.in_transaction:  # and the handler has overlooked it
        raise EffectFailed(RuntimeError(_ROLLED_BACK))
    return complete


def take_back(db: StoreConnection) -> None:
    """What a handler has set on the connection for itself must not change what the store reads with it."""
    db.__class__ = StoreConnection
    db.__dict__.clear()
    db.row_factory = None
    db.text_factory = str
    if not is_closed(db):
        db.set_progress_handler(None, 1)
        db.set_authorizer(None)


def _open(db: sqlite3.Connection) -> bool:
    """True, as long as the transaction that a handler was given the connection for is open."""
    if not isinstance(db, HandlerConnection):
        raise sqlite3.ProgrammingError(_OVER)
    if not db.in_transaction:
        raise sqlite3.ProgrammingError(_ROLLED_BACK)
    return True


def is_closed(db: sqlite3.Connection) -> bool:
    try:
        db.total_changes  # noqa: B018  # asking is what tells
    except sqlite3.ProgrammingError:
        return True
    return False


def _authorize(db: StoreConnection, action: int, one: str | None, two: str | None, *_where: str | None) -> int:
    """Asked by SQLite for each thing that a statement would do, when it is prepared."""
    refusal = _refusal(action, one or "", two) if db.in_transaction else _ROLLED_BACK
    if refusal is None:
        return sqlite3.SQLITE_OK
    db.__dict__["refusal"] = refusal
    return sqlite3.SQLITE_DENY


def _refusal(action: int, one: str, two: str | None) -> str | None:
    """Why a handler may not do this; None if it may."""
    if action in _HARMLESS:
        return None
    if action == sqlite3.SQLITE_TRANSACTION:
        return f"{one} is not for a handler: {_ENDS}"
    if action == sqlite3.SQLITE_PRAGMA:
        return _refused_pragma(one, two)
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return "ATTACH and DETACH are not for a handler: what is written to another file is not committed together"
    for name in (one,) if action in _WRITES else (one, two or ""):
        if name.lower() in _TABLES:
            return _own_table(name)
    return None


def _own_table(name: str) -> str:
    return f"{name} is the store's own table: a handler may read it, and must keep what is its own in others"


def _refused_pragma(name: str, value: str | None) -> str | None:
    if value is None or name.lower() in _ASKING:
        return None
    return (
        f"PRAGMA {name} = {value} is not for a handler: on the store's own connection it would outlast the transaction"
    )

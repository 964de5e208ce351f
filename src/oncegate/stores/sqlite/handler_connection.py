"""Protect the store's connection while a handler uses it. The writes of the handler become part of the transaction, or
are refused."""

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NoReturn

from oncegate.claims import Complete
from oncegate.stores.base import EffectFailed

_STORE_TABLES: Final = frozenset({"claims", "documents", "clock"})
_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_ALLOWED: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_SAVEPOINT,
    }
)
# Pragmas to which a handler may pass a value. The value only selects what to read, or the effect of the pragma ends
# with the transaction.
_READING_PRAGMAS: Final = frozenset(
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
_COMMIT_RULE: Final = (
    "the store commits the handler's writes with the completion when the handler returns, and rolls them back when"
    " it raises"
)
_ROLLED_BACK: Final = (
    "SQLite has rolled the transaction back, because of a ROLLBACK constraint or trigger; the handler can write no more"
)
_TRANSACTION_ENDED: Final = "the transaction is over; use the connection and its cursors only while the handler runs"


class StoreConnection(sqlite3.Connection):
    """The class of the connection while the store uses it. It has none of the checks of HandlerConnection, so the
    checks do not slow down the store."""


class HandlerCursor(sqlite3.Cursor):
    """A cursor that executes statements only while the transaction of the handler is open."""

    def execute(self, sql: str, parameters: Any = (), /) -> "HandlerCursor":
        return self._run(super().execute, sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> "HandlerCursor":
        return self._run(super().executemany, sql, (_check_open(self.connection) and row for row in rows))

    def executescript(self, _script: str, /) -> NoReturn:
        raise sqlite3.ProgrammingError(
            f"executescript() would commit first, but {_COMMIT_RULE}: run its statements one by one with execute()"
        )

    def _run(self, execute: Callable[..., Any], *arguments: Any) -> "HandlerCursor":
        _check_open(self.connection)
        try:
            execute(*arguments)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
                error.args = (self.connection.__dict__.get("refusal", str(error)),)
            raise
        return self


class HandlerConnection(StoreConnection):
    """The class of the connection while a handler uses it."""

    # In sqlite3.Connection, these two attributes control when Python begins a transaction. Setting them may commit the
    # open transaction. Here they are plain attributes: setting them has no effect, and `reset_connection` removes the
    # values.
    isolation_level = None
    autocommit = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)

    def cursor(self, factory: Any = HandlerCursor) -> HandlerCursor:  # type: ignore[override]  # no other factory
        if factory is not HandlerCursor:
            raise sqlite3.ProgrammingError("cursor() takes no factory in a handler; call connection.cursor()")
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
        raise sqlite3.ProgrammingError(f"`with connection:` would commit, but {_COMMIT_RULE}: remove the `with`")

    def set_authorizer(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise sqlite3.ProgrammingError("a handler cannot set the authorizer: it protects the transaction")

    def blobopen(self, table: str, *arguments: Any, **named: Any) -> Any:
        if _check_open(self) and table.lower() in _STORE_TABLES:  # SQLite does not call the authorizer for blobs
            raise sqlite3.ProgrammingError(_store_table_refusal(table))
        return super().blobopen(table, *arguments, **named)

    def deserialize(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise sqlite3.ProgrammingError("a handler cannot call deserialize(): it would replace the store's database")


def run_effect(db: StoreConnection, effect: Callable[[sqlite3.Connection], Complete]) -> Complete:
    """Run the effect of the user and return its completion. The effect cannot end the transaction, cannot write after
    the end of the transaction, and cannot write to the tables of the store. Raises EffectFailed if the effect raises
    any exception."""
    try:
        db.set_authorizer(partial(_authorize, db))
        db.__class__ = HandlerConnection
        complete = effect(db)
    except BaseException as error:
        raise EffectFailed(error) from error
    finally:
        reset_connection(db)
    if is_closed(db):
        raise EffectFailed(RuntimeError("the handler closed the connection; leave it open"))
    if not db.in_transaction:  # the handler ignored the error that rolled the transaction back
        raise EffectFailed(RuntimeError(_ROLLED_BACK))
    return complete


def reset_connection(db: StoreConnection) -> None:
    """Remove all settings that a handler made on the connection. They must not change what the store reads."""
    db.__class__ = StoreConnection
    db.__dict__.clear()
    db.row_factory = None
    db.text_factory = str
    if not is_closed(db):
        db.set_progress_handler(None, 1)
        db.set_authorizer(None)


def _check_open(db: sqlite3.Connection) -> bool:
    """Return True if the transaction of the handler is open. Otherwise raise ProgrammingError."""
    if not isinstance(db, HandlerConnection):
        raise sqlite3.ProgrammingError(_TRANSACTION_ENDED)
    if not db.in_transaction:
        raise sqlite3.ProgrammingError(_ROLLED_BACK)
    return True


def is_closed(db: sqlite3.Connection) -> bool:
    try:
        db.total_changes  # noqa: B018  # raises if the connection is closed
    except sqlite3.ProgrammingError:
        return True
    return False


def _authorize(db: StoreConnection, action: int, one: str | None, two: str | None, *_where: str | None) -> int:
    """Allow or deny an action of a statement. SQLite calls this function for each action while it prepares a
    statement."""
    refusal = _refusal_reason(action, one or "", two) if db.in_transaction else _ROLLED_BACK
    if refusal is None:
        return sqlite3.SQLITE_OK
    db.__dict__["refusal"] = refusal
    return sqlite3.SQLITE_DENY


def _refusal_reason(action: int, one: str, two: str | None) -> str | None:
    """Return why a handler may not execute this action, or None if the action is allowed."""
    if action in _ALLOWED:
        return None
    if action == sqlite3.SQLITE_TRANSACTION:
        return f"a handler cannot run {one}: {_COMMIT_RULE}"
    if action == sqlite3.SQLITE_PRAGMA:
        return _pragma_refusal(one, two)
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return "a handler cannot run ATTACH or DETACH: writes to another file are not committed with the completion"
    for name in (one,) if action in _WRITES else (one, two or ""):
        if name.lower() in _STORE_TABLES:
            return _store_table_refusal(name)
    return None


def _store_table_refusal(name: str) -> str:
    return f"{name} is a table of the store: a handler may read it, but must write to its own tables"


def _pragma_refusal(name: str, value: str | None) -> str | None:
    if value is None or name.lower() in _READING_PRAGMAS:
        return None
    return (
        f"a handler cannot run PRAGMA {name} = {value}: the setting would stay on the store's connection after the"
        " transaction"
    )

"""Users' own connections: psycopg's, or a session or connection of SQLAlchemy on it, for a transaction of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from oncegate.errors import SettingError

_BUSY: Final = "the connection is in a transaction already; commit or roll it back before, since this one commits it"


class Own:
    """A transaction on a connection that is not ours: `driver` is psycopg's, `commit` and `roll_back` are the owner's,
    so that it knows what became of it."""

    def __init__(self, driver: psycopg.Connection[Any], owner: Any) -> None:
        self.driver = driver
        self.commit = owner.commit
        self.roll_back = owner.rollback


@contextmanager
def begun(connection: Any) -> Iterator[Own]:
    """Begin a transaction; it is rolled back unless it was committed."""
    if isinstance(connection, psycopg.Connection):
        with _begun_by_psycopg(connection) as own:
            yield own
        return
    if not hasattr(connection, "in_transaction") or not hasattr(connection, "rollback"):
        raise SettingError(
            f"connection={connection!r} is none to Postgres; give psycopg's, or a session or connection of SQLAlchemy"
        )
    if connection.in_transaction():
        raise SettingError(_BUSY)
    try:
        yield Own(_driver(connection), connection)
    finally:
        connection.rollback()


@contextmanager
def _begun_by_psycopg(connection: psycopg.Connection[Any]) -> Iterator[Own]:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise SettingError(_BUSY)
    automatic = connection.autocommit
    connection.autocommit = False
    try:
        yield Own(connection, connection)
    finally:
        connection.rollback()
        connection.autocommit = automatic


def _driver(connection: Any) -> psycopg.Connection[Any]:
    """psycopg's connection under SQLAlchemy's; asking a session for its connection begins a transaction."""
    under = connection.connection() if callable(connection.connection) else _begun(connection)
    driver = under.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise SettingError(f"SQLAlchemy connects by {type(driver).__module__}; use postgresql+psycopg:// there")
    return driver


def _begun(connection: Any) -> Any:
    connection.begin()
    return connection

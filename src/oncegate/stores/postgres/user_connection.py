"""Users' own connections: psycopg's, or a session or connection of SQLAlchemy on it, for a transaction of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from oncegate.errors import SettingError

_BUSY: Final = "the connection is in a transaction already; commit or roll it back before, since this one commits it"
_CLOSED: Final = "the connection is closed; give one that is open"
_COMMITTING: Final = "the connection of SQLAlchemy commits by itself (AUTOCOMMIT); give one that does not"


class UserConnection:
    """A transaction on a connection that is not ours: `driver` is psycopg's, `commit` and `roll_back` are the owner's,
    so that it knows what became of it."""

    def __init__(self, driver: psycopg.Connection[Any], owner: Any) -> None:
        self.driver = driver
        self.commit = owner.commit
        self.roll_back = owner.rollback


@contextmanager
def begun(connection: Any) -> Iterator[UserConnection]:
    """Begin a transaction; it is rolled back unless it was committed. SettingError if the connection will not do."""
    by_psycopg = isinstance(connection, psycopg.Connection)
    with _begun_by_psycopg(connection) if by_psycopg else _begun_by_sqlalchemy(connection) as own:
        if own.driver.info.encoding != "utf-8":
            raise SettingError(f"the connection speaks {own.driver.info.encoding}; set its client_encoding to UTF8")
        yield own


@contextmanager
def _begun_by_psycopg(connection: psycopg.Connection[Any]) -> Iterator[UserConnection]:
    if connection.closed:
        raise SettingError(_CLOSED)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise SettingError(_BUSY)
    automatic = connection.autocommit
    connection.autocommit = False
    try:
        yield UserConnection(connection, connection)
    finally:
        with suppress(psycopg.Error):  # it was lost, and its transaction with it
            connection.rollback()
            connection.autocommit = automatic


@contextmanager
def _begun_by_sqlalchemy(connection: Any) -> Iterator[UserConnection]:
    if not hasattr(connection, "in_transaction") or not hasattr(connection, "rollback"):
        raise SettingError(
            f"connection={connection!r} is none to Postgres; give psycopg's, or a session or connection of SQLAlchemy"
        )
    if getattr(connection, "closed", False):
        raise SettingError(_CLOSED)
    if connection.in_transaction():
        raise SettingError(_BUSY)
    try:
        yield UserConnection(_driver_of(connection), connection)
    finally:
        with suppress(Exception):  # it was lost; SQLAlchemy lets go of it, and connects anew when it is used again
            connection.rollback()


def _driver_of(connection: Any) -> psycopg.Connection[Any]:
    """Errors of the driver without what SQLAlchemy wraps them in; any other says why no transaction can begin there."""
    try:
        driver = _driver(connection)
    except SettingError:
        raise
    except Exception as error:
        if isinstance(cause := getattr(error, "orig", None), psycopg.Error):
            raise cause from error
        raise SettingError(f"no transaction can begin on the connection: {error}") from error
    if driver.autocommit:
        raise SettingError(_COMMITTING)
    return driver


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

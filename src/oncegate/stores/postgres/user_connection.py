"""Begin transactions on a connection of the user: a psycopg connection, or an SQLAlchemy session or connection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg.pq import TransactionStatus

from oncegate.errors import SettingError

_BUSY: Final = (
    "the connection is in a transaction already; commit or roll it back first, because Oncegate commits the transaction"
)
_CLOSED: Final = "the connection is closed; pass an open connection"
_AUTOCOMMIT: Final = (
    "the SQLAlchemy connection has the isolation level AUTOCOMMIT; pass a connection with another isolation level"
)


class UserTransaction(Struct, frozen=True):
    """A transaction on a connection of the user.

    `driver` is the psycopg connection. `commit` is the commit method of the object that the user passed: SQLAlchemy
    would not notice a commit on the psycopg connection."""

    driver: psycopg.Connection[Any]
    commit: Callable[[], None]


@contextmanager
def begin(connection: Any) -> Iterator[UserTransaction]:
    """Begin a transaction on a connection of the user. At the end of the context, roll the transaction back unless it
    was committed.

    Raises SettingError if the connection cannot be used."""
    is_psycopg = isinstance(connection, psycopg.Connection)
    with _begin_on_psycopg(connection) if is_psycopg else _begin_on_sqlalchemy(connection) as transaction:
        encoding = transaction.driver.info.encoding
        if encoding != "utf-8":
            raise SettingError(f"the connection has the encoding {encoding}; set its client_encoding to UTF8")
        yield transaction


@contextmanager
def _begin_on_psycopg(connection: psycopg.Connection[Any]) -> Iterator[UserTransaction]:
    if connection.closed:
        raise SettingError(_CLOSED)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise SettingError(_BUSY)
    autocommit = connection.autocommit
    connection.autocommit = False
    try:
        yield UserTransaction(connection, connection.commit)
    finally:
        with suppress(psycopg.Error):  # the connection was lost, so the server rolls back
            connection.rollback()
            connection.autocommit = autocommit


@contextmanager
def _begin_on_sqlalchemy(connection: Any) -> Iterator[UserTransaction]:
    if not hasattr(connection, "in_transaction") or not hasattr(connection, "rollback"):
        raise SettingError(
            f"connection={connection!r} is not a connection to Postgres; pass a psycopg connection, or an SQLAlchemy"
            " session or connection"
        )
    if getattr(connection, "closed", False):
        raise SettingError(_CLOSED)
    if connection.in_transaction():
        raise SettingError(_BUSY)
    try:
        yield UserTransaction(_begin_and_get_driver(connection), connection.commit)
    finally:
        with suppress(Exception):  # the connection was lost; SQLAlchemy reconnects at the next use
            connection.rollback()


def _begin_and_get_driver(connection: Any) -> psycopg.Connection[Any]:
    """Begin the transaction and return the psycopg connection.

    If SQLAlchemy wraps a psycopg error, raises the psycopg error itself."""
    try:
        if callable(connection.connection):  # a session begins a transaction in connection()
            connection = connection.connection()
        else:
            connection.begin()
        driver = connection.connection.driver_connection
    except Exception as error:
        if isinstance(cause := getattr(error, "orig", None), psycopg.Error):
            raise cause from error
        raise SettingError(f"cannot begin a transaction on the connection: {error}; pass another connection") from error
    if not isinstance(driver, psycopg.Connection):
        raise SettingError(f"SQLAlchemy uses the driver {type(driver).__module__}; use postgresql+psycopg:// instead")
    if driver.autocommit:
        raise SettingError(_AUTOCOMMIT)
    return driver

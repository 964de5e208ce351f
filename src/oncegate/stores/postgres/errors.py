"""Turn psycopg errors into store errors. The message of a store error says what failed and what to do."""

import re
from typing import Final

import psycopg

from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable, Unkeepable


class DeadlineExceeded(psycopg.OperationalError):
    """The server did not answer in time."""


# SQLSTATE codes have five characters; the first two are the class of the error. See appendix A of the Postgres manual.
READ_ONLY: Final = "25006"
_DISK_FULL: Final = "53100"
_PERMISSION_DENIED: Final = "42501"
_TRANSIENT_CLASSES: Final = ("08", "40", "53", "55", "57", "58")
_BAD_VALUE_CLASSES: Final = ("22", "54")
_MISSING_OBJECTS: Final = ("42P01", "42883", "3F000", "42703")
_MAY_BE_APPLIED: Final = "the request may have been applied; it is safe to retry"

# libpq reports a failed connection without a code: only the text of the error says why.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in|certificate|SSL"
    r"|role .* does not exist|database .* does not exist|permission denied for database|invalid .* value"
    r"|unsupported startup parameter"
)
_BAD_OPTION: Final = re.compile(r"unrecognized configuration parameter|requires a value|bad value for")
_NO_SLOTS: Final = re.compile(r"too many clients|too many connections|remaining connection slots")


def store_error(error: psycopg.Error, place: str) -> StoreError:
    """Return the store error for a psycopg error that a statement raised."""
    code = error.sqlstate
    if isinstance(error, DeadlineExceeded):
        return StoreUnavailable(f"{place} did not answer in time; {_MAY_BE_APPLIED}")
    if code is None:
        return StoreUnavailable(f"the connection to {place} was lost ({first_line(error)}); {_MAY_BE_APPLIED}")
    if code in (READ_ONLY, _DISK_FULL):
        return StoreReadOnly(
            f"{place} accepts no writes now ({first_line(error)}); nothing was written;"
            " free disk space, or name the primary"
        )
    if code.startswith(_TRANSIENT_CLASSES):
        return StoreUnavailable(f"{place} could not execute the request ({first_line(error)}); retry")
    if code == _PERMISSION_DENIED:
        return StoreRefused(f"{place} does not allow this role to do that ({first_line(error)}); grant the privilege")
    if code in _MISSING_OBJECTS:
        return StoreRefused(
            f"tables or functions of Oncegate are missing in {place} ({first_line(error)}); restore the schema"
        )
    if code.startswith(_BAD_VALUE_CLASSES):
        return Unkeepable(f"{place} cannot store this record ({first_line(error)}); make its values smaller")
    return StoreError(f"{place} failed: {first_line(error)}")


def connection_error(error: psycopg.Error, place: str) -> StoreError:
    """Return the store error for a psycopg error that a connection attempt raised."""
    line = first_line(error)
    if _REFUSED.search(line):
        return StoreRefused(
            f"{place} refused the connection ({line}); check user, password, database and TLS in the URL"
        )
    if _BAD_OPTION.search(line):
        return StoreRefused(f"{place} rejected an option of the URL ({line}); correct the option")
    if _NO_SLOTS.search(line):
        return StoreUnavailable(
            f"{place} has no connection left ({line}); raise its max_connections, or lower oncegate_connections"
        )
    return StoreUnavailable(f"{place} cannot be reached ({line}); check host and port, and that the server is up")


def first_line(error: psycopg.Error) -> str:
    """Return the first line of the error message, without the prefix that libpq adds."""
    lines = (error.diag.message_primary or str(error)).strip().splitlines()
    return lines[0].rpartition("failed: ")[2].strip() if lines else type(error).__name__

"""What Postgres's errors mean to whoever reads them: one sentence, and what to do."""

import re
from typing import Final

import psycopg

from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable, Unkeepable


class DeadlineExceeded(psycopg.OperationalError):
    """The server did not answer in time."""


# The first two letters of an error's code name its class, all five the error: see appendix A of Postgres's manual.
_PASSING: Final = ("08", "40", "53", "55", "57", "58")
_UNWRITABLE: Final = ("25006", "53100")  # a read-only transaction, a full disk
_UNKNOWN: Final = "what was asked may have been done or not; asking again does no harm"
_RIGHTS: Final = "42501"
_UNKEPT: Final = ("22", "54")
_GONE: Final = ("42P01", "42883", "3F000", "42703")

# A connection that is refused comes without a code; only the words tell why.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in|certificate|SSL"
    r"|role .* does not exist|database .* does not exist|permission denied for database|invalid .* value"
    r"|unsupported startup parameter"
)


_MISTAKEN: Final = re.compile(r"unrecognized configuration parameter|requires a value|bad value for")
_FULL: Final = re.compile(r"too many clients|too many connections|remaining connection slots")


def explained(error: psycopg.Error, place: str) -> StoreError:
    """An error while a connection was used."""
    code = error.sqlstate
    if isinstance(error, DeadlineExceeded):
        return StoreUnavailable(f"{place} did not answer in time; {_UNKNOWN}")
    if code is None:
        return StoreUnavailable(f"the connection to {place} was lost ({line_of(error)}); {_UNKNOWN}")
    if code in _UNWRITABLE:
        return StoreReadOnly(f"{place} takes no writes now ({line_of(error)}); nothing was written")
    if code.startswith(_PASSING):
        return StoreUnavailable(f"{place} could not do it now ({line_of(error)}); try again")
    if code == _RIGHTS:
        return StoreRefused(f"{place} does not let this role do that ({line_of(error)}); grant it the right")
    if code in _GONE:
        return StoreRefused(f"{place} has lost tables or functions of Oncegate ({line_of(error)}); restore its schema")
    if code.startswith(_UNKEPT):
        return Unkeepable(f"{place} cannot keep what it was given ({line_of(error)})")
    return StoreError(f"{place} failed: {line_of(error)}")


def unconnected(error: psycopg.Error, place: str) -> StoreError:
    """An error while connecting."""
    said = line_of(error)
    if _REFUSED.search(said):
        return StoreRefused(
            f"{place} refused the connection ({said}); check user, password, database and TLS in the URL"
        )
    if _MISTAKEN.search(said):
        return StoreRefused(f"{place} cannot be asked as the URL says ({said}); correct its options")
    if _FULL.search(said):
        return StoreUnavailable(
            f"{place} has no connection left ({said}); raise its max_connections, or lower oncegate_connections"
        )
    return StoreUnavailable(f"{place} cannot be reached ({said}); check host and port, and that the server is up")


def line_of(error: psycopg.Error) -> str:
    """The first line of what was said, without the way that libpq came there."""
    said = (error.diag.message_primary or str(error)).strip().splitlines()
    return said[0].rpartition("failed: ")[2].strip() if said else type(error).__name__

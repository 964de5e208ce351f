"""Open a Postgres store from its URL."""

try:
    import psycopg  # noqa: F401  # imported here so that the error can name the extra to install
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("the Postgres store", "postgres") from _error

from oncegate.clocks import Clock
from oncegate.stores.postgres.settings import read_url
from oncegate.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore", "open_postgres", "read_url"]


def open_postgres(url: str, *, create: bool, clock: Clock | None) -> PostgresStore:
    return PostgresStore(read_url(url), create=create, clock=clock)

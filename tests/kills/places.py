"""The durable stores that workers can share, by URL, and the rows that are written in transactions."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import psycopg
from msgspec import Struct

Row = tuple[str, int, str]


class Place(Struct, frozen=True):
    """A store for workers. In its URL, `{folder}` is the folder of a world and `{world}` the name of the world."""

    name: str
    url: str

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme

    @property
    def remote(self) -> bool:
        return self.scheme != "sqlite"

    @property
    def transacts(self) -> bool:
        return self.scheme in _ROWS

    def url_in(self, folder: Path) -> str:
        return self.url.format(folder=folder, world=_name(folder))

    def rows_in(self, folder: Path) -> "Rows":
        return _ROWS[self.scheme](self.url_in(folder), _name(folder))


def _name(folder: Path) -> str:
    """A unique name for tables and prefixes of keys, from the random part of the name of a folder."""
    return f"w{folder.name.rpartition('-')[2]}"


SQLITE: Final = Place("SQLite", "sqlite:///{folder}/store.db?busy_timeout=20s")


class Rows(Protocol):
    """Effects as rows, committed by the transactions of the store: event, half, worker."""

    def prepare(self) -> None:
        """Create the table, once, before the first write."""

    def write(self, connection: Any, row: Row) -> None: ...

    def all(self) -> list[Row]: ...

    def remove(self) -> None:
        """Remove everything of the world from a server."""


class _SqliteRows:
    def __init__(self, url: str, _name: str) -> None:
        self._path = urlsplit(url).path[1:]

    def prepare(self) -> None:
        """Left to the first writer: the store creates the file, and that is a part of the test."""

    def write(self, connection: Any, row: Row) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (event TEXT, half INTEGER, worker TEXT)")
        connection.execute("INSERT INTO effects VALUES (?, ?, ?)", row)

    def all(self) -> list[Row]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS effects (event TEXT, half INTEGER, worker TEXT)")
            return db.execute("SELECT event, half, worker FROM effects").fetchall()

    def remove(self) -> None:
        """The file is removed with its folder."""


class _PostgresRows:
    def __init__(self, url: str, name: str) -> None:
        self._url = url.partition("?")[0]
        self._name = name

    def prepare(self) -> None:
        self._run(f"CREATE TABLE effects_{self._name} (event text, half integer, worker text)")

    def write(self, connection: Any, row: Row) -> None:
        connection.execute(f"INSERT INTO effects_{self._name} VALUES (%s, %s, %s)", row)  # noqa: S608  # our own name

    def all(self) -> list[Row]:
        return self._run(f"SELECT event, half, worker FROM effects_{self._name}")  # noqa: S608  # our own name

    def remove(self) -> None:
        self._run(f"DROP TABLE effects_{self._name}")
        self._run(f"DROP SCHEMA IF EXISTS {self._name} CASCADE")

    def _run(self, statement: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True, options="-c client_min_messages=error") as db:
            done = db.execute(statement.encode())
            return done.fetchall() if done.description else []


_ROWS: Final[dict[str, Callable[[str, str], Rows]]] = {"sqlite": _SqliteRows, "postgresql": _PostgresRows}

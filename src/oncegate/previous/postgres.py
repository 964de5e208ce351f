"""An old place in a table of Postgres."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.types.string import TextLoader

from oncegate.errors import StoreRefused
from oncegate.previous.base import BadRow, KeyPart, Mark, PlaceUrl, Row, mark_of, pages, row_of
from oncegate.previous.sql import MOST_KEYS, needed_parts, table_of
from oncegate.stores.postgres import read_url
from oncegate.stores.postgres.connections import Connection, Connections

_PAGE: Final = 1_000
# Times are read as text: Python has no value for `infinity` and for years after 9999.
_TIMES: Final = ("timestamp", "timestamptz", "date")

_PRIMARY_KEY: Final = """
SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attnum = k.number
WHERE i.indrelid = %s::regclass AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY k.place
"""

_Key = tuple[int, Sequence[Any]]  # the index of the key, and its values


class PostgresPlace:
    remote = True

    def __init__(self, url: PlaceUrl) -> None:
        settings = read_url(url.address)
        self._connections = Connections(settings)
        self._table = table_of(url)
        self.name = settings.place

    def parts(self) -> Sequence[KeyPart]:
        return needed_parts(self._table)

    def find(self, keys: Sequence[Sequence[Any]]) -> list[Mark | None]:
        marks: list[Mark | None] = [None] * len(keys)
        with self._borrow() as db:
            columns = self._columns(db)
            for page in pages(enumerate(keys), MOST_KEYS):
                for index, mark in self._marks(db, page, columns):
                    marks[index] = mark
        return marks

    def _marks(self, db: Connection, page: Sequence[_Key], columns: Sequence[str]) -> Iterator[tuple[int, Mark]]:
        """Yield the index and the mark of each key of the page that the table has. A value that its column cannot hold,
        such as a word in a column of numbers, fails the whole statement. The keys are then looked up one by one, and
        the table does not have the key with this value."""
        statement = self._table.select_keys(len(page), columns, "\0").replace("%", "%%").replace("\0", "%s")
        try:
            cursor = db.execute(statement.encode(), [str(value) for _, key in page for value in key])
            found = cursor.fetchall()
        except psycopg.DataError:
            if len(page) > 1:
                for each in page:
                    yield from self._marks(db, [each], columns)
            return
        yield from ((page[index][0], mark_of(expires)) for index, expires in found)

    def key_columns(self) -> Sequence[str]:
        with self._borrow() as db:
            return [name for (name,) in db.execute(_PRIMARY_KEY, (self._table.identifier,)).fetchall()]

    def rows(self) -> Iterator[Row | BadRow]:
        with self._borrow() as db:
            names = self._columns(db)
            expires = self._table.expiry_column(names)
            with db.transaction(), db.cursor(name="oncegate_seed") as cursor:
                cursor.itersize = _PAGE
                cursor.execute(self._table.select_all().encode())
                for number, values in enumerate(cursor, 1):
                    yield row_of(f"row {number}", dict(zip(names, values, strict=True)), expires)

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        with self._connections.borrow() as db:
            for name in _TIMES:
                db.adapters.register_loader(name, TextLoader)
            try:
                yield db
            except psycopg.errors.UndefinedTable as error:
                raise StoreRefused(f"there is no table {self._table.name} in {self.name}; correct the name") from error
            except (psycopg.errors.UndefinedFunction, psycopg.errors.DatatypeMismatch) as error:
                raise StoreRefused(
                    f"{self.name} cannot compare a column of {self._table.name} with text: {error}"
                ) from error

    def _columns(self, db: Connection) -> list[str]:
        description = db.execute(self._table.select_none().encode()).description or ()
        names = [column.name for column in description]
        self._table.check_columns(names, self.name)
        return names

    def close(self) -> None:
        self._connections.close()

"""An old place in a table of Postgres."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.types.string import TextLoader

from oncegate.errors import StoreRefused
from oncegate.previous.base import KeyPart, OldMark, OldRow, PlaceUrl, mark_of, pages, row_of
from oncegate.previous.sql import MOST_KEYS, Convert, needed_parts, table_of
from oncegate.stores.postgres import read_url
from oncegate.stores.postgres.connections import Connection, Connections

_PAGE: Final = 1_000
# Times are read as text: Python has no value for `infinity` and for years after 9999.
_TIMES: Final = ("timestamp", "timestamptz", "date")
_DATE: Final = psycopg.postgres.types["date"].oid
_WITH_TIME: Final = (psycopg.postgres.types["timestamp"].oid, psycopg.postgres.types["timestamptz"].oid)

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

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        marks: list[OldMark | None] = [None] * len(keys)
        with self._borrow() as db:
            expires, convert = self._expiry(self._columns(db))
            for page in pages(enumerate(keys), MOST_KEYS):
                for index, mark in self._marks(db, page, expires, convert):
                    marks[index] = mark
        return marks

    def _marks(
        self, db: Connection, page: Sequence[_Key], expires: str | None, convert: Convert
    ) -> Iterator[tuple[int, OldMark]]:
        """Yield the index and the mark of each key of the page that the table has. A value that its column cannot hold,
        such as a word in a column of numbers, fails the whole statement. The keys are then looked up one by one, and
        the table does not have the key with this value."""
        statement = self._table.select_keys(len(page), expires, "\0", convert).replace("%", "%%").replace("\0", "%s")
        try:
            cursor = db.execute(statement.encode(), [str(value) for _, key in page for value in key])
            found = cursor.fetchall()
        except psycopg.DataError:
            if len(page) > 1:
                for each in page:
                    yield from self._marks(db, [each], expires, convert)
            return
        yield from ((page[index][0], mark_of(value)) for index, value in found)

    def key_columns(self) -> Sequence[str]:
        with self._borrow() as db:
            return [name for (name,) in db.execute(_PRIMARY_KEY, (self._table.identifier,)).fetchall()]

    def rows(self) -> Iterator[OldRow]:
        with self._borrow() as db:
            columns = self._columns(db)
            with db.transaction(), db.cursor(name="oncegate_seed") as cursor:
                db.execute("SET LOCAL datestyle TO ISO")  # the server may have another style
                cursor.itersize = _PAGE
                cursor.execute(self._table.select_all(*self._expiry(columns)).encode())
                for number, (*values, value) in enumerate(cursor, 1):
                    yield row_of(f"row {number}", dict(zip(columns, values, strict=True)), value)

    def _expiry(self, columns: Mapping[str, int]) -> tuple[str | None, Convert]:
        """Return the column of the expiry, and the function that makes its expression."""
        expires = self._table.expiry_column(columns)
        type_ = None if expires is None else columns[expires]
        return expires, _end_of_day if type_ == _DATE else _in_utc if type_ in _WITH_TIME else str

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

    def _columns(self, db: Connection) -> dict[str, int]:
        """Return the names of the columns, with the numbers of their types."""
        description = db.execute(self._table.select_none().encode()).description or ()
        columns = {column.name: column.type_code for column in description}
        self._table.check_columns(columns, self.name)
        return columns

    def close(self) -> None:
        self._connections.close()


def _in_utc(column: str, time: str = "") -> str:
    """An expression for a timestamp as ISO text in UTC. The server converts a timestamp without a time zone, because
    it has the meaning of the time zone of the session. `time` is the expression of the timestamp if it is not the
    column. Years that Python does not read as a time are not converted: the conversion could be out of range, and such
    an error would hide the row."""
    text = f"""to_char(({time or column})::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    return f"CASE WHEN {column} >= '1970-01-03' AND {column} < '2199-12-30' THEN {text} ELSE {column}::text END"


def _end_of_day(column: str) -> str:
    return _in_utc(column, f"{column} + 1")

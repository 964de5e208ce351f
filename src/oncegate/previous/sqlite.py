"""An old place in a table of an SQLite file. The file is opened for reading only."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote

from oncegate.errors import StoreError, StoreRefused
from oncegate.previous.base import KeyPart, OldMark, OldRow, PlaceUrl, mark_of, pages, row_of
from oncegate.previous.sql import MOST_KEYS, needed_parts, table_of
from oncegate.stores.sqlite import read_url
from oncegate.stores.sqlite.connection import FAILURES, as_store_error

_LARGEST: Final = 2**63  # of an integer of SQLite


class SqlitePlace:
    """Opens the file for each look-up. This takes less time than the look-up of an event in the store, and is safe
    after a fork and in every thread."""

    remote = False

    def __init__(self, url: PlaceUrl) -> None:
        settings = read_url(url.address)
        self._path = settings.path
        self._timeout = settings.busy_timeout / 1e6
        self._table = table_of(url)
        self.name = f"the SQLite file {self._path}"

    def parts(self) -> Sequence[KeyPart]:
        return needed_parts(self._table)

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        marks: list[OldMark | None] = [None] * len(keys)
        possible = [(index, key) for index, key in enumerate(keys) if all(map(_fits, key))]
        try:
            with closing(self._connect()) as db:
                expires = self._table.expiry_column(self._columns(db))
                for page in pages(possible, MOST_KEYS):
                    statement = self._table.select_keys(len(page), expires, "?")
                    for index, value in db.execute(statement, [value for _, key in page for value in key]):
                        marks[page[index][0]] = mark_of(value)
        except FAILURES as error:
            raise self._error(error) from error
        return marks

    def key_columns(self) -> Sequence[str]:
        try:
            with closing(self._connect()) as db:
                found = db.execute("SELECT name, pk FROM pragma_table_info(?)", (self._table.name,)).fetchall()
        except FAILURES as error:
            raise self._error(error) from error
        return [name for name, place in sorted(found, key=lambda each: int(each[1])) if place]

    def rows(self) -> Iterator[OldRow]:
        try:
            with closing(self._connect()) as db:
                names = self._columns(db)
                expires = self._table.expiry_column(names)
                for number, (*values, value) in enumerate(db.execute(self._table.select_all(expires)), 1):
                    yield row_of(f"row {number}", dict(zip(names, values, strict=True)), value)
        except FAILURES as error:
            raise self._error(error) from error

    def _connect(self) -> sqlite3.Connection:
        if not os.path.isfile(self._path):
            raise StoreRefused(f"there is no file {self._path}; name an existing SQLite file")
        uri = f"file://{quote(os.path.abspath(self._path))}?mode=ro"
        db = sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None)
        db.text_factory = _text
        return db

    def _columns(self, db: sqlite3.Connection) -> list[str]:
        names = [column[0] for column in db.execute(self._table.select_none()).description]
        self._table.check_columns(names, self.name)
        return names

    def _error(self, error: Exception) -> StoreError:
        if "no such table" in str(error):
            return StoreRefused(f"there is no table {self._table.name} in {self.name}; correct the name")
        return as_store_error(error, self._path)

    def close(self) -> None:
        """Nothing is open between two calls."""


def _text(raw: bytes) -> str:
    """A text of the file. Bytes that are not UTF-8 become surrogates: such a text is never part of a key."""
    return raw.decode("utf-8", "surrogateescape")


def _fits(value: Any) -> bool:
    return not isinstance(value, int) or -_LARGEST <= value < _LARGEST

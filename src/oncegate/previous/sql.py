"""The SQL statements for an old place in a table. Names of tables and columns are always quoted as identifiers."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from oncegate.errors import SettingError, StoreRefused
from oncegate.previous.base import KeyPart, PlaceUrl, column_parts, expiry_column
from oncegate.text import unknown

Convert: TypeAlias = Callable[[str], str]
MOST_KEYS: Final = 100  # in one statement; SQLite allows 500 SELECTs in one statement


class SqlTable(Struct, frozen=True):
    """A table, with the parts of its key and the column that `expires` names."""

    name: str
    parts: tuple[KeyPart, ...]
    expires: str | None

    @property
    def identifier(self) -> str:
        """The quoted name. A dot separates the schema from the table."""
        return ".".join(quoted_name(part) for part in self.name.split("."))

    def expiry_column(self, columns: Collection[str]) -> str | None:
        return expiry_column(columns, self.expires)

    def check_columns(self, columns: Collection[str], place: str) -> None:
        """Raise StoreRefused if the table lacks a column that the URL names. SQLite would read the quoted name of a
        missing column as a text."""
        for name in (*(part.column for part in self.parts), *([self.expires] if self.expires else [])):
            if name not in columns:
                raise StoreRefused(f"{place}: {unknown(name, columns, f'column of {self.name}')}")

    def select_all(self, expires: str | None, convert: Convert = str) -> str:
        """A statement for all rows: all columns, and the expiry as the last value. `expires` is the column of the
        expiry; None if there is no such column. `convert` makes the expression of the expiry from the column."""
        expiry = convert(f"t.{quoted_name(expires)}") if expires else "NULL"
        return f"SELECT t.*, {expiry} FROM {self.identifier} AS t"  # noqa: S608  # the names are quoted

    def select_none(self) -> str:
        """A statement without rows, for the names of the columns."""
        return f"SELECT * FROM {self.identifier} LIMIT 0"  # noqa: S608

    def select_keys(self, count: int, expires: str | None, placeholder: str, convert: Convert = str) -> str:
        """A statement that looks up `count` keys. Each row has the index of its key and the expiry. `expires` and
        `convert` are those of `select_all`.

        One SELECT for each key, instead of one IN, has two reasons: the database converts each value to the type of its
        column, and each row tells which key it answers. If several rows have one key, the latest expiry counts, and a
        row that does not expire counts before all others."""
        where = " AND ".join(f"t.{quoted_name(part.column)} = {placeholder}" for part in self.parts)
        expiry, order = "NULL", ""
        if expires:
            column = f"t.{quoted_name(expires)}"
            expires_at_all = f"CASE WHEN CAST({column} AS TEXT) IN ('', '0') THEN 0 ELSE 1 END"
            expiry, order = convert(column), f" ORDER BY {column} IS NOT NULL, {expires_at_all}, {column} DESC"
        one = f"SELECT {expiry} AS e FROM {self.identifier} AS t WHERE {where}{order} LIMIT 1"  # noqa: S608
        return " UNION ALL ".join(f"SELECT {index}, e FROM ({one}) AS k{index}" for index in range(count))  # noqa: S608


def table_of(url: PlaceUrl) -> SqlTable:
    """Return the table that the URL names. Raises SettingError."""
    if not url.table:
        raise SettingError("an old place in a database needs table=, the name of the table")
    if not all(url.table.split(".")):
        raise SettingError(f"table={url.table!r} is not the name of a table")
    table = SqlTable(url.table, column_parts(url), url.expires)
    for name in (*url.table.split("."), *(part.column for part in table.parts), url.expires or "x"):
        quoted_name(name)
    return table


def needed_parts(table: SqlTable) -> Sequence[KeyPart]:
    if not table.parts:
        raise SettingError("the URL of an old table needs columns=, such as columns=conversationId,timestamp")
    return table.parts


def quoted_name(name: str) -> str:
    if "\0" in name:
        raise SettingError(f"{name!r} is not a name of a table or column: it contains a NUL character")
    return '"' + name.replace('"', '""') + '"'

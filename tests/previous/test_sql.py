"""Statements for old tables: names are identifiers, whatever they contain."""

import sqlite3
from contextlib import closing

import pytest

from oncegate.errors import SettingError, StoreRefused
from oncegate.previous.base import PlaceUrl
from oncegate.previous.sql import needed_parts, quoted_name, table_of

HOSTILE = ['x"; DROP TABLE dedup; --', "a b", "select", "ä", "100%", "%s", "it's", '"', "a\nb", "?"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name(name: str) -> None:
    """A name with quotes, keywords or placeholders is one identifier."""
    table = table_of(PlaceUrl("", table=name, columns=(name,), expires=name))
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE {quoted_name(name)} ({quoted_name(name)})")
        db.execute(f"INSERT INTO {quoted_name(name)} VALUES (5)")  # noqa: S608  # quoted
        assert db.execute(table.select_all(name)).fetchall() == [(5, 5)]
        assert db.execute(table.select_all(None)).fetchall() == [(5, None)]
        statement = table.select_keys(2, name, "?")
        assert db.execute(statement, (5, 6)).fetchall() == [(0, 5)]


def test_a_schema() -> None:
    """A dot separates the schema from the table, and both are quoted."""
    assert table_of(PlaceUrl("", table='a.b"c')).identifier == '"a"."b""c"'


def test_missing_columns() -> None:
    """A column that the table lacks is refused: SQLite would compare its name as a text."""
    table = table_of(PlaceUrl("", table="dedup", columns=("conversationId",), expires="ttl"))
    table.check_columns(["conversationId", "ttl"], "the file")
    with pytest.raises(StoreRefused, match="the file: there is no column of dedup conversationId; did you mean"):
        table.check_columns(["conversation_id", "ttl"], "the file")
    with pytest.raises(StoreRefused, match="there is no column of dedup ttl"):
        table.check_columns(["conversationId"], "the file")


@pytest.mark.parametrize("name", ["", "a.", ".b", "a\0b"])
def test_an_invalid_name(name: str) -> None:
    """A name that no table can have is refused."""
    with pytest.raises(SettingError, match="table"):
        table_of(PlaceUrl("", table=name))


def test_a_url_without_columns() -> None:
    """A gate has to know the columns of the old key."""
    with pytest.raises(SettingError, match="needs columns="):
        needed_parts(table_of(PlaceUrl("", table="dedup")))

"""Old tables in SQLite files."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.previous.base import OldMark, OldRow, PlaceUrl
from oncegate.previous.sqlite import SqlitePlace

NOON = 1_796_126_400


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old ü.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE dedup (c TEXT, t INTEGER, e, PRIMARY KEY (t, c))")
    return path


def place(file: Path, columns: tuple[str, ...] = ("c", "t"), table: str = "dedup") -> SqlitePlace:
    return SqlitePlace(PlaceUrl(f"sqlite:///{file}", table=table, columns=columns, expires="e"))


def insert(file: Path, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.executemany("INSERT INTO dedup VALUES (?, ?, ?)", rows)


def test_find(file: Path) -> None:
    """Keys are found in the order of the request, also several hundred at a time and with equal keys among them."""
    insert(file, ("a", 1, NOON), ("b", 2, None), ("c", 3, "soon"))
    many = [("x", number) for number in range(300)]
    found = place(file).find([("b", 2), *many, ("a", 1), ("a", 2), ("b", 2), ("c", 3)])
    assert [mark for mark in found if mark is not None] == [OldMark(), OldMark(NOON * 1_000_000), OldMark(), OldMark()]
    assert found.index(OldMark(NOON * 1_000_000)) == 301


def test_values_are_converted_to_the_type_of_the_column(file: Path) -> None:
    """A number in the event finds the text of the column, and a text finds the number."""
    insert(file, ("5", 6, None))
    assert place(file).find([(5, "6"), ("5", 6), (5, "x"), (10**30, 6), (5, 10**30)]) == [
        OldMark(),
        OldMark(),
        None,
        None,
        None,
    ]


def test_the_latest_expiry_counts(file: Path) -> None:
    """If several rows have one key, the mark lasts as long as the last of them."""
    insert(file, ("a", 1, NOON), ("a", 2, NOON + 5), ("b", 1, NOON), ("b", 2, None), ("c", 1, NOON), ("c", 2, 0))
    found = place(file, ("c",)).find([("a",), ("b",), ("c",)])
    assert found == [OldMark((NOON + 5) * 1_000_000), OldMark(), OldMark()]


def test_rows(file: Path) -> None:
    """All rows are read. An expiry that is not a time is marked as such; text that is not UTF-8 and binary values are
    no columns."""
    insert(file, ("a", 1, NOON), ("b", 2, "soon"), (b"\xff", 3, None))
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("INSERT INTO dedup VALUES (CAST(x'ff' AS TEXT), 4, NULL)")
    found = list(place(file).rows())
    assert found[:3] == [
        OldRow("row 1", {"c": "a", "t": 1, "e": NOON}, NOON * 1_000_000),
        OldRow("row 2", {"c": "b", "t": 2, "e": "soon"}, has_invalid_expiry=True),
        OldRow("row 3", {"t": 3}),
    ]
    assert isinstance(found[3], OldRow)
    assert found[3].columns["t"] == 4


def test_a_file_in_use(file: Path) -> None:
    """A table is read while other code writes it, with and without a write-ahead log."""
    for mode in ("delete", "wal"):
        with closing(sqlite3.connect(file)) as db:
            db.execute(f"PRAGMA journal_mode = {mode}")
            db.execute("INSERT INTO dedup VALUES ('w', 9, NULL) ON CONFLICT DO NOTHING")
            db.commit()
            db.execute("INSERT INTO dedup VALUES ('open', 9, NULL)")
            assert place(file).find([("w", 9), ("open", 9)]) == [OldMark(), None]


def test_a_locked_file(file: Path) -> None:
    """A file that stays locked is unavailable."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("BEGIN EXCLUSIVE")
        locked = SqlitePlace(PlaceUrl(f"sqlite:///{file}?busy_timeout=10ms", table="dedup", columns=("c",)))
        with pytest.raises(StoreUnavailable, match="locked"):
            locked.find([("a",)])


def test_the_primary_key(file: Path) -> None:
    """The columns of the primary key are in the order of the key."""
    assert place(file).key_columns() == ["t", "c"]


def test_what_cannot_be_read(file: Path, tmp_path: Path) -> None:
    """A missing file, table or column, and a file of another kind, are refused."""
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database" * 100)
    for wrong, problem in [
        (place(tmp_path / "none.db"), "there is no file"),
        (place(file, table="none"), "there is no table none"),
        (place(file, ("x",)), "there is no column of dedup x"),
        (place(other), "is not an SQLite file"),
    ]:
        with pytest.raises(StoreRefused, match=problem):
            wrong.find([("a", 1)])
        with pytest.raises(StoreRefused, match=problem):
            list(wrong.rows())
    assert not (tmp_path / "none.db").exists()

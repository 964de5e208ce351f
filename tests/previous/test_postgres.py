"""Old tables in Postgres."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.previous.base import OldMark, OldRow, PlaceUrl
from oncegate.previous.postgres import PostgresPlace
from tests.previous.test_sql import HOSTILE
from tests.stores.postgres_server import PostgresServer
from tests.stores.servers import free_port

NOON = 1_796_126_400_000_000


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    with postgres.connect() as db:
        db.execute("DROP TABLE IF EXISTS old")
        db.execute("CREATE TABLE old (c text, t bigint, u uuid, w timestamptz, e timestamptz, PRIMARY KEY (t, c))")
    return postgres


def insert(server: PostgresServer, *rows: tuple[Any, ...]) -> None:
    with server.connect() as db, db.cursor() as cursor:
        cursor.executemany("INSERT INTO old (c, t, e) VALUES (%s, %s, %s)", rows)


def opened(server: PostgresServer, *columns: str, table: str = "old", expires: str | None = "e") -> PostgresPlace:
    return PostgresPlace(PlaceUrl(server.url(), table=table, columns=columns, expires=expires))


@pytest.fixture
def place(server: PostgresServer) -> Iterator[PostgresPlace]:
    with closing(opened(server, "c", "t")) as place:
        yield place


def test_find(server: PostgresServer, place: PostgresPlace) -> None:
    """Keys are found in the order of the request. A value that a column cannot hold is not found, and does not hide the
    other keys."""
    insert(server, ("a", 1, "2026-12-01 12:00+00"), ("b", 2, None), ("c", 3, "infinity"))
    strange: list[tuple[Any, Any]] = [("a", "word"), ("\0", 1), ("a", 10**30), ("a", 1.5)]
    found = place.find([("b", 2), *strange, ("a", 1), *[("x", number) for number in range(250)], ("c", "3")])
    assert [mark for mark in found if mark is not None] == [OldMark(), OldMark(NOON), OldMark()]
    assert (found[0], found[5], found[-1]) == (OldMark(), OldMark(NOON), OldMark())


def test_columns_of_other_types(server: PostgresServer) -> None:
    """UUIDs and times are found by their text."""
    name = "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10"
    with server.connect() as db:
        db.execute("INSERT INTO old (c, t, u, w) VALUES ('a', 1, %s, '2026-12-01 12:00+00')", (name,))
    with closing(opened(server, "u", "w")) as place:
        when = ["2026-12-01T12:00:00.000Z", "2026-12-01T13:00:00+01:00", "2026-12-01T12:00:01Z", "soon"]
        assert place.find([(name, each) for each in when]) == [OldMark(), OldMark(), None, None]


def test_rows(server: PostgresServer, place: PostgresPlace) -> None:
    """All rows are read in pages, also times that Python cannot hold."""
    insert(server, *((f"c{number}", number, "infinity" if number else "294000-01-01") for number in range(2_500)))
    found = list(place.rows())
    assert len(found) == 2_500
    assert isinstance(found[0], OldRow)
    assert found[0].has_invalid_expiry
    assert found[1] == OldRow("row 2", {"c": "c1", "t": 1, "e": "infinity"})


@pytest.mark.parametrize(
    ("type_", "value", "expires"),
    [
        ("timestamp", "2026-12-01 17:30", OldMark(NOON)),
        ("timestamptz", "2026-12-01 12:00+00", OldMark(NOON)),
        ("date", "2026-12-01", OldMark(NOON + int(6.5 * 3_600_000_000))),
        ("timestamp", "infinity", OldMark()),
        ("timestamp", "294276-12-31 23:59", OldMark()),
        ("timestamp", "1969-12-31", OldMark()),
        ("date", "5874897-12-31", OldMark()),
        ("bigint", "0", OldMark()),
        ("bigint", "1796126400", OldMark(NOON)),
        ("text", "2026-12-01T12:00:00Z", OldMark(NOON)),
    ],
)
def test_a_server_with_another_zone(type_: str, value: str, expires: OldMark, server: PostgresServer) -> None:
    """A timestamp without a time zone has the zone of the session, and a date ends with the day of this zone. The style
    of dates on the server does not matter."""
    with server.connect() as db:
        db.execute("DROP ROLE IF EXISTS indian")
        db.execute("CREATE ROLE indian LOGIN")
        db.execute("ALTER ROLE indian SET timezone TO 'Asia/Kolkata'")
        db.execute("ALTER ROLE indian SET datestyle TO 'German'")
        db.execute(f"ALTER TABLE old DROP COLUMN e, ADD COLUMN e {type_}".encode())
        db.execute("INSERT INTO old (c, t, w, e) VALUES ('a', 1, '2026-12-01 12:00+00', %s)", (value,))
        db.execute("GRANT SELECT ON old TO indian")
    try:
        url = PlaceUrl(server.url(user="indian"), table="old", columns=("c", "t"), expires="e")
        with closing(PostgresPlace(url)) as place:
            assert place.find([("a", 1), ("b", 1)]) == [expires, None]
            (row,) = place.rows()
            assert (row.expires_at, row.columns["w"]) == (expires.expires_at, "2026-12-01 17:30:00+05:30")
    finally:
        with server.connect() as db:
            db.execute("DROP OWNED BY indian")
            db.execute("DROP ROLE indian")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name(name: str, server: PostgresServer) -> None:
    """A name with quotes or placeholders is one identifier, and never a statement."""
    quoted = '"' + name.replace('"', '""') + '"'
    with server.connect() as db:
        db.execute(f"CREATE TABLE {quoted} ({quoted} text)".encode())
        try:
            db.execute(f"INSERT INTO {quoted} VALUES ('5')".encode())  # noqa: S608  # quoted
            with closing(opened(server, name, table=name, expires=None)) as place:
                assert place.find([(5,), (6,)]) == [OldMark(), None]
                assert list(place.rows()) == [OldRow("row 1", {name: "5"})]
        finally:
            db.execute(f"DROP TABLE {quoted}".encode())


def test_the_primary_key(place: PostgresPlace) -> None:
    """The columns of the primary key are in the order of the key."""
    assert place.key_columns() == ["t", "c"]


def test_what_cannot_be_read(server: PostgresServer) -> None:
    """A missing table or column is refused, and a server that does not answer is unavailable."""
    for wrong, problem in [
        (opened(server, "c", table="none"), "there is no table none in Postgres at"),
        (opened(server, "x"), "there is no column of old x"),
    ]:
        with closing(wrong), pytest.raises(StoreRefused, match=problem):
            wrong.find([("a",)])
        with closing(wrong), pytest.raises(StoreRefused):
            list(wrong.rows())
    away = PostgresPlace(PlaceUrl(f"postgresql://u@127.0.0.1:{free_port()}/db", table="old", columns=("c",)))
    with closing(away), pytest.raises(StoreUnavailable, match="cannot be reached"):
        away.find([("a",)])


def test_it_only_reads(server: PostgresServer) -> None:
    """A role that may only read the table is enough."""
    insert(server, ("a", 1, None))
    with server.connect() as db:
        db.execute("DROP ROLE IF EXISTS reader")
        db.execute("CREATE ROLE reader LOGIN")
        db.execute("GRANT SELECT ON old TO reader")
    try:
        reader = PostgresPlace(PlaceUrl(server.url(user="reader"), table="old", columns=("c", "t")))
        with closing(reader):
            assert reader.find([("a", 1)]) == [OldMark()]
            assert len(list(reader.rows())) == 1
    finally:
        with server.connect() as db:
            db.execute("DROP OWNED BY reader")
            db.execute("DROP ROLE reader")

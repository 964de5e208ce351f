"""Batches as Postgres arrays."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Address
from oncegate.stores.postgres.arrays import blobs, flags, numbers, register, split_rounds, texts
from oncegate.testing.requests import complete, granted
from tests.stores.postgres_server import PostgresServer


def test_characters_that_postgres_cannot_store(postgres: PostgresServer) -> None:
    """NUL and lone surrogates are replaced, so that the event is stored, whatever the encoding of the role."""
    with postgres.connect() as db:
        db.execute("CREATE ROLE western LOGIN SUPERUSER")
        db.execute("ALTER ROLE western SET client_encoding = 'LATIN1'")
    with closing(open_store(f"{postgres.url(user='western')}?oncegate_schema=letters")) as store:
        record = granted(store)
        assert complete(store, record, error="a\0b\ud800\N{SNOWMAN}")
        (entry,) = store.browse()
        assert entry.record.error == "a\N{SYMBOL FOR NULL}b\\ud800\N{SNOWMAN}"


class TestRounds:
    """A batch is split so that no statement contains an address twice."""

    def test_without_repetition(self) -> None:
        """A batch without a repeated address is one round, sorted by namespace and key."""
        batch = [Address("b", b"1"), Address("a", b"2"), Address("a", b"1")]
        assert split_rounds(batch) == [[2, 1, 0]]

    def test_with_repetition(self) -> None:
        """The nth occurrence of an address is in the nth round, and each round is sorted."""
        batch = [Address("a", b"2"), Address("a", b"1"), Address("a", b"2"), Address("a", b"2"), Address("a", b"1")]
        assert split_rounds(batch) == [[1, 0], [4, 2], [3]]

    def test_empty(self) -> None:
        """An empty batch needs no statement."""
        assert split_rounds([]) == []


@pytest.mark.parametrize(
    ("array", "items"),
    [
        (numbers, [1, None, -(2**63), 2**63 - 1]),
        (numbers, [7, 7, 7]),
        (texts, ["", None, "ü", "x" * 300]),
        (blobs, [b"", None, bytes(range(256))]),
        (flags, [True, False, True]),
    ],
)
def test_values_come_back(postgres: PostgresServer, array: Callable[[Any], Any], items: list[Any]) -> None:
    """Postgres reads an array as the values that were encoded, whether all are equal or not."""
    with postgres.connect() as db:
        register(db.adapters)
        ((found,),) = db.execute("SELECT %b", (array(items),), binary=True).fetchall()
    assert found == items

"""Stores that an earlier version wrote are read, and go on."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.errors import StoreRefused
from oncegate.stores import look_at_store
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing import ManualClock
from tests.stores.older import DATA, DAY, START, assert_goes_on


def test_sqlite(tmp_path: Path) -> None:
    """A file of schema 1 is brought up to date when it is opened to be written, and not before."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((DATA / "sqlite.sql").read_text())
    with pytest.raises(StoreRefused, match="was written by an older Oncegate"):
        look_at_store(f"sqlite:///{path}")
    clock = ManualClock(START)
    assert_goes_on(SqliteStore(str(path), clock=clock), clock)
    look_at_store(f"sqlite:///{path}").close()


_INSERT = """
INSERT OR REPLACE INTO claims (
    state, attempts, owner, fence, lease_until, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES ('P', 1, x'61', 7, 8, x'68', ?, 'plain', NULL, NULL, NULL, NULL, 7, 'crm', CAST('new' AS BLOB));
"""
_COMPLETE = """
UPDATE claims SET
    state = 'C', lease_until = 0, payload = NULL, error = NULL, expires_at = ?, completed_at = 9, result = x'30'
WHERE namespace = 'crm' AND key = CAST('new' AS BLOB);
"""


def test_sqlite_beside_a_process_of_the_version_before(tmp_path: Path) -> None:
    """A process that has an older file open goes on writing it as it did, after another has brought it up to date."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / "sqlite.sql").read_text())
        with closing(SqliteStore(str(path), clock=ManualClock(START))) as store:
            old.execute(_INSERT, (START + DAY,))
            old.execute(_COMPLETE, (START + DAY,))
            old.commit()
            (entry,) = store.browse(key=b"new")
    assert (entry.record.state, entry.record.result) == ("C", b"0")
    assert (entry.record.lost, entry.record.unavailable_since, entry.record.handed_to) == (0, None, None)

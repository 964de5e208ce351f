"""Checkpoints: what is written to the log reaches the file beside the writer."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from oncegate import open_store
from oncegate.stores.base import Store
from oncegate.stores.sqlite import connection
from oncegate.stores.sqlite.connection import _ROWS, Checkpoints
from oncegate.testing.requests import claim_of
from tests.stores.forking import run
from tests.stores.servers import until


def fill(store: Store, rows: int) -> None:
    store.claim([claim_of(key=number.to_bytes(16)) for number in range(rows)])


def in_file(path: Path) -> int:
    """How many claims are in the file itself, without its log."""
    alone = shutil.copy(path, path.with_name("alone.db"))
    with closing(sqlite3.connect(alone)) as db:
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'claims'").fetchone()
        return int(db.execute("SELECT count(*) FROM claims").fetchone()[0]) if tables else 0


@pytest.mark.parametrize("slashes", ["", "/"])
def test_copied_beside_the_writer(tmp_path: Path, slashes: str) -> None:
    """When enough was written it is copied from the log into the file, however that is named, and less is not."""
    path = tmp_path / "once #1?.db"
    with closing(open_store(f"sqlite:///{slashes}{quote(str(path))}")) as store:
        fill(store, _ROWS // 2)
        time.sleep(0.1)
        assert in_file(path) == 0
        fill(store, _ROWS)
        until(lambda: in_file(path) == _ROWS, "what was written is in the file")


def test_a_new_connection_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was made anew, and counts its rows from nothing, is heard as the one before it."""
    copies: list[int] = []
    monkeypatch.setattr(connection, "start_new_thread", lambda _copy, _nothing: copies.append(1))
    kept = Checkpoints("once.db", "full")
    seen = []
    for rows in (_ROWS - 1, 10 * _ROWS, 1, _ROWS, _ROWS + 1):
        kept.written(rows)
        seen.append(len(copies))
    assert seen == [0, 1, 1, 1, 2]


def test_what_is_gone_stays_so(tmp_path: Path) -> None:
    """A file that was removed does not come back, and nothing is raised."""
    gone = Checkpoints(str(tmp_path / "gone ?.db"), "full")
    gone._copy()
    assert list(tmp_path.iterdir()) == []


def test_nothing_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins after the end copies nothing, until more is written."""
    copies: list[int] = []
    monkeypatch.setattr(Checkpoints, "_copy_all", lambda _self: copies.append(1))
    kept = Checkpoints(str(tmp_path / "once.db"), "full")
    kept.end()
    kept._copy()
    assert copies == []
    kept.written(1)
    kept._copy()
    assert copies == [1]


def test_no_connection_over_a_fork(tmp_path: Path) -> None:
    """A process forks only when nothing is copied, also from within a transaction."""
    done = run(
        f"""
        import os, threading
        from oncegate import open_store
        from oncegate.stores.sqlite import connection
        store = open_store({f"sqlite:///{tmp_path}/once.db"!r})
        begun, at_it, copy = threading.Event(), [], connection.Checkpoints._copy_all
        def slow(self):
            at_it.append(True)
            begun.set()
            threading.Event().wait(0.3)
            copy(self)
            at_it.clear()
        connection.Checkpoints._copy_all = slow
        for transacting in (None, threading.get_ident()):
            store._transacting = None
            begun.clear()
            store._checkpoints.written(0)
            store._checkpoints.written(connection._ROWS)
            begun.wait()
            store._transacting = transacting
            if os.fork() == 0:
                os._exit(1 if at_it else 0)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert done.stdout.split() == ["0", "0"], done

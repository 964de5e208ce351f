"""Checkpointer: what is written to the log reaches the file beside the writer."""

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
from oncegate.stores.sqlite.connection import _CHECKPOINT_ROWS, Checkpointer
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
        fill(store, _CHECKPOINT_ROWS // 2)
        time.sleep(0.1)
        assert in_file(path) == 0
        fill(store, _CHECKPOINT_ROWS)
        until(lambda: in_file(path) == _CHECKPOINT_ROWS, "what was written is in the file")


def test_a_new_connection_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was made anew, and counts its rows from nothing, is heard as the one before it."""
    copies: list[int] = []
    monkeypatch.setattr(connection, "start_new_thread", lambda _copy, _nothing: copies.append(1))
    kept = Checkpointer("once.db", "full")
    seen = []
    for rows in (_CHECKPOINT_ROWS - 1, 10 * _CHECKPOINT_ROWS, 1, _CHECKPOINT_ROWS, _CHECKPOINT_ROWS + 1):
        kept.note_rows(rows)
        seen.append(len(copies))
    assert seen == [0, 1, 1, 1, 2]


def test_what_is_gone_stays_so(tmp_path: Path) -> None:
    """A file that was removed does not come back, and nothing is raised."""
    gone = Checkpointer(str(tmp_path / "gone ?.db"), "full")
    gone._copy()
    assert list(tmp_path.iterdir()) == []


def test_nothing_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins after the end copies nothing, until more is written."""
    copies: list[int] = []
    monkeypatch.setattr(Checkpointer, "_checkpoint", lambda _self: copies.append(1))
    kept = Checkpointer(str(tmp_path / "once.db"), "full")
    kept.stop()
    kept._copy()
    assert copies == []
    kept.note_rows(1)
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
        begun, at_it, copy = threading.Event(), [], connection.Checkpointer._checkpoint
        def slow(self):
            at_it.append(True)
            begun.set()
            threading.Event().wait(0.3)
            copy(self)
            at_it.clear()
        connection.Checkpointer._checkpoint = slow
        for handler_thread in (None, threading.get_ident()):
            store._handler_thread = None
            begun.clear()
            store._checkpointer.note_rows(0)
            store._checkpointer.note_rows(connection._CHECKPOINT_ROWS)
            begun.wait()
            store._handler_thread = handler_thread
            if os.fork() == 0:
                os._exit(1 if at_it else 0)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert done.stdout.split() == ["0", "0"], done

"""Checkpoints: another connection copies the log into the database file."""

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


def count_in_file(path: Path) -> int:
    """Return how many claims are in the database file itself, without its log."""
    alone = shutil.copy(path, path.with_name("alone.db"))
    with closing(sqlite3.connect(alone)) as db:
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'claims'").fetchone()
        return int(db.execute("SELECT count(*) FROM claims").fetchone()[0]) if tables else 0


@pytest.mark.parametrize("slashes", ["", "/"])
def test_copied_beside_the_writer(tmp_path: Path, slashes: str) -> None:
    """After enough rows the log is copied into the file, also if its name has special characters; before, it is not."""
    path = tmp_path / "once #1?.db"
    with closing(open_store(f"sqlite:///{slashes}{quote(str(path))}")) as store:
        fill(store, _CHECKPOINT_ROWS // 2)
        time.sleep(0.1)
        assert count_in_file(path) == 0
        fill(store, _CHECKPOINT_ROWS)
        until(lambda: count_in_file(path) == _CHECKPOINT_ROWS, "all rows in the database file")


def test_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a new connection, which counts from 0, start checkpoints like those of the old one."""
    copies: list[int] = []
    monkeypatch.setattr(connection, "start_new_thread", lambda _copy, _nothing: copies.append(1))
    checkpointer = Checkpointer("once.db", "full")
    seen = []
    for rows in (_CHECKPOINT_ROWS - 1, 10 * _CHECKPOINT_ROWS, 1, _CHECKPOINT_ROWS, _CHECKPOINT_ROWS + 1):
        checkpointer.note_rows(rows)
        seen.append(len(copies))
    assert seen == [0, 1, 1, 1, 2]


def test_a_removed_file(tmp_path: Path) -> None:
    """A checkpoint does not create a removed file again, and raises nothing."""
    checkpointer = Checkpointer(str(tmp_path / "gone ?.db"), "full")
    checkpointer._copy()
    assert list(tmp_path.iterdir()) == []


def test_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `stop`, no checkpoint is made until more rows are written."""
    copies: list[int] = []
    monkeypatch.setattr(Checkpointer, "_checkpoint", lambda _self: copies.append(1))
    checkpointer = Checkpointer(str(tmp_path / "once.db"), "full")
    checkpointer.stop()
    checkpointer._copy()
    assert copies == []
    checkpointer.note_rows(1)
    checkpointer._copy()
    assert copies == [1]


def test_no_connection_over_a_fork(tmp_path: Path) -> None:
    """A fork waits for a running checkpoint, also inside a transaction."""
    done = run(
        f"""
        import os, threading
        from oncegate import open_store
        from oncegate.stores.sqlite import connection
        store = open_store({f"sqlite:///{tmp_path}/once.db"!r})
        started, running, copy = threading.Event(), [], connection.Checkpointer._checkpoint
        def slow(self):
            running.append(True)
            started.set()
            threading.Event().wait(0.3)
            copy(self)
            running.clear()
        connection.Checkpointer._checkpoint = slow
        for handler_thread in (None, threading.get_ident()):
            store._handler_thread = None
            started.clear()
            store._checkpointer.note_rows(0)
            store._checkpointer.note_rows(connection._CHECKPOINT_ROWS)
            started.wait()
            store._handler_thread = handler_thread
            if os.fork() == 0:
                os._exit(1 if running else 0)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert done.stdout.split() == ["0", "0"], done

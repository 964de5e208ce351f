"""An SQLite file that another process keeps locked, or whose disk is full: who waits, for how long, and what shows."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.claims import COMPLETED
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import CanProbe, CountsQueueTime
from oncegate.stores.sqlite import SqliteStore, connection
from oncegate.testing.requests import NAMESPACE, claim, claim_of, granted

BUSY = 0.4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(str(tmp_path / "store.db"), busy_timeout=int(BUSY * 1e6))) as store:
        yield store


@pytest.fixture
def other(store: SqliteStore, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)) as other:
        yield other


@pytest.fixture
def nothing_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written just now is no proof."""
    monkeypatch.setattr(connection, "_WRITE_PROOF_SECONDS", 0.0)


def taken(call: Callable[[], object]) -> float:
    """How long it takes until the store gives up."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked for too long"):
        call()
    return time.monotonic() - start


def waiting(store: SqliteStore) -> threading.Thread:
    """A thread that waits for the file."""
    thread = threading.Thread(target=lambda: taken(lambda: claim(store)))
    thread.start()
    time.sleep(BUSY / 4)
    return thread


class TestLocked:
    def test_threads_wait_beside_each_other(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """Of several threads that are kept out none waits for the others to give up first."""
        other.execute("BEGIN IMMEDIATE")
        times: list[float] = []
        threads = [threading.Thread(target=lambda: times.append(taken(lambda: claim(store)))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(times) == 5
        assert BUSY * 0.8 < min(times) <= max(times) < BUSY * 2.5

    def test_reads_go_on(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """What only reads is answered while another thread waits to write."""
        other.execute("BEGIN IMMEDIATE")
        thread = waiting(store)
        assert store.kept(NAMESPACE) == 0
        assert thread.is_alive()
        thread.join()

    def test_what_has_waited(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """What has waited while another waited in vain does not wait as long again; what is new does."""
        assert isinstance(store, CountsQueueTime)
        other.execute("BEGIN IMMEDIATE")
        with store.waited(BUSY):
            assert taken(lambda: claim(store)) > BUSY * 0.8
            assert taken(lambda: claim(store)) < BUSY / 2
        assert taken(lambda: claim(store)) > BUSY * 0.8
        other.execute("ROLLBACK")
        with store.waited(BUSY):
            granted(store)

    def test_it_is_taken_when_it_comes_free(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """A file that is let go within the time that is waited is written, as if nobody had held it."""
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(BUSY / 4, other.execute, ["ROLLBACK"]).start()
        granted(store)


class TestProbe:
    def test_free(self, store: SqliteStore, nothing_proven: None) -> None:
        """A file that can be written shows that it can be."""
        assert isinstance(store, CanProbe)
        store.probe(100_000)

    @pytest.mark.parametrize("busy", [False, True])
    def test_locked(self, store: SqliteStore, other: sqlite3.Connection, nothing_proven: None, busy: bool) -> None:
        """A file that another process holds shows soon, whether or not a thread of ours waits for it."""
        other.execute("BEGIN IMMEDIATE")
        threads = [waiting(store)] if busy else []
        assert taken(lambda: store.probe(100_000)) < BUSY / 2
        for thread in threads:
            thread.join()
        other.execute("ROLLBACK")
        store.probe(100_000)

    def test_what_was_written_just_now(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """Where others write too, having written a moment ago is proof enough."""
        granted(store)
        other.execute("BEGIN IMMEDIATE")
        store.probe(100_000)

    def test_a_slow_write_of_our_own(self, store: SqliteStore, nothing_proven: None) -> None:
        """A handler of ours that takes its time in a transaction is no reason to be taken for locked."""
        slow, probed = threading.Event(), threading.Event()

        def handler(_event: Event, _db: Any) -> None:
            slow.set()
            assert probed.wait(10)

        thread = threading.Thread(target=lambda: Gate(store).transaction({"id": 1}, handler))
        thread.start()
        assert slow.wait(10)
        store.probe(100_000)
        probed.set()
        thread.join()
        assert [entry.record.state for entry in store.browse()] == [COMPLETED]

    def test_a_full_disk(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk shows for a while, also when something small has found room since."""
        granted(store)
        store._connected().execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreUnavailable, match="is full"):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
        store._connected().execute("PRAGMA max_page_count = 1000000")
        granted(store, key=bytes(16))
        with pytest.raises(StoreUnavailable, match="was full or failed"):
            store.probe(100_000)
        monkeypatch.setattr(connection, "_DISK_ERROR_SECONDS", 0.0)
        store.probe(100_000)

    def test_a_file_that_is_gone(self, store: SqliteStore, tmp_path: Path, nothing_proven: None) -> None:
        """A file that was removed under the store is not taken for one that can be written."""
        (tmp_path / "store.db").unlink()
        with pytest.raises(StoreUnavailable, match="was removed"):
            store.probe(100_000)

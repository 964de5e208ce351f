"""A file that another process has locked, or whose disk is full: how long calls wait, and what a probe reports."""

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
def no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recent write does not count as proof in a probe."""
    monkeypatch.setattr(connection, "_WRITE_PROOF_SECONDS", 0.0)


def timed_out(call: Callable[[], object]) -> float:
    """Return how many seconds pass until the store gives up."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked for too long"):
        call()
    return time.monotonic() - start


def start_waiting(store: SqliteStore) -> threading.Thread:
    """Return a thread that waits for the file."""
    thread = threading.Thread(target=lambda: timed_out(lambda: claim(store)))
    thread.start()
    time.sleep(BUSY / 4)
    return thread


class TestLocked:
    def test_threads_wait_beside_each_other(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """Several threads wait for the lock at the same time, not one after the other."""
        other.execute("BEGIN IMMEDIATE")
        times: list[float] = []
        threads = [threading.Thread(target=lambda: times.append(timed_out(lambda: claim(store)))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(times) == 5
        assert BUSY * 0.8 < min(times) <= max(times) < BUSY * 2.5

    def test_reads_go_on(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """Reads are answered while another thread waits to write."""
        other.execute("BEGIN IMMEDIATE")
        thread = start_waiting(store)
        assert store.kept(NAMESPACE) == 0
        assert thread.is_alive()
        thread.join()

    def test_time_in_a_queue_counts(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """A call that was queued while another call timed out does not wait as long again; a new call does."""
        assert isinstance(store, CountsQueueTime)
        other.execute("BEGIN IMMEDIATE")
        with store.waited(BUSY):
            assert timed_out(lambda: claim(store)) > BUSY * 0.8
            assert timed_out(lambda: claim(store)) < BUSY
        assert timed_out(lambda: claim(store)) > BUSY * 0.8
        other.execute("ROLLBACK")
        with store.waited(BUSY):
            granted(store)

    def test_a_lock_that_is_released_in_time(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """If the lock is released within the timeout, the call succeeds."""
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(BUSY / 4, other.execute, ["ROLLBACK"]).start()
        granted(store)


class TestProbe:
    def test_free(self, store: SqliteStore, no_proof: None) -> None:
        """A probe of a writable file succeeds."""
        assert isinstance(store, CanProbe)
        store.probe(100_000)

    @pytest.mark.parametrize("busy", [False, True])
    def test_locked(self, store: SqliteStore, other: sqlite3.Connection, no_proof: None, busy: bool) -> None:
        """A probe soon finds a file that is locked, whether or not another thread waits for it."""
        other.execute("BEGIN IMMEDIATE")
        threads = [start_waiting(store)] if busy else []
        assert timed_out(lambda: store.probe(100_000)) < BUSY
        for thread in threads:
            thread.join()
        other.execute("ROLLBACK")
        store.probe(100_000)

    def test_a_recent_write(self, store: SqliteStore, other: sqlite3.Connection) -> None:
        """A recent write counts as proof, although the file is locked now."""
        granted(store)
        other.execute("BEGIN IMMEDIATE")
        store.probe(100_000)

    def test_a_slow_handler(self, store: SqliteStore, no_proof: None) -> None:
        """A slow handler of this process in a transaction does not fail the probe."""
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
        """A full disk fails probes for a while, also if a small write has succeeded since."""
        granted(store)
        store._get_connection().execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreUnavailable, match="is full"):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
        store._get_connection().execute("PRAGMA max_page_count = 1000000")
        granted(store, key=bytes(16))
        with pytest.raises(StoreUnavailable, match="was full or failed"):
            store.probe(100_000)
        monkeypatch.setattr(connection, "_DISK_ERROR_SECONDS", 0.0)
        store.probe(100_000)

    def test_a_file_that_is_gone(self, store: SqliteStore, tmp_path: Path, no_proof: None) -> None:
        """A removed file fails the probe."""
        (tmp_path / "store.db").unlink()
        with pytest.raises(StoreUnavailable, match="was removed"):
            store.probe(100_000)

"""The SQLite store: the contract, faults of the disk, kills, forks, and what the store caches and sweeps."""

import itertools
import os
import re
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Store
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing import InboxContract, ManualClock, SharedStoreContract
from oncegate.testing.requests import LEASE, admit, claim_of, complete, granted, owner, take
from tests import FORKS
from tests.stores.forking import Forks, run


class TestSqliteStore(InboxContract, SharedStoreContract):
    histories = 60
    processes = FORKS

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"
        self.numbers = itertools.count()

    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(str(self.path), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        return SqliteStore(str(self.path.with_name(f"{next(self.numbers)}.db")), clock=clock, synchronous="normal")

    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def kept(self, store: Store) -> int:
        assert isinstance(store, SqliteStore)
        (count,) = store._get_connection().execute("SELECT count(*) FROM claims").fetchone()
        return int(count)


def test_full_disk(tmp_path: Path) -> None:
    """On a full disk the whole batch is refused; when there is space again, the store works on."""
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        first = granted(store)
        (pages,) = store._get_connection().execute("PRAGMA page_count").fetchone()
        store._get_connection().execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreUnavailable, match="is full; nothing was written"):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
        assert len(store.browse()) == 1
        assert complete(store, first)
        store._get_connection().execute("PRAGMA max_page_count = 1000000")
        assert len(store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])) == 1_000


def test_locked_by_another(tmp_path: Path) -> None:
    """The store waits for a locked file as long as its timeout, then raises StoreUnavailable."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(f"{url}?busy_timeout=100ms")) as store:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"held .* locked for too long"):
                granted(store)
        granted(store)


def test_a_write_that_fails_half_way(tmp_path: Path) -> None:
    """If the system refuses a write half-way, the whole batch is refused, and earlier records are still there."""
    done = run(
        f"""
        import resource
        from oncegate import open_store
        from oncegate.errors import StoreUnavailable
        from oncegate.testing.requests import claim_of
        store = open_store("sqlite:///{tmp_path}/store.db")
        store.claim([claim_of(key=bytes(16))])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(1, 5_000)])
        except StoreUnavailable as error:
            print(len(store.browse()), error)
        """
    )
    assert re.match(r"1 reading or writing .* failed", done.stdout), done
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        assert len(store.browse()) == 1


def test_killed_in_a_transaction(tmp_path: Path) -> None:
    """A process that is killed between its writes and its commit has written nothing and leaves no lock."""
    done = run(
        f"""
        import os, signal
        from oncegate import open_store
        from oncegate.stores.sqlite import store as module
        from oncegate.testing.requests import claim_of
        store = open_store("sqlite:///{tmp_path}/store.db")
        store.claim([claim_of("first", key=bytes(16))])
        module.SqliteStore._sweep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store.claim([claim_of("second", key=number.to_bytes(16)) for number in range(1, 50)])
        """
    )
    assert done.returncode == -signal.SIGKILL
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        assert [entry.record.owner for entry in store.browse()] == [owner("first")]
        granted(store, key=b"2" * 16)


class TestForks(Forks):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"

    @pytest.mark.parametrize("parent", ["store.close()", "os._exit(0)"])
    def test_what_the_child_wrote_stays(self, tmp_path: Path, parent: str) -> None:
        """Acknowledged writes of the child stay visible to others after the parent has closed the store or ended."""
        done = run(
            f"""
            import os, subprocess, sys, time
            from oncegate import open_store
            from oncegate.testing.requests import complete, granted
            url = "sqlite:///{tmp_path}/store.db"
            store = open_store(url)
            granted(store)
            if os.fork() != 0:
                {parent}
                os.wait()
                sys.exit()
            time.sleep(0.2)
            granted(store, "child", key=b"1" * 16)
            subprocess.run([sys.executable, "-c", f"from oncegate import open_store; open_store({{url!r}}).close()"])
            record = granted(store, "child", key=b"2" * 16)
            print(complete(store, record, key=b"2" * 16), flush=True)
            other = "from oncegate import open_store; print(len(open_store(" + repr(url) + ").browse()))"
            subprocess.run([sys.executable, "-c", other])
            """
        )
        assert done.stdout.split() == ["True", "3"], done


def test_cached_claims_are_not_stale(tmp_path: Path) -> None:
    """A claim that another connection took over is not settled from the cache."""
    clock = ManualClock()
    path = str(tmp_path / "store.db")
    with closing(SqliteStore(path, clock=clock)) as first, closing(SqliteStore(path, clock=clock)) as second:
        record = granted(first)
        clock.advance(LEASE)
        granted(second, "bob")
        assert complete(first, record) is False


def test_take_reads_one_snapshot(tmp_path: Path) -> None:
    """Another process may take and complete an event between two statements of `take`; `take` does not fail."""
    path = str(tmp_path / "store.db")
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second:
        admit(first)

        def complete_elsewhere(statement: str) -> None:
            """SQLite calls this when a statement of the first store begins."""
            if "state = 'P'" in statement and (entry := take(second)) is not None:
                completed.append(complete(second, entry.record))

        completed: list[bool] = []
        first._get_connection().set_trace_callback(complete_elsewhere)
        assert take(first, in_order=True) is None
        first._get_connection().set_trace_callback(None)
        assert completed == [True]


def test_expired_rows_are_swept_a_stretch_at_a_time(tmp_path: Path) -> None:
    """One batch after a long pause deletes only a bounded number of expired rows."""
    clock = ManualClock()
    with closing(SqliteStore(str(tmp_path / "store.db"), clock=clock)) as store:
        store.claim([claim_of(key=os.urandom(16)) for _ in range(5_000)])
        clock.advance("2h")
        store.claim([claim_of(key=os.urandom(16)) for _ in range(128)])
        (count,) = store._get_connection().execute("SELECT count(*) FROM claims").fetchone()
        assert 5_128 - 2 * 256 <= count < 5_128


def test_a_claim_reaches_its_write_directly(tmp_path: Path) -> None:
    """From `claim` to the statement that writes it there are four functions in two files."""
    stacks: list[list[tuple[str, str]]] = []

    def note_writes(frame: FrameType | None, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ == "executemany":
            stacks.append([])
            while frame is not None and "/oncegate/stores/" in frame.f_code.co_filename:
                stacks[-1].append((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
                frame = frame.f_back

    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        request = claim_of()
        sys.setprofile(note_writes)
        try:
            store.claim([request])
        finally:
            sys.setprofile(None)
    ((*others, last),) = stacks
    assert last == ("store.py", "claim")
    assert len(others) <= 3
    assert {file for file, _ in others} == {"store.py", "queries.py"}

"""The SQLite store against the contract, and what only a file can do to it."""

import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.stores import open_read_only
from oncegate.stores.base import Store
from oncegate.stores.sqlite import SqliteStore, connection, read_only, read_url
from oncegate.testing import InboxContract, ManualClock, SharedStoreContract
from oncegate.testing.race_contract import race
from oncegate.testing.requests import (
    LEASE,
    admit,
    claim,
    claim_of,
    complete,
    granted,
    owner,
    take,
)
from tests import FORKS
from tests.stores.forking import Forks, run


class TestSqliteStore(InboxContract, SharedStoreContract):
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
        (count,) = store._connected().execute("SELECT count(*) FROM claims").fetchone()
        return int(count)


URL_ERRORS = [
    ("sqlite://host/file.db", "names no file"),
    ("sqlite:///", "names no file"),
    ("sqlite://[x", "is not a URL"),
    ("sqlite:///x.db#y", "names no file"),
    ("sqlite:///:memory:", "use memory://"),
    ("sqlite:///x.db?sync=off", "no option 'sync'"),
    ("sqlite:///x.db?synchronous=off", "it is full or normal"),
    ("sqlite:///x.db?busy_timeout=5", "is not a duration"),
]


@pytest.mark.parametrize(("url", "said"), URL_ERRORS)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    """A URL that names no file or an unknown option is refused with what would do."""
    with pytest.raises(SettingError, match=re.escape(said)):
        open_store(url)


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_synchronous_is_full_unless_told_otherwise(tmp_path: Path, option: str, level: int) -> None:
    """An answer means that the disk has it, unless the user has chosen otherwise."""
    store = open_store(f"sqlite:///{tmp_path}/store.db{option}")
    assert isinstance(store, SqliteStore)
    assert store._connected().execute("PRAGMA synchronous").fetchone() == (level,)
    assert store._connected().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


class TestRefusals:
    """A file that cannot be used is refused in one sentence, and left as it was."""

    def refused(self, path: Path, said: str) -> None:
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(StoreRefused, match=re.escape(said)):
            open_store(f"sqlite:///{path}")
        assert (path.read_bytes() if path.is_file() else None) == before

    def test_not_a_database(self, tmp_path: Path) -> None:
        """A file of another kind is not overwritten."""
        path = tmp_path / "notes.txt"
        path.write_text("dear diary, " * 100)
        self.refused(path, "is not an SQLite file")

    def test_foreign(self, tmp_path: Path) -> None:
        """Another program's database is not moved into."""
        path = tmp_path / "theirs.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE customers (id)")
            db.commit()
        self.refused(path, "is another program's SQLite file")

    def test_newer(self, tmp_path: Path) -> None:
        """A file of a later version is not written by an earlier one."""
        path = tmp_path / "store.db"
        open_store(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        self.refused(path, "written by a newer Oncegate (schema 99")

    def test_damaged(self, tmp_path: Path) -> None:
        """Damage inside the file is told as soon as it is met, and what it asks of a person."""
        path = tmp_path / "store.db"
        store = open_store(f"sqlite:///{path}")
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(2_000)])
        store.close()
        content = bytearray(path.read_bytes())
        for page in range(2, len(content) // 4096):
            content[page * 4096 : page * 4096 + 200] = os.urandom(200)
        path.write_bytes(content)
        store = open_store(f"sqlite:///{path}")
        with pytest.raises(StoreRefused, match="is damaged"):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(2_000)])
        store.close()

    def test_no_folder(self, tmp_path: Path) -> None:
        """A folder that is not there is named."""
        self.refused(tmp_path / "nowhere" / "store.db", "does not exist; create it first")

    def test_a_folder(self, tmp_path: Path) -> None:
        """A folder is no file."""
        self.refused(tmp_path, "is a folder")

    def test_read_only(self, tmp_path: Path) -> None:
        """A process that may not write the file is told so when it opens it."""
        path = tmp_path / "store.db"
        open_store(f"sqlite:///{path}").close()
        path.chmod(0o444)
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(0o555 if folder == tmp_path else 0o755)
        # Root is bound by no permissions, so the process becomes nobody before it opens the file.
        said = run(
            f"""
            import os
            from oncegate import open_store
            from oncegate.stores import sqlite
            if os.geteuid() == 0:
                os.setgroups([])
                os.setegid(65534)
                os.seteuid(65534)
            open_store("sqlite:///{path}")
            """
        ).stderr
        tmp_path.chmod(0o755)
        assert "StoreRefused" in said
        assert "is read-only for this process; make the file and its folder writable" in said


def test_its_page() -> None:
    """The page on the store lists its options with their defaults."""
    page = (Path(__file__).parents[2] / "docs" / "stores" / "sqlite.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    usual = read_url("sqlite:///x.db")
    assert listed == {
        "synchronous": usual.synchronous,
        "busy_timeout": f"{usual.busy_timeout // 1_000_000}s",
        "secure_delete": "on" if usual.secure_delete else "off",
    }
    assert read_url("sqlite:///x.db?" + "&".join(f"{name}={value}" for name, value in listed.items())) == usual


class TestLooking:
    """Those who only read: they write nothing, wait for nobody, and need no right to write."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.mark.parametrize("log", [True, False])
    def test_who_may_only_read(self, path: Path, log: bool) -> None:
        """A file that may not be written is read, whether or not its log is beside it."""
        with closing(open_store(f"sqlite:///{path}")) as store:
            granted(store)
            if log:
                told = self.as_nobody(path, 0o555)
        if not log:
            told = self.as_nobody(path, 0o555)
        assert (told.stdout, told.stderr) == ("1\n", "")

    def test_no_right_to_look(self, path: Path) -> None:
        """A folder that may not be entered is no reason to say that the file is not there."""
        open_store(f"sqlite:///{path}").close()
        assert "store.db cannot be read: Permission denied" in self.as_nobody(path, 0o600).stderr

    def as_nobody(self, path: Path, rights: int) -> Any:
        """How many records there are, asked by a process that may write neither the file nor its folder."""
        for each in path.parent.iterdir():
            each.chmod(0o444)
        for folder in path.parents[1:4]:
            folder.chmod(0o755)
        path.parent.chmod(rights)
        told = run(
            f"""
            import os
            from oncegate.stores import open_read_only, sqlite
            if os.geteuid() == 0:
                os.setgroups([])
                os.setegid(65534)
                os.seteuid(65534)
            store = open_read_only("sqlite:///{path}")
            print(len(store.browse()))
            store.close()
            """
        )
        path.parent.chmod(0o755)
        return told

    def test_nobody_is_waited_for(self, path: Path) -> None:
        """While another has the write lock, the store is opened and read at once."""
        with closing(open_store(f"sqlite:///{path}")) as store, closing(sqlite3.connect(path)) as other:
            granted(store)
            other.execute("BEGIN IMMEDIATE")
            with closing(open_read_only(f"sqlite:///{path}?busy_timeout=1ms")) as looked_at:
                assert len(looked_at.browse()) == 1

    def test_nothing_is_written(self, path: Path) -> None:
        """What would write is refused."""
        open_store(f"sqlite:///{path}").close()
        with closing(open_read_only(f"sqlite:///{path}")) as looked_at, pytest.raises(StoreRefused, match="read-only"):
            claim(looked_at)

    @pytest.mark.parametrize("look", [open_read_only, partial(open_store, create=False)])
    def test_an_empty_file(self, path: Path, look: Callable[[str], Store]) -> None:
        """It is no store, and stays as it is."""
        path.touch()
        with pytest.raises(StoreRefused, match="there is no store at"):
            look(f"sqlite:///{path}")
        assert path.stat().st_size == 0

    def test_an_older_schema(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that would have to be brought up to date is left to those who may."""
        open_store(f"sqlite:///{path}").close()
        monkeypatch.setattr(read_only, "MIGRATIONS", [*connection.MIGRATIONS, "SELECT 1"])
        with pytest.raises(StoreRefused, match="was written by an older Oncegate"):
            open_read_only(f"sqlite:///{path}")


def test_two_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file is migrated when it is opened, once, with what it holds; many openers at once do no harm."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url)
    record = granted(store)
    store.close()
    later = [
        *connection.MIGRATIONS,
        "ALTER TABLE claims ADD COLUMN colour TEXT;\nCREATE TABLE more (id INTEGER) STRICT;",
    ]
    monkeypatch.setattr(connection, "MIGRATIONS", later)
    stores = race([lambda: open_store(url)] * 6)
    assert complete(stores[0], record)
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(later),)
        assert db.execute("SELECT count(*) FROM claims WHERE colour IS NULL AND state = 'C'").fetchone() == (1,)
    for opened in stores:
        opened.close()


def test_a_failed_migration_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that stops half-way has not happened."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    monkeypatch.setattr(
        connection, "MIGRATIONS", [*connection.MIGRATIONS, "CREATE TABLE more (id);\nCREATE TABLE claims (id);"]
    )
    with pytest.raises(StoreError, match="already exists"):
        open_store(url)
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(connection.MIGRATIONS) - 1,)
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").fetchone() == (0,)


@pytest.mark.parametrize("number", range(3))
def test_many_processes_create_one_file(tmp_path: Path, number: int) -> None:
    """Processes that start on a new file at once all come up on it, and none takes it for another program's."""
    code = f"from oncegate import open_store; open_store('sqlite:///{tmp_path}/{number}.db').close()"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8


def test_full_disk(tmp_path: Path) -> None:
    """When the disk is full a batch is refused whole and in words; with room again the store goes on."""
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        first = granted(store)
        (pages,) = store._connected().execute("PRAGMA page_count").fetchone()
        store._connected().execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreUnavailable, match="is full; nothing was written"):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
        assert len(store.browse()) == 1
        assert complete(store, first)
        store._connected().execute("PRAGMA max_page_count = 1000000")
        assert len(store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])) == 1_000


def test_locked_by_another(tmp_path: Path) -> None:
    """A writer that never lets go is waited for as long as was said, then told of."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(f"{url}?busy_timeout=100ms")) as store:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"held .* locked for too long"):
                granted(store)
        granted(store)


def test_closed(tmp_path: Path) -> None:
    """A closed store says that it is closed."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    store.close()
    with pytest.raises(StoreRefused, match="was closed"):
        granted(store)


def test_a_write_that_fails_half_way(tmp_path: Path) -> None:
    """When the system refuses to write on, the batch is refused whole, and what was there before still is."""
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
    """A process killed between its writes and its commit has written nothing, and blocks nobody."""
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


def test_a_file_that_was_removed(tmp_path: Path) -> None:
    """What is written to a file that was removed would be lost with the process, so nothing is."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    store.claim([claim_of()])
    for each in tmp_path.glob("store.db*"):
        if each.is_file():
            each.unlink()
    with pytest.raises(StoreUnavailable, match="was removed or replaced while it was in use"):
        store.claim([claim_of(key=b"2" * 16)])
    other = open_store(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        store.load([])
    assert other.browse() == []
    other.close()
    store.close()


class TestForks(Forks):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"

    @pytest.mark.parametrize("parent", ["store.close()", "os._exit(0)"])
    def test_what_the_child_wrote_stays(self, tmp_path: Path, parent: str) -> None:
        """What the child was told is stored is there for others, when the parent has closed the store or ended."""
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


def test_what_it_remembers_is_what_others_have_not_changed(tmp_path: Path) -> None:
    """A claim that another connection took over is not settled from memory."""
    clock = ManualClock()
    path = str(tmp_path / "store.db")
    with closing(SqliteStore(path, clock=clock)) as first, closing(SqliteStore(path, clock=clock)) as second:
        record = granted(first)
        clock.advance(LEASE)
        granted(second, "bob")
        assert complete(first, record) is False


def test_a_look_is_of_one_moment(tmp_path: Path) -> None:
    """What another process takes and completes between two statements of a look for what waits harms nobody."""
    path = str(tmp_path / "store.db")
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second:
        admit(first)

        def work_it_off(statement: str) -> None:
            """Called by SQLite as each statement of the first store begins."""
            if "state = 'P'" in statement and (entry := take(second)) is not None:
                completed.append(complete(second, entry.record))

        completed: list[bool] = []
        first._connected().set_trace_callback(work_it_off)
        assert take(first, in_order=True) is None
        first._connected().set_trace_callback(None)
        assert completed == [True]


def test_expired_rows_are_swept_a_stretch_at_a_time(tmp_path: Path) -> None:
    """One batch after a long silence drops no more than its share of the expired rows."""
    clock = ManualClock()
    with closing(SqliteStore(str(tmp_path / "store.db"), clock=clock)) as store:
        store.claim([claim_of(key=os.urandom(16)) for _ in range(5_000)])
        clock.advance("2h")
        store.claim([claim_of(key=os.urandom(16)) for _ in range(128)])
        (count,) = store._connected().execute("SELECT count(*) FROM claims").fetchone()
        assert 5_128 - 2 * 256 <= count < 5_128

"""SQLite stores that are opened to read: they write nothing, wait for no lock, and need no write permission."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from oncegate import open_store
from oncegate.errors import StoreRefused
from oncegate.stores import open_read_only
from oncegate.stores.base import CountsDeadLetters, Store
from oncegate.stores.sqlite import connection, open_sqlite_read_only, read_only
from oncegate.testing.requests import NAMESPACE, bury, claim, claim_of, forget, granted
from tests.stores.forking import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def count_as_nobody(path: Path, mode: int) -> CompletedProcess[str]:
    """Count the records in a process that may write neither the file nor its folder. `mode` is that of the folder."""
    for each in path.parent.iterdir():
        each.chmod(0o444)
    for folder in path.parents[1:4]:
        folder.chmod(0o755)
    path.parent.chmod(mode)
    done = run(
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
    return done


@pytest.mark.parametrize("log", [True, False])
def test_without_write_permission(path: Path, log: bool) -> None:
    """A file that may not be written is read, with and without its log."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        granted(store)
        if log:
            done = count_as_nobody(path, 0o555)
    if not log:
        done = count_as_nobody(path, 0o555)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_without_read_permission(path: Path) -> None:
    """A folder without the permission to enter it is reported as such, not as an absent store."""
    open_store(f"sqlite:///{path}").close()
    assert "store.db cannot be read: Permission denied" in count_as_nobody(path, 0o600).stderr


def test_no_lock_is_waited_for(path: Path) -> None:
    """While another connection has the write lock, the store is opened and read at once."""
    with closing(open_store(f"sqlite:///{path}")) as store, closing(sqlite3.connect(path)) as other:
        granted(store)
        other.execute("BEGIN IMMEDIATE")
        with closing(open_read_only(f"sqlite:///{path}?busy_timeout=1ms")) as reader:
            assert len(reader.browse()) == 1


def test_nothing_is_written(path: Path) -> None:
    """A verb that would write is refused."""
    open_store(f"sqlite:///{path}").close()
    with closing(open_read_only(f"sqlite:///{path}")) as reader:
        for write in (claim, forget):
            with pytest.raises(StoreRefused, match="read-only"):
                write(reader)


def test_count_of_dead_letters(path: Path) -> None:
    """A store that only reads can count its dead letters."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        assert bury(store, granted(store))
    with closing(open_read_only(f"sqlite:///{path}")) as reader:
        assert isinstance(reader, CountsDeadLetters)
        assert reader.count_dead_letters(NAMESPACE, 10) == 1


def test_a_store_without_a_log(path: Path) -> None:
    """A store that was closed, and has no log, can be read."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.claim([claim_of()])
    with closing(open_read_only(f"sqlite:///{path}")) as reader:
        assert len(reader.browse()) == 1


@pytest.mark.parametrize("open_it", [open_read_only, partial(open_store, create=False)])
@pytest.mark.parametrize("empty_file", [True, False])
def test_no_store(path: Path, open_it: Callable[[str], Store], empty_file: bool) -> None:
    """An absent or empty file is no store, and nothing is created or written."""
    if empty_file:
        path.touch()
    with pytest.raises(StoreRefused, match="there is no store at"):
        open_it(f"sqlite:///{path}")
    assert [(each.name, each.stat().st_size) for each in path.parent.iterdir()] == ([("store.db", 0)] * empty_file)


def test_an_older_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that needs a migration is not migrated by a reader."""
    open_store(f"sqlite:///{path}").close()
    monkeypatch.setattr(read_only, "MIGRATIONS", [*connection.MIGRATIONS, "SELECT 1"])
    with pytest.raises(StoreRefused, match="was written by an older Oncegate"):
        open_read_only(f"sqlite:///{path}")


def test_damage(path: Path) -> None:
    """A sound file has no damage, and a check that takes too long raises TimeoutError."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(2_000)])
    with closing(open_sqlite_read_only(f"sqlite:///{path}")) as reader:
        assert reader.damage(60) is None
        with pytest.raises(TimeoutError):
            reader.damage(0)

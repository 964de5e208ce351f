"""The files of the SQLite store: who may read them, and what happens when one of them is removed while it is in use."""

import os
import signal
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import open_store
from oncegate.claims import Reset
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.stores import open_read_only
from oncegate.stores.sqlite import SqliteStore, connection
from oncegate.stores.sqlite.handler_connection import StoreConnection
from oncegate.testing.requests import claim_of
from tests.stores.forking import run


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir() if each.is_file()}


class TestModes:
    """Payloads are in these files: nobody but their owner may read them."""

    @pytest.mark.parametrize("umask", ["0o000", "0o022", "0o777"])
    def test_new_files(self, tmp_path: Path, umask: str) -> None:
        """Each file is created for its owner only, whatever the umask."""
        done = run(
            f"""
            import os
            from oncegate import open_store
            os.umask({umask})
            store = open_store("sqlite:///{tmp_path}/store.db")
            print(*(oct(os.stat("{tmp_path}/store.db" + end).st_mode & 0o777) for end in ("", "-wal", "-shm")))
            """
        )
        assert done.stdout.split() == ["0o600"] * 3, done

    def test_never_wider_for_a_moment(self, tmp_path: Path) -> None:
        """No system call creates one of them with other rights, and then takes them away."""
        done = run(
            f"""
            import os, sys
            made = []
            def seen(event, arguments):
                if event == "open" and arguments[2] & os.O_CREAT:
                    made.append(arguments[0])
                if event == "sqlite3.connect" and not os.path.exists("{tmp_path}/store.db"):
                    made.append("SQLite")  # which would create it with the rights that the umask leaves
            os.umask(0)
            sys.addaudithook(seen)
            from oncegate import open_store
            real, modes = os.fchmod, []
            def fchmod(descriptor, mode):
                modes.append(oct(os.fstat(descriptor).st_mode & 0o777))
                real(descriptor, mode)
            os.fchmod = fchmod
            open_store("sqlite:///{tmp_path}/store.db").close()
            print(*made, *modes)
            """
        )
        store, lock, *seen = done.stdout.split()
        assert (store, seen) == (f"{tmp_path}/store.db", ["0o600", "0o600"]), done
        assert lock.startswith(f"{tmp_path}/store.db-instances/")

    @pytest.mark.parametrize("mode", [0o644, 0o660])
    def test_existing_files(self, tmp_path: Path, mode: int) -> None:
        """A file that is there keeps the rights that somebody gave it, and its log gets the same."""
        path = tmp_path / "store.db"
        path.touch()
        path.chmod(mode)
        with closing(open_store(f"sqlite:///{path}")):
            assert modes(tmp_path) == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], mode)

    def test_a_link_to_nothing_yet(self, tmp_path: Path) -> None:
        """The file that a link names is created in the same way."""
        (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
        open_store(f"sqlite:///{tmp_path}/link.db").close()
        assert modes(tmp_path)["store.db"] == 0o600


class TestSecureDelete:
    def test_on(self, tmp_path: Path) -> None:
        """With the option, nothing of a record that was deleted is left in the file, whatever SQLite's own default."""
        path = tmp_path / "store.db"
        store = open_store(f"sqlite:///{path}?secure_delete=on")
        assert isinstance(store, SqliteStore)
        claim = claim_of("secret")
        store.claim([claim])
        store._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert claim.owner in path.read_bytes()
        assert store.reset([Reset(claim.namespace, claim.key)]) == [True]
        store.close()
        assert claim.owner not in path.read_bytes()

    def test_the_connection_that_deletes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The option is set on every connection of the store, after a fork as well."""
        asked: list[str] = []
        connect = connection.connect

        def traced(path: str, how: str, timeout: int, prepare: Callable[[StoreConnection], None]) -> StoreConnection:
            def prepared(db: StoreConnection) -> None:
                db.execute("PRAGMA secure_delete = OFF")  # as most builds have it
                prepare(db)
                asked.append(str(db.execute("PRAGMA secure_delete").fetchone()[0]))

            return connect(path, how, timeout, prepared)

        monkeypatch.setattr(connection, "connect", traced)
        store = SqliteStore(str(tmp_path / "store.db"), secure_delete=True)
        store.before_fork()
        store.after_fork(in_child=False)
        store.claim([claim_of()])
        store.close()
        SqliteStore(str(tmp_path / "store.db")).close()
        assert asked == ["1", "1", "0"]

    def test_off(self, tmp_path: Path) -> None:
        """Without it, it is as SQLite was built."""
        with closing(sqlite3.connect(tmp_path / "other.db")) as db:
            built = db.execute("PRAGMA secure_delete").fetchone()
        store = open_store(f"sqlite:///{tmp_path}/store.db")
        assert isinstance(store, SqliteStore)
        assert store._connected().execute("PRAGMA secure_delete").fetchone() == built
        store.close()

    def test_another_word(self, tmp_path: Path) -> None:
        """Anything else is refused."""
        with pytest.raises(SettingError, match="secure_delete='yes' is not a choice; it is on or off"):
            open_store(f"sqlite:///{tmp_path}/store.db?secure_delete=yes")


def replace(path: Path) -> None:
    """Another file in the place of one that is open, as a restored copy would be."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


class TestRemovedFiles:
    """A file that was removed or replaced is noticed before a write to it is acknowledged."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.mark.parametrize("way", [os.unlink, replace])
    @pytest.mark.parametrize("end", ["", "-wal"])
    def test_at_once(self, path: Path, end: str, way: Callable[[Path], None]) -> None:
        """Also if it happens in the middle of the transaction, just before the commit."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        sweep = store._sweep

        def interfere(db: sqlite3.Connection, table: str, written: int, now: int) -> None:
            sweep(db, table, written, now)
            way(Path(f"{path}{end}"))

        store._sweep = interfere  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match=rf"store\.db{end} was removed or replaced while it was in use"):
            store.claim([claim_of(key=b"2" * 16)])
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.browse()
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.probe(1_000_000_000)
        store.close()

    def test_the_index_of_the_log(self, path: Path) -> None:
        """Processes lock each other out by the -shm file; without it nothing more is written."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        os.unlink(f"{path}-shm")
        store._next_file_check = 0
        with pytest.raises(StoreUnavailable, match="-shm was removed or replaced"):
            store.claim([claim_of(key=b"2" * 16)])
        store.close()
        with closing(open_store(f"sqlite:///{path}")) as store_again:
            assert len(store_again.browse()) == 1

    def test_what_was_acknowledged_is_kept(self, path: Path) -> None:
        """What only a removed log holds is copied into the database file, so a kill right after loses nothing."""
        done = run(
            f"""
            import os, signal
            from oncegate import open_store
            from oncegate.errors import StoreUnavailable
            from oncegate.testing.requests import claim_of
            store = open_store("sqlite:///{path}")
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(200)])
            os.unlink("{path}-wal")
            try:
                store.claim([claim_of(key=bytes(15) + b"x")])
            except StoreUnavailable:
                os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        assert done.returncode == -signal.SIGKILL, done
        with closing(open_store(f"sqlite:///{path}")) as store:
            assert len(store.browse(limit=1_000)) >= 200

    def test_a_log_of_another(self, path: Path) -> None:
        """Where somebody has written to a new log, the old one is not copied over it."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        before = path.read_bytes()
        os.unlink(f"{path}-wal")
        Path(f"{path}-wal").write_bytes(b"x" * 4096)
        with pytest.raises(StoreUnavailable, match="-wal was removed or replaced"):
            store.claim([claim_of(key=b"2" * 16)])
        assert path.read_bytes() == before
        store.close()

    def test_a_log_put_back(self, path: Path) -> None:
        """A file that is moved away and back again is the same file."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        os.rename(f"{path}-wal", f"{path}-away")
        with pytest.raises(StoreUnavailable):
            store.claim([claim_of(key=b"2" * 16)])
        os.rename(f"{path}-away", f"{path}-wal")
        store.claim([claim_of(key=b"3" * 16)])
        store.close()

    def test_those_who_only_look(self, path: Path) -> None:
        """Whoever only reads a store goes on without a log."""
        with closing(open_store(f"sqlite:///{path}")) as store:
            store.claim([claim_of()])
        with closing(open_read_only(f"sqlite:///{path}")) as looked_at:
            assert len(looked_at.browse()) == 1

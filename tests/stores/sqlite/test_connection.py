"""The SQLite file: refusals, migrations, file modes, secure deletion, and files that are removed while in use."""

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import open_store
from oncegate.claims import Reset
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.sqlite import SqliteStore, connection
from oncegate.stores.sqlite.handler_connection import StoreConnection
from oncegate.testing.race_contract import race
from oncegate.testing.requests import claim_of, complete, granted
from tests.stores.forking import run


class TestRefusals:
    """A file that cannot be used is refused with a reason, and is not changed."""

    def refused(self, path: Path, message: str) -> None:
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(StoreRefused, match=re.escape(message)):
            open_store(f"sqlite:///{path}")
        assert (path.read_bytes() if path.is_file() else None) == before

    def test_not_a_database(self, tmp_path: Path) -> None:
        """A file of another kind is not overwritten."""
        path = tmp_path / "notes.txt"
        path.write_text("dear diary, " * 100)
        self.refused(path, "is not an SQLite file")

    def test_another_program(self, tmp_path: Path) -> None:
        """The database of another program is not used."""
        path = tmp_path / "theirs.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE customers (id)")
            db.commit()
        self.refused(path, "is another program's SQLite file")

    def test_newer(self, tmp_path: Path) -> None:
        """A file of a newer version is not written by an older one."""
        path = tmp_path / "store.db"
        open_store(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        self.refused(path, "written by a newer Oncegate (schema 99")

    def test_damaged(self, tmp_path: Path) -> None:
        """Damage inside the file is reported by the first call that meets it, with what to do."""
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
        """The error names a folder that does not exist."""
        self.refused(tmp_path / "nowhere" / "store.db", "does not exist; create it first")

    def test_a_folder(self, tmp_path: Path) -> None:
        """A folder is not a file."""
        self.refused(tmp_path, "is a folder")

    def test_read_only(self, tmp_path: Path) -> None:
        """A process that may not write the file gets the error when it opens the store."""
        path = tmp_path / "store.db"
        open_store(f"sqlite:///{path}").close()
        path.chmod(0o444)
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(0o555 if folder == tmp_path else 0o755)
        # Permissions do not apply to root, so the process becomes nobody before it opens the file.
        errors = run(
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
        assert "StoreRefused" in errors
        assert "is read-only for this process; make the file and its folder writable" in errors


class TestMigrations:
    def test_an_older_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An older file is migrated once, with its records, also if many processes open it at the same time."""
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

    def test_a_failed_migration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A migration that fails half-way leaves the file as it was."""
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
    def test_many_processes_create_one_file(self, tmp_path: Path, number: int) -> None:
        """Processes that open a new file at the same time all succeed, and none reports another program's file."""
        code = f"from oncegate import open_store; open_store('sqlite:///{tmp_path}/{number}.db').close()"
        processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(8)]
        assert [process.wait(60) for process in processes] == [0] * 8


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir() if each.is_file()}


class TestModes:
    """The files contain payloads, so only their owner may read them."""

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
        """No system call creates a file with a wider mode that is narrowed afterwards."""
        done = run(
            f"""
            import os, sys
            made = []
            def seen(event, arguments):
                if event == "open" and arguments[2] & os.O_CREAT:
                    made.append(arguments[0])
                if event == "sqlite3.connect" and not os.path.exists("{tmp_path}/store.db"):
                    made.append("SQLite")  # SQLite would create the file with the mode of the umask
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
        """An existing file keeps its mode, and its log gets the same mode."""
        path = tmp_path / "store.db"
        path.touch()
        path.chmod(mode)
        with closing(open_store(f"sqlite:///{path}")):
            assert modes(tmp_path) == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], mode)

    def test_a_link_without_a_target(self, tmp_path: Path) -> None:
        """The missing target of a link is created with the same mode."""
        (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
        open_store(f"sqlite:///{tmp_path}/link.db").close()
        assert modes(tmp_path)["store.db"] == 0o600


class TestSecureDelete:
    def test_on(self, tmp_path: Path) -> None:
        """With the option, the file contains nothing of a deleted record, whatever SQLite's default is."""
        path = tmp_path / "store.db"
        store = open_store(f"sqlite:///{path}?secure_delete=on")
        assert isinstance(store, SqliteStore)
        claim = claim_of("secret")
        store.claim([claim])
        store._get_connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert claim.owner in path.read_bytes()
        assert store.reset([Reset(claim.namespace, claim.key)]) == [True]
        store.close()
        assert claim.owner not in path.read_bytes()

    def test_every_connection(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The option is set on every connection of the store, also on the one after a fork."""
        settings: list[str] = []
        connect = connection.connect

        def traced(path: str, mode: str, timeout: int, prepare: Callable[[StoreConnection], None]) -> StoreConnection:
            def prepare_and_read(db: StoreConnection) -> None:
                db.execute("PRAGMA secure_delete = OFF")  # the default of most builds
                prepare(db)
                settings.append(str(db.execute("PRAGMA secure_delete").fetchone()[0]))

            return connect(path, mode, timeout, prepare_and_read)

        monkeypatch.setattr(connection, "connect", traced)
        store = SqliteStore(str(tmp_path / "store.db"), secure_delete=True)
        store.before_fork()
        store.after_fork(in_child=False)
        store.claim([claim_of()])
        store.close()
        SqliteStore(str(tmp_path / "store.db")).close()
        assert settings == ["1", "1", "0"]

    def test_off(self, tmp_path: Path) -> None:
        """Without the option, the default of the SQLite build applies."""
        with closing(sqlite3.connect(tmp_path / "other.db")) as db:
            default = db.execute("PRAGMA secure_delete").fetchone()
        store = open_store(f"sqlite:///{tmp_path}/store.db")
        assert isinstance(store, SqliteStore)
        assert store._get_connection().execute("PRAGMA secure_delete").fetchone() == default
        store.close()


class TestPurge:
    """Deleted data is removed from the file and from its log."""

    SECRET = b"Annabel" * 20

    def fill(self, path: Path) -> sqlite3.Connection:
        """A file of a SQLite that does not overwrite deleted data."""
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")
        db.executemany("INSERT INTO t VALUES (?, ?)", [(1, b"other" * 20), (2, self.SECRET), (3, b"other" * 20)])
        return db

    def traces(self, path: Path) -> int:
        log = path.with_name(f"{path.name}-wal")
        return (path.read_bytes() + (log.read_bytes() if log.exists() else b"")).count(self.SECRET)

    def test_overwriting(self, tmp_path: Path) -> None:
        """Inside the context, SQLite overwrites deleted data. After the context, the setting is as before."""
        path = tmp_path / "t.db"
        with closing(self.fill(path)) as db:
            with connection.overwriting(db):
                db.execute("DELETE FROM t WHERE id = 2")
            assert db.execute("PRAGMA secure_delete").fetchone() == (0,)
            assert self.traces(path) > 0, "the log has the old page"
            assert connection.purge(str(path), rewrite=False, busy_timeout=1_000_000)
            assert self.traces(path) == 0

    def test_rewrite(self, tmp_path: Path) -> None:
        """Data that was deleted earlier is removed by a rewrite only."""
        path = tmp_path / "t.db"
        with closing(self.fill(path)) as db:
            db.execute("DELETE FROM t WHERE id = 2")
            assert connection.purge(str(path), rewrite=False, busy_timeout=1_000_000)
            assert self.traces(path) == 1
            assert connection.purge(str(path), rewrite=True, busy_timeout=1_000_000)
            assert self.traces(path) == 0
            assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)

    @pytest.mark.parametrize("rewrite", [False, True])
    def test_another_process_uses_the_file(self, tmp_path: Path, rewrite: bool) -> None:
        """If another connection reads or writes for too long, the answer is False."""
        path = tmp_path / "t.db"
        with closing(self.fill(path)) as db, closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            db.execute("PRAGMA query_only = ON")
            assert connection.purge(str(path), rewrite=rewrite, busy_timeout=20_000) is False
            other.execute("ROLLBACK")
            assert connection.purge(str(path), rewrite=rewrite, busy_timeout=20_000)

    def test_no_file(self, tmp_path: Path) -> None:
        """A file that cannot be opened is an error, and is not created."""
        with pytest.raises(StoreRefused, match="cannot be opened"):
            connection.purge(str(tmp_path / "absent.db"), rewrite=True, busy_timeout=20_000)
        assert list(tmp_path.iterdir()) == []


def replace(path: Path) -> None:
    """Put a copy in the place of a file, as the restore of a backup does."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


class TestRemovedFiles:
    """A file that was removed or replaced is found before a write to it is acknowledged."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.mark.parametrize("remove", [os.unlink, replace])
    @pytest.mark.parametrize("suffix", ["", "-wal"])
    def test_during_a_transaction(self, path: Path, suffix: str, remove: Callable[[Path], None]) -> None:
        """The removal is found also if it happens in the middle of the transaction, just before the commit."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        sweep = store._sweep

        def sweep_and_remove(db: sqlite3.Connection, table: str, written: int, now: int) -> None:
            sweep(db, table, written, now)
            remove(Path(f"{path}{suffix}"))

        store._sweep = sweep_and_remove  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match=rf"store\.db{suffix} was removed or replaced while it was in use"):
            store.claim([claim_of(key=b"2" * 16)])
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.browse()
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.probe(1_000_000_000)
        store.close()

    def test_all_files(self, tmp_path: Path) -> None:
        """Nothing is written to a removed store, also after another process has created a new file in its place."""
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

    def test_the_index_of_the_log(self, path: Path) -> None:
        """Processes lock each other out through the -shm file; without it, nothing more is written."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        os.unlink(f"{path}-shm")
        store._next_file_check = 0
        with pytest.raises(StoreUnavailable, match="-shm was removed or replaced"):
            store.claim([claim_of(key=b"2" * 16)])
        store.close()
        with closing(open_store(f"sqlite:///{path}")) as store_again:
            assert len(store_again.browse()) == 1

    def test_acknowledged_writes_are_kept(self, path: Path) -> None:
        """The content of a removed log is copied into the database file, so a kill right after loses nothing."""
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

    def test_a_new_log(self, path: Path) -> None:
        """If another process has written to a new log, the old log is not copied over it."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        before = path.read_bytes()
        os.unlink(f"{path}-wal")
        Path(f"{path}-wal").write_bytes(b"x" * 4096)
        with pytest.raises(StoreUnavailable, match="-wal was removed or replaced"):
            store.claim([claim_of(key=b"2" * 16)])
        assert path.read_bytes() == before
        store.close()

    def test_a_log_that_comes_back(self, path: Path) -> None:
        """A file that is moved away and back again is the same file, and the store works on."""
        store = SqliteStore(str(path))
        store.claim([claim_of()])
        os.rename(f"{path}-wal", f"{path}-away")
        with pytest.raises(StoreUnavailable):
            store.claim([claim_of(key=b"2" * 16)])
        os.rename(f"{path}-away", f"{path}-wal")
        store.claim([claim_of(key=b"3" * 16)])
        store.close()

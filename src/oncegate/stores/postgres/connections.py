"""Connections: as many as are needed at once up to a bound, none of which outlives a fork, a restart or a doubt.

psycopg's own pool was turned down. Its threads do not survive a fork; while the server is down it makes every caller
wait out its time where the system says at once that nobody listens; and the reason goes to a log.
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
from oncegate.stores.postgres.errors import DeadlineExceeded, explained, unconnected
from oncegate.stores.postgres.settings import PostgresSettings

_CANCEL_WITHIN: Final = 1.0
# A child must not let go of what its parent uses: letting go would tell the server that the session is over.
_inherited: Final[list[Any]] = []


class Connection(psycopg.Connection[Any]):
    """A connection whose statements take no longer than `limit` seconds. It is watched from this side: a setting of
    the session would not survive a pooler between us and the server, nor help when the server does not answer."""

    limit: float | None = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if self.limit is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(time.monotonic() + self.limit, gen), *args, **kwargs)
        except DeadlineExceeded:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Ask the server to stop, as far as that can be done in bounded time, and leave."""
        self.limit = None
        with suppress(psycopg.Error):
            if capabilities.has_cancel_safe():
                self.cancel_safe(timeout=_CANCEL_WITHIN)
        self.close()


def _until(deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The steps of a statement, as long as there is time. psycopg comes back every 100 ms while it waits."""
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
    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._room = threading.Semaphore(settings.connections)
        self._closed = False
        forks.watch(self)

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """A connection for the caller alone. psycopg's errors do not get out of here."""
        room, place = self._room, self._settings.place
        if not room.acquire(timeout=self._settings.timeout):
            raise StoreUnavailable(
                f"all {self._settings.connections} connections to {place} were busy for too long;"
                " allow more with oncegate_connections"
            )
        try:
            connection = self._found() or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        except psycopg.Error as error:
            if error.sqlstate is None or error.sqlstate == "25006":
                self._let_go()  # whatever became of this one, the others may share its fate
            raise explained(error, place) from error
        finally:
            room.release()

    def _found(self) -> Connection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreRefused(f"the store in {self._settings.place} was closed")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _hung_up(connection):
                return connection
            connection.close()

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(autocommit=True, prepare_threshold=None, **self._settings.parameters)
        except psycopg.Error as error:
            raise unconnected(error, self._settings.place) from error
        register(connection.adapters)
        connection.limit = self._settings.timeout
        return connection

    def _give_back(self, connection: Connection) -> None:
        """Keep it if it is as it was; one that was left in the middle of something is of no more use."""
        at_rest = connection.info.transaction_status == TransactionStatus.IDLE
        if at_rest and not connection.autocommit:
            connection.autocommit = True
        with self._lock:
            if at_rest and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            _inherited.extend(self._idle)
            self._idle, self._room = [], threading.Semaphore(self._settings.connections)
        self._lock.release()


def _hung_up(connection: Connection) -> bool:
    """Whether the server has said something to a connection that asked nothing: it can only be a farewell."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))

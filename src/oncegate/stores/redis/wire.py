"""The wire: connections to servers, commands sent to several at once, and what errors mean."""

import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.redis.settings import Settings

Command = tuple[Any, ...]
# redis-py's roots: some errors of its cluster side are no RedisError.
FAILURES: Final = (errors.RedisError, errors.RedisClusterException, OSError)
# With these the server says that it has done nothing, and that it or another may do it in a moment.
_NOT_NOW: Final = (
    errors.AskError,  # MOVED too
    errors.TryAgainError,
    errors.ClusterDownError,
    errors.ReadOnlyError,
)


class Failed(Struct, frozen=True):
    """What came back instead of a reply. `unsure`: the server may have done what it was asked all the same."""

    error: Exception
    unsure: bool = False

    @property
    def passing(self) -> bool:
        """Whether asking again in a moment can help; a server that hangs is not asked again."""
        if isinstance(self.error, errors.AuthenticationError | errors.AuthorizationError):
            return False
        return isinstance(self.error, (*_NOT_NOW, errors.ConnectionError))


Reply = Any


class Server:
    """One server and the connections to it that nobody uses right now.

    They are in a deque, from which to take and to give back is one step each. So there is no lock, which a fork or an
    exception that a signal raises could leave held, and redis-py's pool, which has one, is not used."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        self.name = f"{host}:{port}"
        self._idle: deque[Any] = deque()
        self._kind = SSLConnection if settings.tls else Connection
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": settings.database,
            "username": settings.username,
            "password": settings.password,
            "socket_connect_timeout": settings.connect_timeout,
            "socket_timeout": settings.timeout,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **(_encryption(settings) if settings.tls else {}),
        }

    def connect(self) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._kind(**self._options)
        connection.connect()
        if connection.can_read():  # nothing can be owed: the server has closed it
            connection.disconnect()
            connection.connect()
        return connection

    def release(self, connection: Any) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()


def _encryption(settings: Settings) -> dict[str, Any]:
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }


def exchange(calls: Mapping[Server, Sequence[Command]]) -> dict[Server, list[Reply]]:
    """Send to every server what is meant for it, then read the answers: a reply or a `Failed` for each command.

    All requests are under way before the first answer is waited for."""
    lines: list[_Line] = []
    try:
        for server, commands in calls.items():
            lines.append(_Line(server, commands))
        return {line.server: line.read() for line in lines}
    finally:
        for line in lines:
            line.close()


class _Line:
    """One exchange with one server."""

    def __init__(self, server: Server, commands: Sequence[Command]) -> None:
        self.server = server
        self._owed = len(commands)
        self._failed: Failed | None = None
        self._connection: Any = None
        try:
            self._connection = server.connect()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except FAILURES as error:
            self._failed = Failed(error, unsure=self._connection is not None)

    def read(self) -> list[Reply]:
        replies: list[Reply] = []
        while self._owed and self._failed is None:
            try:
                replies.append(self._connection.read_response())
            except errors.ResponseError as error:
                replies.append(Failed(error))
            except FAILURES as error:
                self._failed = Failed(error, unsure=not isinstance(error, errors.BusyLoadingError))
                break
            self._owed -= 1
        return replies + [self._failed] * self._owed

    def close(self) -> None:
        """A connection that still owes an answer is dropped, or the next to use it would take that for its own."""
        if self._connection is not None:
            if self._owed:
                self._connection.disconnect()
            self.server.release(self._connection)


def explained(error: Exception, place: str) -> StoreError:
    """What an error of the client or the server means for the one who asked."""
    if isinstance(error.__context__, ssl.SSLError):  # redis-py has wrapped it
        error = error.__context__
    for kind, meant, sentence in _MEANINGS:
        if isinstance(error, kind):
            return meant(sentence.format(place=place, error=error))
    for words, meant, sentence in _SAID:
        if words in str(error):
            return meant(sentence.format(place=place, error=error))
    return StoreError(f"Redis at {place} could not do what it was asked: {error}")


_Meaning = tuple[type[Exception], type[StoreError], str]
_MEANINGS: Final[list[_Meaning]] = [
    (
        errors.AuthenticationError,
        StoreRefused,
        "Redis at {place} refuses the name or password ({error}); correct them in the URL: redis://name:password@host",
    ),
    (
        errors.NoPermissionError,
        StoreRefused,
        "Redis at {place} does not permit this user what the store needs ({error}); widen its ACL",
    ),
    (
        errors.MovedError,
        StoreRefused,
        "Redis at {place} is a node of a cluster; write redis+cluster:// instead of redis://",
    ),
    (errors.AskError, StoreUnavailable, "the cluster of {place} is moving the slot ({error}); try again"),
    (errors.TryAgainError, StoreUnavailable, "the cluster of {place} is moving the slot ({error}); try again"),
    (errors.ClusterDownError, StoreUnavailable, "the cluster of {place} does not answer for all slots ({error})"),
    (errors.ReadOnlyError, StoreUnavailable, "Redis at {place} has become a read-only replica; nothing was written"),
    (
        errors.OutOfMemoryError,
        StoreUnavailable,
        "Redis at {place} is out of memory; nothing was written: make room or raise maxmemory",
    ),
    (errors.BusyLoadingError, StoreUnavailable, "Redis at {place} is still loading its data; try again"),
    (
        errors.TimeoutError,
        StoreUnavailable,
        "Redis at {place} did not answer in time ({error}); check that it runs, and for rediss:// that it speaks TLS",
    ),
    (errors.InvalidResponse, StoreRefused, "what answers at {place} is not Redis ({error}); correct host and port"),
    (
        errors.ConnectionError,
        StoreUnavailable,
        "Redis at {place} cannot be reached ({error}); check that it runs, and host and port",
    ),
    (
        ssl.SSLError,
        StoreRefused,
        "Redis at {place} speaks no TLS, or its certificate is not trusted ({error}); correct rediss:// or ca_file",
    ),
    (OSError, StoreUnavailable, "Redis at {place} cannot be reached ({error}); check that it runs, and host and port"),
]
_SAID: Final[list[tuple[str, type[StoreError], str]]] = [
    ("MISCONF", StoreUnavailable, "Redis at {place} cannot save its data, so it takes none ({error})"),
    (
        "NOREPLICAS",
        StoreUnavailable,
        "Redis at {place} has fewer replicas than it wants, so it takes no data ({error})",
    ),
    ("BUSY", StoreUnavailable, "Redis at {place} is busy with a script ({error}); try again"),
    (
        "access a non local key",
        StoreUnavailable,
        "the cluster of {place} is moving the slot; try again",
    ),
    (
        "This instance has cluster support disabled",
        StoreRefused,
        "Redis at {place} is no node of a cluster; write redis:// instead of redis+cluster://",
    ),
]

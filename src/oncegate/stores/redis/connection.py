"""The wire: connections to servers, commands sent to several at once, and what errors mean."""

import math
import os
import select
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final

from hiredis import Reader, pack_command
from msgspec import Struct
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.stores.redis.settings import RedisSettings

# Of texts only: were a signal's handler to raise while it spells a number, hiredis would crash the process.
Command = tuple[str | bytes, ...]
_packed: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]  # its own types know commands of one word
_READ_SIZE: Final = 65_536
_MOMENT: Final = 0.0003
_SHORT: Final = 4_096
_MOST_SLEEPS: Final = 256
_now: Final = time.monotonic
# redis-py's roots: some errors of its cluster side are no RedisError.
FAILURES: Final = (errors.RedisError, errors.RedisClusterException, OSError)
_INTERRUPTED: Final = errors.ConnectionError("interrupted before it was answered")
# With these the server says that it has done nothing, and that it or another may do it in a moment.
_NOT_NOW: Final = (
    errors.AskError,  # MOVED too
    errors.TryAgainError,
    errors.ClusterDownError,
    errors.ReadOnlyError,
)


class CommandFailed(Struct, frozen=True):
    """What came back from a server instead of a reply. `unsure`: it may have done what it was asked all the same.
    `said`: it did and told so, but that is not known to be safe."""

    error: Exception
    place: str
    unsure: bool = False
    said: Any = None

    @property
    def passing(self) -> bool:
        """Whether asking again in a moment can help; a server that hangs is not asked again."""
        if isinstance(self.error, errors.AuthenticationError | errors.AuthorizationError):
            return False
        return isinstance(self.error, (*_NOT_NOW, errors.ConnectionError))

    @property
    def may_be_another(self) -> bool:
        """Whether what answers from now on may be another server, or the same without its data."""
        return self.unsure or self.passing

    @property
    def hung(self) -> bool:
        """Whether it did not answer in time: another may have taken over from it."""
        return isinstance(self.error, errors.TimeoutError)


Reply = Any


class RedisConnection:
    """A connection, made by redis-py and used without its layers, which took as long as the exchange itself."""

    def __init__(self, connection: Any, timeout: float) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection._get_socket()
        self._socket.settimeout(timeout)
        # In milliseconds, if Python does not keep it.
        self._timeout = math.ceil(timeout * 1_000) if _leave_timeouts_to_the_system(self._socket) else None
        self._reader = Reader(protocolError=errors.InvalidResponse, replyError=connection._get_parser().parse_error)
        self._buffer = bytearray(_READ_SIZE)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._looks = True
        self._to_sleep = 0
        self._in_vain = 1

    def is_stale(self) -> bool:
        """Whether the server has closed it: nothing is owed, so there is nothing else to read."""
        return bool(self._poll.poll(0))

    def send(self, packed: bytes) -> None:
        self._looks = len(packed) <= _SHORT
        try:
            self._socket.sendall(packed)
        except (TimeoutError, BlockingIOError) as error:
            raise errors.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise errors.ConnectionError(f"Error while writing to socket: {error}") from error

    def read(self) -> Any:
        """The next reply, or the error that the server answers with."""
        try:
            while (reply := self._reader.gets()) is False:  # no reply of this protocol is
                if not self._look_out():
                    self._sleep()
                received = self._socket.recv_into(self._buffer)
                if not received:
                    raise errors.ConnectionError("Connection closed by server.")
                self._reader.feed(self._buffer, 0, received)  # type: ignore[arg-type]  # it takes any buffer
        except (TimeoutError, BlockingIOError) as error:
            raise errors.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise errors.ConnectionError(f"Error while reading from socket: {error}") from error
        return reply

    def _look_out(self) -> bool:
        """Look for an answer, for a moment: to fall asleep and be woken can take longer than a server nearby takes to
        answer. When none comes in that time, the next ones are slept for: after every look in vain twice as many. So is
        the answer to a large batch, which takes longer anyway and says nothing about others. Whether there is one."""
        if not self._looks:
            return False
        if self._to_sleep:
            self._to_sleep -= 1
            return False
        until = _now() + _MOMENT
        while not self._poll.poll(0):
            if _now() >= until:
                self._to_sleep = self._in_vain = min(2 * self._in_vain, _MOST_SLEEPS)
                return False
        self._in_vain = 1
        return True

    def _sleep(self) -> None:
        """Wait for an answer. The system would wait anew after every signal; here Python keeps the time."""
        if self._timeout is not None and not self._poll.poll(self._timeout):
            raise TimeoutError

    def close(self) -> None:
        self._connection.disconnect()


def _leave_timeouts_to_the_system(plain: socket.socket) -> bool:
    """Python keeps a timeout by a look before each thing sent and each thing read, a tenth of an exchange. Where Linux
    keeps it, its end is a BlockingIOError; a socket under TLS would not know what that means. Whether it does."""
    seconds = plain.gettimeout()
    if sys.platform != "linux" or not seconds or isinstance(plain, ssl.SSLSocket):
        return False
    plain.settimeout(None)
    if not os.get_blocking(plain.fileno()):  # as gevent's never are
        plain.settimeout(seconds)
        return False
    limit = pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return True


class RedisServer:
    """One server and the connections to it that nobody uses right now.

    They are in a deque, from which to take and to give back is one step each. So there is no lock, which a fork or an
    exception that a signal raises could leave held, and redis-py's pool, which has one, is not used."""

    def __init__(self, settings: RedisSettings, host: str, port: int) -> None:
        self.name = f"{host}:{port}"
        self._idle: deque[RedisConnection] = deque()
        self._timeout = settings.timeout
        self._kind = SSLConnection if settings.tls else Connection
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": settings.database,
            "username": settings.username,
            "password": settings.password,
            "socket_connect_timeout": settings.connect_timeout,
            "socket_timeout": min(settings.connect_timeout, settings.timeout),  # for TLS and the greeting
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **(_encryption(settings) if settings.tls else {}),
        }

    def connect(self) -> RedisConnection:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return RedisConnection(self._kind(**self._options), self._timeout)
            if not link.is_stale():
                return link
            link.close()

    def ask_once(self, command: Command) -> Reply:
        """The answer to one command that may be sent again if this fails: a connection is taken as it is, since to look
        whether the server has closed it takes as long as to send something."""
        try:
            link = self._idle.pop()
        except IndexError:
            return ask(self, (command,))[0]
        reply: Reply = _INTERRUPTED
        try:
            link.send(_packed(command))
            reply = link.read()
        except FAILURES as error:
            reply = error
        finally:
            if isinstance(reply, Exception) and not isinstance(reply, errors.ResponseError):
                link.close()
            else:
                self._idle.append(link)
        return _failed(reply, self) if isinstance(reply, Exception) else reply

    def release(self, link: RedisConnection) -> None:
        self._idle.append(link)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _encryption(settings: RedisSettings) -> dict[str, Any]:
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }


def exchange(calls: Mapping[RedisServer, Sequence[Command]]) -> dict[RedisServer, list[Reply]]:
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


def ask(server: RedisServer, commands: Sequence[Command]) -> list[Reply]:
    """The same for one server."""
    line = _Line(server, commands)
    try:
        return line.read()
    finally:
        line.close()


def _failed(error: Exception, server: RedisServer) -> CommandFailed:
    """A server that is asked and answers with an error has done nothing."""
    return CommandFailed(
        error, server.name, unsure=not isinstance(error, errors.ResponseError | errors.BusyLoadingError)
    )


class _Line:
    """One exchange with one server."""

    def __init__(self, server: RedisServer, commands: Sequence[Command]) -> None:
        self.server = server
        self._owed = len(commands)
        self._failed: CommandFailed | None = None
        self._link: RedisConnection | None = None
        try:
            self._link = server.connect()
            self._link.send(b"".join(map(_packed, commands)))
        except FAILURES as error:
            self._failed = CommandFailed(error, server.name, unsure=self._link is not None)

    def read(self) -> list[Reply]:
        replies: list[Reply] = []
        while self._owed and self._failed is None and self._link is not None:
            try:
                reply = self._link.read()
            except FAILURES as error:
                reply = error
            if isinstance(reply, errors.ResponseError):
                reply = _failed(reply, self.server)
            elif isinstance(reply, Exception):
                self._failed = _failed(reply, self.server)
                break
            replies.append(reply)
            self._owed -= 1
        return replies + [self._failed] * self._owed

    def close(self) -> None:
        """A connection that still owes an answer is dropped, or the next to use it would take that for its own."""
        if self._link is not None and self._owed:
            self._link.close()
        elif self._link is not None:
            self.server.release(self._link)


def explained(error: Exception, place: str) -> StoreError:
    """What an error of the client or the server means for the one who asked."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error.__context__, ssl.SSLError):  # redis-py has wrapped it
        error = error.__context__
    for words, meant, sentence in _SAID:
        if words in str(error):
            return meant(sentence.format(place=place, error=error))
    for kind, meant, sentence in _MEANINGS:
        if isinstance(error, kind):
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
    (errors.ReadOnlyError, StoreReadOnly, "Redis at {place} has become a read-only replica; nothing was written"),
    (
        errors.OutOfMemoryError,
        StoreReadOnly,
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
_CLOSED: Final = (
    "Redis at {place} has closed the connection ({error}); check that it runs; if it speaks TLS, write rediss://"
)
_SAID: Final[list[tuple[str, type[StoreError], str]]] = [
    ("Connection closed by server", StoreUnavailable, _CLOSED),
    ("Connection reset by peer", StoreUnavailable, _CLOSED),
    (
        "DB index is out of range",
        StoreRefused,
        "Redis at {place} has no database of this number ({error}); name a lower one, or raise its setting databases",
    ),
    ("MISCONF", StoreReadOnly, "Redis at {place} cannot save its data, so it takes none ({error})"),
    (
        "NOREPLICAS",
        StoreReadOnly,
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

"""Connect to Redis servers and execute commands over the connections."""

import math
import os
import select
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hiredis import Reader, pack_command
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.connection import Connection, DefaultParser, SSLConnection
from redis.retry import Retry

from oncegate.stores.redis.errors import FAILURES, CommandFailed, failed_reply
from oncegate.stores.redis.settings import RedisSettings

# A command has strings and bytes only, no numbers: if a signal handler raises an exception while hiredis formats a
# number, hiredis crashes the process.
Command = tuple[str | bytes, ...]
Reply = Any
_pack: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]  # its stub allows only one-word commands
_READ_SIZE: Final = 65_536
_SPIN_TIME: Final = 0.0003  # seconds
_SPIN_REQUEST_SIZE: Final = 4_096  # bytes; the reply to a larger request takes longer than _SPIN_TIME
_MAX_SPINS_SKIPPED: Final = 256
_now: Final = time.monotonic
_INTERRUPTED: Final = redis_errors.ConnectionError("interrupted before the reply arrived")


class RedisConnection:
    """A connection that redis-py opens. Commands do not go through redis-py, because its code takes as long as the
    round trip."""

    def __init__(self, connection: Any, timeout: float) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection._get_socket()
        self._socket.settimeout(timeout)
        # The timeout of poll() in milliseconds; None if the socket object enforces the timeout itself.
        self._poll_timeout = math.ceil(timeout * 1_000) if _use_kernel_timeouts(self._socket) else None
        self._reader = Reader(protocolError=redis_errors.InvalidResponse, replyError=DefaultParser.parse_error)
        self._buffer = bytearray(_READ_SIZE)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._request_is_small = True
        self._spins_to_skip = 0
        self._last_skip = 1

    def is_stale(self) -> bool:
        """Return whether the server has closed this idle connection. The client waits for no reply, so a readable
        socket means that the server has closed the connection."""
        return bool(self._poll.poll(0))

    def send(self, packed: bytes) -> None:
        self._request_is_small = len(packed) <= _SPIN_REQUEST_SIZE
        try:
            self._socket.sendall(packed)
        except (TimeoutError, BlockingIOError) as error:
            raise redis_errors.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise redis_errors.ConnectionError(f"Error while writing to socket: {error}") from error

    def read(self) -> Reply:
        """Return the next reply. If the server replies with an error, return the error; it is not raised."""
        try:
            while (reply := self._reader.gets()) is False:  # False: the reply is incomplete; RESP2 itself has no False
                if not self._spin():
                    self._sleep()
                received = self._socket.recv_into(self._buffer)
                if not received:
                    raise redis_errors.ConnectionError("Connection closed by server.")
                self._reader.feed(self._buffer, 0, received)  # type: ignore[arg-type]  # it accepts any buffer
        except (TimeoutError, BlockingIOError) as error:
            raise redis_errors.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise redis_errors.ConnectionError(f"Error while reading from socket: {error}") from error
        return reply

    def _spin(self) -> bool:
        """Poll for a reply without sleeping, for at most _SPIN_TIME. Return whether data has arrived.

        A thread that sleeps can take longer to wake up than a server on the same network takes to reply. Without
        spins, single events on a local server take 1.6 to 1.8 times as long. This holds for new events and for
        duplicates (2 cores, Valkey 9). For batches of 100 events there is no difference.

        After a spin without a reply, the next 2 spins are skipped. If the next spin also finds no reply, 4 spins are
        skipped, then 8, and so on up to _MAX_SPINS_SKIPPED. So spins for a slow server use nearly no CPU time. There is
        no spin after a large request."""
        if not self._request_is_small:
            return False
        if self._spins_to_skip:
            self._spins_to_skip -= 1
            return False
        deadline = _now() + _SPIN_TIME
        while not self._poll.poll(0):
            if _now() >= deadline:
                self._spins_to_skip = self._last_skip = min(2 * self._last_skip, _MAX_SPINS_SKIPPED)
                return False
        self._last_skip = 1
        return True

    def _sleep(self) -> None:
        """Wait for data until the timeout. poll() is used because the kernel restarts the receive timeout of a socket
        after every signal. poll() in Python does not restart its timeout."""
        if self._poll_timeout is not None and not self._poll.poll(self._poll_timeout):
            raise TimeoutError

    def close(self) -> None:
        self._connection.disconnect()


def _use_kernel_timeouts(plain: socket.socket) -> bool:
    """Set the timeout of a socket in the Linux kernel, if possible. Return whether the kernel now enforces the timeout.

    Otherwise Python enforces the timeout with a poll() before each send and each receive. This poll() takes a tenth of
    a round trip. The kernel reports a timeout as BlockingIOError. A TLS socket cannot handle this error, so a TLS
    socket keeps the timeout of Python."""
    seconds = plain.gettimeout()
    if sys.platform != "linux" or not seconds or isinstance(plain, ssl.SSLSocket):
        return False
    plain.settimeout(None)
    if not os.get_blocking(plain.fileno()):  # a socket of gevent is never in blocking mode
        plain.settimeout(seconds)
        return False
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return True


class RedisServer:
    """One server and its idle connections.

    The idle connections are in a deque, because append and pop of a deque are atomic and need no lock. A lock could
    stay locked after a fork, or after a signal handler raises an exception. The connection pool of redis-py has a lock,
    so the pool is not used."""

    def __init__(self, settings: RedisSettings, host: str, port: int) -> None:
        self.name = f"{host}:{port}"
        self._idle: deque[RedisConnection] = deque()
        self._timeout = settings.timeout
        self._connection_class = SSLConnection if settings.tls else Connection
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": settings.database,
            "username": settings.username,
            "password": settings.password,
            "socket_connect_timeout": settings.connect_timeout,
            # This timeout applies to the TLS handshake and to the first commands (AUTH, SELECT).
            "socket_timeout": min(settings.connect_timeout, settings.timeout),
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **(_tls_options(settings) if settings.tls else {}),
        }

    def acquire(self) -> RedisConnection:
        """Return an idle connection that the server has not closed. If there is none, open a new connection."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return RedisConnection(self._connection_class(**self._options), self._timeout)
            if not connection.is_stale():
                return connection
            connection.close()

    def release(self, connection: RedisConnection) -> None:
        self._idle.append(connection)

    def execute_repeatable(self, command: Command) -> Reply:
        """Execute one command that may be executed twice. Return the reply, or a CommandFailed.

        An idle connection is used without a check whether the server has closed the connection, because this check
        takes as long as a send. If the server has closed it, the command fails, and the caller may send the command
        again."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self.execute((command,))[0]
        reply: Reply = _INTERRUPTED
        try:
            connection.send(_pack(command))
            reply = connection.read()
        except FAILURES as error:
            reply = error
        finally:
            if isinstance(reply, Exception) and not isinstance(reply, redis_errors.ResponseError):
                connection.close()
            else:
                self._idle.append(connection)
        return failed_reply(reply, self.name) if isinstance(reply, Exception) else reply

    def execute(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute the commands. Return a reply or a CommandFailed for each command."""
        exchange = _Exchange(self, commands)
        try:
            return exchange.read()
        finally:
            exchange.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _tls_options(settings: RedisSettings) -> dict[str, Any]:
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }


def execute_on_servers(commands: Mapping[RedisServer, Sequence[Command]]) -> dict[RedisServer, list[Reply]]:
    """Execute commands on several servers. Return a reply or a CommandFailed for each command of each server.

    All commands are sent before the first reply is read, so the servers execute them at the same time."""
    exchanges: list[_Exchange] = []
    try:
        for server, commands_here in commands.items():
            exchanges.append(_Exchange(server, commands_here))
        return {exchange.server: exchange.read() for exchange in exchanges}
    finally:
        for exchange in exchanges:
            exchange.close()


class _Exchange:
    """Commands that were sent to one server, and their replies."""

    def __init__(self, server: RedisServer, commands: Sequence[Command]) -> None:
        self.server = server
        self._unread = len(commands)
        self._failure: CommandFailed | None = None
        self._connection: RedisConnection | None = None
        try:
            self._connection = server.acquire()
            self._connection.send(b"".join(map(_pack, commands)))
        except FAILURES as error:
            self._failure = CommandFailed(error, server.name, maybe_executed=self._connection is not None)

    def read(self) -> list[Reply]:
        replies: list[Reply] = []
        while self._unread and self._failure is None and self._connection is not None:
            try:
                reply = self._connection.read()
            except FAILURES as error:
                reply = error
            if isinstance(reply, redis_errors.ResponseError):
                reply = failed_reply(reply, self.server.name)
            elif isinstance(reply, Exception):
                self._failure = failed_reply(reply, self.server.name)
                break
            replies.append(reply)
            self._unread -= 1
        return replies + [self._failure] * self._unread

    def close(self) -> None:
        """Add the connection to the idle connections of its server. If a reply is unread, close the connection instead:
        the next command would get the unread reply."""
        if self._connection is not None and self._unread:
            self._connection.close()
        elif self._connection is not None:
            self.server.release(self._connection)

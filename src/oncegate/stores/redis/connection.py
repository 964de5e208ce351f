"""Connections to Redis servers, and commands sent over them."""

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

# Strings and bytes only. hiredis crashes the process if a signal handler raises while hiredis formats a number.
Command = tuple[str | bytes, ...]
Reply = Any
_pack: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]  # its stub allows only one-word commands
_READ_SIZE: Final = 65_536
_SPIN_TIME: Final = 0.0003  # seconds
_SPIN_REQUEST_SIZE: Final = 4_096  # bytes; the reply to a larger batch takes longer than a spin
_MOST_SPINS_SKIPPED: Final = 256
_now: Final = time.monotonic
_INTERRUPTED: Final = redis_errors.ConnectionError("interrupted before the reply arrived")


class RedisConnection:
    """A connection that redis-py opens. Commands bypass redis-py, whose layers take as long as the round trip."""

    def __init__(self, connection: Any, timeout: float) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection._get_socket()
        self._socket.settimeout(timeout)
        # Milliseconds for poll(); None if the socket object enforces the timeout.
        self._poll_timeout = math.ceil(timeout * 1_000) if _use_kernel_timeouts(self._socket) else None
        self._reader = Reader(protocolError=redis_errors.InvalidResponse, replyError=DefaultParser.parse_error)
        self._buffer = bytearray(_READ_SIZE)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._request_is_small = True
        self._spins_to_skip = 0
        self._last_skip = 1

    def is_stale(self) -> bool:
        """Whether the server has closed this idle connection: no reply is due, so only the end can be readable."""
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
        """The next reply, or the error that the server replied with, as a value."""
        try:
            while (reply := self._reader.gets()) is False:  # incomplete; RESP2 has no value False
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
        """Poll for a reply without sleeping, for at most _SPIN_TIME. Returns whether data has arrived.

        To sleep and wake up can take longer than a server on the same network takes to reply. Without spinning, the
        gate runs single events on a local server slower by a factor of 1.6 to 1.8, new events and duplicates alike
        (2 cores, Valkey 9; batches of 100 do not differ). After a spin without a reply, the next 2 spins are skipped;
        if the spin after these finds no reply either, the next 4, and so on up to _MOST_SPINS_SKIPPED. So a slow server
        costs nearly no CPU time. There is no spin for the reply to a large request."""
        if not self._request_is_small:
            return False
        if self._spins_to_skip:
            self._spins_to_skip -= 1
            return False
        deadline = _now() + _SPIN_TIME
        while not self._poll.poll(0):
            if _now() >= deadline:
                self._spins_to_skip = self._last_skip = min(2 * self._last_skip, _MOST_SPINS_SKIPPED)
                return False
        self._last_skip = 1
        return True

    def _sleep(self) -> None:
        """Wait for data until the timeout. The kernel restarts its receive timeout after every signal; poll() in Python
        does not."""
        if self._poll_timeout is not None and not self._poll.poll(self._poll_timeout):
            raise TimeoutError

    def close(self) -> None:
        self._connection.disconnect()


def _use_kernel_timeouts(plain: socket.socket) -> bool:
    """Let Linux enforce the timeout of a socket, if possible. Returns whether it does.

    Python enforces a timeout with a poll() before each send and receive, which takes a tenth of a round trip. The
    kernel reports its timeout as BlockingIOError, which a TLS socket cannot handle."""
    seconds = plain.gettimeout()
    if sys.platform != "linux" or not seconds or isinstance(plain, ssl.SSLSocket):
        return False
    plain.settimeout(None)
    if not os.get_blocking(plain.fileno()):  # gevent's sockets never block
        plain.settimeout(seconds)
        return False
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return True


class RedisServer:
    """One server and its idle connections.

    The idle connections are in a deque, whose append and pop are atomic. A lock could stay locked after a fork, or
    after an exception that a signal handler raises. The pool of redis-py has such a lock, so it is not used."""

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
            # Applies to the TLS handshake and the first commands (AUTH, SELECT).
            "socket_timeout": min(settings.connect_timeout, settings.timeout),
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **(_tls_options(settings) if settings.tls else {}),
        }

    def acquire(self) -> RedisConnection:
        """An idle connection that the server has not closed, or a new one."""
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
        """The reply to one command, or a CommandFailed after which the caller may send the command again.

        An idle connection is used without a check whether the server has closed it: the check takes as long as a
        send."""
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
        """A reply or a CommandFailed for each command."""
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
    """A reply or a CommandFailed for each command of each server.

    All commands are sent before the first reply is read, so the servers work at the same time."""
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
        """Return the connection to its server, or close it if a reply is unread: the next command would get that
        reply."""
        if self._connection is not None and self._unread:
            self._connection.close()
        elif self._connection is not None:
            self.server.release(self._connection)

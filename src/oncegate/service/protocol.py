"""The HTTP protocol of the service: uvicorn's protocol for httptools, with a fast path and with limits.

The fast path: a POST request that arrives in one piece is answered with one write and without ASGI messages. With
ASGI, the request is passed in messages, the response is returned in two messages, and uvicorn writes each of the two
separately. For a duplicate, these messages would take longer than all other work. Nearly every event arrives in one
piece, so nearly every event takes the fast path.

The limits apply to the size, the headers and the arrival time of a request, to all unfinished requests together, and to
the number of pipelined requests and of connections. uvicorn has no settings for these limits.

This module depends on names of uvicorn that are not part of the documented API of uvicorn.
tests/service/test_uvicorn.py lists these names, and pyproject.toml allows only the tested versions of uvicorn.
"""

import asyncio
import logging
import socket
from asyncio.events import TimerHandle
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncegate.ingress.http_answers import CLOSE, HttpAnswer, problem
from oncegate.service.log import RateLimitedWarning

_log = logging.getLogger("oncegate.service")

_MAX_HEADERS: Final = 100
_MAX_HEAD_BYTES: Final = 32 * 1024
_MAX_PIPELINED: Final = 16
_LINGER: Final = 1.0  # seconds
_READ_WITHIN: Final = 10.0  # seconds in which a client must read something of its response
_READ_WITHIN_AT_STOP: Final = 2.0  # seconds
_WARN_INTERVAL: Final = 60.0  # seconds
_TOO_MANY_HEADERS: Final = f"more than {_MAX_HEADERS} headers, or more than {_MAX_HEAD_BYTES} bytes of headers"


class Bounds(Struct, frozen=True):
    """The limits of the protocol. `body` is the maximum number of bytes of a body. `within` is the number of
    seconds in which a complete request must arrive. `connections` is the maximum number of open connections. `arriving`
    is the maximum number of bytes of all unfinished requests together."""

    body: int
    within: float
    connections: int = 4_000
    arriving: int = 16 * 1024 * 1024

    @property
    def bytes(self) -> int:
        """The maximum number of bytes that are read for one request. It is larger than a body and a head, because a
        chunked body also has chunk headers, and trailers may follow."""
        return 2 * self.body + 2 * _MAX_HEAD_BYTES


def bounded(bounds: Bounds, app: "DirectApp | None" = None) -> type["BoundedProtocol"]:
    """Return a protocol class with these limits. uvicorn takes a class and creates an instance for each connection, so
    the state that all connections share is in class attributes."""
    shared = {"bounds": bounds, "idle": IdleConnections(), "unfinished": UnfinishedRequests(), "handshakes": {}}
    return type("Bounded", (BoundedProtocol,), {**shared, "direct_app": app, "responses": ResponseWriter()})


# ── the fast path ─────────────────────────────────────────────────────────────────────────────────────────


class DirectApp(Protocol):
    """An application that can also answer a complete request without ASGI messages."""

    def respond(self, scope: Any, body: bytes) -> Coroutine[Any, Any, HttpAnswer]:
        """Return the response to a request with this complete body."""


class ResponseWriter:
    """Collects responses and writes them together in the next iteration of the event loop. If each response were
    written at once, its client would wake up while the service still computes the other responses. A client on the same
    machine would then compete with the service for the CPU."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        if not self._ready:
            loop.call_soon(self._write_all)
        self._ready.append(write)

    def _write_all(self) -> None:
        ready, self._ready = self._ready, []
        for write in ready:
            try:
                write()
            except Exception:  # noqa: BLE001  # logged; the other responses must still be written
                _log.exception("a response could not be sent")


class DirectProtocol(HttpToolsProtocol):
    """Passes a POST that arrived in one piece to `direct_app`, and every other request to the ASGI application."""

    direct_app: DirectApp | None = None
    responses: ClassVar[ResponseWriter]
    _unstarted: RequestResponseCycle | None = None

    def serve_only(self, app: Any) -> None:
        """Pass all requests of this connection to another ASGI application."""
        self.app = app
        self.direct_app = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """uvicorn calls this method when the head of a request is complete, or when a pipelined request may begin. A
        POST request is not started here. `start_request` starts it after all received bytes have been parsed."""
        if self.direct_app is None or cycle.scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
        else:
            self._unstarted = cycle

    def start_request(self) -> None:
        """Start the request that `_start_asgi_task` has deferred, if any."""
        cycle, self._unstarted = self._unstarted, None
        if cycle is None or cycle.disconnected:
            return
        if cycle.more_body or self.direct_app is None:
            super()._start_asgi_task(cycle, self.app)
        else:
            task = self.loop.create_task(self._respond(cycle, self.direct_app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.start_request()

    async def _respond(self, cycle: RequestResponseCycle, app: DirectApp) -> None:
        try:
            answer = await app.respond(cycle.scope, bytes(cycle.body))
        except Exception:  # noqa: BLE001  # logged; the client must not wait for ever
            _log.exception("a request failed")
            answer = problem(503, "the request failed; send it again")
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        self.responses.add(partial(self._write_response, cycle, answer), self.loop)

    def _write_response(self, cycle: RequestResponseCycle, answer: HttpAnswer) -> None:
        """Write the response with one write, and end the request as uvicorn does. Skip the write if the client has
        disconnected, or if the transport is closing and uvicorn has not been notified yet."""
        if cycle.disconnected or self.transport.is_closing():
            return
        cycle.keep_alive = cycle.keep_alive and CLOSE not in answer.headers
        cycle.response_started = cycle.response_complete = True
        closing = () if cycle.keep_alive or CLOSE in answer.headers else (CLOSE,)
        self.transport.write(encode_response(answer, *self.server_state.default_headers, *closing))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()


def encode_response(answer: HttpAnswer, *headers: tuple[bytes, bytes]) -> bytes:
    """Return the bytes of a response. `headers` are written before the headers of the answer."""
    lines = b"".join([b"%s: %s\r\n" % header for header in (*headers, *answer.headers)])
    return b"%s%scontent-length: %d\r\n\r\n%s" % (STATUS_LINE[answer.code], lines, len(answer.body), answer.body)


# ── the limits ────────────────────────────────────────────────────────────────────────────────────────────


class IdleConnections(dict["BoundedProtocol", None]):
    """The connections that wait for their client and have no request in flight. The connection that has been idle
    longest is first."""

    _warned_at = -_WARN_INTERVAL

    def abort_oldest(self) -> None:
        """Abort the connection that has been idle longest. An orderly close waits for the client, for any length of
        time, and the connection would count against the limit until the close has ended."""
        first = next(iter(self))
        del self[first]
        first.connections.discard(first)
        first.transport.abort()

    def warn(self, limit: int, now: float) -> None:
        """Log that connections are being closed, at most once a minute, so that a client that opens thousands of
        connections does not fill the log."""
        if now - self._warned_at >= _WARN_INTERVAL:
            self._warned_at = now
            _log.warning(
                "more than %d connections are open (serve.max_connections): closing those that have been idle longest",
                limit,
            )


class UnfinishedRequests(dict["BoundedProtocol", int]):
    """The connections with an unfinished request, oldest first, each with the number of bytes received for the request.
    An unfinished request is never authenticated, because the signature covers the complete body."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._warn = RateLimitedWarning(_log, most=1)

    def add(self, connection: "BoundedProtocol", size: int) -> None:
        self.bytes += size
        self[connection] = self.get(connection, 0) + size

    def remove(self, connection: "BoundedProtocol") -> None:
        self.bytes -= self.pop(connection, 0)

    def reject_oldest(self, limit: int) -> None:
        """Answer the oldest requests with 408 until the remaining requests hold at most `limit` bytes."""
        while self.bytes > limit:
            self._warn(
                "unfinished requests hold more than %d bytes (serve.max_bytes_arriving): rejecting the oldest", limit
            )
            next(iter(self)).reject_unfinished()


class _RequestRejected(Exception):
    """Stops the parser. `BoundedProtocol._rejection` has the code and the detail of the response."""


class BoundedProtocol(DirectProtocol):
    """Rejects a request that is too large, arrives too slowly or has an ambiguous length, before the request reaches
    the application."""

    bounds: ClassVar[Bounds]
    idle: ClassVar[IdleConnections]
    unfinished: ClassVar[UnfinishedRequests]
    handshakes: ClassVar[dict[socket.socket, float]]
    accepted: socket.socket | None = None  # with TLS: the socket of this connection, whose handshake has ended
    _deadline: TimerHandle | None = None
    _reader_check: TimerHandle | None = None
    _read_within = _READ_WITHIN
    _rejection: tuple[int, str] | None = None  # code and detail, for `send_400_response`
    _last_response = b""  # the rejection, written after the responses to earlier requests
    _is_rejected = False  # if true, no further bytes are parsed
    _has_received = False  # whether the client has sent any bytes
    _has_head = False  # whether the head of the current request is complete
    _head_bytes = 0
    _body_bytes = 0
    _request_bytes = 0

    # ── the connection ────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()
        if self.accepted is not None:
            self.handshakes.pop(self.accepted, None)
        if self._exceeds_connections():
            self._close_idle_connections()
        self._add_to_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._reader_check is not None:
            self._reader_check.cancel()
        super().connection_lost(exc)
        self.idle.pop(self, None)
        self.unfinished.remove(self)

    def _close_idle_connections(self) -> None:
        """Abort idle connections until the number of connections is within the limit. If no idle connection is left and
        the limit is still exceeded, answer this connection with 503.

        A loop is needed: a connection that was answered with such a 503 stays open for a moment above the limit, and
        counts as idle. After its abort, the number of connections may still exceed the limit."""
        self.idle.warn(self.bounds.connections, self.loop.time())
        while self._exceeds_connections() and self.idle:
            self.idle.abort_oldest()
        if self._exceeds_connections():
            self._reject(503, "rejected: connection limit reached; send the request again")

    def _exceeds_connections(self) -> bool:
        """Whether too many connections are open. A connection counts as soon as it is accepted, also during its TLS
        handshake."""
        return len(self.connections) + len(self.handshakes) > self.bounds.connections

    def _add_to_idle(self) -> None:
        """Add this connection to `idle`, unless it is lost: a response may complete after its connection was lost, and
        nothing would remove a lost connection from `idle`."""
        if self in self.connections:
            self.idle[self] = None

    def pause_writing(self) -> None:
        """uvicorn calls this method when the client does not read its responses. The connection then counts as idle,
        even if a request is in flight."""
        super().pause_writing()
        self._add_to_idle()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_check is not None:
            self._watch_reader()

    def shutdown(self) -> None:
        """Finish the request in flight, then close. uvicorn waits for the connection, also if its client does not read:
        a live tail of the console would delay the stop by `serve.drain_within`."""
        super().shutdown()
        self._read_within = _READ_WITHIN_AT_STOP
        self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reader_check is not None:
            self._reader_check.cancel()
        unsent = self.transport.get_write_buffer_size()
        self._reader_check = self.loop.call_later(self._read_within, self._check_reader, unsent)

    def _check_reader(self, unsent_before: int) -> None:
        """Abort the connection if the client has read nothing since the last check. A slow client is not aborted."""
        self._reader_check = None
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent_before <= unsent:
            self.transport.abort()
        elif unsent or self._read_within == _READ_WITHIN_AT_STOP:
            self._watch_reader()

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        if self._deadline is None:
            self._start_deadline()
        self._has_received = True
        self._request_bytes += len(data)
        if not self._has_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        self.start_request()
        if not self._is_rejected:
            self._check_unfinished_size()
        if not self._is_rejected and self._deadline is not None:
            self._add_unfinished(len(data))

    def _parse(self, data: bytes) -> None:
        """Parse as uvicorn does, but ignore an Upgrade header, which some clients send with every request. After an
        Upgrade header, the parser does not read the body. A new parser is therefore given the same head without the
        Upgrade header, and then the bytes that follow the head. The received bytes themselves are not edited."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn, which ignores such data
            self._parse(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        start = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return b"%s %s HTTP/%s\r\n%s\r\n" % (*start, b"".join(lines))

    def _check_unfinished_size(self) -> None:
        """Reject an unfinished request that is too large. The parser buffers a header, or a trailer, until all of it
        has arrived, so without this check the buffer would have no limit."""
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._reject(431, _TOO_MANY_HEADERS)
        elif self._request_bytes > self.bounds.bytes:
            self._reject(413, f"the request is larger than {self.bounds.bytes} bytes")

    def _add_unfinished(self, size: int) -> None:
        """Count the received bytes of the unfinished request. The whole segment is counted, although its first part may
        belong to the previous request: the count is an upper bound."""
        self.unfinished.add(self, size)
        if self.unfinished.bytes > self.bounds.arriving:
            self.unfinished.reject_oldest(self.bounds.arriving)

    def reject_unfinished(self) -> None:
        """Reject the unfinished request of this connection, to make room for newer requests."""
        self.unfinished.remove(self)
        self._reject(408, "rejected: too many unfinished requests, and this one was the oldest; send the request again")

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.bounds.within, self._time_out)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        """Answer with 408. If the client has sent nothing, close the connection without a response."""
        self._deadline = None
        if self._has_received:
            self._reject(408, f"the request was not complete within {self.bounds.within:g} s")
        else:
            self.transport.close()

    # ── the request ───────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._has_head = False
        self._body_bytes = self._request_bytes = 0
        if self._deadline is None:
            self._start_deadline()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers after a chunked body are ignored: a proxy that checks or adds headers cannot have
        checked the trailers."""
        if not self._has_head:
            if len(self.headers) >= _MAX_HEADERS:
                self._stop_parser(431, _TOO_MANY_HEADERS)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._has_head, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.bounds.body:
            self._stop_parser(413, self._body_too_large)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._cancel_deadline()
        self.unfinished.remove(self)
        self._has_head = False
        if not (self.cycle.response_complete or self.flow.write_paused):
            self.idle.pop(self, None)
        super().on_message_complete()

    def _check_head(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._stop_parser(400, "the method CONNECT is not supported")
        if self._head_is_too_large():
            self._stop_parser(431, _TOO_MANY_HEADERS)
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._stop_parser(429, f"more than {_MAX_PIPELINED} requests wait for a response on this connection")
        self._check_version_and_host()
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self.bounds.body:
                self._stop_parser(413, self._body_too_large)
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                self._stop_parser(400, "unsupported transfer encoding; use chunked")

    def _check_version_and_host(self) -> None:
        """Reject other versions than HTTP/1.1 and HTTP/1.0, and a wrong number of Host headers. The parser also accepts
        HTTP/0.9 and HTTP/2.0 request lines, but these versions frame a body differently. If there are two Host headers,
        a proxy may use one of them and this service the other."""
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._stop_parser(400, f"the request line says HTTP/{version}; send HTTP/1.1")
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._stop_parser(400, f"the request must have one Host header, and has {hosts}")

    def _head_is_too_large(self) -> bool:
        """Whether the head exceeds the limit. `_head_bytes` counts whole segments, and a segment may include a part of
        the body. The exact size of the head is computed only if `_head_bytes` exceeds the limit."""
        if self._head_bytes <= _MAX_HEAD_BYTES:
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > _MAX_HEAD_BYTES

    @property
    def _body_too_large(self) -> str:
        return f"the body is larger than {self.bounds.body} bytes"

    # ── rejections ────────────────────────────────────────────────────────────────────────────────────────

    def _stop_parser(self, code: int, detail: str) -> None:
        """Reject the request in a callback of the parser. The exception makes the parser fail, and then
        `send_400_response` sends the rejection."""
        self._rejection = (code, detail)
        raise _RequestRejected

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's text is for a log, not for the client
        """Send the rejection, or a 400 if there is none. Called when the parser fails for any reason."""
        self._reject(*(self._rejection or (400, "the request is not valid HTTP")))

    def _reject(self, code: int, detail: str) -> None:
        """Reject the request that is arriving. The rejection is sent after the responses to earlier requests on the
        connection."""
        if self._is_rejected or self.transport.is_closing():
            return
        self._is_rejected = True
        self.unfinished.remove(self)
        last = self.cycle if self._has_head else None
        if last is not None and self.pipeline and self.pipeline[0][0] is last:
            self.pipeline.popleft()
            last.body = bytearray()
            self._last_response = _encode_problem(code, detail)
        elif last is None and self._has_open_request():
            self._last_response = _encode_problem(code, detail)
        else:
            self._close_with(b"" if last is not None and last.response_started else _encode_problem(code, detail))

    def _has_open_request(self) -> bool:
        """Whether the response to the last complete request is still incomplete."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        following: RequestResponseCycle | None = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is None or following.more_body:
            self._add_to_idle()
        if following is None and self._last_response and not self.transport.is_closing():
            self._close_with(self._last_response)

    def _close_with(self, response: bytes) -> None:
        """Write the last response. Read and ignore input for one second, and then close the connection. If a socket is
        closed while it has unread input, the kernel sends a reset, and the client may lose the response."""
        self._unset_keepalive_if_required()
        self.transport.write(response)
        self._disconnect_cycle()
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _disconnect_cycle(self) -> None:
        """Tell the application that the rest of the body will not arrive."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def _encode_problem(code: int, detail: str) -> bytes:
    return encode_response(problem(code, detail, headers=[CLOSE]))

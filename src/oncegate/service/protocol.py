"""Whole requests: answered in one piece when they arrive in one, without the messages of ASGI.

ASGI hands a request over in messages and takes its answer in two, each of which uvicorn sends by itself. For an event
that is known that takes longer than all else, and what is posted here nearly always arrives in one piece.
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
from oncegate.service.log import RepeatedWarning

_log = logging.getLogger("oncegate.service")


class Answers:
    """Answers that are ready, to be written one after the other at the end of a turn of the loop. A receiver that is
    woken by each one, while the next is still made, takes part of the time of each."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        if not self._ready:
            loop.call_soon(self._write)
        self._ready.append(write)

    def _write(self) -> None:
        ready, self._ready = self._ready, []
        for write in ready:
            try:
                write()
            except Exception:  # noqa: BLE001  # told in the log; others wait for theirs
                _log.exception("an answer could not be sent")


class Taker(Protocol):
    """An application that also answers what is there as a whole."""

    def answered(self, scope: Any, body: bytes) -> Coroutine[Any, Any, HttpAnswer]:
        """The answer to a request of which this is the body."""


class WholeProtocol(HttpToolsProtocol):
    """What is posted and arrives in one piece is for the taker, all else for the application."""

    taker: Taker | None = None
    answers: ClassVar[Answers]
    _unstarted: RequestResponseCycle | None = None

    def serve_only(self, app: Any) -> None:
        """Give all that comes by this connection to another application."""
        self.app = app
        self.taker = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """What uvicorn calls when the head of a request is here, or when one that had to wait may begin. What else has
        arrived is looked at first: whoever calls `start` has done so."""
        if self.taker is None or cycle.scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
        else:
            self._unstarted = cycle

    def start(self) -> None:
        """Begin with what uvicorn would have begun with, if there is anything."""
        cycle, self._unstarted = self._unstarted, None
        if cycle is None or cycle.disconnected:
            return
        if cycle.more_body or self.taker is None:
            super()._start_asgi_task(cycle, self.app)
        else:
            task = self.loop.create_task(self._answer_whole(cycle, self.taker))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.start()

    async def _answer_whole(self, cycle: RequestResponseCycle, taker: Taker) -> None:
        try:
            answer = await taker.answered(cycle.scope, bytes(cycle.body))
        except Exception:  # noqa: BLE001  # told in the log; the sender must not wait for ever
            _log.exception("a request could not be answered")
            answer = problem(503, "it could not be answered; send it again")
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        self.answers.add(partial(self._send_whole, cycle, answer), self.loop)

    def _send_whole(self, cycle: RequestResponseCycle, answer: HttpAnswer) -> None:
        """As uvicorn ends an answer, but with one write. Whoever has gone is not told, known to be gone or not yet."""
        if cycle.disconnected or self.transport.is_closing():
            return
        cycle.keep_alive = cycle.keep_alive and CLOSE not in answer.headers
        cycle.response_started = cycle.response_complete = True
        closing = () if cycle.keep_alive or CLOSE in answer.headers else (CLOSE,)
        self.transport.write(response(answer, *self.server_state.default_headers, *closing))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()


def response(answer: HttpAnswer, *headers: tuple[bytes, bytes]) -> bytes:
    """An answer as it is sent, with these headers before its own."""
    lines = b"".join([b"%s: %s\r\n" % header for header in (*headers, *answer.headers)])
    return b"%s%scontent-length: %d\r\n\r\n%s" % (STATUS_LINE[answer.code], lines, len(answer.body), answer.body)


# The protocol: uvicorn's own around httptools, with the bounds on a request that it does not have.


_MOST_HEADERS: Final = 100
_LARGEST_HEAD: Final = 32 * 1024
_MOST_PIPELINED: Final = 16
_LINGER: Final = 1.0
_TELL_EVERY: Final = 60.0


class Bounds(Struct, frozen=True):
    """How many bytes a body may have, how many seconds a whole request may take to arrive, how many connections may be
    open at a time, and how many bytes of unfinished requests they may hold together."""

    body: int
    within: float
    connections: int = 4_000
    arriving: int = 16 * 1024 * 1024

    @property
    def bytes(self) -> int:
        """The most that is read for one request: chunks have a frame, and trailers may follow them."""
        return 2 * self.body + 2 * _LARGEST_HEAD


def bounded(bounds: Bounds, taker: Taker | None = None) -> type["BoundedProtocol"]:
    """The protocol as a class, since that is what uvicorn takes."""
    shared = {"bounds": bounds, "line": Line(), "arriving": Arriving(), "handshakes": {}}
    return type("Bounded", (BoundedProtocol,), {**shared, "taker": taker, "answers": Answers()})


class Line(dict["BoundedProtocol", None]):
    """The connections that wait for their sender, with nothing of theirs in hand; who has waited longest is first."""

    _told = -_TELL_EVERY

    def let_one_go(self) -> None:
        """At once, and it counts no more: a polite end would take as long as the other side likes."""
        first = next(iter(self))
        del self[first]
        first.connections.discard(first)
        first.transport.abort()

    def tell(self, most: int, now: float) -> None:
        """In the log, but not of each: whoever opens thousands of connections shall not fill it."""
        if now - self._told >= _TELL_EVERY:
            self._told = now
            _log.warning(
                "there are more than %d connections (serve.max_connections): those that have waited longest are closed",
                most,
            )


class Arriving(dict["BoundedProtocol", int]):
    """The connections with an unfinished request, oldest first, and how many bytes each holds. None of them is
    authenticated: the signature can only be checked over a whole body."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._log = RepeatedWarning(_log, most=1)

    def hold(self, connection: "BoundedProtocol", size: int) -> None:
        self.bytes += size
        self[connection] = self.get(connection, 0) + size

    def let_go(self, connection: "BoundedProtocol") -> None:
        self.bytes -= self.pop(connection, 0)

    def make_room(self, most: int) -> None:
        """Answer the oldest with 408 until the others fit."""
        while self.bytes > most:
            self._log(
                "unfinished requests hold more than %d bytes (serve.max_bytes_arriving): the oldest are refused", most
            )
            next(iter(self)).give_up()


class _Refused(Exception):
    """Stops the parser; what is to be said is kept in the protocol."""


class BoundedProtocol(WholeProtocol):
    """Refuses what is too large, too slow or of two minds about its length, before the application sees it."""

    bounds: ClassVar[Bounds]
    line: ClassVar[Line]
    arriving: ClassVar[Arriving]
    handshakes: ClassVar[dict[socket.socket, float]]
    accepted: socket.socket | None = None
    _deadline: TimerHandle | None = None
    _refusal: tuple[int, str] | None = None
    _farewell = b""
    _over = False
    _silent = True
    _has_head = False
    _head = 0
    _body = 0
    _bytes = 0

    # ── the connection ────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if self.accepted is not None:
            self.handshakes.pop(self.accepted, None)
        if self._are_too_many():
            self._make_room()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_here()
        super().connection_lost(exc)
        self.line.pop(self, None)
        self.arriving.let_go(self)

    def _make_room(self) -> None:
        """Whoever was refused for want of room stands in the line too, but leaves no place behind."""
        self.line.tell(self.bounds.connections, self.loop.time())
        while self._are_too_many() and self.line:
            self.line.let_one_go()
        if self._are_too_many():
            self._answer(503, "too many connections are in use; send it again")

    def _are_too_many(self) -> bool:
        """Connections count from when they are accepted, also those in their TLS handshake."""
        return len(self.connections) + len(self.handshakes) > self.bounds.connections

    def _wait(self) -> None:
        """A request may be answered when its connection is gone, which must not stand in the line for ever then."""
        if self in self.connections:
            self.line[self] = None

    def pause_writing(self) -> None:
        """Who does not read what it is told is waited for, too, whatever else it has sent."""
        super().pause_writing()
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._deadline is None:
            self._await_request()
        self._silent = False
        self._bytes += len(data)
        if not self._has_head:
            self._head += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        self.start()
        if not self._over:
            self._look_at_what_is_unfinished()
        if not self._over and self._deadline is not None:
            self._hold_unfinished(len(data))

    def _parse(self, data: bytes) -> None:
        """As uvicorn does, but for an offer to speak another protocol, which some clients make with every request. It
        need not be taken up, but on account of it the parser leaves the body out: so another one is given the head
        without the offer, and then all that came after it. What has arrived is not edited."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            head = self._unoffered()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own: it is left unread
            self._parse(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _unoffered(self) -> bytes:
        """The head that was parsed, without its offer."""
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        start = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return b"%s %s HTTP/%s\r\n%s\r\n" % (*start, b"".join(lines))

    def _look_at_what_is_unfinished(self) -> None:
        """The parser keeps a header until it is complete, in the head or in trailers: without this, without end."""
        if not self._has_head and self._head > _LARGEST_HEAD:
            self._answer(431, _TOO_MANY_HEADERS)
        elif self._bytes > self.bounds.bytes:
            self._answer(413, "the request is larger than will be read")

    def _hold_unfinished(self, size: int) -> None:
        """Count the whole segment, even if its first part ended the previous request: an upper bound."""
        self.arriving.hold(self, size)
        if self.arriving.bytes > self.bounds.arriving:
            self.arriving.make_room(self.bounds.arriving)

    def give_up(self) -> None:
        """Refuse the unfinished request to make room for those of others."""
        self.arriving.let_go(self)
        self._answer(408, "the request took too long to arrive while many others were arriving; send it again")

    def _await_request(self) -> None:
        self._deadline = self.loop.call_later(self.bounds.within, self._too_slow)

    def _request_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        """Whoever has sent nothing at all is not answered, only let go."""
        self._deadline = None
        if self._silent:
            self.transport.close()
        else:
            self._answer(408, f"the request did not arrive in full within {self.bounds.within:g} s")

    # ── the request ───────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._has_head = False
        self._body = self._bytes = 0
        if self._deadline is None:
            self._await_request()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """What follows a body in chunks is no header of the request: whoever added one in front cannot have seen it."""
        if not self._has_head:
            if len(self.headers) >= _MOST_HEADERS:
                self._refuse(431, _TOO_MANY_HEADERS)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._has_head, self._head = True, 0

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._body > self.bounds.body:
            self._refuse(413, self._too_large)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._request_is_here()
        self.arriving.let_go(self)
        self._has_head = False
        if not (self.cycle.response_complete or self.flow.write_paused):
            self.line.pop(self, None)
        super().on_message_complete()

    def _check_head(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._refuse(400, "no other protocol is spoken here")
        if self._head_is_too_large():
            self._refuse(431, _TOO_MANY_HEADERS)
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._refuse(
                429, f"there are more than {_MOST_PIPELINED} requests that wait for an answer on the connection"
            )
        self._check_version_and_host()
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self.bounds.body:
                self._refuse(413, self._too_large)
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                self._refuse(400, "the only transfer encoding that is taken is chunked")

    def _check_version_and_host(self) -> None:
        """The parser also accepts HTTP/0.9 and HTTP/2.0 request lines, which frame a body differently. With two Host
        headers a proxy may route by one and this service answer for the other."""
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(400, f"the request line says HTTP/{version}; send HTTP/1.1")
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(400, f"the request must have one Host header, and has {hosts}")

    def _head_is_too_large(self) -> bool:
        """`_head` counts whole arrivals, which may hold some of the body too: exactly only if it could matter."""
        if self._head <= _LARGEST_HEAD:
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > _LARGEST_HEAD

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.bounds.body} bytes"

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, code: int, detail: str) -> None:
        """From within the parser, which then calls `send_400_response`."""
        self._refusal = (code, detail)
        raise _Refused

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's words are for a log
        """What uvicorn calls when the parser stops, whatever stopped it."""
        self._answer(*(self._refusal or (400, "the request is not HTTP as it should be")))

    def _answer(self, code: int, detail: str) -> None:
        """Refuse what is arriving, after the answers to what came before it on the connection."""
        if self._over or self.transport.is_closing():
            return
        self._over = True
        self.arriving.let_go(self)
        last = self.cycle if self._has_head else None
        if last is not None and self.pipeline and self.pipeline[0][0] is last:
            self.pipeline.popleft()
            last.body = bytearray()
            self._farewell = _refusal(code, detail)
        elif last is None and self._is_answering():
            self._farewell = _refusal(code, detail)
        else:
            self._leave(b"" if last is not None and last.response_started else _refusal(code, detail))

    def _is_answering(self) -> bool:
        """Whether something that came in full is yet to be answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        following: RequestResponseCycle | None = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is None or following.more_body:
            self._wait()
        if following is None and self._farewell and not self.transport.is_closing():
            self._leave(self._farewell)

    def _leave(self, farewell: bytes) -> None:
        """Say it, and read on for a moment: a connection that is closed on unread bytes may lose the answer."""
        self._unset_keepalive_if_required()
        self.transport.write(farewell)
        self._let_go_of_cycle()
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _let_go_of_cycle(self) -> None:
        """The application, if it waits for the rest of the body, is told that none will come."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


_TOO_MANY_HEADERS: Final = f"there are more than {_MOST_HEADERS} headers, or they are larger than {_LARGEST_HEAD} bytes"


def _refusal(code: int, detail: str) -> bytes:
    return response(problem(code, detail, headers=[CLOSE]))

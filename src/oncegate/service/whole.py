"""Whole requests: answered in one piece when they arrive in one, without the messages of ASGI.

ASGI hands a request over in messages and takes its answer in two, each of which uvicorn sends by itself. For an event
that is known that takes longer than all else, and what is posted here nearly always arrives in one piece.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncegate.ingress.http_answers import CLOSE, Answer, problem

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

    def answered(self, scope: Any, body: bytes) -> Coroutine[Any, Any, Answer]:
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

    def _send_whole(self, cycle: RequestResponseCycle, answer: Answer) -> None:
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


def response(answer: Answer, *headers: tuple[bytes, bytes]) -> bytes:
    """An answer as it is sent, with these headers before its own."""
    lines = b"".join([b"%s: %s\r\n" % header for header in (*headers, *answer.headers)])
    return b"%s%scontent-length: %d\r\n\r\n%s" % (STATUS_LINE[answer.code], lines, len(answer.body), answer.body)

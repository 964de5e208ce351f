"""The room: how much may be in hand at a time, whoever sent it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any, NoReturn, Protocol

from msgspec import Struct

from oncegate.durations import Duration
from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate import Gate
from oncegate.gate.async_runner import is_async
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.job import ANY_DESTINATION
from oncegate.gate.outcome import Outcome
from oncegate.ingress.handler_wrappers import logged, trace
from oncegate.ingress.http_answers import keep_refused


class InFlightLimitReached(Exception):
    """There is more in hand than may be."""


class InFlightBudget(Struct):
    """What is in hand: requests that are being taken, and the bytes of their bodies.

    A request that is still arriving does not count: unfinished requests would take the room of finished ones. The
    protocol has a budget for them.
    """

    most: int = 1_000
    most_bytes: int = 64 * 1024 * 1024
    requests: int = 0
    bytes: int = 0

    def enter(self) -> None:
        if self.requests >= self.most:
            raise InFlightLimitReached
        self.requests += 1

    def leave(self) -> None:
        self.requests -= 1

    def hold(self, size: int) -> None:
        if self.bytes + size > self.most_bytes:
            raise InFlightLimitReached
        self.bytes += size

    def let_go(self, size: int) -> None:
        self.bytes -= size


# Taking: what becomes of the events of a request before their sender is told. This is where admission plugs in.


_log = logging.getLogger("oncegate.service")

_LOOK_EVERY = 1.0
_WAIT = 5.0


class Admission(Protocol):
    """One way of taking events, for one route."""

    async def take(self, events: Sequence[Event]) -> list[Outcome]:
        """Take the events of one request; one outcome each, in order."""

    async def work(self, stop: asyncio.Event) -> None:
        """Do what has to be done beside requests, until told to stop."""

    @property
    def left_running(self) -> int:
        """How many plain handlers had not ended when the time to drain was over."""

    @property
    def hung(self) -> int:
        """How many plain handlers have not returned for very long: see `Gate.hung`."""

    @property
    def threads_left(self) -> int:
        """How many threads can still run handlers."""


class InboxAdmission:
    """Has the store keep the events, and runs what it keeps beside that: what people have redriven, too. Without a
    handler it runs nothing, and all stays for workers of the inbox."""

    def __init__(
        self, gate: Gate, handler: AsyncHandler | Handler | None, threads: Executor, *, at_work: int, drain: Duration
    ) -> None:
        self._gate = gate
        self._threads = threads
        self._runs = handler is not None
        self._worker = gate.inbox(_never if handler is None else handler, at_work=at_work, drain=drain)

    async def take(self, events: Sequence[Event]) -> list[Outcome]:
        return await _with_refused_kept(await self._worker.admit(events), self._gate, self._threads)

    async def work(self, stop: asyncio.Event) -> None:
        if not self._runs:
            await stop.wait()
            return
        working, stopping = asyncio.create_task(self._worker.work()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._worker.stop()
            await working

    @property
    def left_running(self) -> int:
        return self._worker.left_running

    @property
    def hung(self) -> int:
        return self._worker.hung

    @property
    def threads_left(self) -> int:
        return self._worker.threads_left


class InlineAdmission:
    """Runs the handler while the sender waits; beside that, what people have redriven. The sender of a copy waits a few
    seconds for the first, and is told to send it again only then."""

    left_running = 0  # whoever closes the service waits for them a little longer, and then sees

    def __init__(self, gate: Gate, handler: AsyncHandler | Handler, threads: Executor) -> None:
        self._gate = gate
        self._handler = logged(handler)
        self._threads = threads

    @property
    def hung(self) -> int:
        return self._gate.hung

    @property
    def threads_left(self) -> int:
        return self._gate.threads_left

    async def take(self, events: Sequence[Event]) -> list[Outcome]:
        return await _with_refused_kept(await self._run(events), self._gate, self._threads)

    async def _run(self, events: Sequence[Event]) -> list[Outcome]:
        """One after the other, in their order. Each shares its writes with those of other requests."""
        until = time.monotonic() + _WAIT
        return [await self._run_one(event, until) for event in events]

    async def _run_one(self, event: Event, until: float) -> Outcome:
        wait = timedelta(seconds=max(0.0, until - time.monotonic()))
        return await self._gate.arun(event, self._handler, wait=wait)

    async def work(self, stop: asyncio.Event) -> None:
        while not await _within(_LOOK_EVERY, stop.wait()):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._run_waiting)

    def _run_waiting(self) -> None:
        try:
            self._gate.run_waiting(in_thread(self._handler))
        except StoreError as error:
            _log.warning("waiting events could not be taken: %s", error)
        except BaseException as error:  # noqa: BLE001  # whatever one event does, the others must not wait for ever
            _log.error("a waiting event could not be run: %s\n%s", type(error).__name__, trace(error))


async def _never(event: Event) -> NoReturn:
    """Stands in for a handler where nothing is run."""
    raise AssertionError(event)


_never.publishes_to = ANY_DESTINATION  # type: ignore[attr-defined]  # the worker of the inbox may publish


async def _within(seconds: float, awaited: Awaitable[object]) -> bool:
    """Whether it came to pass in time."""
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        return False
    return True


async def _with_refused_kept(outcomes: list[Outcome], gate: Gate, threads: Executor) -> list[Outcome]:
    """What is refused for good is kept as a dead letter before its sender is told."""
    if not any(outcome.status == "invalid" for outcome in outcomes):
        return outcomes
    return await asyncio.get_running_loop().run_in_executor(threads, keep_refused, outcomes, gate.keep)


def in_thread(handler: AsyncHandler | Handler) -> Handler:
    """The handler as a plain function, for a thread that has no event loop."""
    if not is_async(handler):
        return handler
    return lambda event: asyncio.run(_awaited(handler, event))


async def _awaited(handler: AsyncHandler, event: Event) -> Any:
    return await handler(event)

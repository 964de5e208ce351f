"""Admit events: store them in the inbox, or run their handler while the sender waits. Also the in-flight limit."""

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

_log = logging.getLogger("oncegate.service")

_POLL_INTERVAL = 1.0  # seconds between two polls for redriven events
_DUPLICATE_WAIT = 5.0  # seconds that a request waits for another delivery of its event that is in flight


# ── the in-flight limit ───────────────────────────────────────────────────────────────────────────────────


class InFlightLimitReached(Exception):
    """The service has reached its limit of requests or bytes in flight."""


class InFlightBudget(Struct):
    """Counts the requests in flight and the bytes of their bodies, for all routes together.

    A request that is still arriving is not counted: otherwise unfinished requests could use up the limit, and complete
    requests would be rejected. `protocol.py` has a separate limit for unfinished requests.
    """

    max_requests: int = 1_000
    max_bytes: int = 64 * 1024 * 1024
    requests: int = 0
    bytes: int = 0

    def acquire(self) -> None:
        if self.requests >= self.max_requests:
            raise InFlightLimitReached
        self.requests += 1

    def release(self) -> None:
        self.requests -= 1

    def acquire_bytes(self, size: int) -> None:
        if self.bytes + size > self.max_bytes:
            raise InFlightLimitReached
        self.bytes += size

    def release_bytes(self, size: int) -> None:
        self.bytes -= size


# ── the two ways to admit events ──────────────────────────────────────────────────────────────────────────


class Admission(Protocol):
    """The interface through which a route admits events."""

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        """Admit the events of one request. Returns one outcome per event, in order."""

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run the events that no request waits for, until `stop` is set."""

    @property
    def left_running(self) -> int:
        """How many synchronous handlers were still running when the drain timeout ended."""

    @property
    def hung(self) -> int:
        """How many synchronous handlers have exceeded their timeout and still run; see `Gate.hung`."""

    @property
    def threads_left(self) -> int:
        """How many threads can still run handlers."""


class InboxAdmission:
    """Stores events in the inbox. With a handler, also runs them in the background, including redriven events. Without
    a handler, `oncegate work inbox` runs the stored events in another process."""

    def __init__(
        self,
        gate: Gate,
        handler: AsyncHandler | Handler | None,
        threads: Executor,
        *,
        max_running: int,
        drain: Duration,
    ) -> None:
        self._gate = gate
        self._threads = threads
        self._has_handler = handler is not None
        self._worker = gate.inbox(_never if handler is None else handler, at_work=max_running, drain=drain)

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        return await _store_invalid(await self._worker.admit(events), self._gate, self._threads)

    async def run_until(self, stop: asyncio.Event) -> None:
        if not self._has_handler:
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
    """Runs the handler while the sender waits. Runs redriven events in the background. If an event of a request is
    already in flight, the request waits up to 5 s for this event to complete. If the event has not completed by the end
    of the 5 s, the request is answered with 503."""

    left_running = 0  # `Service.close` waits for these handlers and records whether they have ended

    def __init__(
        self, gate: Gate, handler: AsyncHandler | Handler, threads: Executor, *, has_log: bool = False
    ) -> None:
        """`has_log`: an observer of the gate logs the outcomes."""
        self._gate = gate
        self._handler = logged(handler, has_log=has_log)
        self._threads = threads

    @property
    def hung(self) -> int:
        return self._gate.hung

    @property
    def threads_left(self) -> int:
        return self._gate.threads_left

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        """Run the events one by one, in order. Their store writes share batches with the writes of other requests."""
        until = time.monotonic() + _DUPLICATE_WAIT
        outcomes = []
        for event in events:
            wait = timedelta(seconds=max(0.0, until - time.monotonic()))
            outcomes.append(await self._gate.arun(event, self._handler, wait=wait))
        return await _store_invalid(outcomes, self._gate, self._threads)

    async def run_until(self, stop: asyncio.Event) -> None:
        while not await _completes_within(_POLL_INTERVAL, stop.wait()):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._run_redriven)

    def _run_redriven(self) -> None:
        try:
            self._gate.run_waiting(as_sync(self._handler))
        except StoreError as error:
            _log.warning("cannot take redriven events from the store: %s", error)
        except BaseException as error:  # noqa: BLE001  # a failed event must not stop the polling for other events
            _log.error("a redriven event could not be run: %s\n%s", type(error).__name__, trace(error))


async def _never(event: Event) -> NoReturn:
    """The handler of an inbox whose events another process runs. It is never called."""
    raise AssertionError(event)


_never.publishes_to = ANY_DESTINATION  # type: ignore[attr-defined]  # the inbox worker's handler may publish


async def _completes_within(seconds: float, awaited: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        return False
    return True


async def _store_invalid(outcomes: list[Outcome], gate: Gate, threads: Executor) -> list[Outcome]:
    """Store the invalid events as dead letters, before the sender is answered. Returns all outcomes. The outcome of an
    invalid event is replaced by the outcome of storing the event."""
    if not any(outcome.status == "invalid" for outcome in outcomes):
        return outcomes
    return await asyncio.get_running_loop().run_in_executor(threads, keep_refused, outcomes, gate.keep)


def as_sync(handler: AsyncHandler | Handler) -> Handler:
    """Return the handler as a synchronous function, for a thread that has no event loop."""
    if not is_async(handler):
        return handler
    return lambda event: asyncio.run(_await(handler, event))


async def _await(handler: AsyncHandler, event: Event) -> Any:
    return await handler(event)

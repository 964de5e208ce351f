"""This module limits what happens at the same time: handlers that run in this process, coroutines of one event loop,
and copies that wait.

`HandlerRuns` lets handlers run concurrently, or one handler alone. The process has one such object, `PROCESS`. An event
whose last attempt was never settled may have killed its worker. The handler of such an event runs while no other
handler of this process runs. So if the event kills the process again, no other handler dies with it. All gates of a
process share `PROCESS`, because a crash ends the whole process.

    enter        run concurrently with other handlers; waits while a handler runs alone or waits to run alone
    enter_alone  run alone: no other handler starts; waits until the running handlers end, for a limited time
    leave        the run has ended

After a handler has run alone, all runs that wait to run concurrently start before the next handler runs alone. The same
happens after a handler has stopped waiting to run alone. So a large number of events that must run alone slows other
events down, but does not stop them.

`ConcurrencyLimit` bounds the events that the coroutines of one event loop have in flight. `InFlightWaiters` lets copies
of an event wait until the run of the event ends.

asyncio is imported inside the functions that use it. Its import takes long, and a program without coroutines does not
need it.
"""

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, Final

from oncegate import forks
from oncegate.backoff import PollBackoff
from oncegate.gate.outcome import Outcome

if TYPE_CHECKING:
    import asyncio

_CHECK_EVERY: Final = 0.5  # seconds between two checks for a time limit that has passed

# Whether the current code runs inside a handler. Such code must not wait to enter: the handler would wait for its own
# end.
inside: ContextVar[bool] = ContextVar("oncegate_inside_handler", default=False)


# ── handlers of this process: beside each other, or one alone ─────────────────────────────────────────────


class _WaitingRun:
    """A run that waits to enter, until `deadline` (monotonic clock) at most. With `alone_for` > 0 the run is to run
    alone, and keeps other runs out for up to `alone_for` seconds. With 0 it runs concurrently with other runs. `wake`
    is called when the run is `admitted`."""

    __slots__ = ("admitted", "alone_for", "deadline", "hold", "token", "wake")

    def __init__(
        self, token: object, hold: float, alone_for: float, deadline: float, wake: Callable[[], object]
    ) -> None:
        self.token = token
        self.hold = hold
        self.alone_for = alone_for
        self.deadline = deadline
        self.wake = wake
        self.admitted = False


class HandlerRuns:
    """The handlers that run in this process, each identified by a `token` (any object).

    A run counts as running for at most `hold` seconds, because a handler that runs longer has lost its claim or hangs.
    A run that runs alone keeps other runs out for at most `alone_for` seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._reset)
        self._reset()

    def _reset(self) -> None:
        """Set the initial state: nothing runs and nothing waits. Also called in a forked child process."""
        self._running: dict[object, float] = {}
        self._alone: object = None
        self._alone_until = 0.0
        self._suspects: list[_WaitingRun] = []
        self._others: list[_WaitingRun] = []

    def enter_now(self, token: object, hold: float) -> bool:
        """Start a concurrent run without waiting. Returns False if a handler runs alone or waits to run alone."""
        with self._lock:
            if self._suspects or self._alone is not None:
                return False
            self._running[token] = time.monotonic() + hold
            return True

    def enter(self, token: object, hold: float) -> None:
        """Start a concurrent run. Blocks until this is possible. Code inside a handler does not wait."""
        if not inside.get() and not self.enter_now(token, hold):
            self._wait(token, hold, 0.0, inf)

    def enter_alone(self, token: object, hold: float, *, within: float, alone_for: float) -> bool:
        """Start a run that runs alone. Blocks until this is possible. Returns False if it is not possible within
        `within` seconds."""
        return inside.get() or self._wait(token, hold, alone_for, within)

    def add(self, token: object, hold: float) -> None:
        """Add a run without waiting. Used by a run that has already entered and starts one more run."""
        with self._lock:
            self._running[token] = time.monotonic() + hold

    def leave(self, token: object) -> None:
        """End a run, or stop waiting to run. Does nothing if the run has not entered and does not wait."""
        with self._lock:
            self._running.pop(token, None)
            if self._alone is token:
                self._admit_others()
            if self._suspects or self._others:
                self._suspects = [waiting for waiting in self._suspects if waiting.token is not token]
                self._others = [waiting for waiting in self._others if waiting.token is not token]
                self._advance()

    def _wait(self, token: object, hold: float, alone_for: float, within: float) -> bool:
        woken = threading.Event()
        waiting = self.enqueue(token, hold, alone_for, woken.set, within)
        try:
            while not waiting.admitted and (left := waiting.deadline - time.monotonic()) > 0:
                woken.wait(min(_CHECK_EVERY, left))
                self.check()
        except BaseException:
            if self.give_up(waiting):
                self.leave(token)
            raise
        return self.give_up(waiting)

    # ── the queue, for threads and coroutines ─────────────────────────────────────────────────────────────

    def enqueue(
        self, token: object, hold: float, alone_for: float, wake: Callable[[], object], within: float = inf
    ) -> _WaitingRun:
        """Add a run to the queue of runs that wait to run concurrently, or alone if `alone_for` > 0. The caller must
        call `check` regularly, and `give_up` or `leave` in the end. A caller whose event loop is blocked cannot do
        this. So a run that has waited for `within` seconds does not keep other runs out any more."""
        waiting = _WaitingRun(token, hold, alone_for, time.monotonic() + within, wake)
        with self._lock:
            (self._suspects if alone_for else self._others).append(waiting)
            self._advance()
        return waiting

    def check(self) -> None:
        """Admit the runs that may start because a time limit has passed."""
        with self._lock:
            self._advance()

    def give_up(self, waiting: _WaitingRun) -> bool:
        """Stop waiting. Returns True if the run was already admitted; the caller must then call `leave` in the end."""
        with self._lock:
            if waiting in self._suspects:
                self._suspects.remove(waiting)
                if self._alone is None:
                    self._admit_others()
                self._advance()
            elif waiting in self._others:
                self._others.remove(waiting)
            return waiting.admitted

    # ── with the lock held ────────────────────────────────────────────────────────────────────────────────

    def _admit_others(self) -> None:
        """Record that no handler runs alone, and admit all runs that wait to run concurrently."""
        self._alone = None
        others, self._others = self._others, []
        for waiting in others:
            self._admit(waiting)

    def _advance(self) -> None:
        now = time.monotonic()
        if self._alone is not None and now >= self._alone_until:
            self._admit_others()
        if self._suspects and self._alone is None and all(until <= now for until in self._running.values()):
            first = self._suspects.pop(0)
            self._alone, self._alone_until = first.token, now + first.alone_for
            self._admit(first)
        still_waiting = [waiting for waiting in self._suspects if now < waiting.deadline]
        some_gave_up, self._suspects = len(still_waiting) < len(self._suspects), still_waiting
        if self._alone is None and self._others and (some_gave_up or not still_waiting):
            self._admit_others()

    def _admit(self, waiting: _WaitingRun) -> None:
        self._running[waiting.token] = time.monotonic() + waiting.hold
        waiting.admitted = True
        waiting.wake()


PROCESS: Final = HandlerRuns()


async def enter_async(
    token: object, hold: float, *, alone_for: float = 0.0, within: float = inf, unless: "asyncio.Event | None" = None
) -> bool:
    """Start a run from a coroutine: a concurrent run, or a run that runs alone if `alone_for` is given. Waits until
    this is possible. Returns False if the run cannot enter within `within` seconds, or if the event `unless` is set
    before the run can enter."""
    import asyncio

    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    waiting = PROCESS.enqueue(token, hold, alone_for, wake, within)
    try:
        while not waiting.admitted and not (unless is not None and unless.is_set()):
            if (left := waiting.deadline - time.monotonic()) <= 0:
                break
            events = [woken] if unless is None else [woken, unless]
            await first_of(*(event.wait() for event in events), within=min(_CHECK_EVERY, left))
            PROCESS.check()
    except BaseException:
        if PROCESS.give_up(waiting):
            PROCESS.leave(token)
        raise
    return PROCESS.give_up(waiting)


async def first_of(*awaited: Coroutine[Any, Any, object], within: float | None = None) -> None:
    """Wait until the first of these coroutines ends, for at most `within` seconds. The other coroutines are
    cancelled."""
    import asyncio

    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


# ── coroutines of one event loop ──────────────────────────────────────────────────────────────────────────


class ConcurrencyLimit:
    """Lets at most `limit` coroutines of one event loop be inside at a time.

    `enter_now` is not a coroutine, because a place is free nearly always, and then there is nothing to wait for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        if self._inside >= self._limit:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Wait until another coroutine leaves and passes its place to this caller. If the caller is cancelled when it
        already has a place, it passes the place to the next coroutine that waits."""
        import asyncio

        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._inside -= 1


# ── copies that wait for the run of their event ───────────────────────────────────────────────────────────


# How the run of an event ended. True: the event is acknowledged. False: the event failed, and its copies do not wait
# any longer. None: the result is not known.
RunEnd = bool | None


class InFlightWaiters:
    """Lets copies of an event in flight wait until the run of the event ends. At most `limit` copies wait at a time.

    If the event runs in this process, its copies wait for this run. If another process runs the event, one copy polls
    the store with growing pauses, and the other copies wait for the result of this copy.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._reset)
        self._reset()

    def _reset(self) -> None:
        """Set the initial state: nothing waits. Also called in a forked child process."""
        self._waiting = 0
        self._waiters_by_key: dict[bytes, list[asyncio.Future[RunEnd]]] = {}

    def begin(self, digest: bytes) -> bool:
        """Record that the caller runs or polls this key; the caller must call `end` later. Returns False if another
        coroutine already runs or polls this key; the caller must then not call `end`."""
        with self._lock:
            if digest in self._waiters_by_key:
                return False
            self._waiters_by_key[digest] = []
            return True

    def end(self, digest: bytes, ended: RunEnd) -> None:
        """Wake the copies that wait for this key. Only a caller for which `begin` returned True, or `_join` returned
        None, may call this."""
        with self._lock:
            waiters = self._waiters_by_key.pop(digest, [])
        for waiter in waiters:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits in it any more
                waiter.get_loop().call_soon_threadsafe(_wake, waiter, ended)

    async def wait(self, outcome: Outcome, retry: Callable[[], Awaitable[Outcome]], wait: int) -> Outcome:
        """Wait up to `wait` microseconds for the end of the run, and return the new outcome of a copy. The outcome is
        still "in_flight" if the run does not end in this time, or if too many copies wait already. `retry` takes the
        copy through the gate again."""
        with self._lock:
            if self._waiting >= self._limit:
                return outcome
            self._waiting += 1
        try:
            return await self._wait(outcome, retry, PollBackoff(wait))
        finally:
            with self._lock:
                self._waiting -= 1

    async def _wait(self, outcome: Outcome, retry: Callable[[], Awaitable[Outcome]], backoff: PollBackoff) -> Outcome:
        import asyncio

        while outcome.status == "in_flight" and outcome.key is not None and backoff.left > 0:
            waiter = self._join(outcome.key.digest)
            if waiter is None:
                return await self._poll(outcome.key.digest, outcome, retry, backoff)
            try:
                async with asyncio.timeout(backoff.left):
                    ended = await waiter
            except TimeoutError:
                return outcome
            if ended is False:
                return outcome
            if ended:
                outcome = await retry()
        return outcome

    def _join(self, digest: bytes) -> "asyncio.Future[RunEnd] | None":
        """Returns a future that gets its result when the coroutine that runs or polls this key ends. Returns None if
        there is no such coroutine. In this case the caller must poll the key, and call `end` later."""
        import asyncio

        with self._lock:
            waiters = self._waiters_by_key.get(digest)
            if waiters is None:
                self._waiters_by_key[digest] = []
                return None
            waiter: asyncio.Future[RunEnd] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            return waiter

    async def _poll(
        self, digest: bytes, outcome: Outcome, retry: Callable[[], Awaitable[Outcome]], backoff: PollBackoff
    ) -> Outcome:
        import asyncio

        ended: RunEnd = None
        try:
            while outcome.status == "in_flight" and (pause := backoff.pause()) is not None:
                await asyncio.sleep(pause)
                outcome = await retry()
            ended = run_end_of(outcome)
        finally:
            self.end(digest, ended)
        return outcome


def run_end_of(outcome: Outcome | None) -> RunEnd:
    if outcome is None or outcome.status == "in_flight":
        return None
    return outcome.acked


def _wake(waiter: "asyncio.Future[RunEnd]", ended: RunEnd) -> None:
    if not waiter.done():
        waiter.set_result(ended)

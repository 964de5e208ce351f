"""Limits on what runs at the same time: handlers in this process, coroutines in one event loop, copies that wait.

`HandlerRuns` (one for the process: `PROCESS`) lets handlers run beside each other, or one of them alone. An event whose
last attempt was never settled may have killed its worker. Its handler runs while no other handler of this process runs,
so that neither can take the other down. All gates of a process share `PROCESS`, because it is the process that dies.

    enter        run beside others; waits while a handler runs alone, or waits to run alone
    enter_alone  run alone: no other handler starts, and it waits for the running ones, within a bound
    leave        the run has ended

After each run alone, and after each wait to run alone that was given up, all runs that wait to run beside others start
first. So a large number of suspect events slows the others down, but does not stop them.

`ConcurrencyLimit` bounds the events that the coroutines of one event loop have in flight. `InFlightWaiters` lets copies
of an event wait until the run of the event ends.

asyncio is imported inside the functions that use it: it takes long to import, and a cold start without coroutines does
not need it.
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

_CHECK_EVERY: Final = 0.5  # seconds between two checks whether a time bound has passed

# Whether the current code runs inside a handler. Such code must not wait to enter: it would wait for its own end.
inside: ContextVar[bool] = ContextVar("oncegate_inside_handler", default=False)


# ── handlers of this process: beside each other, or one alone ─────────────────────────────────────────────


class _WaitingRun:
    """A run that waits to enter until `deadline` (monotonic clock). It runs alone for up to `alone_for` seconds; 0 is
    beside others. `wake` is called when the run is `admitted`."""

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

    A run counts as running for at most `hold` seconds: a handler that runs longer has lost its claim, or hangs. A run
    that is alone keeps others out for at most `alone_for` seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._reset)
        self._reset()

    def _reset(self) -> None:
        """Also in a forked child, where nothing runs and nothing waits."""
        self._running: dict[object, float] = {}
        self._alone: object = None
        self._alone_until = 0.0
        self._suspects: list[_WaitingRun] = []
        self._others: list[_WaitingRun] = []

    def enter_now(self, token: object, hold: float) -> bool:
        """Run beside others; False if a handler runs alone or waits to run alone."""
        with self._lock:
            if self._suspects or self._alone is not None:
                return False
            self._running[token] = time.monotonic() + hold
            return True

    def enter(self, token: object, hold: float) -> None:
        """Run beside others; blocks until that is possible. An event that a handler runs itself does not wait."""
        if not inside.get() and not self.enter_now(token, hold):
            self._wait(token, hold, 0.0, inf)

    def enter_alone(self, token: object, hold: float, *, within: float, alone_for: float) -> bool:
        """Run alone; blocks until that is possible. False if it is not possible within `within` seconds."""
        return inside.get() or self._wait(token, hold, alone_for, within)

    def add(self, token: object, hold: float) -> None:
        """Count one more run that a run which has entered starts; it does not wait."""
        with self._lock:
            self._running[token] = time.monotonic() + hold

    def leave(self, token: object) -> None:
        """The run has ended, or does not wait any more. Without enter() this does nothing."""
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
        """Wait to run, beside others or alone. The caller has to call `check` regularly, and `give_up` or `leave` in
        the end. If its event loop is blocked it can do neither. So after `within` seconds it does not keep others out
        any more."""
        waiting = _WaitingRun(token, hold, alone_for, time.monotonic() + within, wake)
        with self._lock:
            (self._suspects if alone_for else self._others).append(waiting)
            self._advance()
        return waiting

    def check(self) -> None:
        """Admit the runs that may start because a time bound has passed."""
        with self._lock:
            self._advance()

    def give_up(self, waiting: _WaitingRun) -> bool:
        """Stop waiting. True if the run was admitted meanwhile: then it has to leave."""
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
        """Nothing runs alone: admit all runs that wait to run beside others."""
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
    """`PROCESS.enter`, or `enter_alone` if `alone_for` is given, for a coroutine. False if the run cannot enter within
    `within` seconds, or if the event `unless` is set before."""
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
    """Wait until the first of these ends, for at most `within` seconds; the others are cancelled."""
    import asyncio

    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


# ── coroutines of one event loop ──────────────────────────────────────────────────────────────────────────


class ConcurrencyLimit:
    """At most `most` coroutines of one event loop are inside at a time.

    `enter_now` is not a coroutine: nearly always there is room, and then nothing has to be awaited."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        if self._inside >= self._most:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Wait until another coroutine leaves and passes its place on. A cancelled caller that already has a place
        passes it on, too."""
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


# How the run of an event ended. True: the event is acknowledged. False: it failed, and its copies fail with it. None:
# that is not known.
RunEnd = bool | None


class InFlightWaiters:
    """Copies of events in flight that wait until the run ends, at most `most` of them in all.

    If the event runs in this process, its copies wait for that run. If another process runs it, one of the copies polls
    the store, less and less often, and the other copies wait for what it finds.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._reset)
        self._reset()

    def _reset(self) -> None:
        """Also in a forked child, where nothing waits."""
        self._waiting = 0
        self._waiters_by_key: dict[bytes, list[asyncio.Future[RunEnd]]] = {}

    def begin(self, digest: bytes) -> bool:
        """A coroutine runs or polls this key from now on, and has to call `end`. False if another one does already."""
        with self._lock:
            if digest in self._waiters_by_key:
                return False
            self._waiters_by_key[digest] = []
            return True

    def end(self, digest: bytes, ended: RunEnd) -> None:
        """Wake the copies that wait for this key. Only for a caller to whom `begin` returned True."""
        with self._lock:
            waiters = self._waiters_by_key.pop(digest, [])
        for waiter in waiters:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits in it any more
                waiter.get_loop().call_soon_threadsafe(_wake, waiter, ended)

    async def wait(self, outcome: Outcome, retry: Callable[[], Awaitable[Outcome]], wait: int) -> Outcome:
        """The outcome of a copy that is in flight, after up to `wait` microseconds. It is still in flight if the run
        does not end by then, or if too many copies wait already. `retry` takes the copy through the gate again."""
        with self._lock:
            if self._waiting >= self._most:
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
        """A future for the end of the coroutine that runs or polls this key. None if there was no such coroutine: then
        the caller is the one, and has to call `end`."""
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

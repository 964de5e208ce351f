"""Alone: the handlers that share this process, and the one that must have it to itself.

An event whose last attempt was never settled may have killed its worker. Its handler runs while no other handler of
this process does, so that it takes no neighbour with it and no neighbour takes it along. All gates of a process share
one `PROCESS`: the process is what dies.

    enter       run beside others; waits while one is alone or waits to be
    enter_alone run alone: no other starts, and those that run are waited for, within a bound
    leave       it has ended

After each run alone, and after each wait for one that was given up, all that waited to run beside others starts first.
So many suspects slow the others down but do not stop them.

Nothing here knows of events. How a coroutine waits is in `oncegate.gate.limiter`: asyncio takes long to import.
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

LOOK_EVERY: Final = 0.5  # seconds; how often one that waits looks whether a bound has passed

# Whether a handler is being called around what runs here: it must not wait for its own end.
inside: ContextVar[bool] = ContextVar("oncegate_inside_handler", default=False)


class Waiter:
    """One that waits to run, alone for `alone_for` seconds if that is not 0, and no longer than to its `deadline`.
    `wake` is called when it is `admitted`."""

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
    """What runs is known by a `token`, any object. It counts as company for `hold` seconds at most: a handler that runs
    on after that has lost its claim, or hangs. One that is alone keeps others out for `alone_for` seconds at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._start_anew)
        self._start_anew()

    def _start_anew(self) -> None:
        """Nothing runs in a new process, and nothing waits in it."""
        self._running: dict[object, float] = {}
        self._alone: object = None
        self._alone_until = 0.0
        self._suspects: list[Waiter] = []
        self._others: list[Waiter] = []

    def enter_now(self, token: object, hold: float) -> bool:
        """Run beside others, unless one is alone or waits to be."""
        with self._lock:
            if self._suspects or self._alone is not None:
                return False
            self._running[token] = time.monotonic() + hold
            return True

    def add(self, token: object, hold: float) -> None:
        """Count as running what one starts that is inside already."""
        with self._lock:
            self._running[token] = time.monotonic() + hold

    def leave(self, token: object) -> None:
        """It has ended, or does not wait any longer. To leave without having entered does no harm."""
        with self._lock:
            self._running.pop(token, None)
            if self._alone is token:
                self._open()
            if self._suspects or self._others:
                self._suspects = [waiter for waiter in self._suspects if waiter.token is not token]
                self._others = [waiter for waiter in self._others if waiter.token is not token]
                self._advance()

    def enter(self, token: object, hold: float) -> None:
        """Run beside others; block until that may be. A handler that runs another in its own place does not wait."""
        if not inside.get() and not self.enter_now(token, hold):
            self._wait(token, hold, 0.0, inf)

    def enter_alone(self, token: object, hold: float, *, within: float, alone_for: float) -> bool:
        """Run alone; block until that may be, for so many seconds at most. Answers whether it may."""
        return inside.get() or self._wait(token, hold, alone_for, within)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────

    def ask(
        self, token: object, hold: float, alone_for: float, wake: Callable[[], object], within: float = inf
    ) -> Waiter:
        """Wait to run, beside others or alone. The caller looks every now and then, and gives up or leaves. One that
        does neither keeps nobody out when its time is over: its event loop may be blocked."""
        waiter = Waiter(token, hold, alone_for, time.monotonic() + within, wake)
        with self._lock:
            (self._suspects if alone_for else self._others).append(waiter)
            self._advance()
        return waiter

    def look(self) -> None:
        """See whether a bound has passed."""
        with self._lock:
            self._advance()

    def give_up(self, waiter: Waiter) -> bool:
        """Wait no longer; answers whether it was admitted meanwhile, and so has to leave."""
        with self._lock:
            if waiter in self._suspects:
                self._suspects.remove(waiter)
                if self._alone is None:
                    self._open()
                self._advance()
            elif waiter in self._others:
                self._others.remove(waiter)
            return waiter.admitted

    def _wait(self, token: object, hold: float, alone_for: float, within: float) -> bool:
        woken = threading.Event()
        waiter = self.ask(token, hold, alone_for, woken.set, within)
        try:
            while not waiter.admitted and (left := waiter.deadline - time.monotonic()) > 0:
                woken.wait(min(LOOK_EVERY, left))
                self.look()
        except BaseException:
            if self.give_up(waiter):
                self.leave(token)
            raise
        return self.give_up(waiter)

    # ── with the lock held ────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        """Let in all that wait by now to run beside others."""
        self._alone = None
        others, self._others = self._others, []
        for waiter in others:
            self._admit(waiter)

    def _advance(self) -> None:
        now = time.monotonic()
        if self._alone is not None and now >= self._alone_until:
            self._open()
        if self._suspects and self._alone is None and all(until <= now for until in self._running.values()):
            first = self._suspects.pop(0)
            self._alone, self._alone_until = first.token, now + first.alone_for
            self._admit(first)
        waiting = [waiter for waiter in self._suspects if now < waiter.deadline]
        given_up, self._suspects = len(waiting) < len(self._suspects), waiting
        if self._alone is None and self._others and (given_up or not waiting):
            self._open()

    def _admit(self, waiter: Waiter) -> None:
        self._running[waiter.token] = time.monotonic() + waiter.hold
        waiter.admitted = True
        waiter.wake()


PROCESS: Final = HandlerRuns()


# Room: how many coroutines of one loop may be inside, and how a coroutine waits to run beside others or alone.
#
# What can be had at once is had without a coroutine of its own: nearly always nobody has to wait.


class ConcurrencyLimit:
    """At most `most` are inside."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._outside: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        if self._inside >= self._most:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Wait for a place, which whoever leaves passes on; a caller that gives up passes it on too."""
        import asyncio

        waiter = asyncio.get_running_loop().create_future()
        self._outside.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._outside:
            waiter = self._outside.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._inside -= 1


async def enter_async(
    token: object, hold: float, *, alone_for: float = 0.0, within: float = inf, unless: "asyncio.Event | None" = None
) -> bool:
    """Wait to run beside others, or alone for so many seconds: whether it may, within so many seconds and unless an
    event happens before. See `oncegate.gate.limiter`."""
    import asyncio

    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    waiter = PROCESS.ask(token, hold, alone_for, wake, within)
    try:
        while not waiter.admitted and not (unless is not None and unless.is_set()):
            if (left := waiter.deadline - time.monotonic()) <= 0:
                break
            events = [woken] if unless is None else [woken, unless]
            await first_of(*(event.wait() for event in events), within=min(LOOK_EVERY, left))
            PROCESS.look()
    except BaseException:
        if PROCESS.give_up(waiter):
            PROCESS.leave(token)
        raise
    return PROCESS.give_up(waiter)


async def first_of(*awaited: Coroutine[Any, Any, object], within: float | None = None) -> None:
    """Wait for the first of these, at most so many seconds."""
    import asyncio

    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


# Waiting: a copy of an event that is being run waits for its end instead of being sent away.
#
# In one process one asks and the others wait for it: while an event is run here, its copies wait for that run; while
# another process runs it, one of them asks the store, less and less often, and the rest wait for what it finds.


# How a run, or the look of a copy at another's, has ended: True, the event is done with; False, it has failed, and its
# copies with it; None, nobody knows.
RunEnd = bool | None


class InFlightWaiters:
    """The keys that somebody here runs or asks for, and who waits for each; at most so many wait in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._start_anew)
        self._start_anew()

    def _start_anew(self) -> None:
        """Nobody waits in a new process."""
        self._waiting = 0
        self._at: dict[bytes, list[asyncio.Future[RunEnd]]] = {}

    def begin(self, digest: bytes) -> bool:
        """Somebody here is at this key from now on; False if somebody was already."""
        with self._lock:
            if digest in self._at:
                return False
            self._at[digest] = []
            return True

    def end(self, digest: bytes, ended: RunEnd) -> None:
        """To be called by whom `begin` told True."""
        with self._lock:
            waiters = self._at.pop(digest, [])
        for waiter in waiters:
            try:
                waiter.get_loop().call_soon_threadsafe(_tell, waiter, ended)
            except RuntimeError:
                """The loop was closed, and nobody waits in it any more."""

    async def waited(self, outcome: Outcome, ask: Callable[[], Awaitable[Outcome]], wait: int) -> Outcome:
        """What becomes of a copy that was told in flight, within so many microseconds; the same if nothing does, or if
        too many wait already. `ask` takes it through the gate once more."""
        with self._lock:
            if self._waiting >= self._most:
                return outcome
            self._waiting += 1
        try:
            return await self._wait(outcome, ask, PollBackoff(wait))
        finally:
            with self._lock:
                self._waiting -= 1

    async def _wait(self, outcome: Outcome, ask: Callable[[], Awaitable[Outcome]], patience: PollBackoff) -> Outcome:
        import asyncio

        while outcome.status == "in_flight" and outcome.key is not None and patience.left > 0:
            waiter = self._joined(outcome.key.digest)
            if waiter is None:
                return await self._ask(outcome.key.digest, outcome, ask, patience)
            try:
                async with asyncio.timeout(patience.left):
                    ended = await waiter
            except TimeoutError:
                return outcome
            if ended is False:
                return outcome
            if ended:
                outcome = await ask()
        return outcome

    def _joined(self, digest: bytes) -> "asyncio.Future[RunEnd] | None":
        """A wait for the one that is at this key; None if nobody was: then the caller is, and must `end` it."""
        import asyncio

        with self._lock:
            waiters = self._at.get(digest)
            if waiters is None:
                self._at[digest] = []
                return None
            waiter: asyncio.Future[RunEnd] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            return waiter

    async def _ask(
        self, digest: bytes, outcome: Outcome, ask: Callable[[], Awaitable[Outcome]], patience: PollBackoff
    ) -> Outcome:
        import asyncio

        ended: RunEnd = None
        try:
            while outcome.status == "in_flight" and (pause := patience.pause()) is not None:
                await asyncio.sleep(pause)
                outcome = await ask()
            ended = run_end_of(outcome)
        finally:
            self.end(digest, ended)
        return outcome


def run_end_of(outcome: Outcome | None) -> RunEnd:
    if outcome is None or outcome.status == "in_flight":
        return None
    return outcome.acked


def _tell(waiter: "asyncio.Future[RunEnd]", ended: RunEnd) -> None:
    if not waiter.done():
        waiter.set_result(ended)

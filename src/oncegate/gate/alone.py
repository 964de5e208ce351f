"""Alone: the handlers that share this process, and the one that must have it to itself.

An event whose last attempt was never settled may have killed its worker. Its handler runs while no other handler of
this process does, so that it takes no neighbour with it and no neighbour takes it along. All gates of a process share
one `PROCESS`: the process is what dies.

    enter       run beside others; waits while one is alone or waits to be
    enter_alone run alone: no other starts, and those that run are waited for, within a bound
    leave       it has ended

After each run alone, and after each wait for one that was given up, all that waited to run beside others starts first.
So many suspects slow the others down but do not stop them.

Nothing here knows of events. How a coroutine waits is in `oncegate.gate.room`: asyncio takes long to import.
"""

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import Final

from oncegate import forks

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


class Alone:
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


PROCESS: Final = Alone()

"""Waiting: a copy of an event that is being run waits for its end instead of being sent away.

In one process one asks and the others wait for it: while an event is run here, its copies wait for that run; while
another process runs it, one of them asks the store, less and less often, and the rest wait for what it finds.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from oncegate import forks
from oncegate.gate.outcome import Outcome
from oncegate.gate.patience import Patience

# How a run, or the look of a copy at another's, has ended: True, the event is done with; False, it has failed, and its
# copies with it; None, nobody knows.
Ended = bool | None


class Copies:
    """The keys that somebody here runs or asks for, and who waits for each; at most so many wait in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._start_anew)
        self._start_anew()

    def _start_anew(self) -> None:
        """Nobody waits in a new process."""
        self._waiting = 0
        self._at: dict[bytes, list[asyncio.Future[Ended]]] = {}

    def begin(self, digest: bytes) -> bool:
        """Somebody here is at this key from now on; False if somebody was already."""
        with self._lock:
            if digest in self._at:
                return False
            self._at[digest] = []
            return True

    def end(self, digest: bytes, ended: Ended) -> None:
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
            return await self._wait(outcome, ask, Patience(wait))
        finally:
            with self._lock:
                self._waiting -= 1

    async def _wait(self, outcome: Outcome, ask: Callable[[], Awaitable[Outcome]], patience: Patience) -> Outcome:
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

    def _joined(self, digest: bytes) -> "asyncio.Future[Ended] | None":
        """A wait for the one that is at this key; None if nobody was: then the caller is, and must `end` it."""
        with self._lock:
            waiters = self._at.get(digest)
            if waiters is None:
                self._at[digest] = []
                return None
            waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            return waiter

    async def _ask(
        self, digest: bytes, outcome: Outcome, ask: Callable[[], Awaitable[Outcome]], patience: Patience
    ) -> Outcome:
        ended: Ended = None
        try:
            while outcome.status == "in_flight" and (pause := patience.pause()) is not None:
                await asyncio.sleep(pause)
                outcome = await ask()
            ended = ended_by(outcome)
        finally:
            self.end(digest, ended)
        return outcome


def ended_by(outcome: Outcome | None) -> Ended:
    if outcome is None or outcome.status == "in_flight":
        return None
    return outcome.acked


def _tell(waiter: "asyncio.Future[Ended]", ended: Ended) -> None:
    if not waiter.done():
        waiter.set_result(ended)

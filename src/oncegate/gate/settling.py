"""Settling: how claims end, many with one write, none later than 50 ms after its effect."""

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakSet

from msgspec import Struct

from oncegate import forks
from oncegate.claims import Settlement
from oncegate.clocks import Clock
from oncegate.errors import StoreError, Unkeepable
from oncegate.gate.jobs import Job
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import Store

_FLUSH_WITHIN = 0.05
_LOOK_EVERY = _FLUSH_WITHIN / 3
_IDLE_FOR = 0.5
_RETRY_AFTER = (0.05, 0.25)
_RETRY_EVERY = 0.25
CLOSE_WITHIN = 10.0

# What a store says to a settlement: True accepted, False lease lost, an error if it did not answer.
Answer = bool | StoreError


class Ending(Struct, frozen=True, gc=False):
    """How a job shall end, and its outcome if the store agrees."""

    job: Job
    settlement: Settlement
    outcome: Outcome


class Settlements:
    """The endings of one batch that are not written yet: those that wait here, and what is added to them."""

    def __init__(self, waiting: list[Ending], write: Callable[[Sequence[Ending]], None]) -> None:
        self._waiting = waiting
        self._write = write
        self._lock = threading.Lock()

    def flush(self) -> None:
        """Write all that waits; on return every one of them has been told."""
        with self._lock:
            endings = self._waiting[:]
            if endings:
                del self._waiting[: len(endings)]  # what has been added meanwhile stays
                self._write(endings)


def settle(store: Store, settlements: Sequence[Settlement]) -> Sequence[Answer]:
    """Settle in one write. The effects are done, so a store that stumbles is asked again before giving up; and if one
    cannot be kept, the others are settled one by one."""
    for pause in (*_RETRY_AFTER, None):
        try:
            return store.settle(settlements)
        except Unkeepable as error:
            alone = len(settlements) == 1
            return [error] if alone else [answer for each in settlements for answer in settle(store, [each])]
        except StoreError as error:
            if pause is None:
                return [error] * len(settlements)
            time.sleep(pause)
    raise AssertionError("the last try returns")


class Unsettled:
    """Endings that the store did not confirm in time for their callers, tried until it does or their leases are over.

    While a lease lasts nobody else is granted its event: if the store comes back by then, the next delivery finds it
    done, and nothing is done twice. `settled` gets what is confirmed; nobody else waits for it. The thread starts with
    the first of them and ends with the last.
    """

    def __init__(self, store: Store, boot: Clock, settled: Callable[[Sequence[Ending], int], None]) -> None:
        self._store = store
        self._boot = boot
        self._settled = settled
        self._lock = threading.Lock()
        self._left: list[Ending] = []
        self._thread: threading.Thread | None = None
        forks.watch(self)
        _open.add(self)

    def add(self, endings: Sequence[Ending]) -> None:
        with self._lock:
            self._left.extend(endings)
            if self._left and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="oncegate-unsettled", daemon=True)
                self._thread.start()

    def flush(self, within: float) -> None:
        """Wait until none is left, at most that long."""
        deadline = time.monotonic() + within
        while self._left and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_EVERY, left))

    def give_up(self) -> None:
        """Try no more: the store is about to be closed."""
        with self._lock:
            self._left = []

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._left, self._thread = [], None
        self._lock.release()

    def _run(self) -> None:
        while endings := self._alive():
            with suppress(Exception):  # those who could be told are gone
                self._try(endings)
            time.sleep(_RETRY_EVERY)

    def _alive(self) -> list[Ending]:
        """Those that are left. In a process that was frozen meanwhile the leases may be long over."""
        now = self._boot()
        with self._lock:
            self._left = [ending for ending in self._left if now < ending.job.lease.valid_until]
            if not self._left:
                self._thread = None
            return self._left[:]

    def _try(self, endings: Sequence[Ending]) -> None:
        sent_at = self._boot()
        answers = settle(self._store, [ending.settlement for ending in endings])
        tried = list(zip(endings, answers, strict=True))
        self._settled([ending for ending, answer in tried if answer is True], sent_at)
        done = {id(ending) for ending, answer in tried if not is_passing(answer)}
        with self._lock:
            self._left = [ending for ending in self._left if id(ending) not in done]


def is_passing(answer: Answer) -> bool:
    """Whether the store has not answered, and may do so yet."""
    return not isinstance(answer, bool | Unkeepable)


# A process that ends right after it was told of a failure has still done the effect.
_open: WeakSet[Unsettled] = WeakSet()


@atexit.register
def _flush_all() -> None:
    deadline = time.monotonic() + CLOSE_WITHIN
    for each in list(_open):
        each.flush(deadline - time.monotonic())


class Flusher:
    """Flushes what batches under way have left waiting, as their own thread may be busy with one event for long.

    A thread looks at all of them every 17 ms and flushes those that it has seen before, so that a batch that is over
    sooner is written in one piece. To be looked at takes a batch two steps on a dict; to wake a thread for each would
    take longer than some of its events. The thread starts with the first batch and ends soon after the last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Settlements, None] = {}
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def begin(self, settlements: Settlements) -> None:
        with self._lock:
            self._under_way[settlements] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="oncegate-flusher", daemon=True)
                self._thread.start()

    def end(self, settlements: Settlements) -> None:
        self._under_way.pop(settlements, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._under_way, self._thread = {}, None
        self._lock.release()

    def _run(self) -> None:
        seen: list[Settlements] = []
        last = time.monotonic()
        while seen or time.monotonic() - last < _IDLE_FOR or not self._ended():
            time.sleep(_LOOK_EVERY)
            for settlements in seen:
                settlements.flush()
            seen = list(self._under_way)
            if seen:
                last = time.monotonic()

    def _ended(self) -> bool:
        with self._lock:
            if self._under_way:
                return False
            self._thread = None
            return True

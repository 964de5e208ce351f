"""This module runs plain handlers in threads, and detects handlers that do not return.

A handler is hung if it has run for longer than `limit`. A hung handler is reported once, in the log and to `on_hung`. A
thread cannot be stopped. So with `gives_up`, the event of a hung handler fails, and a new thread replaces the thread of
the hung handler. The number of replaced threads is at most the original number of threads.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from oncegate import forks
from oncegate.durations import spoken, times
from oncegate.events import Event

_log: Final = logging.getLogger("oncegate.work")
_CHECK_EVERY: Final = 1.0  # seconds, at most
_IDLE_FOR: Final = 10.0


class HandlerRun:
    """One call of a handler. If the handler hangs and its event has to fail, the run is `given_up`: `give_up` is called
    from another thread."""

    __slots__ = ("begun", "event", "give_up", "given_up", "is_hung")

    def __init__(self, event: Event, give_up: Callable[[], object]) -> None:
        self.event = event
        self.give_up = give_up
        self.begun = time.monotonic()
        self.is_hung = False
        self.given_up = False


class _Pool(ThreadPoolExecutor):
    def add_thread(self) -> None:
        """Start one more thread. The thread runs the next waiting call."""
        self._max_workers += 1
        self._adjust_thread_count()


class HandlerThreads:
    """The threads of one gate. A thread is started when it is needed.

    `threads` is the maximum number of threads. `limit` is the number of seconds after which a handler counts as hung.
    `on_hung` is called with the event and the time since its handler started.
    """

    def __init__(self, threads: int, limit: float, *, gives_up: bool, on_hung: Callable[[Event, str], object]) -> None:
        self._threads = threads
        self._limit = limit
        self._gives_up = gives_up
        self._on_hung = on_hung
        self._lock = threading.Lock()
        self._pool: _Pool | None = None
        self._spare = self._threads  # how many hung threads can still be replaced
        self._runs: dict[HandlerRun, None] = {}
        self._watcher: threading.Thread | None = None
        self.left = threads  # how many threads can still run handlers
        forks.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._pool, self._spare, self._runs, self._watcher = None, self._threads, {}, None
            self._count_left()
        self._lock.release()

    def submit(self, work: Callable[..., None], *arguments: Any) -> "Future[None]":
        with self._lock:
            if self._pool is None:
                self._pool = _Pool(self._threads, thread_name_prefix="oncegate-handler")
            return self._pool.submit(work, *arguments)

    def close(self) -> None:
        """Wait until the running handlers have returned. If a handler was given up, do not wait. Calls that arrive
        during close() get new threads."""
        with self._lock:
            pool, self._pool, self._spare = self._pool, None, self._threads
            self._count_left()
            waits = not any(run.given_up for run in self._runs)
        if pool is not None:
            pool.shutdown(wait=waits)

    # ── in the thread of a handler ────────────────────────────────────────────────────────────────────────

    def begin(self, event: Event, give_up: Callable[[], object]) -> HandlerRun:
        run = HandlerRun(event, give_up)
        with self._lock:
            self._runs[run] = None
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._watch, name="oncegate-handlers", daemon=True)
                self._watcher.start()
        return run

    def end(self, run: HandlerRun) -> bool:
        """Record that the handler has returned or raised. Returns False if the handler was given up before: its event
        has already failed."""
        with self._lock:
            self._runs.pop(run, None)
            if run.is_hung:
                self._count_left()
        if run.given_up:
            _log.warning(
                "the handler of event %r returned after %s; its event had failed by handler_timeout, so the result is"
                " not recorded",
                run.event.id,
                _age(run),
            )
        return not run.given_up

    # ── hung handlers ────────────────────────────────────────────────────────────────────────────────────

    @property
    def hung(self) -> int:
        with self._lock:
            return sum(run.is_hung for run in self._runs)

    @property
    def given_up(self) -> int:
        with self._lock:
            return sum(run.given_up for run in self._runs)

    def still_runs(self, key: bytes) -> str | None:
        """Returns the time since the start of a handler of this key that was given up and still runs; None if there is
        no such handler."""
        if not self._gives_up:
            return None
        with self._lock:
            for run in self._runs:
                if run.given_up and run.event.key is not None and run.event.key.digest == key:
                    return _age(run)
        return None

    def _count_left(self) -> None:
        replaced = self._threads - self._spare
        self.left = self._threads + replaced - sum(run.is_hung for run in self._runs)

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(min(_CHECK_EVERY, self._limit / 4))
            now = time.monotonic()
            with self._lock:
                last = now if self._runs else last
                if now - last > _IDLE_FOR:
                    self._watcher = None
                    return
                late = [run for run in self._runs if not run.is_hung and now - run.begun >= self._limit]
                for run in late:
                    self._mark_hung(run)
            for run in late:
                self._report(run)

    def _mark_hung(self, run: HandlerRun) -> None:
        run.is_hung, run.given_up = True, self._gives_up
        if self._gives_up and self._spare and self._pool is not None:
            self._spare -= 1
            self._pool.add_thread()
        self._count_left()

    def _report(self, run: HandlerRun) -> None:
        left = times(self.left, "thread")
        then = "; its event has failed" if run.given_up else ""
        _log.warning(
            "the handler of event %r has run for %s and has not returned%s; %s left",
            run.event.id,
            _age(run),
            then,
            left,
        )
        self._on_hung(run.event, _age(run))
        if run.given_up:
            run.give_up()


def _age(run: HandlerRun) -> str:
    return spoken(int((time.monotonic() - run.begun) * 1e6))

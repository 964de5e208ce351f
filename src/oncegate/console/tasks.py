"""Actions that run in the background of the console process, with progress."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.errors import OncegateError

_log = logging.getLogger("oncegate.console")

MOST_RUNNING: Final = 3
_MOST_KEPT: Final = 50  # tasks that have ended
_CLOSE_WITHIN: Final = 2.0  # seconds
_SHORTEST_PAUSE: Final = 0.005  # seconds
_LONGEST_PAUSE: Final = 1.0  # seconds

CANCELLED: Final = "cancelled"
STOPPED: Final = "the service stopped"


class TooManyTasks(OncegateError):
    """Three tasks run at the same time already."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_RUNNING} tasks are running; wait until one of them has ended, or cancel one")


class Offer(Struct, frozen=True):
    """What the page of a task offers to do next: the name of a button, and the path and fields of its form."""

    name: str
    path: str
    fields: Mapping[str, str]


class Task:
    """An action of a person. `back` is the address of the page that the person came from.

    The function of the task sets `doing`, `done` and `total` while it runs, and appends sentences to `results`. It
    checks `stop_reason` after each step, and ends early if the reason is not None. It may set `offer`. All other
    threads only read."""

    def __init__(self, title: str, who: str, back: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.title = title
        self.who = who
        self.back = back
        self.started_at = wall()
        self.ended_at: int | None = None
        self.doing = ""
        self.done = 0
        self.total: int | None = None
        self.results: list[str] = []
        self.problem: str | None = None
        self.stop_reason: str | None = None
        self.offer: Offer | None = None
        self._has_to_stop = threading.Event()
        self._step_started = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    def stop(self, reason: str) -> None:
        """Make the task end after the current step."""
        self.stop_reason = self.stop_reason or reason
        self._has_to_stop.set()

    def pause(self) -> None:
        """Wait after a step that has changed a batch of records: as long as the task has run since its last pause, at
        least 5 ms and at most 1 s. Without pauses, a long task would delay the events of the service, which use the
        same store. The wait ends early if the task has to stop."""
        took = time.monotonic() - self._step_started
        self._has_to_stop.wait(min(max(took, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        self._step_started = time.monotonic()

    def run(self, function: Callable[["Task"], None]) -> None:
        try:
            function(self)
        except OncegateError as error:
            self.problem = str(error)
        except Exception:  # noqa: BLE001  # logged; the person sees that the task failed
            _log.exception("the task %s failed", self.title)
            self.problem = "The task failed. The log of the service has the reason."
        finally:
            self.ended_at = wall()


class Tasks:
    """The tasks of a console process. They go on if the browser closes the page. At most 3 tasks run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, title: str, who: str, back: str, function: Callable[[Task], None]) -> Task:
        """Run a function in a thread. Raises TooManyTasks."""
        task = Task(title, who, back)
        with self._lock:
            self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
            if len(self._threads) >= MOST_RUNNING:
                raise TooManyTasks
            ended = [each for each in self._tasks.values() if not each.is_running]
            for each in ended[: max(0, len(ended) - _MOST_KEPT + 1)]:
                del self._tasks[each.id]
            self._tasks[task.id] = task
            thread = threading.Thread(target=task.run, args=(function,), name="oncegate-task", daemon=True)
            self._threads[task.id] = thread
            thread.start()
        return task

    def find(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def discard(self, task_id: str) -> None:
        """Remove a task that has ended."""
        with self._lock:
            task = self._tasks.get(task_id)
            if task is not None and not task.is_running:
                del self._tasks[task_id]

    @property
    def running(self) -> list[Task]:
        with self._lock:
            return [task for task in self._tasks.values() if task.is_running]

    def close(self) -> None:
        """Stop the tasks. Each task ends after its current step and records what it has done. Waits at most 2 s."""
        until = time.monotonic() + _CLOSE_WITHIN
        for task in self.running:
            task.stop(STOPPED)
        for thread in list(self._threads.values()):
            thread.join(max(0.0, until - time.monotonic()))

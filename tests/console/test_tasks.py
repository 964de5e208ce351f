"""Background tasks of the console."""

import threading
import time

import pytest

from oncegate.console.tasks import STOPPED, Task, Tasks, TooManyTasks
from tests.console.pages.acting import wait_for


def test_the_number_of_tasks() -> None:
    """At most three tasks run at a time. Old tasks that have ended are forgotten."""
    tasks, go = Tasks(), threading.Event()

    def wait(task: Task) -> None:
        assert go.wait(20)

    running = [tasks.start("Drop", "Ada", "", wait) for _ in range(3)]
    with pytest.raises(TooManyTasks, match="3 tasks are running"):
        tasks.start("Drop", "Ada", "", wait)
    go.set()
    wait_for(lambda: not tasks.running)
    for _ in range(60):
        wait_for(lambda: len([each for each in threading.enumerate() if each.name == "oncegate-task"]) < 3)
        latest = tasks.start("Drop", "Ada", "", lambda task: None)
    assert tasks.find(running[0].id) is None
    assert tasks.find(latest.id) is latest
    tasks.close()


def test_close() -> None:
    """`close` stops the tasks, and waits for their end."""
    tasks, ended = Tasks(), []

    def run(task: Task) -> None:
        wait_for(lambda: task.stop_reason is not None)
        ended.append(task.stop_reason)

    tasks.start("Drop", "Ada", "", run)
    tasks.close()
    assert ended == [STOPPED]


def test_a_pause() -> None:
    """A pause is at least 5 ms and at most 1 s long, and ends when the task has to stop."""
    task, started = Task("Drop", "Ada", ""), time.monotonic()
    task.pause()
    assert 0.005 <= time.monotonic() - started < 1
    task._step_started -= 3_600
    threading.Timer(0.1, task.stop, [STOPPED]).start()
    task.pause()
    task._step_started -= 3_600
    task.pause()
    assert time.monotonic() - started < 0.9


def test_the_first_reason_to_stop_counts() -> None:
    task = Task("Drop", "Ada", "")
    task.stop("cancelled")
    task.stop(STOPPED)
    assert task.stop_reason == "cancelled"

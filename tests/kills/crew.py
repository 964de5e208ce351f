"""The worker processes of one run. None of them outlives the run."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from tests import FORKS
from tests.kills.worker import Plan, work

_PATIENCE: Final = 60.0
_LOOK: Final = 0.002


class Stuck(Exception):
    """A worker did not reach the expected state in time."""


class Crew:
    def __init__(self) -> None:
        self._started: list[ForkServerProcess] = []

    def start(self, plan: Plan, does: Callable[[Plan], None] = work) -> ForkServerProcess:
        worker = FORKS.Process(target=does, args=(plan,), name=plan.name)
        worker.start()
        self._started.append(worker)
        return worker

    def run(self, plan: Plan) -> int:
        """Start a worker and wait for its end. Returns its exit code, negative for a signal."""
        return ended(self.start(plan))

    def finish(self) -> None:
        """Wait until all workers have ended."""
        for worker in self._started:
            ended(worker)

    def dismiss(self) -> None:
        for worker in self._started:
            worker.kill()  # also ends a stopped process
            worker.join()
            worker.close()


@contextmanager
def crew() -> Iterator[Crew]:
    """A crew whose processes are killed at the end in any case."""
    hands = Crew()
    try:
        yield hands
    finally:
        hands.dismiss()


def ended(worker: ForkServerProcess) -> int:
    worker.join(_PATIENCE)
    if worker.exitcode is None:
        raise Stuck(f"{worker.name} has not ended within {_PATIENCE:.0f} s")
    if worker.exitcode not in (0, -signal.SIGKILL):
        raise Stuck(f"{worker.name} has failed with {worker.exitcode}")
    return worker.exitcode


def killed(worker: ForkServerProcess) -> bool:
    """Kill a worker. Returns whether it was alive."""
    worker.kill()
    return ended(worker) == -signal.SIGKILL


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise Stuck(f"{what}: not within {_PATIENCE:.0f} s")
        time.sleep(_LOOK)


def begun(plan: Plan, worker: ForkServerProcess) -> bool:
    """Whether a worker has started its work."""
    return "begun" in plan.world.said(plan.name) or worker.exitcode is not None


def stopped(worker: ForkServerProcess) -> bool:
    """Whether the kernel has stopped the process with all its threads."""
    if worker.exitcode is not None:
        raise Stuck(f"{worker.name} ended with {worker.exitcode} before it could be stopped")
    tasks = Path(f"/proc/{worker.pid}/task")
    return all(_state(task / "stat") == "T" for task in tasks.iterdir())


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


def resume(worker: ForkServerProcess) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGCONT)

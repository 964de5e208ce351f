"""Several inboxes worked off by one process: one for each namespace, with a gate and a handler of its own."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import asdict

from oncegate.gate.working import Figures
from oncegate.work.inbox import InboxWorker
from oncegate.work.signals import stopped_by_signals


class Inboxes:
    """Runs its workers in one event loop; see `oncegate.gate.working.Worker` for what can be asked of it."""

    def __init__(self, workers: Sequence[InboxWorker]) -> None:
        self._workers = workers

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with stopped_by_signals(self.stop):
            tasks = [asyncio.create_task(worker.work()) for worker in self._workers]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()  # one that ended was stopped, or has failed: then the others end too
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def figures(self) -> Figures:
        each = [asdict(worker.figures) for worker in self._workers]
        return Figures(**{name: sum(figures[name] for figures in each) for name in asdict(Figures())})

    @property
    def left_running(self) -> int:
        return sum(worker.left_running for worker in self._workers)

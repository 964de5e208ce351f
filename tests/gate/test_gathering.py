"""Gathering: who waits for several things waits for all of them, and what nobody waits for any more is handed back."""

import asyncio
import threading

import pytest

from oncegate.gate.batch_writer import BatchWriter, WriteBatch
from tests.gate.conftest import until


class Work:
    """Works two things at a time off, when it is let."""

    def __init__(self, fails: str | None = None) -> None:
        self.done: list[str] = []
        self.orphaned: list[str] = []
        self.go = threading.Semaphore(0)
        self._fails = fails
        self.gatherer: BatchWriter[str] = BatchWriter("test", self._work, self._work, self.orphaned.append, 2)

    def _work(self, gathered: WriteBatch[str]) -> None:
        assert self.go.acquire(timeout=10)
        self.done += gathered.asked
        if self._fails in gathered.asked:
            raise RuntimeError("broken")


async def two_of_three(work: Work) -> asyncio.Task[None]:
    """Somebody who waits for three things, two of which are done."""
    waiting = asyncio.create_task(work.gatherer.done("a", "b", "c"))
    work.go.release()
    await until(lambda: work.done == ["a", "b"])
    await asyncio.sleep(0.05)
    return waiting


def test_all_of_them() -> None:
    """A caller is woken when the last of what it has asked for is done, and not before."""

    async def main() -> None:
        work = Work()
        waiting = await two_of_three(work)
        assert not waiting.done()
        work.go.release()
        await waiting
        assert (work.done, work.orphaned) == (["a", "b", "c"], [])

    asyncio.run(main())


def test_what_went_wrong_with_one() -> None:
    """It is told when all are done, so that none is still worked on for a caller that has gone on."""

    async def main() -> None:
        work = Work(fails="a")
        waiting = await two_of_three(work)
        assert not waiting.done()
        work.go.release()
        with pytest.raises(RuntimeError, match="broken"):
            await waiting

    asyncio.run(main())


def test_cancelled_in_between() -> None:
    """What was done for a caller that is cancelled is handed back, whether before that or after."""

    async def main() -> None:
        work = Work()
        waiting = await two_of_three(work)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: work.orphaned == ["a", "b"])
        work.go.release()
        await until(lambda: work.orphaned == ["a", "b", "c"])

    asyncio.run(main())

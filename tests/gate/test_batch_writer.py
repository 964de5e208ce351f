"""The batch writer: a caller waits for all its items, and items of a cancelled caller are handed back."""

import asyncio
import threading

import pytest

from oncegate.gate.batch_writer import BatchWriter, WriteBatch
from tests.gate.conftest import until


class Recorder:
    """A batch writer with batches of two. Each batch waits for a release of `go`."""

    def __init__(self, fails: str | None = None) -> None:
        self.written: list[str] = []
        self.retried: list[str] = []
        self.orphaned: list[str] = []
        self.go = threading.Semaphore(0)
        self._fails = fails
        self.writer: BatchWriter[str] = BatchWriter("test", self._write, self._retry, self.orphaned.append, 2)

    def _write(self, batch: WriteBatch[str]) -> None:
        assert self.go.acquire(timeout=10)
        self.written += batch.items
        if self._fails in batch.items:
            raise RuntimeError("broken")
        batch.failed += [item for item in batch.items if item.startswith("retry")]

    def _retry(self, batch: WriteBatch[str]) -> None:
        assert self.go.acquire(timeout=10)
        self.retried += batch.items


async def two_of_three(recorder: Recorder) -> asyncio.Task[None]:
    """A caller that waits for three items, two of which are written."""
    caller = asyncio.create_task(recorder.writer.write("a", "b", "c"))
    recorder.go.release()
    await until(lambda: recorder.written == ["a", "b"])
    await asyncio.sleep(0.05)
    return caller


def test_caller_waits_for_all_its_items() -> None:
    """A caller is woken when the last of its items is written, and not before."""

    async def main() -> None:
        recorder = Recorder()
        caller = await two_of_three(recorder)
        assert not caller.done()
        recorder.go.release()
        await caller
        assert (recorder.written, recorder.orphaned) == (["a", "b", "c"], [])

    asyncio.run(main())


def test_error_is_raised_after_the_last_item() -> None:
    """An error of one item is raised when all are written: no item is still being written for a caller that has gone
    on."""

    async def main() -> None:
        recorder = Recorder(fails="a")
        caller = await two_of_three(recorder)
        assert not caller.done()
        recorder.go.release()
        with pytest.raises(RuntimeError, match="broken"):
            await caller

    asyncio.run(main())


def test_cancelled_caller() -> None:
    """`orphaned` gets the items of a cancelled caller, those written before the cancellation and those written after
    it."""

    async def main() -> None:
        recorder = Recorder()
        caller = await two_of_three(recorder)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await until(lambda: recorder.orphaned == ["a", "b"])
        recorder.go.release()
        await until(lambda: recorder.orphaned == ["a", "b", "c"])

    asyncio.run(main())


def test_failed_items_do_not_hold_up_others() -> None:
    """A failed item is retried in another thread; the other item of its batch is done at once, and its own caller waits
    for the retry."""

    async def main() -> None:
        recorder = Recorder()
        failed, other = (asyncio.create_task(recorder.writer.write(item)) for item in ("retry", "other"))
        recorder.go.release()
        await other
        assert (recorder.written, recorder.retried, failed.done()) == (["retry", "other"], [], False)
        recorder.go.release()
        await failed
        assert recorder.retried == ["retry"]

    asyncio.run(main())

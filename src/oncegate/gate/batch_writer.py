"""The batch writer writes the items of many coroutines in a small number of batches.

The items that coroutines pass to the writer during one turn of their event loop are queued together. A thread writes
all items that were queued since its last write. So an item waits only for the rest of the turn and for the write that
is running.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from oncegate.background import Background

_Item = TypeVar("_Item")
Waiter = asyncio.Future[None]


class WriteBatch(Generic[_Item]):
    """Items to write. `queue_time` is how many seconds the first item has waited in the queue. The write function
    appends the items that it could not write to `failed`."""

    __slots__ = ("failed", "items", "queue_time")

    def __init__(self, items: Sequence[_Item], queue_time: float) -> None:
        self.items = items
        self.queue_time = queue_time
        self.failed: list[_Item] = []


_WriteFunction = Callable[[WriteBatch[_Item]], None]


class _Caller(Generic[_Item]):
    """A caller that waits until `number` items are written. `written` has the items that are already written."""

    __slots__ = ("error", "loop", "number", "waiter", "written")

    def __init__(self, waiter: Waiter, number: int = 1) -> None:
        self.waiter = waiter
        self.loop = waiter.get_loop()
        self.number = number
        self.written: list[_Item] = []
        self.error: BaseException | None = None

    def add_written(self, item: _Item, error: BaseException | None) -> None:
        """Record that one item is written, and wake the caller after its last item. An error, too, is raised only after
        the last item: otherwise items would still be written for a caller that does not wait any more."""
        self.written.append(item)
        self.error = self.error or error
        if len(self.written) < self.number:
            return
        if self.error is None:
            self.waiter.set_result(None)
        else:
            self.waiter.set_exception(self.error)


class _QueuedItem(Generic[_Item]):
    __slots__ = ("caller", "item", "queued_at")

    def __init__(self, item: _Item, caller: _Caller[_Item] | None) -> None:
        self.item = item
        self.queued_at = time.monotonic()
        self.caller = caller


class _Turn(threading.local):
    """The items that were passed to the writer in the current turn of this thread's event loop. `loop` is None before
    the first item of the turn."""

    loop: asyncio.AbstractEventLoop | None = None
    items: list[Any]


_Background = Background[list[_QueuedItem[_Item]]]


class BatchWriter(Generic[_Item]):
    """Writes queued items in batches.

    `write` is called with up to `max_items` items at a time, in the order in which they were queued. The items that it
    appends to `failed` are passed to `retry` in another thread, so that other items do not wait for the retry.
    `on_orphan` is called with each item that was written for a coroutine that was cancelled before the item was
    written."""

    def __init__(
        self,
        name: str,
        write: _WriteFunction[_Item],
        retry: _WriteFunction[_Item],
        on_orphan: Callable[[_Item], None],
        max_items: int,
    ) -> None:
        self._on_orphan = on_orphan
        self._max_items = max_items
        write_queued, retry_queued = partial(self._write_queued, write), partial(self._write_queued, retry)
        self._background: _Background[_Item] = Background(name, write_queued, most=max_items)
        self._retries: _Background[_Item] = Background(f"{name}-again", retry_queued, most=max_items)
        self._turn = _Turn()

    async def write(self, *items: _Item) -> None:
        """Queue these items (at least one) and wait until all of them are written. The items are written even if the
        caller is cancelled."""
        loop = asyncio.get_running_loop()
        caller: _Caller[_Item] = _Caller(loop.create_future(), len(items))
        turn = self._turn
        if turn.loop is not loop:  # the first item of this turn
            turn.loop, turn.items = loop, []
            loop.call_soon(self._end_turn, turn.items)
        turn.items.extend([_QueuedItem(item, caller) for item in items])
        try:
            await caller.waiter
        except asyncio.CancelledError:
            for item in caller.written:  # the caller was cancelled before it could use these items
                self._on_orphan(item)
            raise

    def post(self, item: _Item, waiter: Waiter | None = None) -> None:
        """Queue one item. May be called from any thread. `waiter` gets its result when the item is written."""
        self._background.put([_QueuedItem(item, None if waiter is None else _Caller(waiter))])

    def flush(self, within: float) -> bool:
        """Wait until all items queued so far are written. Returns False if they are not written within `within`
        seconds."""
        deadline = time.monotonic() + within
        return self._background.flush(within) and self._retries.flush(max(0, deadline - time.monotonic()))

    def _end_turn(self, items: list[_QueuedItem[_Item]]) -> None:
        self._turn.loop = None
        self._background.put(items)

    # ── in the thread that writes ─────────────────────────────────────────────────────────────────────────

    def _write_queued(self, write: _WriteFunction[_Item], turns: list[list[_QueuedItem[_Item]]]) -> None:
        queued = [each for turn in turns for each in turn]
        for start in range(0, len(queued), self._max_items):
            self._write_batch(write, queued[start : start + self._max_items])

    def _write_batch(self, write: _WriteFunction[_Item], queued: list[_QueuedItem[_Item]]) -> None:
        error: BaseException | None = None
        batch = WriteBatch([each.item for each in queued], time.monotonic() - queued[0].queued_at)
        try:
            write(batch)
        except BaseException as raised:  # noqa: BLE001  # the callers that wait raise this error
            error = raised
        if batch.failed:
            failed = set(map(id, batch.failed))
            self._retries.put([each for each in queued if id(each.item) in failed])
            queued = [each for each in queued if id(each.item) not in failed]
        awaited = [(each.item, each.caller) for each in queued if each.caller is not None]
        for loop in {caller.loop for _, caller in awaited}:
            written = [(item, caller) for item, caller in awaited if caller.loop is loop]
            try:
                loop.call_soon_threadsafe(self._wake, written, error)
            except RuntimeError:  # the event loop is closed, so its callers do not run any more
                for item, _ in written:
                    self._on_orphan(item)

    # ── in the event loop ─────────────────────────────────────────────────────────────────────────────────

    def _wake(self, written: list[tuple[_Item, _Caller[_Item]]], error: BaseException | None) -> None:
        for item, caller in written:
            if caller.waiter.done():
                self._on_orphan(item)
            else:
                caller.add_written(item, error)

"""Batches: entries for requests that take ten at a time, sent soon and sent again if they fail."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from oncegate.errors import QueueError
from oncegate.work.sqs.calls import AT_A_TIME, Refusal

_Entry = TypeVar("_Entry")
_LINGER: Final = 0.02
_TRIES: Final = 6
_FIRST_PAUSE: Final = 0.1


class Batches(Generic[_Entry]):
    """`send` gets up to ten entries and answers the refused by their number; `done` hears of each entry when it is
    over, and why if it was given up."""

    def __init__(
        self,
        send: Callable[[Sequence[_Entry]], Awaitable[dict[int, Refusal]]],
        done: Callable[[_Entry, str | None], None],
    ) -> None:
        self._send = send
        self._done = done
        self._waiting: list[_Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) >= AT_A_TIME:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER, self._begin)

    async def flush(self, within: float) -> None:
        """Wait until all has been sent, at most so long."""
        if self._waiting:
            self._begin()
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._sent(entries))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _sent(self, entries: list[_Entry]) -> None:
        """Those that fail for no fault of ours are sent again, after a growing pause."""
        pause = _FIRST_PAUSE
        for left in reversed(range(_TRIES)):
            entries = await self._try(entries, last=not left)
            if not entries:
                return
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # no secret
            pause *= 2

    async def _try(self, entries: list[_Entry], *, last: bool) -> list[_Entry]:
        """Send these; the ones to be sent again."""
        try:
            refused = await self._send(entries)
        except QueueError as error:
            refused = dict.fromkeys(range(len(entries)), Refusal(str(error), passes=True))
        again = []
        for at, entry in enumerate(entries):
            refusal = refused.get(at)
            if refusal is not None and refusal.passes and not last:
                again.append(entry)
            else:
                self._done(entry, None if refusal is None else refusal.why)
        return again

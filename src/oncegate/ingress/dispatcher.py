"""The dispatcher runs work items. Items of the same lane run one at a time and in order. Different lanes run
concurrently.

offer ─▶ waits in its lane ─▶ runs ─▶ go_on       the lane continues with its next item
                                     ├▶ RunAgain    the item keeps its place, and the lane waits for it
                                     └▶ give_back   all waiting items of the lane are given back

The dispatcher does not use events and claims: it calls one coroutine function with each item.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

_Work = TypeVar("_Work")
_CANCEL_WITHIN: Final = 2.0  # seconds that a cancelled item has to end


class RunAgain(Struct, frozen=True):
    """Run the item again after `after` seconds. The later items of its lane wait until the item has run again."""

    after: float


Next: TypeAlias = Literal["go_on", "give_back"] | RunAgain


class _Item(Generic[_Work]):
    __slots__ = ("number", "order", "work")

    def __init__(self, work: _Work, order: int, number: int) -> None:
        self.work = work
        self.order = order
        self.number = number

    def __lt__(self, other: "_Item[_Work]") -> bool:
        return (self.order, self.number) < (other.order, other.number)


class _Lane(Generic[_Work]):
    """A heap of waiting items. The lane is busy while one of its items runs or waits to run again."""

    __slots__ = ("busy", "name", "timer", "waiting")

    def __init__(self, name: Hashable | None) -> None:
        self.name = name
        self.waiting: list[_Item[_Work]] = []
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None


class Dispatcher(Generic[_Work]):
    """Calls `run` with each item that is offered, and `give_back` with the items that will not run.

    At most `most` items should wait or run at a time. The dispatcher does not enforce this limit: the caller checks
    `room` before it offers an item. At most `at_work` items run at a time. A dispatcher belongs to one event loop.
    """

    def __init__(
        self,
        run: Callable[[_Work], Coroutine[Any, Any, Next]],
        give_back: Callable[[Sequence[_Work]], None],
        *,
        most: int,
        at_work: int | None = None,
    ) -> None:
        self._run = run
        self._give_back = give_back
        self._most = most
        self._concurrency = most if at_work is None else at_work
        self._numbers = count()
        self._lanes: dict[Hashable, _Lane[_Work]] = {}
        self._held: set[_Lane[_Work]] = set()
        self._ready: deque[_Lane[_Work]] = deque()
        self._running: dict[asyncio.Task[Next], _Item[_Work]] = {}
        self._in_hand = 0
        self._start_is_scheduled = False
        self._closed = False
        self._changed = asyncio.Event()

    # ── offering work ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_hand(self) -> int:
        """The number of items that wait or run."""
        return self._in_hand

    @property
    def at_work(self) -> int:
        """The number of items that run."""
        return len(self._running)

    @property
    def room(self) -> int:
        """The number of items that may be offered now."""
        return 0 if self._closed else max(0, self._most - self._in_hand)

    @property
    def held(self) -> list[Hashable]:
        """The lanes that wait for an item to run again."""
        return [lane.name for lane in self._held if lane.name is not None]

    @property
    def held_items(self) -> int:
        """The number of items that wait to run again, and of the items that wait for them."""
        return sum(len(lane.waiting) for lane in self._held)

    def has_waiting(self, lane: Hashable) -> bool:
        return lane in self._lanes and bool(self._lanes[lane].waiting)

    async def room_for(self, least: int = 1) -> int:
        """Wait until at least `least` items may be offered. Returns how many items may be offered. Does not wait, and
        returns 0, after `drain` was called."""
        while self.room < min(least, self._most) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return self.room

    def offer(self, work: _Work, lane: Hashable | None = None, order: int = 0) -> None:
        """Add an item. The items of a lane run one at a time, and the waiting item with the lowest `order` runs first.
        An item without a lane runs concurrently with all other items. Items start in a later iteration of the event
        loop, so that all items offered in one iteration are in order before the first item starts."""
        if self._closed:
            self._give_back([work])
            return
        self._in_hand += 1
        target = self._lane(lane)
        heappush(target.waiting, _Item(work, order, next(self._numbers)))
        self._make_ready(target)

    async def drain(self, within: float) -> bool:
        """Stop starting items. Waiting items are given back at once. Running items have `within` seconds to end. After
        this time they are cancelled and given back. Returns True if all running items ended in time."""
        self._closed = True
        self._changed.set()
        self._return([item for lane in self._all_lanes() for item in self._empty(lane)])
        if self._running:
            await asyncio.wait(self._running, timeout=within)
        late = list(self._running)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_WITHIN)
        self._return([self._running.pop(task) for task in list(self._running)])
        return not late

    # ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _lane(self, name: Hashable | None) -> _Lane[_Work]:
        """Returns the lane with this name. Without a name, returns a new lane."""
        if name is None:
            return _Lane(None)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        return lane

    def _all_lanes(self) -> set[_Lane[_Work]]:
        return {*self._lanes.values(), *self._ready, *self._held}

    def _make_ready(self, lane: _Lane[_Work]) -> None:
        if lane.busy:
            return
        lane.busy = True
        self._ready.append(lane)
        self._schedule_start()

    def _unblock(self, lane: _Lane[_Work]) -> None:
        """Make a lane ready to run its next item, or remove the lane if it is empty."""
        lane.busy = False
        lane.timer = None
        self._held.discard(lane)
        if lane.waiting:
            self._make_ready(lane)
        elif lane.name is not None and self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    def _hold(self, lane: _Lane[_Work], seconds: float) -> None:
        self._held.add(lane)
        lane.timer = asyncio.get_running_loop().call_later(seconds, self._unblock, lane)

    def _empty(self, lane: _Lane[_Work]) -> list[_Item[_Work]]:
        """Remove and return the waiting items of a lane, in order."""
        if lane.timer is not None:
            lane.timer.cancel()
        self._held.discard(lane)
        waiting, lane.waiting = sorted(lane.waiting), []
        return waiting

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_start(self) -> None:
        if not self._start_is_scheduled:
            self._start_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._start_is_scheduled = False
        while self._ready and len(self._running) < self._concurrency and not self._closed:
            lane = self._ready.popleft()
            item = heappop(lane.waiting)
            task = asyncio.get_running_loop().create_task(self._run(item.work))
            self._running[task] = item
            task.add_done_callback(lambda task, lane=lane: self._ended(task, lane))  # type: ignore[misc]

    def _ended(self, task: asyncio.Task[Next], lane: _Lane[_Work]) -> None:
        item = self._running.pop(task, None)
        if item is None:  # the item did not end within _CANCEL_WITHIN and was already given back
            return
        result = self._result(task)
        if isinstance(result, RunAgain) and not self._closed:
            heappush(lane.waiting, item)
            self._hold(lane, result.after)
        elif result in ("go_on", "give_back"):
            self._forget(1)
            self._return(self._empty(lane) if result == "give_back" else [])
            self._unblock(lane)
        else:
            self._return([item, *self._empty(lane)])
            self._unblock(lane)
        self._schedule_start()

    def _result(self, task: asyncio.Task[Next]) -> Next | None:
        """Returns the result of `run`; None if `run` was cancelled or raised an exception."""
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            message = "a work item raised an exception and was given back"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
            return None
        return task.result()

    def _return(self, items: Sequence[_Item[_Work]]) -> None:
        if items:
            self._forget(len(items))
            self._give_back([item.work for item in items])

    def _forget(self, number: int) -> None:
        self._in_hand -= number
        self._changed.set()

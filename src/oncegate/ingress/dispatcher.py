"""The dispatcher: work that is in hand, one after the other within a lane and beside each other otherwise.

offer ─▶ waits in its lane ─▶ runs ─▶ go_on       the lane goes on with its next
                                     ├▶ Again       it waits again, at its place, and the lane with it
                                     └▶ give_back   all that waits in the lane is handed back

It knows nothing of events and claims: one coroutine function is called with each piece of work.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

_Work = TypeVar("_Work")
_STOP_WITHIN: Final = 2.0


class RunAgain(Struct, frozen=True):
    """What has run is to run again, so many seconds later, and before all that comes after it in its lane."""

    after: float


Next: TypeAlias = Literal["go_on", "give_back"] | RunAgain


class _Waiting(Generic[_Work]):
    __slots__ = ("number", "order", "work")

    def __init__(self, work: _Work, order: int, number: int) -> None:
        self.work = work
        self.order = order
        self.number = number

    def __lt__(self, other: "_Waiting[_Work]") -> bool:
        return (self.order, self.number) < (other.order, other.number)


class _Lane(Generic[_Work]):
    """What waits, the first on top. It is busy while one of it runs, or while one that ran keeps it waiting."""

    __slots__ = ("busy", "name", "timer", "waiting")

    def __init__(self, name: Hashable | None) -> None:
        self.name = name
        self.waiting: list[_Waiting[_Work]] = []
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None


class Dispatcher(Generic[_Work]):
    """Calls `run` with each piece of work that is offered, and `give_back` with what it will not run after all.

    At most `most` pieces should be in hand: whoever offers asks for room first. Of those, `at_work` run at a time. It
    is used from one event loop, whose tasks it starts."""

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
        self._at_work = most if at_work is None else at_work
        self._numbers = count()
        self._lanes: dict[Hashable, _Lane[_Work]] = {}
        self._held: set[_Lane[_Work]] = set()
        self._ready: deque[_Lane[_Work]] = deque()
        self._running: dict[asyncio.Task[Next], _Waiting[_Work]] = {}
        self._in_hand = 0
        self._starts = False
        self._closed = False
        self._changed = asyncio.Event()

    # ── for whoever offers ────────────────────────────────────────────────────────────────────────────────

    @property
    def in_hand(self) -> int:
        """How much waits or runs."""
        return self._in_hand

    @property
    def at_work(self) -> int:
        """How much runs."""
        return len(self._running)

    @property
    def room(self) -> int:
        """How much more may be offered now."""
        return 0 if self._closed else max(0, self._most - self._in_hand)

    @property
    def held(self) -> list[Hashable]:
        """The lanes that wait for one to run again; what else is offered for them waits too."""
        return [lane.name for lane in self._held if lane.name is not None]

    def waits(self, lane: Hashable) -> bool:
        """Whether anything waits in this lane."""
        return lane in self._lanes and bool(self._lanes[lane].waiting)

    async def room_for(self, least: int = 1) -> int:
        """Wait until so many may be offered; answers how many may, which is 0 once it drains."""
        while self.room < min(least, self._most) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return self.room

    def offer(self, work: _Work, lane: Hashable | None = None, order: int = 0) -> None:
        """Take this in hand. Of one lane, the lowest order of those that wait is the first, and one runs at a time;
        without a lane it runs beside all others. What is offered in one turn of the loop is put in order before
        the first of it starts."""
        if self._closed:
            self._give_back([work])
            return
        self._in_hand += 1
        into = self._lane(lane)
        heappush(into.waiting, _Waiting(work, order, next(self._numbers)))
        self._make_ready(into)

    async def drain(self, within: float) -> bool:
        """Start nothing more: hand back what waits, and give what runs so many seconds to end before it is cancelled
        and handed back too. Whether all of it came to its end."""
        self._closed = True
        self._changed.set()
        self._hand_back([waiting for lane in self._all_lanes() for waiting in self._emptied(lane)])
        if self._running:
            await asyncio.wait(self._running, timeout=within)
        late = list(self._running)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_STOP_WITHIN)
        self._hand_back([self._running.pop(task) for task in list(self._running)])
        return not late

    # ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _lane(self, name: Hashable | None) -> _Lane[_Work]:
        """That of this name; what has none gets one to itself."""
        if name is None:
            return _Lane(None)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        return lane

    def _all_lanes(self) -> set[_Lane[_Work]]:
        return {*self._lanes.values(), *self._ready, *self._held}

    def _make_ready(self, lane: _Lane[_Work]) -> None:
        """Its first may run, when there is a place. Work is started in a turn of its own, see `offer`."""
        if lane.busy:
            return
        lane.busy = True
        self._ready.append(lane)
        self._start_soon()

    def _let_go(self, lane: _Lane[_Work]) -> None:
        """Nothing of it runs any more: its next may, or it is forgotten."""
        lane.busy = False
        lane.timer = None
        self._held.discard(lane)
        if lane.waiting:
            self._make_ready(lane)
        elif lane.name is not None and self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    def _hold(self, lane: _Lane[_Work], seconds: float) -> None:
        self._held.add(lane)
        lane.timer = asyncio.get_running_loop().call_later(seconds, self._let_go, lane)

    def _emptied(self, lane: _Lane[_Work]) -> list[_Waiting[_Work]]:
        """What waits in it, in order; it waits no more."""
        if lane.timer is not None:
            lane.timer.cancel()
        self._held.discard(lane)
        waiting, lane.waiting = sorted(lane.waiting), []
        return waiting

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _start_soon(self) -> None:
        if not self._starts:
            self._starts = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starts = False
        while self._ready and len(self._running) < self._at_work and not self._closed:
            lane = self._ready.popleft()
            first = heappop(lane.waiting)
            task = asyncio.get_running_loop().create_task(self._run(first.work))
            self._running[task] = first
            task.add_done_callback(lambda task, lane=lane: self._ended(task, lane))  # type: ignore[misc]

    def _ended(self, task: asyncio.Task[Next], lane: _Lane[_Work]) -> None:
        ran = self._running.pop(task, None)
        if ran is None:  # it did not stop in time, and was handed back before
            return
        following = self._following(task)
        if isinstance(following, RunAgain) and not self._closed:
            heappush(lane.waiting, ran)
            self._hold(lane, following.after)
        elif following in ("go_on", "give_back"):
            self._forget(1)
            self._hand_back(self._emptied(lane) if following == "give_back" else [])
            self._let_go(lane)
        else:
            self._hand_back([ran, *self._emptied(lane)])
            self._let_go(lane)
        self._start_soon()

    def _following(self, task: asyncio.Task[Next]) -> Next | None:
        """What is to follow; None if it did not come to an end."""
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            message = "a piece of work raised, and was given back"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
            return None
        return task.result()

    def _hand_back(self, back: Sequence[_Waiting[_Work]]) -> None:
        if back:
            self._forget(len(back))
            self._give_back([waiting.work for waiting in back])

    def _forget(self, number: int) -> None:
        self._in_hand -= number
        self._changed.set()

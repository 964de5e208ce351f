"""The dispatcher, with simple coroutines: order, room, failures and draining."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain


class Harness:
    """A dispatcher whose items are texts. A running item waits until the test ends it."""

    def __init__(self, most: int = 10, at_work: int | None = None) -> None:
        self.started: list[str] = []
        self.back: list[str] = []
        self._ends: dict[str, asyncio.Future[Next]] = {}
        self.dispatcher = Dispatcher(self._run, self.back.extend, most=most, at_work=at_work)

    async def _run(self, work: str) -> Next:
        self.started.append(work)
        end: asyncio.Future[Next] = asyncio.get_running_loop().create_future()
        self._ends[work] = end
        return await end

    async def offer(self, *works: str, lane: str | None = None) -> None:
        """The digits of a text are its order."""
        for work in works:
            self.dispatcher.offer(work, lane, int(work[1:]))
        await turns()

    async def end(self, work: str, next_: Next | Exception = "go_on") -> None:
        if isinstance(next_, Exception):
            self._ends[work].set_exception(next_)
        else:
            self._ends[work].set_result(next_)
        await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


@in_loop
async def test_lanes() -> None:
    """Of a lane one item runs at a time, the lowest order first. Items without a lane do not wait."""
    harness = Harness()
    await harness.offer("a3", "a1", lane="a")
    await harness.offer("b1", lane="b")
    await harness.offer("x9", "x8")
    assert harness.started == ["a1", "b1", "x9", "x8"]
    await harness.offer("a2", lane="a")
    await harness.end("a1")
    assert harness.started[4:] == ["a2"]
    await harness.end("a2")
    assert harness.started[5:] == ["a3"]


@in_loop
async def test_equal_orders() -> None:
    """Items of the same order run in the order in which they were offered."""
    harness = Harness()
    await harness.offer("a1", "b1", "c1", lane="a")
    for work in "a1", "b1", "c1":
        assert harness.started[-1] == work
        await harness.end(work)


@in_loop
async def test_room() -> None:
    """Waiting and running items take room, and `room_for` returns when there is enough."""
    harness = Harness(most=3)
    await harness.offer("a1", "a2", "a3", lane="a")
    assert (harness.dispatcher.room, harness.dispatcher.in_hand, harness.dispatcher.at_work) == (0, 3, 1)
    waiter = asyncio.create_task(harness.dispatcher.room_for(2))
    await harness.end("a1")
    assert not waiter.done()
    await harness.end("a2")
    assert await waiter == 2


@in_loop
async def test_concurrency() -> None:
    """At most `at_work` items run at a time, over all lanes. The others start when an item ends."""
    harness = Harness(at_work=2)
    await harness.offer("x1", "x2", "x3")
    assert harness.started == ["x1", "x2"]
    await harness.end("x2")
    assert harness.started == ["x1", "x2", "x3"]


@in_loop
async def test_give_back() -> None:
    """The waiting items of a lane are given back in order. Other lanes continue, and the lane can be used again."""
    harness = Harness()
    await harness.offer("a1", "a3", "a2", lane="a")
    await harness.offer("b1", "b2", lane="b")
    assert harness.dispatcher.has_waiting("a")
    await harness.end("a1", "give_back")
    assert harness.back == ["a2", "a3"]
    assert not harness.dispatcher.has_waiting("a")
    await harness.end("b1")
    assert harness.started == ["a1", "b1", "b2"]
    await harness.offer("a4", lane="a")
    assert harness.started[-1] == "a4"
    assert harness.dispatcher.in_hand == 2


@in_loop
async def test_offer_from_give_back() -> None:
    """An item that is given back may be offered again at once."""
    ran = []

    async def run(work: int) -> Next:
        ran.append(work)
        return "give_back" if work == 1 else "go_on"

    def offer(works: Sequence[int]) -> None:
        for work in works:
            dispatcher.offer(work, "a", work)

    dispatcher = Dispatcher(run, offer, most=5)
    offer([1, 2, 3])
    await turns()
    assert ran == [1, 2, 3]
    assert dispatcher.in_hand == 0


@in_loop
async def test_run_again() -> None:
    """An item that runs again keeps its place, and the later items of its lane wait for it. Other lanes do not wait."""
    harness = Harness()
    await harness.offer("a1", "a2", lane="a")
    await harness.end("a1", RunAgain(0.1))
    await harness.offer("b1", lane="b")
    assert harness.started == ["a1", "b1"]
    assert harness.dispatcher.held == ["a"]
    while len(harness.started) == 2:
        await asyncio.sleep(0.01)
    assert harness.started == ["a1", "b1", "a1"]
    assert harness.dispatcher.held == []
    await harness.end("a1")
    assert harness.started[-1] == "a2"


@in_loop
async def test_an_item_that_raises() -> None:
    """An item that raises is given back with its lane, and the exception handler of the loop is called."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    harness = Harness()
    await harness.offer("a1", "a2", lane="a")
    await harness.end("a1", ValueError("boom"))
    assert harness.back == ["a1", "a2"]
    assert [str(context["exception"]) for context in told] == ["boom"]
    assert harness.dispatcher.in_hand == 0


@in_loop
async def test_drain() -> None:
    """Waiting, held and newly offered items are given back. Running items end."""
    harness = Harness()
    await harness.offer("a1", "a2", lane="a")
    await harness.offer("b1", lane="b")
    await harness.end("b1", RunAgain(60))
    draining = asyncio.create_task(harness.dispatcher.drain(5))
    await turns()
    assert sorted(harness.back) == ["a2", "b1"]
    await harness.offer("c1")
    assert harness.back[-1] == "c1"
    assert await harness.dispatcher.room_for() == 0
    await harness.end("a1")
    assert await draining
    assert harness.started == ["a1", "b1"]
    assert harness.dispatcher.in_hand == 0


@in_loop
async def test_drain_cancels() -> None:
    """At the deadline the running items are cancelled, and each is given back once."""
    harness = Harness()
    await harness.offer("a1", "b1")
    assert not await harness.dispatcher.drain(0.01)
    assert sorted(harness.back) == ["a1", "b1"]
    assert harness.dispatcher.in_hand == harness.dispatcher.at_work == 0


def test_drain_with_an_item_that_ignores_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that ignores its cancellation delays the drain for a moment only, and is given back once."""
    monkeypatch.setattr("oncegate.ingress.dispatcher._CANCEL_WITHIN", 0.02)
    back: list[int] = []

    async def run(work: int) -> Next:
        for _ in range(2):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "go_on"

    async def main() -> None:
        dispatcher = Dispatcher(run, back.extend, most=1)
        dispatcher.offer(1)
        await turns()
        assert not await dispatcher.drain(0)
        assert back == [1]
        await asyncio.sleep(0.2)

    asyncio.run(main())
    assert back == [1]


@pytest.mark.parametrize("seed", range(20))
def test_random_runs(seed: int) -> None:
    """Each item ends once or is given back once, and one item of a lane runs at a time."""
    chance = random.Random(seed)  # noqa: S311  # repeatable
    ends: list[int] = []
    back: list[int] = []
    busy: set[int] = set()

    async def run(work: int) -> Next:
        lane = work % 5
        assert lane not in busy
        busy.add(lane)
        await asyncio.sleep(chance.choice([0, 0, 0.001]))
        busy.remove(lane)
        if chance.random() < 0.2:
            return RunAgain(0.001)
        ends.append(work)
        return "give_back" if chance.random() < 0.1 else "go_on"

    async def main() -> None:
        dispatcher = Dispatcher(run, back.extend, most=20, at_work=4)
        for work in range(200):
            await dispatcher.room_for()
            dispatcher.offer(work, work % 5, chance.randrange(10))
        await dispatcher.drain(1)
        assert dispatcher.in_hand == 0

    asyncio.run(main())
    assert sorted(ends + back) == list(range(200))

"""The dispatcher, with plain coroutines: order within a lane, room, failures and the end."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain


class Bench:
    """A dispatcher whose work is text; what runs waits until it is told how to end."""

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
async def test_lanes_run_beside_each_other_and_each_in_order() -> None:
    """Of a lane one runs at a time, the earliest of those that wait; what is in no lane does not wait."""
    bench = Bench()
    await bench.offer("a3", "a1", lane="a")
    await bench.offer("b1", lane="b")
    await bench.offer("x9", "x8")
    assert bench.started == ["a1", "b1", "x9", "x8"]
    await bench.offer("a2", lane="a")
    await bench.end("a1")
    assert bench.started[4:] == ["a2"]
    await bench.end("a2")
    assert bench.started[5:] == ["a3"]


@in_loop
async def test_equals_run_as_they_came() -> None:
    """Work of the same order runs in the order in which it was offered."""
    bench = Bench()
    await bench.offer("a1", "b1", "c1", lane="a")
    for work in "a1", "b1", "c1":
        assert bench.started[-1] == work
        await bench.end(work)


@in_loop
async def test_room_is_what_is_not_in_hand() -> None:
    """What waits and what runs takes room, and whoever waits for room is woken when there is enough."""
    bench = Bench(most=3)
    await bench.offer("a1", "a2", "a3", lane="a")
    assert (bench.dispatcher.room, bench.dispatcher.in_hand, bench.dispatcher.at_work) == (0, 3, 1)
    waiter = asyncio.create_task(bench.dispatcher.room_for(2))
    await bench.end("a1")
    assert not waiter.done()
    await bench.end("a2")
    assert await waiter == 2


@in_loop
async def test_no_more_run_than_may() -> None:
    """At most `at_work` run at a time, over all lanes; the others start as places become free."""
    bench = Bench(at_work=2)
    await bench.offer("x1", "x2", "x3")
    assert bench.started == ["x1", "x2"]
    await bench.end("x2")
    assert bench.started == ["x1", "x2", "x3"]


@in_loop
async def test_a_failure_gives_its_lane_back_and_no_other() -> None:
    """What waits behind a failure is handed back in order; other lanes go on, and the lane can be used again."""
    bench = Bench()
    await bench.offer("a1", "a3", "a2", lane="a")
    await bench.offer("b1", "b2", lane="b")
    assert bench.dispatcher.waits("a")
    await bench.end("a1", "give_back")
    assert bench.back == ["a2", "a3"]
    assert not bench.dispatcher.waits("a")
    await bench.end("b1")
    assert bench.started == ["a1", "b1", "b2"]
    await bench.offer("a4", lane="a")
    assert bench.started[-1] == "a4"
    assert bench.dispatcher.in_hand == 2


@in_loop
async def test_what_is_given_back_may_be_offered_at_once() -> None:
    """Whoever gets work back can decide that it runs all the same."""
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
async def test_a_failure_can_hold_its_lane() -> None:
    """What is to run again waits at its place, and what comes after it in its lane waits with it; others do not."""
    bench = Bench()
    await bench.offer("a1", "a2", lane="a")
    await bench.end("a1", RunAgain(0.1))
    await bench.offer("b1", lane="b")
    assert bench.started == ["a1", "b1"]
    assert bench.dispatcher.held == ["a"]
    while len(bench.started) == 2:
        await asyncio.sleep(0.01)
    assert bench.started == ["a1", "b1", "a1"]
    assert bench.dispatcher.held == []
    await bench.end("a1")
    assert bench.started[-1] == "a2"


@in_loop
async def test_work_that_raises_is_given_back_with_its_lane() -> None:
    """An error of the function itself loses nothing, and is told to the loop."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    bench = Bench()
    await bench.offer("a1", "a2", lane="a")
    await bench.end("a1", ValueError("boom"))
    assert bench.back == ["a1", "a2"]
    assert [str(context["exception"]) for context in told] == ["boom"]
    assert bench.dispatcher.in_hand == 0


@in_loop
async def test_draining_starts_nothing_and_waits_for_what_runs() -> None:
    """What waits, is held or is offered later is handed back; what runs comes to its end."""
    bench = Bench()
    await bench.offer("a1", "a2", lane="a")
    await bench.offer("b1", lane="b")
    await bench.end("b1", RunAgain(60))
    draining = asyncio.create_task(bench.dispatcher.drain(5))
    await turns()
    assert sorted(bench.back) == ["a2", "b1"]
    await bench.offer("c1")
    assert bench.back[-1] == "c1"
    assert await bench.dispatcher.room_for() == 0
    await bench.end("a1")
    assert await draining
    assert bench.started == ["a1", "b1"]
    assert bench.dispatcher.in_hand == 0


@in_loop
async def test_what_does_not_end_in_time_is_cancelled_and_handed_back() -> None:
    """At the deadline the rest is cancelled; each is handed back once."""
    bench = Bench()
    await bench.offer("a1", "b1")
    assert not await bench.dispatcher.drain(0.01)
    assert sorted(bench.back) == ["a1", "b1"]
    assert bench.dispatcher.in_hand == bench.dispatcher.at_work == 0


def test_what_cannot_be_cancelled_is_handed_back_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that swallows its cancellation holds up the end for a moment only, and is handed back once."""
    monkeypatch.setattr("oncegate.ingress.dispatcher._STOP_WITHIN", 0.02)
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
def test_nothing_is_lost_and_no_lane_overtakes_itself(seed: int) -> None:
    """However work ends, each piece ends once or is handed back once, and one of a lane runs at a time."""
    chance = random.Random(seed)  # noqa: S311  # to be repeated
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

"""Copies of an event that is being run wait for its end, within bounds."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.errors import SettingError
from tests.gate.conftest import Stumbling

EVENT = {"id": "evt-1"}
COPIES = 50


class Held:
    """An async handler that runs until it is let go, and then does as it was told."""

    def __init__(self, result: str | Exception = "done") -> None:
        self.runs = 0
        self.running = asyncio.Event()
        self.go = asyncio.Event()
        self._result = result

    async def __call__(self, _event: Event) -> str:
        self.runs += 1
        self.running.set()
        await self.go.wait()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def wait_for_copies(gate: Gate, number: int) -> None:
    """Until so many copies wait."""
    while gate._engine.concurrent.in_flight_waiters._waiting < number:
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


def start(gate: Gate, handler: Held, number: int = COPIES, wait: str = "10s") -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(gate.arun(EVENT, handler, wait=wait)) for _ in range(number)]


def statuses(outcomes: list[Outcome]) -> dict[str, int]:
    found = [outcome.status for outcome in outcomes]
    return {status: found.count(status) for status in set(found)}


def test_copies_wait_for_the_run_in_their_process() -> None:
    """They are duplicates with its result when it ends; the store is not asked again for any of them, and each has one
    outcome in the counts."""
    store = Stumbling()

    async def main() -> None:
        gate, handler = Gate(store), Held()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler)
        await wait_for_copies(gate, COPIES)
        claims = [call for call in store.calls if call[0] == "claim"]
        await asyncio.sleep(0.1)
        handler.go.set()
        assert (await first).status == "processed"
        outcomes = await asyncio.gather(*copies)
        assert {(outcome.status, outcome.result) for outcome in outcomes} == {("duplicate", "done")}
        assert [call for call in store.calls if call[0] == "claim"] == claims
        assert handler.runs == 1
        assert gate.counts.get("event.in_flight", 0) == 0
        assert gate.counts["event.duplicate"] == COPIES

    run(main)


def test_copies_share_a_failure() -> None:
    """When the run they wait for fails, they are in flight at once: they do not use up the attempts of the event."""

    async def main() -> None:
        gate, handler = Gate("memory://"), Held(ValueError("boom"))
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler)
        await wait_for_copies(gate, COPIES)
        handler.go.set()
        assert (await first).status == "failed"
        assert statuses(await asyncio.gather(*copies)) == {"in_flight": COPIES}
        assert handler.runs == 1

    run(main)


def test_one_asks_for_the_copies_of_another_process() -> None:
    """While another process runs the event, the store is asked by one of the copies, less and less often."""
    store = Stumbling()

    async def main() -> None:
        elsewhere, here, handler = Gate(store), Gate(store), Held()
        first = asyncio.create_task(elsewhere.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(here, handler)
        await wait_for_copies(here, COPIES)
        before = len(store.calls)
        await asyncio.sleep(0.5)
        assert 2 <= len(store.calls) - before <= 8  # 10, 20, 40, 80, 160 and 250 ms after one another
        assert {size for _, size in store.calls[before:]} == {1}
        handler.go.set()
        assert (await first).status == "processed"
        assert statuses(await asyncio.gather(*copies)) == {"duplicate": COPIES}
        assert handler.runs == 1

    run(main)


def test_one_goes_on_asking_when_another_has_waited_enough() -> None:
    """The time of each copy is its own: when that of the one who asks is over, the next asks."""

    async def main() -> None:
        store = Stumbling()
        elsewhere, here, handler = Gate(store), Gate(store), Held()
        first = asyncio.create_task(elsewhere.arun(EVENT, handler))
        await handler.running.wait()
        (impatient,) = start(here, handler, 1, wait="50ms")
        await wait_for_copies(here, 1)
        copies = start(here, handler, 5)
        assert (await impatient).status == "in_flight"
        handler.go.set()
        await first
        assert statuses(await asyncio.gather(*copies)) == {"duplicate": 5}

    run(main)


def test_a_run_that_was_cancelled() -> None:
    """When the caller that runs the event goes away, one of the copies runs it, and the others are its duplicates."""

    async def main() -> None:
        gate, handler = Gate("memory://"), Held()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler)
        await wait_for_copies(gate, COPIES)
        handler.go.set()
        first.cancel()
        assert statuses(await asyncio.gather(*copies)) == {"processed": 1, "duplicate": COPIES - 1}
        assert handler.runs == 2

    run(main)


def test_so_many_wait_and_no_more() -> None:
    """Half of `max_in_hand` wait; the others are in flight at once, as all are without `wait`."""

    async def main() -> None:
        gate, handler = Gate("memory://", max_in_hand=40), Held()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler, 39)
        await wait_for_copies(gate, 20)
        done, waiting = await asyncio.wait(copies, timeout=0.2)
        assert (len(done), len(waiting)) == (19, 20)
        assert (await gate.arun(EVENT, handler)).status == "in_flight"
        handler.go.set()
        await first
        assert statuses(await asyncio.gather(*copies)) == {"in_flight": 19, "duplicate": 20}

    run(main)


def test_the_wait_is_over() -> None:
    """A copy that has waited long enough is in flight, and nothing of its wait stays behind."""

    async def main() -> None:
        gate, handler = Gate("memory://"), Held()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        began = time.monotonic()
        assert statuses(await asyncio.gather(*start(gate, handler, wait="100ms"))) == {"in_flight": COPIES}
        assert 0.1 <= time.monotonic() - began < 2
        handler.go.set()
        await first
        assert (
            gate._engine.concurrent.in_flight_waiters._waiters_by_key,
            gate._engine.concurrent.in_flight_waiters._waiting,
        ) == (
            {},
            0,
        )

    run(main)


def test_a_wait_that_is_none() -> None:
    """What is no duration is refused, whether or not anything is in flight."""

    async def main() -> None:
        with pytest.raises(SettingError, match="wait=5 is not a duration"):
            await Gate("memory://").arun(EVENT, Held(), wait=5)  # type: ignore[arg-type]

    run(main)

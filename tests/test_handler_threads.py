"""Handler threads: plain handlers that do not return are given up, counted, and not started again in this process."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncegate import Event, Gate
from tests.gate.conftest import until
from tests.ingress.test_inbox import call, working


class HangingHandler:
    """A handler that does not return for some events until `go_on` is set, and records the events it was started
    with."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.started: list[str | None] = []

    def __call__(self, event: Event) -> None:
        self.started.append(event.id)
        if event.body.get("hangs"):
            self.go_on.wait(30)


@pytest.fixture
def handler() -> Iterator[HangingHandler]:
    handler = HangingHandler()
    yield handler
    handler.go_on.set()


def hangs(number: int) -> dict[str, Any]:
    return call(number, f"call-{number}") | {"hangs": True}


def test_hung_event_fails_and_others_continue(handler: HangingHandler, caplog: pytest.LogCaptureFixture) -> None:
    """Each event whose handler hangs takes one thread, which is replaced; after its attempts the event is a dead
    letter."""
    gate = Gate("memory://", threads=2, handler_timeout="100ms", max_attempts=3, backoff="10ms", backoff_limit="20ms")
    gate.admit([hangs(1), hangs(2)])

    async def then(worker: Any) -> None:
        await until(lambda: gate.counts.get("event.buried") == 2)
        gate.admit([call(3, "call-3")])
        await until(lambda: gate.counts.get("event.processed") == 1)
        assert (worker.hung, worker.threads_left) == (2, 2)
        handler.go_on.set()
        await until(lambda: worker.hung == 0)

    working(gate, handler, then, drain="1s")
    assert sorted(map(str, handler.started)) == ["evt-1", "evt-2", "evt-3"]
    letters = {entry.record.about.delivery_id: entry.record for entry in gate.store.dead_letters()}
    assert letters.keys() == {"evt-1", "evt-2"}
    assert all(record.attempts == 3 for record in letters.values())
    assert "has not returned" in str(letters["evt-1"].error)
    messages = [record.getMessage() for record in caplog.records]
    assert any("the handler of event 'evt-1' has run for 1" in each and "2 threads left" in each for each in messages)
    assert any("returned after" in each and "is not recorded" in each for each in messages)


def test_most_threads(handler: HangingHandler) -> None:
    """As many hung handlers are replaced as there are threads; then no thread is left."""
    gate = Gate("memory://", threads=1, handler_timeout="50ms", max_attempts=1)
    gate.admit([hangs(number) for number in (1, 2, 3)])

    async def then(worker: Any) -> None:
        await until(lambda: worker.threads_left == 0)
        assert (len(handler.started), worker.hung) == (2, 2)
        handler.go_on.set()
        await until(lambda: len(handler.started) == 3)

    working(gate, handler, then, drain="1s")


def test_not_started_again_without_a_timeout(handler: HangingHandler) -> None:
    """An event whose handler runs longer than `max_hold` is not started again by the process that runs it."""
    gate = Gate("memory://", lease="50ms", max_hold="100ms")
    gate.admit([hangs(1)])

    async def then(worker: Any) -> None:
        await until(lambda: worker.hung == 1 and gate.counts.get("lease.adopted", 0) >= 3)
        handler.go_on.set()
        await until(lambda: gate.counts.get("event.processed") == 1)

    working(gate, handler, then)
    assert handler.started == ["evt-1"]


def test_async_handlers_are_cancelled() -> None:
    """An async handler that takes too long is cancelled; a TimeoutError that the handler raises itself is its own
    failure."""
    gate = Gate("memory://", handler_timeout="50ms")
    ended: list[str] = []

    async def slow(event: Event) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cancelled")

    async def raises(event: Event) -> None:
        raise TimeoutError("its own")

    async def main() -> None:
        outcome = await gate.arun({"id": 1}, slow)
        assert "did not return within handler_timeout=50 ms" in outcome.reason
        assert outcome.discreet == outcome.reason
        assert (await gate.arun({"id": 2}, raises)).error == "TimeoutError: its own"

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_quick_handlers(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers that return in time are not affected by the timeout, and nothing is logged."""
    caplog.set_level(logging.WARNING)
    gate = Gate("memory://", handler_timeout="10s")

    async def main() -> list[Any]:
        return await asyncio.gather(
            *(gate.arun({"id": number}, lambda event: time.sleep(0.001)) for number in range(50))
        )

    assert {outcome.status for outcome in asyncio.run(main())} == {"processed"}
    assert (gate.hung, gate.threads_left, caplog.records) == (0, 32, [])

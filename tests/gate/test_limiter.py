"""Limits: handlers beside each other or alone in the process, and copies that wait for the run of their event."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.errors import SettingError
from oncegate.gate.limiter import HandlerRuns, inside
from tests.gate.conftest import Stumbling


@pytest.fixture
def process() -> HandlerRuns:
    return HandlerRuns()


def alone(process: HandlerRuns, token: object, within: float = 5.0, alone_for: float = 5.0) -> bool:
    return process.enter_alone(token, 60, within=within, alone_for=alone_for)


def waits(process: HandlerRuns, kind: str) -> bool:
    deadline = time.monotonic() + 5
    while not getattr(process, kind):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return True


def test_enter_alone_at_once(process: HandlerRuns) -> None:
    """If nothing runs, a run is alone at once, even with no time to wait; if something runs, it is not."""
    assert alone(process, "suspect", within=0.0)
    process.leave("suspect")
    assert process.enter_now("other", 60)
    assert not alone(process, "suspect", within=0.0)
    process.leave("other")
    assert alone(process, "suspect", within=0.0)


def test_others_wait_for_a_run_alone(process: HandlerRuns) -> None:
    """Other runs do not start while one waits to run alone, or runs alone; they start as soon as it has left."""
    process.enter_now("running", 60)
    with ThreadPoolExecutor() as threads:
        suspect = threads.submit(alone, process, "suspect")
        assert waits(process, "_suspects")
        assert not process.enter_now("new", 60)
        other = threads.submit(process.enter, "other", 60)
        process.leave("running")
        assert suspect.result(5)
        assert not process.enter_now("new", 60)
        assert not other.done()
        process.leave("suspect")
        other.result(5)


def test_others_start_between_two_runs_alone(process: HandlerRuns) -> None:
    """Runs that wait to run beside others start before the next run that must be alone."""
    assert alone(process, "first")
    with ThreadPoolExecutor() as threads:
        second = threads.submit(alone, process, "second")
        assert waits(process, "_suspects")
        other = threads.submit(process.enter, "other", 60)
        assert waits(process, "_others")
        process.leave("first")
        other.result(5)
        assert not second.done()
        process.leave("other")
        assert second.result(5)


def test_giving_up_does_not_admit_others(process: HandlerRuns) -> None:
    """A suspect that gave up waiting for another suspect does not admit other runs beside that one."""
    assert alone(process, "first")
    assert not alone(process, "second", within=0.01)
    assert not process.enter_now("other", 60)


def test_every_wait_has_a_bound(process: HandlerRuns) -> None:
    """A run that hangs keeps others out for `alone_for` only, and a run that must be alone does not wait for it
    forever."""
    assert alone(process, "hangs", alone_for=0.05)
    begun = time.monotonic()
    process.enter("other", 60)
    assert time.monotonic() - begun < 2
    process.leave("other")
    assert not alone(process, "suspect", within=0.01), "the hung run counts as running"
    process.add("hangs", 0.01)
    assert alone(process, "suspect", within=2), "it has run longer than `hold`"


def test_blocked_event_loop(process: HandlerRuns) -> None:
    """A queued run that can neither check nor give up keeps nobody out after its deadline."""
    process.enter_now("running", 60)
    process.enqueue("suspect", 60, 5.0, lambda: None, within=0.05)
    begun = time.monotonic()
    process.enter("other", 60)
    assert 0.04 < time.monotonic() - begun < 2


def test_within_a_handler(process: HandlerRuns) -> None:
    """An event that a handler runs itself does not wait."""
    process.enter_now("outer", 60)
    token = inside.set(True)
    try:
        assert alone(process, "inner")
        process.enter("inner too", 60)
    finally:
        inside.reset(token)


def test_interrupt_while_waiting(process: HandlerRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, a run that waited to be alone does not wait any more."""

    class Interrupted(threading.Event):
        def wait(self, timeout: Any = None) -> bool:
            raise KeyboardInterrupt

    process.enter_now("running", 60)
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            alone(process, "suspect")
    assert process.enter_now("other", 60)


# ── copies that wait for the run of their event ───────────────────────────────────────────────────────

EVENT = {"id": "evt-1"}
COPIES = 50


class BlockedHandler:
    """An async handler that runs until `go` is set, and then returns or raises `result`."""

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
    """Wait until so many copies wait."""
    while gate._engine.async_runner.in_flight_waiters._waiting < number:
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


def start(gate: Gate, handler: BlockedHandler, number: int = COPIES, wait: str = "10s") -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(gate.arun(EVENT, handler, wait=wait)) for _ in range(number)]


def statuses(outcomes: list[Outcome]) -> dict[str, int]:
    found = [outcome.status for outcome in outcomes]
    return {status: found.count(status) for status in set(found)}


def test_copies_wait_for_the_run_in_their_process() -> None:
    """Copies of an event that runs in this process are duplicates with its result when it ends. The store is not asked
    again for any of them, and each has one outcome in the counts."""
    store = Stumbling()

    async def main() -> None:
        gate, handler = Gate(store), BlockedHandler()
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
    """When the run fails, its copies are in flight at once: they do not use up attempts of the event."""

    async def main() -> None:
        gate, handler = Gate("memory://"), BlockedHandler(ValueError("boom"))
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler)
        await wait_for_copies(gate, COPIES)
        handler.go.set()
        assert (await first).status == "failed"
        assert statuses(await asyncio.gather(*copies)) == {"in_flight": COPIES}
        assert handler.runs == 1

    run(main)


def test_one_copy_polls_for_another_process() -> None:
    """While another process runs the event, one of the copies polls the store, less and less often."""
    store = Stumbling()

    async def main() -> None:
        elsewhere, here, handler = Gate(store), Gate(store), BlockedHandler()
        first = asyncio.create_task(elsewhere.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(here, handler)
        await wait_for_copies(here, COPIES)
        before = len(store.calls)
        await asyncio.sleep(0.5)
        assert 2 <= len(store.calls) - before <= 8  # the pauses are 10, 20, 40, 80, 160 and 250 ms
        assert {size for _, size in store.calls[before:]} == {1}
        handler.go.set()
        assert (await first).status == "processed"
        assert statuses(await asyncio.gather(*copies)) == {"duplicate": COPIES}
        assert handler.runs == 1

    run(main)


def test_next_copy_polls_after_a_timeout() -> None:
    """Each copy has its own `wait`: when the copy that polls reaches its timeout, the next one polls."""

    async def main() -> None:
        store = Stumbling()
        elsewhere, here, handler = Gate(store), Gate(store), BlockedHandler()
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


def test_cancelled_run() -> None:
    """When the caller that runs the event is cancelled, one of the copies runs it, and the others are its
    duplicates."""

    async def main() -> None:
        gate, handler = Gate("memory://"), BlockedHandler()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        copies = start(gate, handler)
        await wait_for_copies(gate, COPIES)
        handler.go.set()
        first.cancel()
        assert statuses(await asyncio.gather(*copies)) == {"processed": 1, "duplicate": COPIES - 1}
        assert handler.runs == 2

    run(main)


def test_most_waiting_copies() -> None:
    """Half of `max_in_hand` copies wait; the others are in flight at once, as all copies are without `wait`."""

    async def main() -> None:
        gate, handler = Gate("memory://", max_in_hand=40), BlockedHandler()
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


def test_timeout() -> None:
    """A copy that has waited for `wait` is in flight, and leaves nothing behind."""

    async def main() -> None:
        gate, handler = Gate("memory://"), BlockedHandler()
        first = asyncio.create_task(gate.arun(EVENT, handler))
        await handler.running.wait()
        began = time.monotonic()
        assert statuses(await asyncio.gather(*start(gate, handler, wait="100ms"))) == {"in_flight": COPIES}
        assert 0.1 <= time.monotonic() - began < 2
        handler.go.set()
        await first
        assert (
            gate._engine.async_runner.in_flight_waiters._waiters_by_key,
            gate._engine.async_runner.in_flight_waiters._waiting,
        ) == (
            {},
            0,
        )

    run(main)


def test_invalid_wait() -> None:
    """A `wait` that is not a duration is refused, whether or not anything is in flight."""

    async def main() -> None:
        with pytest.raises(SettingError, match="wait=5 is not a duration"):
            await Gate("memory://").arun(EVENT, BlockedHandler(), wait=5)  # type: ignore[arg-type]

    run(main)

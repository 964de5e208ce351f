"""The inbox worker: order, retries, suspects, stopping, several processes."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from oncegate import Event, Gate, read
from oncegate.claims import Admission, Admit, Settlement
from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.gate.observers import Notice
from oncegate.ingress.inbox import InboxWorker
from oncegate.stores.base import Entry, TakeRequest
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling, until
from tests.stores import postgres_server

Handler = Callable[[Event], Any]


def call(number: int, entity: str = "call-1", second: int = 0) -> dict[str, str]:
    happened = f"2026-01-01T00:00:{second:02}Z"
    return {"id": f"evt-{number}", "type": "call.ended", "conversationId": entity, "timestamp": happened}


def working(gate: Gate, handler: Handler, then: Callable[[InboxWorker], Coroutine[Any, Any, None]], **how: Any) -> None:
    """Run an inbox worker while `then` runs, and stop it afterwards."""

    async def main() -> None:
        worker = gate.inbox(handler, **({"look": "20ms"} | how))
        task = asyncio.create_task(worker.work())
        try:
            await then(worker)
        finally:
            worker.stop()
            await task

    asyncio.run(main())


class HeldHandler:
    """A handler that records its events, and holds the first event until `release` is set."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.release = asyncio.Event()

    async def __call__(self, event: Event) -> None:
        if event.id == "evt-1":
            await self.release.wait()
        self.seen.append(event.id)


@pytest.fixture
def gate() -> Gate:
    return Gate(MemoryStore(), backoff="20ms", backoff_limit="40ms")


def test_a_handler_that_takes_longer_than_the_lease() -> None:
    """The claim is renewed while the handler runs, so the event runs once and is completed."""
    gate = Gate(MemoryStore(), lease="150ms")
    attempts: list[int] = []

    async def handler(event: Event) -> None:
        attempts.append(event.attempt)
        await asyncio.sleep(0.5)

    gate.admit([call(1)])
    working(gate, handler, lambda worker: until(lambda: "event.processed" in gate.counts or len(attempts) > 1))
    assert (attempts, gate.counts.get("event.processed")) == ([1], 1)


def test_order(gate: Gate) -> None:
    """Events of one entity run one at a time, ordered by their time. Events of other entities run meanwhile."""
    handler = HeldHandler()
    seen, release = handler.seen, handler.release

    async def then(_worker: InboxWorker) -> None:
        await until(lambda: len(seen) == 2)
        assert sorted(map(str, seen)) == ["evt-4", "evt-5"]
        release.set()
        await until(lambda: len(seen) == 5)

    gate.admit([call(3, second=3), call(1, second=1), call(2, second=2), call(4, "call-2"), call(5, "call-3")])
    working(gate, handler, then)
    assert seen[2:] == ["evt-1", "evt-2", "evt-3"]


def test_plain_handlers(gate: Gate) -> None:
    """A plain handler runs in several threads at a time."""
    meet = threading.Barrier(3, timeout=5)
    seen: list[str | None] = []

    def handler(event: Event) -> None:
        meet.wait()
        seen.append(event.id)

    gate.admit([call(number, f"call-{number}") for number in range(3)])
    working(gate, handler, lambda worker: until(lambda: len(seen) == 3))
    assert gate.counts["event.processed"] == 3


def test_wake(gate: Gate) -> None:
    """`wake` makes the worker poll at once, however long its poll interval is."""
    seen: list[str | None] = []

    async def main() -> float:
        worker = gate.inbox(lambda event: seen.append(event.id), look="1h")
        task = asyncio.create_task(worker.work())
        await asyncio.sleep(0.05)
        await gate.aadmit(call(1))
        started = time.monotonic()
        worker.wake()
        await until(lambda: len(seen) == 1)
        worker.stop()
        await task
        return time.monotonic() - started

    assert asyncio.run(main()) < 5


def events(*calls: dict[str, str]) -> list[Event]:
    return [event for each in calls for event in read(each)]


class CountingHandler:
    """A handler that counts how many of its calls run at a time."""

    def __init__(self) -> None:
        self.most = self._now = 0

    async def __call__(self, _event: Event) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.003)
        self._now -= 1


class BlockedAdmissions(MemoryStore):
    """A store whose admissions block until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        self.asked.set()
        self.go.wait(5)
        return super().admit(requests)


class TestRunNow:
    """Events that the worker admits itself, and may run without taking them from the store."""

    def test_without_a_take(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """An event runs directly from its admission, at its first attempt, if no other event of its entity waits."""
        ran: list[tuple[str | None, int]] = []
        taken: list[int] = []
        take = MemoryStore.take

        def counted(self: MemoryStore, wants: Sequence[TakeRequest]) -> list[Entry | None]:
            taken.append(len(wants))
            return take(self, wants)

        monkeypatch.setattr(MemoryStore, "take", counted)

        async def then(worker: InboxWorker) -> None:
            await until(lambda: bool(taken))
            looks = len(taken)
            outcomes = await worker.admit(events(call(1, "call-1"), call(2, "call-2")))
            assert [outcome.status for outcome in outcomes] == ["accepted", "accepted"]
            await until(lambda: gate.counts.get("event.processed") == 2)
            assert len(taken) == looks
            (again,) = await worker.admit(events(call(1, "call-1")))
            assert again.status == "duplicate"
            assert worker.figures.processed == 2

        async def handler(event: Event) -> None:
            ran.append((event.id, event.attempt))

        working(gate, handler, then, look="1h")
        assert ran == [("evt-1", 1), ("evt-2", 1)]
        assert gate.store.kept("default") == 0  # type: ignore[attr-defined]  # the memory store keeps events

    def test_in_order(self, gate: Gate) -> None:
        """An event that is admitted while another one of its entity runs is stored, and runs after it, however long the
        poll interval is."""
        handler = HeldHandler()
        seen, release = handler.seen, handler.release

        async def then(worker: InboxWorker) -> None:
            await worker.admit(events(call(1, second=1)))
            await worker.admit(events(call(3, second=3)))
            await worker.admit(events(call(2, second=2), call(4, "call-2")))
            await until(lambda: seen == ["evt-4"])
            release.set()
            await until(lambda: len(seen) == 4)

        working(gate, handler, then, look="1h")
        assert seen == ["evt-4", "evt-1", "evt-2", "evt-3"]

    def test_failing(self, gate: Gate) -> None:
        """A failed event is stored and retried, its outcome says so, and later events of its entity wait until it is
        buried."""
        seen: list[str] = []

        async def handler(event: Event) -> None:
            seen.append(f"{event.id} {event.attempt}")
            if event.id == "evt-1":
                raise ValueError("boom")

        async def then(worker: InboxWorker) -> None:
            await worker.admit(events(call(1, second=1)))
            await worker.admit(events(call(2, second=2)))
            await until(lambda: "evt-2 1" in seen)

        told: list[str] = []
        gate = Gate(MemoryStore(), backoff="20ms", backoff_limit="40ms", observers=[_reasons(told)])
        working(gate, handler, then)
        assert seen == [f"evt-1 {attempt}" for attempt in range(1, 6)] + ["evt-2 1"]
        tail = "the event is stored and will be retried; later events of its entity wait for it."
        assert told[0] == f"Failed at attempt 1: ValueError: boom; {tail}"

    def test_concurrency(self, gate: Gate) -> None:
        """However many events are admitted, no more run at a time than `at_work`. The rest is taken later."""
        handler = CountingHandler()

        async def then(worker: InboxWorker) -> None:
            calls = [events(call(number, f"call-{number}")) for number in range(12)]
            await asyncio.gather(*(worker.admit(each) for each in calls))
            await until(lambda: gate.counts.get("event.processed") == 12)

        working(gate, handler, then, at_work=3)
        assert handler.most == 3

    def test_a_single_attempt(self) -> None:
        """With max_attempts=1 events still run concurrently."""
        gate = Gate(MemoryStore(), max_attempts=1)
        handler = CountingHandler()

        async def then(worker: InboxWorker) -> None:
            await worker.admit(events(*(call(number, f"call-{number}") for number in range(4))))
            await until(lambda: gate.counts.get("event.processed") == 4)

        working(gate, handler, then)
        assert handler.most == 4

    def test_stop(self) -> None:
        """An event that is granted after the worker has stopped is released before the sender gets its answer, and runs
        elsewhere at its first attempt."""
        seen: list[tuple[str | None, int]] = []
        store = BlockedAdmissions()
        gate = Gate(store)

        async def main() -> None:
            worker = gate.inbox(lambda event: None, look="20ms")
            task = asyncio.create_task(worker.work())
            await asyncio.sleep(0.05)
            admitting = asyncio.create_task(worker.admit(events(call(1))))
            await until(store.asked.is_set)
            worker.stop()
            await asyncio.sleep(0.05)
            store.go.set()
            (outcome,) = await admitting
            await task
            (late,) = await worker.admit(events(call(2, "call-2")))
            assert (outcome.status, late.status) == ("accepted", "accepted")
            assert [(entry.record.state, entry.record.attempts) for entry in store.browse()] == [("R", 0)] * 2

        asyncio.run(main())
        working(
            gate, lambda event: seen.append((event.id, event.attempt)), lambda worker: until(lambda: len(seen) == 2)
        )
        assert sorted(seen, key=str) == [("evt-1", 1), ("evt-2", 1)]

    def test_a_cancelled_caller(self, gate: Gate) -> None:
        """An event that is granted to a cancelled caller is released, and runs like any other waiting event."""
        seen: list[tuple[str | None, int]] = []

        async def handler(event: Event) -> None:
            seen.append((event.id, event.attempt))

        async def then(worker: InboxWorker) -> None:
            admitting = asyncio.create_task(worker.admit(events(call(1))))
            await asyncio.sleep(0)
            admitting.cancel()
            await asyncio.wait([admitting])
            await until(lambda: len(seen) == 1)

        working(gate, handler, then)
        assert seen == [("evt-1", 1)]

    @pytest.mark.parametrize("turns", range(4))
    def test_several_events_of_a_cancelled_caller(self, turns: int) -> None:
        """All events of a cancelled caller are released, at every point at which the loop may have been."""
        seen: list[tuple[str | None, int]] = []
        store = BlockedAdmissions()
        gate = Gate(store)

        async def handler(event: Event) -> None:
            seen.append((event.id, event.attempt))

        async def then(worker: InboxWorker) -> None:
            admitting = asyncio.create_task(worker.admit(events(call(1, "call-1"), call(2, "call-2"))))
            await until(store.asked.is_set)
            store.go.set()
            time.sleep(0.05)  # it is answered, and the loop has not heard of it
            for _ in range(turns):
                await asyncio.sleep(0)
            admitting.cancel()
            await asyncio.wait([admitting])
            await until(lambda: len(seen) == 2)

        working(gate, handler, then)
        assert sorted(seen, key=str) == [("evt-1", 1), ("evt-2", 1)]

    def test_too_old(self) -> None:
        """An event that is buried at its admission is reported once. Nothing of it is left to run or to renew."""
        gate = Gate(MemoryStore(), max_age="1h", on_too_old="bury")

        async def then(worker: InboxWorker) -> None:
            (outcome,) = await worker.admit(events(call(1)))
            assert outcome.status == "buried"
            await asyncio.sleep(0.05)
            assert worker.figures.received == 0

        working(gate, lambda event: None, then)
        assert gate.counts["event.buried"] == 1

    def test_events_that_another_process_admits(self, gate: Gate) -> None:
        """An event that another process admits while one of its entity runs here is found soon, too."""
        seen: list[str | None] = []

        async def handler(event: Event) -> None:
            if event.id == "evt-1":
                gate.admit([call(2, second=2)])
            seen.append(event.id)

        async def then(worker: InboxWorker) -> None:
            await asyncio.sleep(0.05)  # it has looked, and found nothing
            await worker.admit(events(call(1, second=1)))
            await until(lambda: len(seen) == 2)

        working(gate, handler, then, look="1h")
        assert seen == ["evt-1", "evt-2"]

    def test_waiting_claims_are_renewed(self) -> None:
        """The claim of an event that was taken and cannot start yet is renewed: it loses no attempt."""

        class Slow(MemoryStore):
            def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
                taken = super().take(wants)
                time.sleep(0.05)
                return taken

        gate = Gate(Slow(), lease="150ms")
        attempts: list[int] = []

        async def handler(event: Event) -> None:
            attempts.append(event.attempt)
            await asyncio.sleep(0.2)

        async def then(worker: InboxWorker) -> None:
            await asyncio.sleep(0.01)  # it takes what there is, and there is room still
            await asyncio.gather(*(worker.admit(events(call(number, f"new-{number}"))) for number in range(2)))
            await until(lambda: gate.counts.get("event.processed") == 4)

        gate.admit([call(number, f"old-{number}") for number in range(10, 12)])
        working(gate, handler, then, at_work=2)
        assert attempts == [1] * 4

    def test_the_cache_holds_no_payload(self, gate: Gate) -> None:
        """The cache of completions holds neither the payload nor the document of an event."""

        async def then(worker: InboxWorker) -> None:
            await worker.admit(events({**call(1), "much": "x" * 10_000}))
            await until(lambda: gate.counts.get("event.processed") == 1)

        working(gate, lambda event: None, then)
        (known,) = gate._engine._cache._new.values()
        assert (known.record.payload, known.document) == (None, None)


def _reasons(told: list[str]) -> Callable[[Notice], None]:
    def observer(notice: Notice) -> None:
        if notice.name == "event.failed" and notice.outcome is not None:
            told.append(notice.outcome.reason)

    return observer


def test_a_failing_event_delays_its_entity(gate: Gate) -> None:
    """A failing event is retried and later events of its entity wait. After the last attempt it is buried, and they
    run."""
    seen: list[str] = []

    async def handler(event: Event) -> None:
        seen.append(f"{event.id} {event.attempt}")
        if event.id == "evt-1":
            raise ValueError("boom")

    gate.admit([call(1, second=1), call(2, second=2)])
    working(gate, handler, lambda worker: until(lambda: "evt-2 1" in seen))
    assert seen == [f"evt-1 {attempt}" for attempt in range(1, 6)] + ["evt-2 1"]
    (letter,) = gate.store.dead_letters()
    assert (letter.record.error, letter.record.attempts) == ("ValueError: boom", 5)


def test_a_recorded_failure_does_not_run_alone() -> None:
    """The last attempt after recorded failures runs concurrently with other events."""
    gate = Gate(MemoryStore(), max_attempts=2, backoff="10ms", backoff_limit="10ms")
    beside = asyncio.Barrier(2)

    async def handler(event: Event) -> None:
        if event.id == "evt-2" or event.attempt == 2:
            await asyncio.wait_for(beside.wait(), 0.9)
        if event.id == "evt-1":
            raise ValueError("boom")

    async def then(worker: InboxWorker) -> None:
        await worker.admit(events(call(1, "call-1"), call(2, "call-2")))
        await until(lambda: gate.counts.get("event.buried") == 1 and gate.counts.get("event.processed") == 1)

    working(gate, handler, then, look="5ms")


@pytest.mark.long
def test_thousands_of_failing_events(tmp_path: Path) -> None:
    """While 10,000 events fail at all attempts, no new event waits for a second."""
    gate = Gate(f"sqlite:///{tmp_path}/inbox.db")
    delays: list[float] = []

    def handler(event: Event) -> None:
        if "sent" not in event.body:
            raise ValueError("boom")
        delays.append(time.monotonic() - float(event.body["sent"]))

    async def then(worker: InboxWorker) -> None:
        for start in range(0, 10_000, 500):
            await worker.admit(events(*(call(number, f"call-{number}") for number in range(start, start + 500))))
        number = 10_000
        while gate.counts.get("event.buried", 0) < 10_000:
            number += 1
            await worker.admit(events(call(number, f"call-{number}") | {"sent": str(time.monotonic())}))
            await asyncio.sleep(0.1)
        await until(lambda: len(delays) == number - 10_000)

    working(gate, handler, then, at_work=256)
    assert max(delays) < 1


class TestSuspects:
    """Events whose last attempt was never settled. The clock of the store is advanced past the leases of a dead
    worker."""

    def gate_with_suspects(self, number: int, kind: type[MemoryStore] = MemoryStore, **terms: Any) -> Gate:
        """A gate whose store holds so many suspects, taken by a worker that died, and as many new events."""
        clock = ManualClock(1_000_000)
        gate = Gate(kind(clock=clock), **terms)
        gate.admit([call(each, f"call-{each}") for each in range(number)])
        assert len(gate._engine.claimer.take(number)) == number
        clock.advance("31s")
        gate.admit([call(100 + each, f"call-{100 + each}") for each in range(number)])
        return gate

    def test_run_alone(self) -> None:
        """No other handler runs while a suspect runs, and the suspect runs at its first counted attempt."""
        gate = self.gate_with_suspects(3)
        running: set[str] = set()
        beside: list[set[str]] = []
        attempts: list[int] = []

        async def handler(event: Event) -> None:
            running.add(str(event.id))
            await asyncio.sleep(0.01)
            if len(str(event.id)) == len("evt-0"):
                beside.append(set(running))
                attempts.append(event.attempt)
            await asyncio.sleep(0.01)
            running.discard(str(event.id))

        working(gate, handler, lambda worker: until(lambda: gate.counts.get("event.processed") == 6))
        assert sorted(map(sorted, beside)) == [["evt-0"], ["evt-1"], ["evt-2"]]
        assert attempts == [1, 1, 1]

    def test_alone_in_the_process(self) -> None:
        """No handler of another gate of the process runs while a suspect runs, however it is called."""
        gate, other = self.gate_with_suspects(1), Gate("memory://")
        running: set[str] = set()
        beside: list[set[str]] = []

        def handler(event: Event) -> None:
            running.add(str(event.id))
            time.sleep(0.02)
            if event.id == "evt-0":
                beside.append(set(running))
            running.discard(str(event.id))

        async def then(worker: InboxWorker) -> None:
            number = 0
            while gate.counts.get("event.processed", 0) < 2:
                number += 2
                ran = asyncio.to_thread(other.run, {"id": f"run-{number}"}, handler)
                await asyncio.gather(ran, other.arun({"id": f"arun-{number}"}, handler))

        working(gate, handler, then)
        assert beside == [{"evt-0"}]

    def test_many_do_not_stop_others(self) -> None:
        """While 40 suspects run alone, new events continue: none waits for more than a few turns."""
        gate = self.gate_with_suspects(40)
        delays: list[float] = []

        async def handler(event: Event) -> None:
            if "sent" in event.body:
                delays.append(time.monotonic() - float(event.body["sent"]))
            else:
                await asyncio.sleep(0.05)

        async def then(worker: InboxWorker) -> None:
            number = 1000
            while gate.counts.get("event.processed", 0) - len(delays) < 80:
                number += 1
                await worker.admit(events(call(number, f"call-{number}") | {"sent": str(time.monotonic())}))
                await asyncio.sleep(0.02)
            await until(lambda: len(delays) == number - 1000)

        working(gate, handler, then)
        assert max(delays) < 2.5

    def test_no_busy_loop(self) -> None:
        """A suspect that cannot run alone, because a handler of another gate does not end, is not taken and released in
        a busy loop. Other events continue, and the suspect runs when that handler has ended."""
        looks = 0

        class Counting(MemoryStore):
            def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
                nonlocal looks
                looks += 1
                return super().take(wants)

        gate, other = self.gate_with_suspects(1, Counting, max_hold="300ms"), Gate("memory://")

        async def then(worker: InboxWorker) -> None:
            go_on = asyncio.Event()

            async def hangs(event: Event) -> None:
                await go_on.wait()

            hanging = asyncio.create_task(other.arun({"id": 1}, hangs))
            await until(lambda: gate.counts.get("inbox.crowded") == 1)
            before = looks
            await worker.admit(events(call(3, "call-3")))
            await until(lambda: gate.counts.get("event.processed") == 2)
            await asyncio.sleep(1)
            assert looks - before < 10
            assert "evt-0" not in seen
            go_on.set()
            await hanging
            await until(lambda: "evt-0" in seen)

        seen: list[str | None] = []
        working(gate, lambda event: seen.append(event.id), then, look="5ms")


class TestOwnEvents:
    """A process does not take its own running events, whatever the clock says about their leases."""

    @pytest.mark.parametrize("plain", [False, True])
    def test_the_clock_steps_ahead(self, plain: bool) -> None:
        """If the clock of the store jumps past all leases, each event still runs once and is completed."""
        clock = ManualClock(1_000_000)
        gate = Gate(MemoryStore(clock=clock))
        seen: list[str | None] = []
        go_on, waiting = threading.Event(), asyncio.Event()

        def in_thread(event: Event) -> None:
            seen.append(event.id)
            go_on.wait(10)

        async def in_loop(event: Event) -> None:
            seen.append(event.id)
            await waiting.wait()

        async def then(worker: InboxWorker) -> None:
            await until(lambda: len(seen) == 10)
            clock.advance("1h")
            await until(lambda: gate.counts.get("lease.adopted") == 10 or len(seen) > 10)
            go_on.set()
            waiting.set()
            await until(lambda: gate.counts.get("event.processed") == 10)

        gate.admit([call(number, f"call-{number}") for number in range(10)])
        working(gate, in_thread if plain else in_loop, then)
        assert len(seen) == 10
        assert [entry.record.state for entry in gate.store.browse()] == ["C"] * 10

    def test_sigstop(self, tmp_path: Path) -> None:
        """A process that is suspended by SIGSTOP past its leases runs nothing twice after it continues."""
        url, effects = f"sqlite:///{tmp_path}/inbox.db", tmp_path / "effects"
        effects.touch()
        worker = subprocess.Popen([sys.executable, "-c", STOPPED, url, effects])
        with closing(Gate(url)) as gate:
            try:
                gate.admit([call(number, f"call-{number}") for number in range(8)])
                wait_until(lambda: len(effects.read_text().split()) == 8)
                for _ in range(3):
                    worker.send_signal(signal.SIGSTOP)
                    time.sleep(0.4)
                    worker.send_signal(signal.SIGCONT)
                    time.sleep(0.1)
                (tmp_path / "go").touch()
                wait_until(lambda: [entry.record.state for entry in gate.store.browse()] == ["C"] * 8)
            finally:
                worker.kill()
                worker.wait()
        assert sorted(effects.read_text().split()) == [f"evt-{number}" for number in range(8)]


STOPPED = dedent("""
    import os, sys, time
    from oncegate import Gate

    def handler(event):
        with open(sys.argv[2], "a") as effects:
            effects.write(f"{event.id}\\n")
        while not os.path.exists(os.path.join(os.path.dirname(sys.argv[2]), "go")):
            time.sleep(0.02)

    Gate(sys.argv[1], lease="300ms").inbox(handler, look="5ms").run()
""")


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_outage_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """Failed polls are retried and reported. The log has the beginning and the end of the outage."""
    store = Stumbling()
    gate = Gate(store)
    gate.admit([call(1)])
    store.failures["take"] = 3
    seen: list[str | None] = []
    working(gate, lambda event: seen.append(event.id), lambda worker: until(lambda: len(seen) == 1))
    assert gate.counts["inbox.failed"] == 3
    begun, ended = (record.getMessage() for record in caplog.records)
    assert begun.startswith("waiting events cannot be taken from the store (")
    assert ended.startswith("waiting events can be taken from the store again, after")


def test_the_end_of_an_outage_of_postgres(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the outage is logged after the server runs again and has answered, not before."""
    with postgres_server.running() as server, closing(Gate(server.url())) as gate:
        worker = gate.inbox(lambda event: None, look="50ms")
        thread = threading.Thread(target=worker.run)
        gate.admit([call(1)])
        thread.start()
        try:
            wait_until(lambda: worker.figures.processed == 1)
            server.stop()
            wait_until(lambda: gate.counts.get("inbox.failed", 0) > 3)
            assert "can be taken from the store again" not in caplog.text
            server.start()
            wait_until(lambda: "waiting events can be taken from the store again, after" in caplog.text)
        finally:
            worker.stop()
            thread.join()


def test_an_unexpected_error_of_a_poll() -> None:
    """The worker continues, and reports the class of the exception."""

    class Wrong(MemoryStore):
        looks = 0

        def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
            self.looks += 1
            if self.looks == 1:
                raise ValueError("boom")
            return super().take(wants)

    told: list[Notice] = []
    gate = Gate(Wrong(), observers=[told.append])
    gate.admit([call(1)])
    seen: list[str | None] = []
    working(gate, lambda event: seen.append(event.id), lambda worker: until(lambda: len(seen) == 1))
    assert [notice.detail for notice in told if notice.name == "inbox.failed"] == ["ValueError"]


def test_stop() -> None:
    """A worker that is stopped takes no more events, and the running events end."""
    gate = Gate(MemoryStore())
    seen: list[str | None] = []
    started = asyncio.Event()

    async def handler(event: Event) -> None:
        started.set()
        await asyncio.sleep(0.1)
        seen.append(event.id)

    async def main() -> None:
        worker = gate.inbox(handler, at_work=1)
        task = asyncio.create_task(worker.work())
        await started.wait()
        worker.stop()
        await task

    gate.admit([call(1), call(2, "call-2")])
    asyncio.run(main())
    states = {entry.record.about.delivery_id: entry.record for entry in gate.store.browse()}
    assert seen == ["evt-1"]
    assert (states["evt-1"].state, states["evt-2"].state, states["evt-2"].attempts) == ("C", "R", 0)


@pytest.mark.parametrize("attempts", [1, 5])
def test_stop_while_all_slots_are_taken(attempts: int) -> None:
    """A worker that waits for a free slot, or to run a suspect alone, stops within the drain time."""
    gate = Gate(MemoryStore(), max_attempts=attempts)
    started = asyncio.Event()

    async def stuck(event: Event) -> None:
        started.set()
        await asyncio.sleep(60)

    async def main() -> float:
        worker = gate.inbox(stuck, at_work=1, drain="100ms")
        task = asyncio.create_task(worker.work())
        await started.wait()
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        worker.stop()
        await task
        return time.monotonic() - begun

    gate.admit([call(1), call(2, "call-2")])
    assert asyncio.run(main()) < 5


def test_left_running(gate: Gate) -> None:
    """Only plain handlers that have started count as left running after the drain time. The other claims are
    released."""
    gate = Gate(gate.store, threads=1)
    begun, go_on = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        begun.set()
        go_on.wait(10)

    async def main() -> None:
        worker = gate.inbox(slow, look="10ms", drain="50ms")
        task = asyncio.create_task(worker.work())
        await until(lambda: begun.is_set() and worker.figures.in_hand == 2)
        worker.stop()
        await task
        assert (worker.left_running, worker.figures.in_hand) == (1, 1)

    gate.admit([call(1), call(2, "call-2")])
    asyncio.run(main())
    go_on.set()
    gate.drain()


class HangingSettles(MemoryStore):
    """A memory store whose `settle` blocks while `hangs` is set, until `answer` is set."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.hangs, self.entered, self.answer = False, threading.Event(), threading.Event()

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        if self.hangs:
            self.entered.set()
            self.answer.wait(10)
        return super().settle(settlements)


class TestStopWhileTheStoreHangs:
    """The event loop keeps running while claims are released, and stop ends within the drain time."""

    def stop(self, gate: Gate, store: HangingSettles, handler: Handler, ready: Callable[[InboxWorker], bool]) -> None:
        """Start a worker, stop it when it is `ready`, and check that the loop ticks until it has stopped."""
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.01)
                ticks.append(time.monotonic())

        async def main() -> None:
            worker = gate.inbox(handler, look="10ms", drain="500ms")
            ticking, task = asyncio.create_task(tick()), asyncio.create_task(worker.work())
            await until(lambda: ready(worker))
            store.hangs = True
            stopped_at = time.monotonic()
            worker.stop()
            await task
            took = time.monotonic() - stopped_at
            ticking.cancel()
            assert store.entered.is_set()
            assert took < 3
            assert max(later - earlier for earlier, later in pairwise(ticks)) < 1

        try:
            asyncio.run(main())
        finally:
            store.answer.set()

    def test_claim_that_waits_for_a_thread(self) -> None:
        """A claim whose handler has not started when the drain time ends is released without blocking the loop, and
        keeps its attempt when the store answers later."""
        store = HangingSettles()
        gate = Gate(store, threads=1)
        running, finish = threading.Event(), threading.Event()

        def handler(_event: Event) -> None:
            running.set()
            finish.wait(10)

        gate.admit([call(1), call(2, "call-2")])
        self.stop(gate, store, handler, lambda worker: running.is_set() and worker.figures.in_hand == 2)
        wait_until(lambda: ("R", 0) in [(entry.record.state, entry.record.attempts) for entry in store.browse()])
        finish.set()
        gate.drain()

    def test_suspect_that_is_being_released(self) -> None:
        """A worker stops although the thread that takes events still waits for the store."""
        clock = ManualClock(1_000_000)
        store = HangingSettles(clock)
        gate = Gate(store)
        gate.admit([call(1)])
        gate._engine.claimer.take(1)
        clock.advance("31s")
        store.hangs = True
        self.stop(gate, store, lambda _event: None, lambda _worker: store.entered.is_set())


def test_a_caller_that_is_cancelled_during_stop() -> None:
    """All claims of an admission that do not run here are released, although the caller is cancelled meanwhile."""
    asked: list[Any] = []

    class Store(MemoryStore):
        def settle(self, settlements: Any) -> Any:
            for cancel in asked:
                cancel()
            return super().settle(settlements)

    gate = Gate(Store())

    async def main() -> None:
        worker = gate.inbox(lambda event: None, look="10s")
        task = asyncio.create_task(worker.work())
        await until(lambda: worker._free_slots() > 0)
        events = [event for number in range(5) for event in read(call(number, f"call-{number}"))]
        request = asyncio.create_task(worker.admit(events))
        await asyncio.sleep(0)
        worker.stop()
        asked.append(partial(asyncio.get_running_loop().call_soon_threadsafe, request.cancel))
        await asyncio.wait([request])
        await task
        await until(lambda: states() == [("R", 0)] * 5)

    def states() -> list[tuple[str, int]]:
        return [(entry.record.state, entry.record.attempts) for entry in gate.store.browse()]

    asyncio.run(main())


def test_release_is_retried() -> None:
    """A suspect whose release fails is released when the store answers again: its attempt does not count."""
    clock = ManualClock(1_000_000)
    store = Stumbling(clock=clock)
    gate = Gate(store, max_attempts=1)
    gate.admit([call(1), call(2, "call-2")])
    gate._engine.claimer.take(2)
    clock.advance("31s")
    store.failures["settle"] = 5
    seen: list[int] = []
    working(gate, lambda event: seen.append(event.attempt), lambda worker: until(lambda: len(seen) == 2))
    assert seen == [1, 1]
    assert store.dead_letters() == []


def test_invalid_handler(gate: Gate) -> None:
    """A handler is checked when the worker is created."""
    with pytest.raises(SettingError):
        gate.inbox("handler")  # type: ignore[arg-type]


def test_from_the_command_line(tmp_path: Path) -> None:
    """`oncegate work inbox` runs accepted events, logs a line for each, and ends at SIGTERM."""
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
        gate.admit([call(number, f"call-{number}") for number in range(5)])
    (tmp_path / "app.py").write_text("def on_event(event):\n    assert event.id != 'evt-3', event.body\n")
    command = [sys.executable, "-m", "oncegate", "work", "inbox", "--handler", "app:on_event"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        told = [msgspec.json.decode(worker.stdout.readline()) for _ in range(5)]
        worker.terminate()
        _, said = worker.communicate(timeout=10)
    finally:
        worker.kill()
    assert sorted(each["status"] for each in told) == ["failed"] + ["processed"] * 4
    assert worker.returncode == 0, said
    (line,) = said.splitlines()
    welcome = msgspec.json.decode(line)
    assert (welcome["level"], welcome["logger"]) == ("info", "oncegate.work")
    assert welcome["message"].startswith(
        "Oncegate 0.1.0 starts a worker of inbox with the store sqlite:///oncegate.db."
    )
    (failure,) = (each for each in told if each["status"] == "failed")
    assert failure["reason"].startswith("Failed at attempt 1: AssertionError; the event is stored and will be retried")
    assert failure["stack"] == f"{tmp_path}/app.py:2 in on_event"


WORKER = dedent("""
    import asyncio, os, sys, time
    from oncegate import Gate

    gate = Gate(sys.argv[1], lease="400ms", backoff="10ms", backoff_limit="50ms", max_attempts=4)

    async def handler(event):
        if event.body.get("kills"):
            os.kill(os.getpid(), 9)
        with open(sys.argv[2], "a") as effects:
            effects.write(f"{event.id} {event.entity}\\n")

    asyncio.run(gate.inbox(handler, at_work=4, look="20ms").work())
""")


def test_a_poison_event(tmp_path: Path) -> None:
    """An event that kills its worker is buried after its attempts. All other events run, in the workers that follow."""
    url, effects = f"sqlite:///{tmp_path}/inbox.db", tmp_path / "effects"
    gate = Gate(url, max_attempts=4)
    gate.admit([call(number, f"call-{number}") for number in range(12)] + [call(99, "call-99") | {"kills": True}])
    deaths = 0
    worker = subprocess.Popen([sys.executable, "-c", WORKER, url, effects])
    deadline = time.monotonic() + 60
    try:
        while any(entry.record.state in "PR" for entry in gate.store.browse()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            if worker.poll() is not None:
                deaths += 1
                worker = subprocess.Popen([sys.executable, "-c", WORKER, url, effects])
        (letter,) = gate.store.dead_letters()
    finally:
        worker.kill()
        worker.wait()
        gate.close()
    assert deaths == 5  # the first may be a neighbour's fault, and does not count
    assert letter.record.about.delivery_id == "evt-99"
    assert {line.split()[0] for line in effects.read_text().splitlines()} == {f"evt-{number}" for number in range(12)}

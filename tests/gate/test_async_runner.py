"""The async runner: shared writes, cancellation, limits, lost leases and events that run alone."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Address, Claim
from oncegate.errors import SettingError
from oncegate.stores.base import Document
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling, left_by_another

Test = Callable[[], Coroutine[Any, Any, Any]]


async def succeed(event: Event) -> str | None:
    return event.id


async def fail(event: Event) -> None:
    raise ValueError("boom")


def state(gate: Gate) -> tuple[str, int, str | None]:
    """State, attempts and error of the only record in the store."""
    (entry,) = gate.store.browse()
    return entry.record.state, entry.record.attempts, entry.record.error


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


class TestOutcomes:
    def test_async_and_plain_handlers(self, gate: Gate) -> None:
        """An async handler runs in the loop, a plain handler in a thread; the outcomes are those of `run`."""

        async def main() -> None:
            threads: list[threading.Thread] = []

            async def here(event: Event) -> str:
                threads.append(threading.current_thread())
                return "here"

            def there(event: Event) -> str:
                threads.append(threading.current_thread())
                return "there"

            outcomes = [await gate.arun({"id": 1}, here), await gate.arun({"id": 2}, there)]
            assert [(outcome.status, outcome.result) for outcome in outcomes] == [
                ("processed", "here"),
                ("processed", "there"),
            ]
            assert threads[0] is threading.current_thread()
            assert threads[1] is not threading.current_thread()
            assert (await gate.arun({"id": 1}, fail)).status == "duplicate"
            assert (await gate.arun("{", fail)).status == "invalid"

        asyncio.run(main())

    @pytest.mark.parametrize("plain", [False, True])
    def test_failures_are_counted_and_buried(self, store: MemoryStore, plain: bool) -> None:
        """A handler that raises fails the attempt; the last attempt buries the event."""
        gate = Gate(store, max_attempts=2)

        def fail_plainly(event: Event) -> None:
            raise ValueError("boom")

        async def main() -> list[Any]:
            return [await gate.arun({"id": 1}, fail_plainly if plain else fail) for _ in range(3)]

        outcomes = asyncio.run(main())
        assert [outcome.status for outcome in outcomes] == ["failed", "buried", "buried"]
        assert {outcome.error for outcome in outcomes} == {"ValueError: boom"}

    def test_concurrent_copies(self, gate: Gate) -> None:
        """Of copies that arrive at the same time one runs, and the others are in flight."""

        async def main() -> list[Any]:
            async def slow(event: Event) -> None:
                await asyncio.sleep(0.02)

            return await asyncio.gather(*(gate.arun({"id": 1}, slow) for _ in range(10)))

        statuses = sorted(outcome.status for outcome in asyncio.run(main()))
        assert statuses == ["in_flight"] * 9 + ["processed"]

    def test_generators_and_coroutines(self, gate: Gate) -> None:
        """A generator function is refused; a plain function that returns a coroutine fails its event."""

        async def generate(event: Event) -> Any:
            yield 1

        async def main() -> None:
            with pytest.raises(SettingError, match="is a generator"):
                await gate.arun({"id": 1}, generate)
            outcome = await gate.arun({"id": 2}, lambda event: asyncio.sleep(0))
            assert outcome.status == "failed"
            assert "a coroutine or a generator" in outcome.reason

        asyncio.run(main())

    def test_callable_object(self, gate: Gate) -> None:
        """An object with an async `__call__` is an async handler."""

        class Called:
            async def __call__(self, event: Event) -> str:
                return "called"

        async def main() -> None:
            assert (await gate.arun({"id": 1}, Called())).result == "called"

        asyncio.run(main())

    def test_mark_first(self, store: MemoryStore) -> None:
        """In mark_first mode a failed event becomes a dead letter, with async and plain handlers."""
        gate = Gate(store, mode="mark_first")

        async def main() -> list[Any]:
            def fail_plainly(event: Event) -> None:
                raise ValueError("boom")

            first = [await gate.arun({"id": 1}, fail), await gate.arun({"id": 2}, fail_plainly)]
            return [*first, await gate.arun({"id": 1}, succeed), await gate.arun({"id": 3}, succeed)]

        outcomes = asyncio.run(main())
        assert [outcome.status for outcome in outcomes] == ["buried", "buried", "duplicate", "processed"]
        assert len(store.dead_letters()) == 2

    def test_marked_for_longer_than_a_lease(self, store: MemoryStore) -> None:
        """A marked event that waits for a thread may start after the time of a lease: no other worker can be granted
        it."""
        boot = ManualClock(0)
        gate = Gate(store, mode="mark_first", lease="1s", retention="90s", threads=1, boot=boot)

        def slow(event: Event) -> None:
            boot.advance("30s")

        async def main() -> list[Any]:
            return await asyncio.gather(*[gate.arun({"id": number}, slow) for number in range(4)])

        statuses = [outcome.status for outcome in asyncio.run(main())]
        assert sorted(statuses) == ["buried"] + ["processed"] * 3

    def test_unguarded(self, stumbling: Stumbling) -> None:
        """The policies for missing keys and store errors apply to `arun`, too."""
        gate = Gate(
            stumbling,
            key=keys.event_id,
            on_missing_key="unguarded",
            on_store_error="unguarded",
            unguarded_types=["alarm"],
        )

        async def main() -> None:
            assert (await gate.arun({"type": "x"}, succeed)).status == "unguarded"
            stumbling.failures = {"claim": 2}
            assert (await gate.arun({"id": 1, "type": "alarm"}, succeed)).status == "unguarded"
            assert (await gate.arun({"id": 2, "type": "other"}, succeed)).status == "failed"

        asyncio.run(main())

    def test_several_loops(self, gate: Gate) -> None:
        """One gate serves event loops in several threads, and one after the other."""

        async def main(first: int) -> list[str]:
            events = [gate.arun({"id": number}, succeed) for number in range(first, first + 50)]
            return [outcome.status for outcome in await asyncio.gather(*events)]

        statuses: list[list[str]] = []
        threads = [threading.Thread(target=lambda n=n: statuses.append(asyncio.run(main(n)))) for n in (0, 100, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [["processed"] * 50] * 3
        assert asyncio.run(main(300)) == ["processed"] * 50


class TestSharedWrites:
    def test_callers_share_writes(self, stumbling: Stumbling) -> None:
        """Events that arrive at the same time are claimed with one write and settled with one."""
        gate = Gate(stumbling)

        async def main() -> None:
            await asyncio.gather(*(gate.arun({"id": number}, succeed) for number in range(64)))

        asyncio.run(main())
        assert stumbling.calls == [("claim", 64), ("settle", 64)]

    def test_batches_are_bounded(self, stumbling: Stumbling) -> None:
        """A batch has at most 256 items."""
        gate = Gate(stumbling)

        async def main() -> None:
            await asyncio.gather(*(gate.arun({"id": number}, succeed) for number in range(700)))

        asyncio.run(main())
        sizes = [size for verb, size in stumbling.calls if verb == "claim"]
        assert (sum(sizes), max(sizes)) == (700, 256)

    def test_single_caller_does_not_wait(self, stumbling: Stumbling) -> None:
        """A single caller does not wait for others to fill a batch."""
        gate = Gate(stumbling)

        async def main() -> float:
            await gate.arun({"id": "warm"}, succeed)
            start = time.perf_counter()
            for number in range(20):
                await gate.arun({"id": number}, succeed)
            return (time.perf_counter() - start) / 20

        assert asyncio.run(main()) < 0.02

    @pytest.mark.parametrize("failures", [0, 1])
    def test_settlements_and_claims_share_a_write(self, stumbling: Stumbling, failures: int) -> None:
        """The settlement of one caller and the claim of another are written together; if that fails, each by itself."""
        gate = Gate(stumbling)
        stumbling.failures["together"] = failures
        others: list[asyncio.Task[Outcome]] = []

        async def handler(_event: Event) -> None:
            others.append(asyncio.create_task(gate.arun({"id": 2}, succeed)))

        async def main() -> list[str]:
            first = await gate.arun({"id": 1}, handler)
            return [first.status, (await others[0]).status]

        assert asyncio.run(main()) == ["processed", "processed"]
        alone = [("settle", 1), ("claim", 1)] if failures else []
        assert stumbling.calls == [("claim", 1), ("together", 2), *alone, ("settle", 1)]

    def test_error_of_a_claim_does_not_stop_a_settlement(self) -> None:
        """A settlement is written even if a claim in the same batch raises: otherwise the event would run again."""

        class Picky(MemoryStore):
            def _apply(self, operations: Sequence[Any], *, admits: bool = False) -> list[Any]:
                if any(isinstance(each, Claim) and each.about.type == "bad" for each in operations):
                    raise ZeroDivisionError
                return super()._apply(operations, admits=admits)

        store = Picky()
        gate = Gate(store)

        async def handler(_event: Event) -> None:
            neighbours.append(asyncio.create_task(gate.arun({"id": 2, "type": "bad"}, succeed)))

        async def main() -> None:
            await asyncio.gather(gate.arun({"id": 1}, handler), return_exceptions=True)

        neighbours: list[asyncio.Task[Any]] = []
        asyncio.run(main())
        assert [entry.record.state for entry in store.browse()] == ["C"]

    def test_settlements_do_not_wait_for_timelines(self) -> None:
        """A settlement is written before timelines are loaded for claims of the same batch, which can take long."""
        operations_seen: list[str] = []

        class Noting(MemoryStore):
            def _apply(self, operations: Sequence[Any], *, admits: bool = False) -> list[Any]:
                operations_seen.extend(type(each).__name__ for each in operations)
                return super()._apply(operations, admits=admits)

            def load(self, addresses: Sequence[Address]) -> list[Document]:
                operations_seen.append("load")
                return super().load(addresses)

        gate = Gate(Noting(), key=keys.first(keys.state_change(), keys.event_id))
        change = {"id": 2, "type": "call.ended", "conversationId": "c", "timestamp": "2026-01-01T00:00:00Z"}

        async def main() -> None:
            other: list[asyncio.Task[Any]] = []

            async def handler(_event: Event) -> None:
                other.append(asyncio.create_task(gate.arun(change, succeed)))

            await gate.arun({"id": 1}, handler)
            await other[0]

        asyncio.run(main())
        assert operations_seen[:3] == ["Claim", "Complete", "load"]

    def test_unexpected_error_of_a_store(self, stumbling: Stumbling, monkeypatch: pytest.MonkeyPatch) -> None:
        """An exception other than StoreError reaches every caller of the batch, and the gate still works afterwards."""
        gate = Gate(stumbling)

        def broken(requests: object) -> None:
            raise ZeroDivisionError

        async def main() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(stumbling, "claim", broken)
                calls = [gate.arun({"id": number}, succeed) for number in range(3)]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
            assert (await gate.arun({"id": 1}, succeed)).status == "processed"

        asyncio.run(main())


class TestBackPressure:
    def test_max_in_hand(self, store: MemoryStore) -> None:
        """At most `max_in_hand` events are claimed or run at a time; the others wait, and all are processed."""
        gate = Gate(store, max_in_hand=5)
        running, most = 0, 0

        async def count(event: Event) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            held = sum(entry.record.state == IN_PROGRESS for entry in store.browse())
            assert held <= 5
            await asyncio.sleep(0.002)
            running -= 1

        async def main() -> list[Any]:
            return await asyncio.gather(*(gate.arun({"id": number}, count) for number in range(40)))

        assert {outcome.status for outcome in asyncio.run(main())} == {"processed"}
        assert most == 5

    def test_threads(self, store: MemoryStore) -> None:
        """At most `threads` plain handlers run at a time."""
        gate = Gate(store, threads=3)
        lock, running, most = threading.Lock(), 0, 0

        def count(event: Event) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.01)
            with lock:
                running -= 1

        async def main() -> None:
            await asyncio.gather(*(gate.arun({"id": number}, count) for number in range(12)))

        asyncio.run(main())
        assert most == 3

    def test_cancelled_caller_frees_its_place(self, store: MemoryStore) -> None:
        """A caller that is cancelled while it waits takes no place, and one that holds a place passes it on."""
        gate = Gate(store, max_in_hand=1)

        async def main() -> None:
            started = asyncio.Event()

            async def hang(event: Event) -> None:
                started.set()
                await asyncio.sleep(30)

            first = asyncio.create_task(gate.arun({"id": 1}, hang))
            await started.wait()
            second = asyncio.create_task(gate.arun({"id": 2}, succeed))
            await asyncio.sleep(0.01)
            second.cancel()
            first.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            assert (await gate.arun({"id": 3}, succeed)).status == "processed"

        asyncio.run(main())


class SlowClaims(MemoryStore):
    """A store that claims at once, and answers only when `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.go_on = threading.Event(), threading.Event()

    def claim(self, requests: Any) -> Any:
        verdicts = super().claim(requests)
        self.claimed.set()
        self.go_on.wait(10)
        return verdicts


class TestCancellation:
    def test_while_an_async_handler_runs(self, gate: Gate) -> None:
        """The handler is cancelled with its caller; the event is released, and its attempt counts."""
        seen: list[str] = []

        async def hang(event: Event) -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await gate.arun({"id": 1}, hang)

        asyncio.run(main())
        assert seen == ["cancelled"]
        assert eventually(
            lambda: state(gate) == (RELEASED, 1, "it was cancelled, or its process was stopped, while the handler ran")
        )
        outcome = gate.run({"id": 1}, lambda event: "done")
        assert (outcome.status, outcome.event.attempt) == ("processed", 2)

    def test_never_buries(self, store: MemoryStore) -> None:
        """An event whose caller is cancelled at the last attempt is released, not buried. The next delivery is buried,
        and its reason says why."""
        gate = Gate(store, max_attempts=1)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gate.arun({"id": 1}, lambda_sleep), 0.05)

        async def lambda_sleep(event: Event) -> None:
            await asyncio.sleep(30)

        asyncio.run(main())
        assert eventually(lambda: state(gate)[0] == RELEASED)
        outcome = asyncio.run(gate.arun({"id": 1}, succeed))
        assert (outcome.status, "it was cancelled" in outcome.reason) == ("buried", True)

    def test_while_a_plain_handler_runs(self, store: MemoryStore) -> None:
        """A thread cannot be stopped: the handler runs on under its claim, and its result is recorded."""
        gate = Gate(store, lease="60ms")
        finish, done = threading.Event(), threading.Event()

        def slow(event: Event) -> str:
            finish.wait(10)
            done.set()
            return "done"

        async def main() -> None:
            task = asyncio.create_task(gate.arun({"id": 1}, slow))
            assert await asyncio.to_thread(eventually, lambda: len(store.browse()) == 1)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.2)
            assert (await gate.arun({"id": 1}, succeed)).status == "in_flight"
            finish.set()
            assert await asyncio.to_thread(eventually, lambda: state(gate)[0] == COMPLETED)

        asyncio.run(main())
        assert done.is_set()
        assert gate.run({"id": 1}, lambda event: "again").result == "done"

    def test_while_the_claim_is_being_written(self) -> None:
        """A claim that is granted to a cancelled caller is released, and does not count as an attempt."""
        slow = SlowClaims()
        gate = Gate(slow)

        async def main() -> None:
            task = asyncio.create_task(gate.arun({"id": 1}, fail))
            await asyncio.to_thread(slow.claimed.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            slow.go_on.set()
            assert await asyncio.to_thread(eventually, lambda: state(gate) == (RELEASED, 0, None))

        asyncio.run(main())

    def test_closed_loop(self) -> None:
        """Also if the event loop is closed before the store answers."""
        slow = SlowClaims()
        gate = Gate(slow)

        async def main() -> None:
            task = asyncio.create_task(gate.arun({"id": 1}, fail))
            while not slow.claimed.is_set():
                await asyncio.sleep(0.005)
            task.cancel()

        asyncio.run(main())
        slow.go_on.set()
        assert eventually(lambda: state(gate) == (RELEASED, 0, None))

    def test_before_a_thread_is_free(self, store: MemoryStore) -> None:
        """A plain handler that has not started is released as unstarted."""
        gate = Gate(store, threads=1)
        finish, ran = threading.Event(), []

        async def main() -> None:
            first = asyncio.create_task(gate.arun({"id": 1}, lambda event: finish.wait(10)))
            second = asyncio.create_task(gate.arun({"id": 2}, lambda event: ran.append(event.id)))
            assert await asyncio.to_thread(eventually, lambda: len(store.browse()) == 2)
            await asyncio.sleep(0.02)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            finish.set()
            await first
            await gate.arun({"id": 3}, lambda event: ran.append(event.id))

        asyncio.run(main())
        assert ran == ["3"]
        assert eventually(
            lambda: (
                sorted((entry.record.state, entry.record.attempts) for entry in store.browse())
                == [(COMPLETED, 1), (COMPLETED, 1), (RELEASED, 0)]
            )
        )

    def test_in_mark_first_mode(self, store: MemoryStore) -> None:
        """An event that was marked as done and then cancelled becomes a dead letter."""
        gate = Gate(store, mode="mark_first")

        async def hang(event: Event) -> None:
            await asyncio.sleep(30)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gate.arun({"id": 1}, hang), 0.05)

        asyncio.run(main())
        assert eventually(lambda: len(store.dead_letters()) == 1)

    def test_after_the_claim_is_answered(self) -> None:
        """A caller that is cancelled in the turn of the loop in which its claim was answered releases it, in every
        mode."""
        for mode, left in (("lease", [COMPLETED, RELEASED]), ("mark_first", [COMPLETED, COMPLETED, DEAD])):
            gate = Gate("memory://", mode=mode)  # type: ignore[arg-type]

            async def main(gate: Gate = gate) -> None:
                async def cancel_the_other(event: Event) -> None:
                    other.cancel()

                first = asyncio.create_task(gate.arun({"id": 1}, cancel_the_other))
                other = asyncio.create_task(gate.arun({"id": 2}, succeed))
                await asyncio.gather(first, other, return_exceptions=True)
                assert other.cancelled()

            asyncio.run(main())
            assert eventually(lambda gate=gate, left=left: sorted(e.record.state for e in gate.store.browse()) == left)  # type: ignore[misc]

    def test_handler_cancels_itself(self, gate: Gate) -> None:
        """A CancelledError that the caller did not request is a failure of the handler, and the caller is not
        cancelled."""

        async def cancel_itself(event: Event) -> None:
            raise asyncio.CancelledError

        def cancel_plainly(event: Event) -> None:
            raise asyncio.CancelledError

        async def main() -> None:
            for number, handler in enumerate((cancel_itself, cancel_plainly)):
                outcome = await gate.arun({"id": number}, handler)
                assert (outcome.status, outcome.raised) == ("failed", "RuntimeError")

        asyncio.run(main())

    def test_closing_waits_for_plain_handlers(self, tmp_path: Path) -> None:
        """A plain handler that runs when the gate is closed, or the process ends, is recorded."""
        code = """
            import asyncio, sys, threading, time
            from oncegate import Gate
            gate = Gate("sqlite:///a.db")
            started = threading.Event()
            def handler(event):
                started.set()
                time.sleep(0.3)
                print("ran")
            async def main():
                call = asyncio.create_task(gate.arun({"id": 1}, handler))
                await asyncio.to_thread(started.wait)
                call.cancel()
                try:
                    await call
                except asyncio.CancelledError:
                    print("gone")
            asyncio.run(main())
            if sys.argv[1] == "close":
                gate.close()
            """
        for number, how in enumerate(("close", "end")):
            folder = tmp_path / str(number)
            folder.mkdir()
            command = [sys.executable, "-c", dedent(code), how]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
            assert (done.stdout.split(), done.stderr) == (["gone", "ran"], "")
            gate = Gate(f"sqlite:///{folder}/a.db")
            assert gate.run({"id": 1}, lambda event: None).status == "duplicate"
            gate.close()

    def test_while_the_gate_is_drained(self, store: MemoryStore) -> None:
        """New events run while the gate is drained; none fails because the thread pool is shut down."""
        gate = Gate(store)
        begun, go_on = threading.Event(), threading.Event()

        def wait(event: Event) -> None:
            begun.set()
            go_on.wait(10)

        async def main() -> None:
            first = asyncio.create_task(gate.arun({"id": 1}, wait))
            await asyncio.to_thread(begun.wait, 10)
            draining = asyncio.create_task(asyncio.to_thread(gate.drain))
            await asyncio.sleep(0.1)
            assert (await gate.arun({"id": 2}, lambda event: None)).status == "processed"
            assert not draining.done()
            go_on.set()
            await draining
            assert (await first).status == "processed"

        asyncio.run(main())


class TestNested:
    @pytest.mark.parametrize("options", [{"max_attempts": 1}, {"max_in_hand": 1}, {"max_attempts": 2}])
    def test_async_handler_uses_its_own_gate(self, store: MemoryStore, options: Any) -> None:
        """A handler may take other events through its own gate: it does not wait for its own end."""
        gate = Gate(store, **options)

        async def outer(event: Event) -> str:
            inner = await gate.arun({"id": f"inner of {event.id}"}, succeed)
            return inner.status

        async def main() -> list[Any]:
            async with asyncio.timeout(10):
                return await asyncio.gather(*(gate.arun({"id": number}, outer) for number in range(5)))

        assert [outcome.result for outcome in asyncio.run(main())] == ["processed"] * 5

    @pytest.mark.parametrize("how", ["in_a_loop_of_its_own", "in_the_same_loop"])
    def test_plain_handler_uses_its_own_gate(self, how: str) -> None:
        """A plain handler may do so, too, from its own loop or from its caller's, although it has the only thread."""
        code = f"""
            import asyncio, os
            from oncegate import Gate
            gate = Gate("memory://", threads=1, max_in_hand=1)
            def inner(event):
                return "inner"
            def in_a_loop_of_its_own(event):
                return asyncio.run(gate.arun({{"id": "inner"}}, inner)).result
            def in_the_same_loop(event):
                return asyncio.run_coroutine_threadsafe(gate.arun({{"id": "inner"}}, inner), loop).result().result
            async def main():
                global loop
                loop = asyncio.get_running_loop()
                print((await asyncio.wait_for(gate.arun({{"id": "outer"}}, {how}), 3)).result, flush=True)
            try:
                asyncio.run(main())
            finally:
                os._exit(0)
            """
        done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "inner", done


class TestLostLeases:
    def test_lease_ends_while_waiting_for_a_thread(self, store: MemoryStore, clock: ManualClock) -> None:
        """A plain handler whose lease ended while it waited for a thread does not start."""
        boot = ManualClock(0)
        gate = Gate(store, threads=1, boot=boot)
        go_on, ran = threading.Event(), []

        async def main() -> None:
            first = asyncio.create_task(gate.arun({"id": 1}, lambda event: go_on.wait(10)))
            second = asyncio.create_task(gate.arun({"id": 2}, lambda event: ran.append(event.id)))
            assert await asyncio.to_thread(eventually, lambda: len(store.browse()) == 2)
            await asyncio.sleep(0.02)
            boot.advance("30s")
            go_on.set()
            outcomes = await asyncio.gather(first, second)
            assert [outcome.status for outcome in outcomes] == ["processed", "in_flight"]

        asyncio.run(main())
        assert ran == []

    def test_async_handler_is_cancelled(self, store: MemoryStore) -> None:
        """When the lease is lost, the handler is cancelled and the event fails; the caller's task is not cancelled."""
        gate = Gate(store, lease="60ms")
        seen: list[str] = []

        async def hang(event: Event) -> None:
            store._records["default"].clear()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def main() -> None:
            outcome = await gate.arun({"id": 1}, hang)
            assert (outcome.status, outcome.acked) == ("failed", False)
            await asyncio.sleep(0.01)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

        asyncio.run(main())
        assert seen == ["cancelled"]
        assert gate.counts["lease.lost"] == 1

    def test_settlement_of_a_plain_handler_is_refused(self, store: MemoryStore) -> None:
        """A thread cannot be cancelled, but the store refuses its settlement."""
        gate = Gate(store, lease="60ms")

        def overtaken(event: Event) -> None:
            store._records["default"].clear()
            time.sleep(0.1)

        async def main() -> None:
            outcome = await gate.arun({"id": 1}, overtaken)
            assert outcome.status == "failed"
            assert "lost to another worker" in outcome.reason

        asyncio.run(main())
        assert store.browse() == []

    def test_store_away_for_a_lease(self, stumbling: Stumbling) -> None:
        """A lease that could not be renewed for its whole length may belong to another worker: the handler is
        cancelled."""
        gate = Gate(stumbling, lease="90ms")
        stumbling.failures = {"renew": 100}

        async def hang(event: Event) -> None:
            await asyncio.sleep(30)

        async def main() -> None:
            outcome = await gate.arun({"id": 1}, hang)
            assert outcome.status == "failed"
            assert "its claim was lost while the handler ran" in outcome.reason

        asyncio.run(main())

    def test_handler_ignores_cancellation(self, store: MemoryStore) -> None:
        """If the handler returns a result after it was cancelled, the store decides about its settlement."""
        gate = Gate(store, lease="60ms")

        async def stubborn(event: Event) -> str:
            store._records["default"].clear()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return "done all the same"
            return "never"

        async def main() -> None:
            outcome = await gate.arun({"id": 1}, stubborn)
            assert "lost to another worker" in outcome.reason

        asyncio.run(main())

    def test_no_effect_starts_after_the_lease(self, store: MemoryStore) -> None:
        """A grant that was answered after the time of the lease is released without a run."""
        boot = ManualClock(0)
        gate = Gate(store, boot=lambda: boot.advance("30s") or boot.now)  # type: ignore[func-returns-value]

        async def main() -> None:
            assert (await gate.arun({"id": 1}, fail)).status == "in_flight"

        asyncio.run(main())
        assert state(gate) == (RELEASED, 0, None)


class TestAlone:
    def test_suspect_runs_alone(self, store: MemoryStore, clock: ManualClock) -> None:
        """While an event runs whose last worker did not return, no other handler runs, and those before it are
        settled."""
        left_by_another(store, clock, {"id": "poison"})
        gate = Gate(store, max_attempts=2)
        running: set[str | None] = set()
        beside: list[set[str | None]] = []

        async def handler(event: Event) -> None:
            running.add(event.id)
            await asyncio.sleep(0.005)
            if event.id == "poison":
                beside.append(set(running))
                done = sum(entry.record.state == IN_PROGRESS for entry in store.browse())
                beside.append({str(done)})
            running.discard(event.id)

        async def main() -> list[Any]:
            names = [*range(10), "poison", *range(10, 20)]
            return await asyncio.gather(*(gate.arun({"id": name}, handler) for name in names))

        outcomes = asyncio.run(main())
        assert {outcome.status for outcome in outcomes} == {"processed"}
        assert {outcome.event.attempt for outcome in outcomes} == {1}
        assert beside == [{"poison"}, {"1"}]

    def test_settled_failure_does_not_run_alone(self, store: MemoryStore) -> None:
        """An event whose failures were settled runs beside others, also at its last attempt."""
        gate = Gate(store, max_attempts=2)

        async def main() -> None:
            beside = asyncio.Barrier(2)

            async def meet(event: Event) -> None:
                await asyncio.wait_for(beside.wait(), 5)

            await gate.arun({"id": "last"}, fail)
            outcomes = await asyncio.gather(*(gate.arun({"id": name}, meet) for name in ("last", "other")))
            assert [outcome.status for outcome in outcomes] == ["processed", "processed"]

        asyncio.run(main())

    @pytest.mark.parametrize("hangs", ["another", "the suspect"])
    def test_hung_handlers_stop_nobody(self, store: MemoryStore, clock: ManualClock, hangs: str) -> None:
        """A suspect that cannot run alone is in flight, and others go on; nor do others wait forever for a suspect that
        hangs."""
        left_by_another(store, clock, {"id": "suspect"})
        gate, other = Gate(store, max_attempts=2, max_hold="200ms"), Gate(MemoryStore())

        async def main() -> None:
            go_on = asyncio.Event()

            async def wait(event: Event) -> None:
                await go_on.wait()

            by = gate if hangs == "the suspect" else other
            hanging = asyncio.create_task(by.arun({"id": "suspect" if by is gate else "long"}, wait))
            await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                outcomes = await asyncio.gather(*(gate.arun({"id": name}, succeed) for name in ("suspect", "other")))
            assert [outcome.status for outcome in outcomes] == ["in_flight", "processed"]
            assert ("runs alone" in outcomes[0].reason) == (by is other)
            assert not hanging.done()
            go_on.set()
            assert (await hanging).status == "processed"
            again = await gate.arun({"id": "suspect"}, succeed)
            assert (again.status, again.event.attempt) == (("duplicate", 0) if by is gate else ("processed", 1))

        asyncio.run(main())

    def test_cancelled_while_waiting(self, store: MemoryStore, clock: ManualClock) -> None:
        """A caller that is cancelled while it waits to run alone does not delay others."""
        left_by_another(store, clock, {"id": 2})
        gate = Gate(store, max_attempts=2)

        async def main() -> None:
            go_on = asyncio.Event()

            async def wait(event: Event) -> None:
                await go_on.wait()

            first = asyncio.create_task(gate.arun({"id": 1}, wait))
            await asyncio.sleep(0.02)
            second = asyncio.create_task(gate.arun({"id": 2}, succeed))
            await asyncio.sleep(0.02)
            third = asyncio.create_task(gate.arun({"id": 3}, succeed))
            await asyncio.sleep(0.02)
            assert not third.done()
            second.cancel()
            assert (await asyncio.wait_for(third, 5)).status == "processed"
            go_on.set()
            assert (await first).status == "processed"
            assert (await gate.arun({"id": 2}, succeed)).event.attempt == 1

        asyncio.run(main())

    def test_within_a_handler(self, store: MemoryStore, clock: ManualClock) -> None:
        """A handler that runs a suspect through a gate does not wait for its own end."""
        left_by_another(store, clock, {"id": "suspect"})
        gate = Gate(store)

        async def outer(event: Event) -> str:
            return (await gate.arun({"id": "suspect"}, succeed)).status

        async def main() -> None:
            assert (await asyncio.wait_for(gate.arun({"id": "outer"}, outer), 5)).result == "processed"

        asyncio.run(main())

    @pytest.mark.parametrize("max_attempts", [1, 2, 3])
    def test_poison_event(self, tmp_path: Path, max_attempts: int) -> None:
        """An event that kills its process is buried in the end, and all events that ran beside it are processed."""
        code = """
            import asyncio, os, sys
            from oncegate import Gate

            async def handler(event):
                await asyncio.sleep(0.01)
                if event.id == "poison":
                    os._exit(9)

            async def main():
                gate = Gate("sqlite:///a.db", max_attempts=int(sys.argv[1]), lease="50ms", max_hold="1s")
                names = [*range(6), "poison", *range(6, 12)]
                outcomes = await asyncio.gather(*(gate.arun({"id": name}, handler) for name in names))
                print(*(outcome.status for outcome in outcomes))

            asyncio.run(main())
            """
        command = [sys.executable, "-c", dedent(code), str(max_attempts)]
        for _ in range(20):
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode in (0, 9), done.stderr
            if done.returncode == 0 and set(done.stdout.split()) == {"duplicate", "buried"}:
                break
            time.sleep(0.06)
        gate = Gate(f"sqlite:///{tmp_path}/a.db")
        assert [entry.record.about.delivery_id for entry in gate.store.dead_letters()] == ["poison"]
        assert len([entry for entry in gate.store.browse() if entry.record.state == COMPLETED]) == 12
        gate.close()


def test_sqlite_file(tmp_path: Path) -> None:
    """Many callers on an SQLite file: each event runs once."""
    gate = Gate(f"sqlite:///{tmp_path}/a.db")

    async def main() -> list[Any]:
        return await asyncio.gather(*(gate.arun({"id": number % 100}, succeed) for number in range(300)))

    statuses = [outcome.status for outcome in asyncio.run(main())]
    gate.close()
    assert statuses.count("processed") == 100
    assert set(statuses) <= {"processed", "in_flight", "duplicate"}


class TestLockedFile:
    """An SQLite file that another connection has locked, while settlements wait to be written."""

    def locked(self, tmp_path: Path, main: Callable[[Gate, Callable[[str], object]], Coroutine[Any, Any, Any]]) -> Any:
        """Run `main` with a gate on the file and with `execute` of another connection."""
        gate = Gate(f"sqlite:///{tmp_path}/a.db?busy_timeout=400ms")
        with closing(gate), closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            return asyncio.run(main(gate, other.execute))

    def test_new_events_do_not_wait_for_settlements(self, tmp_path: Path) -> None:
        """A new event fails after one timeout because the file is locked, also while settlements are retried; they are
        written when the file is free."""

        async def main(gate: Gate, other: Callable[[str], object]) -> None:
            async def lock(event: Event) -> None:
                other("BEGIN IMMEDIATE")

            async def failed_after(number: int) -> float:
                start = time.monotonic()
                outcome = await gate.arun({"id": number}, succeed)
                assert (outcome.status, "locked" in outcome.reason) == ("failed", True)
                return time.monotonic() - start

            ended = asyncio.create_task(gate.arun({"id": 0}, lock))
            waited = []
            for number in range(1, 6):
                await asyncio.sleep(0.1)
                waited.append(asyncio.create_task(failed_after(number)))
            assert max(await asyncio.gather(*waited)) < 1
            assert not ended.done()
            other("ROLLBACK")
            assert (await ended).status == "processed"

        self.locked(tmp_path, main)

    def test_settlement_fails(self, tmp_path: Path) -> None:
        """A settlement is tried for several timeouts; then its event has failed, with the reason."""

        async def main(gate: Gate, other: Callable[[str], object]) -> None:
            async def lock(event: Event) -> None:
                other("BEGIN IMMEDIATE")

            start = time.monotonic()
            outcome = await gate.arun({"id": 0}, lock)
            assert (outcome.status, "did not confirm it" in outcome.reason) == ("failed", True)
            assert time.monotonic() - start > 4 * 0.4
            other("ROLLBACK")

        self.locked(tmp_path, main)

    def test_closing_waits_for_retries(self, tmp_path: Path) -> None:
        """The settlement of a cancelled caller is written before the gate is closed."""
        gate = Gate(f"sqlite:///{tmp_path}/a.db?busy_timeout=400ms")

        async def main(other: sqlite3.Connection) -> None:
            async def lock(event: Event) -> None:
                other.execute("BEGIN IMMEDIATE")

            await asyncio.wait([asyncio.create_task(gate.arun({"id": 0}, lock))], timeout=0.6)

        path = tmp_path / "a.db"
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            asyncio.run(main(other))
            threading.Timer(0.2, other.execute, ["ROLLBACK"]).start()
            gate.close()
            assert other.execute("SELECT state FROM claims").fetchall() == [(COMPLETED,)]

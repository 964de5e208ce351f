"""Many coroutines through one gate: shared writes, cancellation, back-pressure."""

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
    """The one record of the store: its state, attempts and error."""
    (entry,) = gate.store.browse()
    return entry.record.state, entry.record.attempts, entry.record.error


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


class TestOutcomes:
    def test_async_and_plain_handlers(self, gate: Gate) -> None:
        """An async handler runs in the loop, a plain one in a thread; the outcomes are those of `run`."""

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
        """A handler that raises fails the attempt; the last one buries."""
        gate = Gate(store, max_attempts=2)

        def fail_plainly(event: Event) -> None:
            raise ValueError("boom")

        async def main() -> list[Any]:
            return [await gate.arun({"id": 1}, fail_plainly if plain else fail) for _ in range(3)]

        outcomes = asyncio.run(main())
        assert [outcome.status for outcome in outcomes] == ["failed", "buried", "buried"]
        assert {outcome.error for outcome in outcomes} == {"ValueError: boom"}

    def test_concurrent_copies(self, gate: Gate) -> None:
        """Of copies that come at the same time one runs, and the others are told that it does."""

        async def main() -> list[Any]:
            async def slow(event: Event) -> None:
                await asyncio.sleep(0.02)

            return await asyncio.gather(*(gate.arun({"id": 1}, slow) for _ in range(10)))

        statuses = sorted(outcome.status for outcome in asyncio.run(main()))
        assert statuses == ["in_flight"] * 9 + ["processed"]

    def test_what_is_no_work(self, gate: Gate) -> None:
        """A generator is refused at once; a plain function that returns a coroutine nobody awaits fails its event."""

        async def generate(event: Event) -> Any:
            yield 1

        async def main() -> None:
            with pytest.raises(SettingError, match="is a generator"):
                await gate.arun({"id": 1}, generate)
            outcome = await gate.arun({"id": 2}, lambda event: asyncio.sleep(0))
            assert outcome.status == "failed"
            assert "a coroutine or a generator" in outcome.reason

        asyncio.run(main())

    def test_an_object_with_an_async_call(self, gate: Gate) -> None:
        """What makes a handler async is how it is called."""

        class Called:
            async def __call__(self, event: Event) -> str:
                return "called"

        async def main() -> None:
            assert (await gate.arun({"id": 1}, Called())).result == "called"

        asyncio.run(main())

    def test_mark_first(self, store: MemoryStore) -> None:
        """In mark_first mode what fails is kept as a dead letter, for async and plain handlers."""
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
        """What is marked and waits for a thread starts also when a lease would be over: nobody else can have it."""
        boot = ManualClock(0)
        gate = Gate(store, mode="mark_first", lease="1s", retention="90s", threads=1, boot=boot)

        def slow(event: Event) -> None:
            boot.advance("30s")

        async def main() -> list[Any]:
            return await asyncio.gather(*[gate.arun({"id": number}, slow) for number in range(4)])

        statuses = [outcome.status for outcome in asyncio.run(main())]
        assert sorted(statuses) == ["buried"] + ["processed"] * 3

    def test_unguarded(self, stumbling: Stumbling) -> None:
        """The policies hold here too."""
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
        """One gate serves loops in several threads, and one after the other."""

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


class TestGathering:
    def test_callers_share_writes(self, stumbling: Stumbling) -> None:
        """What is asked at the same time is claimed with one write and settled with one."""
        gate = Gate(stumbling)

        async def main() -> None:
            await asyncio.gather(*(gate.arun({"id": number}, succeed) for number in range(64)))

        asyncio.run(main())
        assert stumbling.calls == [("claim", 64), ("settle", 64)]

    def test_batches_are_bounded(self, stumbling: Stumbling) -> None:
        """However many ask, a batch has at most 256."""
        gate = Gate(stumbling)

        async def main() -> None:
            await asyncio.gather(*(gate.arun({"id": number}, succeed) for number in range(700)))

        asyncio.run(main())
        sizes = [size for verb, size in stumbling.calls if verb == "claim"]
        assert (sum(sizes), max(sizes)) == (700, 256)

    def test_a_single_caller_does_not_wait(self, stumbling: Stumbling) -> None:
        """A batch waits for nobody: one caller alone is served at once."""
        gate = Gate(stumbling)

        async def main() -> float:
            await gate.arun({"id": "warm"}, succeed)
            start = time.perf_counter()
            for number in range(20):
                await gate.arun({"id": number}, succeed)
            return (time.perf_counter() - start) / 20

        assert asyncio.run(main()) < 0.02

    @pytest.mark.parametrize("failures", [0, 1])
    def test_ends_and_beginnings_share_a_write(self, stumbling: Stumbling, failures: int) -> None:
        """What one caller ends with and another begins with is written together; if that fails, each for itself."""
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

    def test_what_is_wrong_with_one_stops_no_other(self) -> None:
        """What has ended is written, whatever becomes of that which came at the same moment: it would run again."""

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

    def test_what_has_ended_does_not_wait(self) -> None:
        """An ending is written before the timelines of others are asked for, which can take long."""
        asked: list[str] = []

        class Noting(MemoryStore):
            def _apply(self, operations: Sequence[Any], *, admits: bool = False) -> list[Any]:
                asked.extend(type(each).__name__ for each in operations)
                return super()._apply(operations, admits=admits)

            def load(self, addresses: Sequence[Address]) -> list[Document]:
                asked.append("load")
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
        assert asked[:3] == ["Claim", "Complete", "load"]

    def test_a_store_that_breaks(self, stumbling: Stumbling, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error that no store should raise reaches every caller of the batch, and the gate goes on."""
        gate = Gate(stumbling)

        def broken(requests: object) -> None:
            raise ZeroDivisionError

        async def main() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(stumbling, "claim", broken)
                asked = [gate.arun({"id": number}, succeed) for number in range(3)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
            assert (await gate.arun({"id": 1}, succeed)).status == "processed"

        asyncio.run(main())


class TestBackPressure:
    def test_max_in_hand(self, store: MemoryStore) -> None:
        """No more than max_in_hand are claimed or run at a time; the others wait, and all are served."""
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
        """No more than `threads` plain handlers run at a time."""
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

    def test_a_cancelled_caller_frees_its_place(self, store: MemoryStore) -> None:
        """Who gives up while waiting for a place takes none, and who held one gives it back."""
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
    """A store that has claimed, and answers only when it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def claim(self, requests: Any) -> Any:
        verdicts = super().claim(requests)
        self.asked.set()
        self.go_on.wait(10)
        return verdicts


class TestCancellation:
    def test_while_an_async_handler_runs(self, gate: Gate) -> None:
        """The handler is cancelled with its caller, and the event released with its attempt counted."""
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

    def test_it_never_buries(self, store: MemoryStore) -> None:
        """A caller that goes away at the last attempt is no fault of the event; if it comes again, it is told why that
        is not run."""
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
        """A thread cannot be stopped: it runs on under its claim, and its effect is recorded."""
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
        """A claim that is granted to a caller who has left is given back, and its attempt with it."""
        slow = SlowClaims()
        gate = Gate(slow)

        async def main() -> None:
            task = asyncio.create_task(gate.arun({"id": 1}, fail))
            await asyncio.to_thread(slow.asked.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            slow.go_on.set()
            assert await asyncio.to_thread(eventually, lambda: state(gate) == (RELEASED, 0, None))

        asyncio.run(main())

    def test_when_the_loop_is_gone(self) -> None:
        """Also if the whole loop has ended before the answer comes."""
        slow = SlowClaims()
        gate = Gate(slow)

        async def main() -> None:
            task = asyncio.create_task(gate.arun({"id": 1}, fail))
            while not slow.asked.is_set():
                await asyncio.sleep(0.005)
            task.cancel()

        asyncio.run(main())
        slow.go_on.set()
        assert eventually(lambda: state(gate) == (RELEASED, 0, None))

    def test_before_a_thread_is_free(self, store: MemoryStore) -> None:
        """A plain handler that has not begun is given back unstarted."""
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
        """What was marked as done and then cancelled is kept as a dead letter."""
        gate = Gate(store, mode="mark_first")

        async def hang(event: Event) -> None:
            await asyncio.sleep(30)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gate.arun({"id": 1}, hang), 0.05)

        asyncio.run(main())
        assert eventually(lambda: len(store.dead_letters()) == 1)

    def test_after_it_was_woken(self) -> None:
        """A caller cancelled in the very turn in which its claim was answered gives it back, whatever the mode."""
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

    def test_a_handler_that_cancels_itself(self, gate: Gate) -> None:
        """A CancelledError that nobody asked for is a failure of the handler, and its caller lives on."""

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
        """What a thread is still at when the gate is closed, or the process ends, is recorded all the same."""
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
        """What comes while others are waited for runs, too, and no caller is told of a pool that is shut down."""
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
    @pytest.mark.parametrize("wishes", [{"max_attempts": 1}, {"max_in_hand": 1}, {"max_attempts": 2}])
    def test_a_handler_that_asks_its_own_gate(self, store: MemoryStore, wishes: Any) -> None:
        """A handler may take other events through the gate it runs in: it does not wait for its own end."""
        gate = Gate(store, **wishes)

        async def outer(event: Event) -> str:
            inner = await gate.arun({"id": f"inner of {event.id}"}, succeed)
            return inner.status

        async def main() -> list[Any]:
            async with asyncio.timeout(10):
                return await asyncio.gather(*(gate.arun({"id": number}, outer) for number in range(5)))

        assert [outcome.result for outcome in asyncio.run(main())] == ["processed"] * 5

    @pytest.mark.parametrize("how", ["in_a_loop_of_its_own", "in_the_same_loop"])
    def test_a_plain_handler_that_asks_its_own_gate(self, how: str) -> None:
        """A plain one may do so too, from a loop of its own or its caller's, though it has the only thread."""
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
    def test_a_thread_that_comes_too_late(self, store: MemoryStore, clock: ManualClock) -> None:
        """A plain handler that waited for a thread until its lease was over does not start any more."""
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

    def test_an_async_handler_is_cancelled(self, store: MemoryStore) -> None:
        """When the claim is another's, the handler is cancelled and its caller told; the caller itself lives on."""
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

    def test_a_plain_handlers_settle_is_discarded(self, store: MemoryStore) -> None:
        """A thread cannot be cancelled, but what it tries to record is refused."""
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

    def test_a_store_that_is_away_for_a_lease(self, stumbling: Stumbling) -> None:
        """A claim that could not be renewed for its whole length may be another's: its handler is cancelled."""
        gate = Gate(stumbling, lease="90ms")
        stumbling.failures = {"renew": 100}

        async def hang(event: Event) -> None:
            await asyncio.sleep(30)

        async def main() -> None:
            outcome = await gate.arun({"id": 1}, hang)
            assert outcome.status == "failed"
            assert "its claim was lost while the handler ran" in outcome.reason

        asyncio.run(main())

    def test_a_handler_that_will_not_be_cancelled(self, store: MemoryStore) -> None:
        """If it goes on to the end all the same, the store judges what it did."""
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
        """A grant whose reply took as long as the lease is given back unrun."""
        boot = ManualClock(0)
        gate = Gate(store, boot=lambda: boot.advance("30s") or boot.now)  # type: ignore[func-returns-value]

        async def main() -> None:
            assert (await gate.arun({"id": 1}, fail)).status == "in_flight"

        asyncio.run(main())
        assert state(gate) == (RELEASED, 0, None)


class TestAlone:
    def test_a_suspect_runs_alone(self, store: MemoryStore, clock: ManualClock) -> None:
        """While an event runs that its last worker did not come back from, no other runs, and those before it are
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

    def test_a_failure_that_is_recorded_does_not(self, store: MemoryStore) -> None:
        """A last attempt after failures runs beside others."""
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
    def test_what_hangs_stops_nobody(self, store: MemoryStore, clock: ManualClock, hangs: str) -> None:
        """A suspect that cannot be alone is given back, and others go on; nor do they wait for good for one."""
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

    def test_giving_up_the_wait_for_it(self, store: MemoryStore, clock: ManualClock) -> None:
        """A caller that is cancelled while it waits to be alone holds up nobody."""
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
    def test_a_poison_event_takes_no_neighbour_with_it(self, tmp_path: Path, max_attempts: int) -> None:
        """An event that kills its process is buried in the end, and all that ran beside it are processed."""
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


def test_on_a_file(tmp_path: Path) -> None:
    """Many callers on an SQLite file: each event once, in few writes."""
    gate = Gate(f"sqlite:///{tmp_path}/a.db")

    async def main() -> list[Any]:
        return await asyncio.gather(*(gate.arun({"id": number % 100}, succeed) for number in range(300)))

    statuses = [outcome.status for outcome in asyncio.run(main())]
    gate.close()
    assert statuses.count("processed") == 100
    assert set(statuses) <= {"processed", "in_flight", "duplicate"}


class TestLockedFile:
    """An SQLite file that another connection holds locked, while what has ended waits to be recorded."""

    def locked(self, tmp_path: Path, main: Callable[[Gate, Callable[[str], object]], Coroutine[Any, Any, Any]]) -> Any:
        """Run this with a gate on the file, and with what the other connection can be asked."""
        gate = Gate(f"sqlite:///{tmp_path}/a.db?busy_timeout=400ms")
        with closing(gate), closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            return asyncio.run(main(gate, other.execute))

    def test_new_events_do_not_wait_for_those_that_have_ended(self, tmp_path: Path) -> None:
        """A new event is told after one timeout that the file is locked, also when one came meanwhile or has ended; and
        what has ended is recorded when the file is free."""

        async def main(gate: Gate, other: Callable[[str], object]) -> None:
            async def lock(event: Event) -> None:
                other("BEGIN IMMEDIATE")

            async def told(number: int) -> float:
                start = time.monotonic()
                outcome = await gate.arun({"id": number}, succeed)
                assert (outcome.status, "locked" in outcome.reason) == ("failed", True)
                return time.monotonic() - start

            ended = asyncio.create_task(gate.arun({"id": 0}, lock))
            waited = []
            for number in range(1, 6):
                await asyncio.sleep(0.1)
                waited.append(asyncio.create_task(told(number)))
            assert max(await asyncio.gather(*waited)) < 1
            assert not ended.done()
            other("ROLLBACK")
            assert (await ended).status == "processed"

        self.locked(tmp_path, main)

    def test_what_cannot_be_recorded(self, tmp_path: Path) -> None:
        """What has ended is tried for several timeouts, and has failed then, with the reason."""

        async def main(gate: Gate, other: Callable[[str], object]) -> None:
            async def lock(event: Event) -> None:
                other("BEGIN IMMEDIATE")

            start = time.monotonic()
            outcome = await gate.arun({"id": 0}, lock)
            assert (outcome.status, "did not confirm it" in outcome.reason) == ("failed", True)
            assert time.monotonic() - start > 4 * 0.4
            other("ROLLBACK")

        self.locked(tmp_path, main)

    def test_closing_waits_for_what_is_tried_again(self, tmp_path: Path) -> None:
        """What has ended for a caller that is gone is recorded before the gate is closed."""
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

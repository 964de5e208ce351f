"""Leases: renewed while the handler runs, and never relied on after their end."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.claims import Renew, Settlement
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling


def succeed(event: Event) -> str:
    return "done"


def outlives_its_lease(gate: Gate, number: int) -> bool:
    """Whether a handler that takes longer than its lease keeps its claim, and completes."""
    others = []

    def slow(event: Event) -> None:
        time.sleep(0.5)
        others.append(gate.run({"id": number}, succeed).status)

    return gate.run({"id": number}, slow).status == "processed" and others == ["in_flight"]


def heartbeats() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "oncegate-heartbeat"}


def have_ended(before: set[threading.Thread]) -> bool:
    """Wait until the heartbeat threads that were not there before have ended."""
    deadline = time.monotonic() + 5
    while heartbeats() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    return not heartbeats() - before


def _no_room(_thread: threading.Thread) -> None:
    raise RuntimeError("no room for another thread")


class TestHeartbeat:
    def test_long_handler_keeps_its_claim(self) -> None:
        """The event of a handler that takes several leases is not granted to others, and completes."""
        gate = Gate("memory://", lease="150ms")
        others = []

        def slow(event: Event) -> None:
            for _ in range(6):
                time.sleep(0.1)
                others.append(gate.run({"id": 1}, succeed).status)

        assert gate.run({"id": 1}, slow).status == "processed"
        assert others == ["in_flight"] * 6

    def test_whole_batch_is_renewed(self) -> None:
        """While one event of a batch takes long, the leases of those after it are renewed, too."""
        gate = Gate("memory://", lease="150ms")

        def slow(event: Event) -> int:
            time.sleep(0.2)
            return event.attempt

        outcomes = gate.run_batch([{"id": number} for number in range(4)], slow)
        assert [(outcome.status, outcome.result) for outcome in outcomes] == [("processed", 1)] * 4

    def test_failed_renewal_is_retried(self, stumbling: Stumbling) -> None:
        """One failed renewal does not lose the lease: two thirds of it are left."""
        stumbling.failures = {"renew": 1}
        gate = Gate(stumbling, lease="300ms")
        assert outlives_its_lease(gate, 1)

    def test_broken_thread_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the heartbeat thread has ended by an error, the next lease starts another."""
        monkeypatch.setattr(threading, "excepthook", lambda _told: None)
        before = heartbeats()
        store = MemoryStore()
        gate = Gate(store, lease="150ms")
        renew = store.renew
        broken = threading.Event()

        def breaks(leases: Sequence[Renew]) -> list[bool]:
            broken.set()
            raise ZeroDivisionError

        monkeypatch.setattr(store, "renew", breaks)
        gate.run({"id": 1}, lambda _event: broken.wait(5))
        assert have_ended(before)
        monkeypatch.setattr(store, "renew", renew)
        assert outlives_its_lease(gate, 2)

    def test_thread_that_could_not_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If no thread can be started, the caller gets the error; the next lease tries again."""
        gate = Gate("memory://", lease="150ms")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_room)
            with pytest.raises(RuntimeError, match="no room"):
                gate.run({"id": 1}, succeed)
        assert outlives_its_lease(gate, 2)

    def test_max_hold(self) -> None:
        """The lease of a handler that hangs is renewed for `max_hold`; then another worker takes over, and the first
        has lost its claim."""
        gate = Gate("memory://", lease="100ms", max_hold="200ms")
        second = []

        def hangs(event: Event) -> None:
            time.sleep(0.6)
            second.append(Gate(gate.store).run({"id": 1}, succeed))

        outcome = gate.run({"id": 1}, hangs)
        assert [(other.status, other.event.attempt) for other in second] == [("processed", 1)]
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "lost to another worker" in outcome.reason

    def test_granted_again_to_the_same_process(self, store: MemoryStore, clock: ManualClock) -> None:
        """An event whose lease ended while its handler runs is not started by another thread of the process. The
        running handler gets the new grant, and completes it."""
        gate, attempts, others = Gate(store), [], []

        def slow(event: Event) -> str:
            attempts.append(event.attempt)
            clock.advance("31s")
            with ThreadPoolExecutor(1) as thread:
                others.append(thread.submit(gate.run_batch, [{"id": 1}, {"id": 2}], succeed).result()[0])
            return "done"

        outcome = gate.run({"id": 1}, slow)
        assert (outcome.status, outcome.result, attempts) == ("processed", "done", [1])
        assert [other.reason for other in others] == [
            "Not run: its handler still runs in this process; deliver it again."
        ]
        assert gate.run({"id": 1}, slow).status == "duplicate"

    def test_granted_again_during_settlement(self, clock: ManualClock) -> None:
        """Also if the store grants it again just before the settlement arrives."""

        class Late(MemoryStore):
            def settle(self, settlements: Any) -> Any:
                if calls == ["ran"]:
                    clock.advance("31s")
                    calls.append(gate.run({"id": 1}, succeed).status)
                return super().settle(settlements)

        def effect(event: Event) -> None:
            calls.append("ran")

        calls: list[str] = []
        gate = Gate(Late(clock=clock))
        outcome = gate.run({"id": 1}, effect)
        assert (outcome.status, calls) == ("processed", ["ran", "in_flight"])

    def test_thread_ends(self) -> None:
        """Without leases to renew the thread ends, so that it does not delay a shutdown or a freeze."""
        before = heartbeats()
        gate = Gate("memory://", lease="50ms")
        gate.run({"id": 1}, lambda event: time.sleep(0.06))
        assert len(heartbeats() - before) == 1
        assert have_ended(before)


class TestForks:
    def test_child_does_not_renew_leases_of_its_parent(self) -> None:
        """The heartbeat of a forked child starts without leases."""
        code = """
            import os, time
            from oncegate import Gate
            from oncegate.stores.memory import MemoryStore

            class Watched(MemoryStore):
                def renew(self, leases):
                    renewed.update(lease.key for lease in leases)
                    return super().renew(leases)

            def until_renewed(event):
                end = time.monotonic() + 10
                while not renewed and time.monotonic() < end:
                    time.sleep(0.01)

            def handler(event):
                until_renewed(event)
                child = os.fork()
                if child == 0:
                    renewed.clear()
                    gate.run({"id": "child"}, until_renewed)
                    os._exit(len(renewed))
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

            renewed = set()
            gate = Gate(Watched(), lease="300ms")
            gate.run({"id": "parent"}, handler)
            """
        done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "1", done


class TestValidity:
    def test_no_effect_starts_after_the_lease(self, store: MemoryStore) -> None:
        """Events of a batch that cannot start before the lease ends are not started, and lose no attempt."""
        boot = ManualClock(0)
        gate = Gate(store, lease="30s", boot=boot)
        seen = []

        def slow(event: Event) -> None:
            seen.append(event.id)
            boot.advance("30s")

        outcomes = gate.run_batch([{"id": 1}, {"id": 2}], slow)
        assert [outcome.status for outcome in outcomes] == ["processed", "in_flight"]
        assert "before the handler could start" in outcomes[1].reason
        assert not outcomes[1].acked
        again = gate.run({"id": 2}, slow)
        assert (again.status, again.event.attempt) == ("processed", 1)
        assert seen == ["1", "2"]

    def test_validity_counts_from_before_the_request(self, clock: ManualClock) -> None:
        """A grant whose answer took as long as the lease is not used."""
        boot = ManualClock(0)

        class Slow(MemoryStore):
            def claim(self, requests):  # type: ignore[no-untyped-def]
                verdicts = super().claim(requests)
                boot.advance("30s")
                return verdicts

        gate = Gate(Slow(clock=clock), lease="30s", boot=boot)
        assert gate.run({"id": 1}, succeed).status == "in_flight"

    def test_taken_over_while_running(self, store: MemoryStore, clock: ManualClock) -> None:
        """A worker whose claim was taken over gets a failure at the end, and does not acknowledge."""
        gate = Gate(store)

        def overtaken(event: Event) -> None:
            clock.advance("30s")
            assert gate.run({"id": 1}, succeed).event.attempt == 2

        outcome = gate.run({"id": 1}, overtaken)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert gate.run({"id": 1}, succeed).result == "done"


def test_released_and_granted_again_at_once() -> None:
    """An event that is granted again before the answer to its release is known does not stay claimed."""
    store = MemoryStore()
    settle, applied, go_on = store.settle, threading.Event(), threading.Event()

    def slow_to_answer(settlements: Sequence[Settlement]) -> list[bool]:
        answers = settle(settlements)
        if not applied.is_set():
            applied.set()
            go_on.wait(10)
        return answers

    store.settle = slow_to_answer  # type: ignore[method-assign]
    gate = Gate(store)

    def fail(event: Event) -> None:
        raise ValueError("first")

    first = threading.Thread(target=gate.run, args=({"id": "evt-1"}, fail))
    first.start()
    assert applied.wait(10)
    assert gate.run({"id": "evt-1"}, lambda event: None).status == "in_flight"
    go_on.set()
    first.join()
    assert gate.run({"id": "evt-1"}, lambda event: None).status == "processed"

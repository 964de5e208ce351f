"""The sync runner: failing handlers, interrupts, events that run alone, and waiting events."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from oncegate import Event, Gate, read
from oncegate.claims import COMPLETED, DEAD, RELEASED, Redrive
from oncegate.gate.job import Job
from oncegate.gate.leases import Heartbeat
from oncegate.gate.limiter import HandlerRuns
from oncegate.gate.settlement import SettlementFlusher
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling, left_by_another


def fail(event: Event) -> None:
    raise ValueError(f"no such case: {event.id}")


def succeed(event: Event) -> str:
    return f"did {event.id}"


class TestFailingHandlers:
    def test_released_with_its_error(self, gate: Gate) -> None:
        """A failing event is released with the text of the error, is not acknowledged, and runs again."""
        outcome = gate.run({"id": 7}, fail)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert outcome.error == "ValueError: no such case: 7"
        (entry,) = gate.store.browse()
        assert (entry.record.state, entry.record.error) == (RELEASED, "ValueError: no such case: 7")
        again = gate.run({"id": 7}, succeed)
        assert (again.status, again.event.attempt) == ("processed", 2)

    def test_buried_at_the_last_attempt(self, store: MemoryStore) -> None:
        """A failure at the last attempt buries the event at once, with payload and error, and acknowledges it."""
        gate = Gate(store, max_attempts=3)
        outcomes = [gate.run({"id": 7}, fail) for _ in range(4)]
        assert [outcome.status for outcome in outcomes] == ["failed", "failed", "buried", "buried"]
        assert [outcome.event.attempt for outcome in outcomes] == [1, 2, 3, 0]
        assert outcomes[2].acked
        (entry,) = store.dead_letters()
        assert (entry.record.payload, entry.record.error) == (b'{"id":7}', "ValueError: no such case: 7")

    def test_dead_letter_has_the_delivered_bytes(self, store: MemoryStore) -> None:
        """A dead letter holds the bytes of the delivery."""
        Gate(store, max_attempts=1).run(b' { "id" : 7.0 } ', fail)
        assert store.dead_letters()[0].record.payload == b' { "id" : 7.0 } '

    def test_changed_body(self, store: MemoryStore) -> None:
        """A dead letter holds what was delivered, even if the handler has changed the body; no exception escapes."""

        def spoils(event: Event) -> None:
            event.body.clear()
            event.body["handle"] = object()
            fail(event)

        outcomes = Gate(store, max_attempts=1).run_batch([{"id": 1, "amount": 5}, {"id": 2}], spoils)
        assert [outcome.status for outcome in outcomes] == ["buried", "buried"]
        assert sorted(entry.record.payload or b"" for entry in store.dead_letters()) == [
            b'{"amount":5,"id":1}',
            b'{"id":2}',
        ]

    def test_no_max_attempts(self, store: MemoryStore) -> None:
        """With max_attempts=None nothing is buried, however often it fails."""
        gate = Gate(store, max_attempts=None)
        assert {gate.run({"id": 7}, fail).status for _ in range(20)} == {"failed"}
        assert store.dead_letters() == []

    def test_grant_beyond_the_last_attempt(self, store: MemoryStore, clock: ManualClock) -> None:
        """An event whose worker never returned from its attempts is buried without another run."""
        outcomes = []

        def oversleep(event: Event) -> None:
            clock.advance("31s")
            outcomes.append(Gate(store, max_attempts=2).run({"id": 7}, oversleep))

        Gate(store, max_attempts=2).run({"id": 7}, oversleep)
        outcome = outcomes[0]
        assert (outcome.status, outcome.event.attempt) == ("buried", 3)
        why = "its worker died, or was stopped for longer than its lease, 2 times while it ran alone"
        assert outcome.reason == f"Buried as dead letter {outcome.key} after 2 attempts: {why}."
        assert len(store.dead_letters()) == 1

    def test_grant_beyond_the_last_attempt_has_the_last_error(self, store: MemoryStore) -> None:
        """If the record has an error, the dead letter quotes it; the log does not."""

        def die(event: Event) -> None:
            raise SystemExit("a secret")

        for _ in range(2):
            with pytest.raises(SystemExit):
                Gate(store, max_attempts=None).run({"id": 7}, die)
        outcome = Gate(store, max_attempts=2).run({"id": 7}, succeed)
        why = "no attempt is left after attempt 2; the last error on record: SystemExit: a secret"
        assert outcome.reason == f"Buried as dead letter {outcome.key} after 2 attempts: {why}."
        assert outcome.discreet == f"Buried as dead letter {outcome.key} after 2 attempts: see its record."
        assert [entry.record.error for entry in store.dead_letters()] == [why]

    @pytest.mark.parametrize("error", [ValueError(), ValueError("\ud800\0"), ValueError("x" * 10_000)])
    def test_error_texts(self, gate: Gate, error: Exception) -> None:
        """Every error text can be stored; a long one is cut."""

        def handler(event: Event) -> None:
            raise error

        outcome = gate.run({"id": 1}, handler)
        assert outcome.error is not None
        assert outcome.error.startswith("ValueError")
        assert len(outcome.error) <= 2_000
        outcome.error.encode()

    def test_error_whose_text_raises(self, gate: Gate) -> None:
        """An exception whose str() raises is a failure like any other."""

        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("never")

        def handler(event: Event) -> None:
            raise Mute

        assert gate.run({"id": 1}, handler).status == "failed"


class TestInterrupted:
    def test_unstarted_claims_are_released(self, gate: Gate) -> None:
        """Ctrl-C in a handler is raised again; finished events are completed, and events that never started are
        released without an attempt."""

        def interrupted(event: Event) -> str:
            if event.id == "2":
                raise KeyboardInterrupt
            return succeed(event)

        with pytest.raises(KeyboardInterrupt):
            gate.run_batch([{"id": number} for number in (1, 2, 3, 4)], interrupted)
        records = {entry.record.about.delivery_id: entry.record for entry in gate.store.browse()}
        assert {name: record.state for name, record in records.items()} == {"1": "C", "2": "R", "3": "R", "4": "R"}
        assert {name: record.attempts for name, record in records.items()} == {"1": 1, "2": 1, "3": 0, "4": 0}
        assert records["2"].error == "KeyboardInterrupt"
        outcomes = gate.run_batch([{"id": number} for number in (1, 2, 3, 4)], succeed)
        assert [outcome.status for outcome in outcomes] == ["duplicate", "processed", "processed", "processed"]

    def test_while_the_lease_is_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C just before a handler: the lease is not renewed any more, and ends."""
        gate = Gate("memory://", lease="200ms")
        with pytest.raises(KeyboardInterrupt), interrupted_after(monkeypatch, Heartbeat, "hold"):
            gate.run({"id": 1}, succeed)
        time.sleep(0.4)
        assert gate.run({"id": 1}, succeed).status == "processed"

    def test_while_a_batch_begins(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C just before the first handler of a batch: no event loses an attempt, and the flusher has no buffer
        left."""
        with pytest.raises(KeyboardInterrupt), interrupted_after(monkeypatch, SettlementFlusher, "begin"):
            gate.run_batch([{"id": 1}, {"id": 2}], succeed)
        assert [(entry.record.state, entry.record.attempts) for entry in gate.store.browse()] == [(RELEASED, 0)] * 2
        assert gate._engine.runner._flusher._buffers == {}

    @pytest.mark.parametrize("together", [False, True])
    def test_while_a_suspect_begins(
        self, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, together: bool
    ) -> None:
        """Ctrl-C just before an event that must run alone: nothing else in the process waits for it."""
        left_by_another(store, clock, {"id": 1})
        gate = Gate(store)
        payloads = [{"id": 1}, {"id": 3}] if together else [{"id": 1}]
        with pytest.raises(KeyboardInterrupt), interrupted_after(monkeypatch, HandlerRuns, "enqueue"):
            gate.run_batch(payloads, succeed)
        assert _in_thread(lambda: gate.run({"id": 4}, succeed).status == "processed")
        clock.advance("31s")
        assert gate.run({"id": 1}, succeed).status == "processed"


@contextmanager
def interrupted_after(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Iterator[None]:
    """Raise KeyboardInterrupt when this method has done its work; Ctrl-C can do that at any instruction."""
    method = getattr(kind, name)

    def struck(*arguments: Any, **named: Any) -> None:
        method(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, struck)
        yield


def _in_thread(ask: Callable[[], bool]) -> bool:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


class TestPoison:
    def test_suspects_run_alone_and_last(self, clock: ManualClock) -> None:
        """Events of a batch whose last worker did not return are claimed, run and settled one by one after the others.
        Events whose failure was settled run with the others."""
        stumbling, order = Stumbling(clock=clock), []
        gate = Gate(stumbling)
        gate.run({"id": "failed"}, fail)
        left_by_another(stumbling, clock, {"id": "lost"}, {"id": "lost too"})
        stumbling.calls.clear()

        def handler(event: Event) -> None:
            order.append((event.id, event.attempt))

        names = ["lost", "new", "failed", "lost too", "newer"]
        outcomes = gate.run_batch([{"id": name} for name in names], handler)
        assert [outcome.status for outcome in outcomes] == ["processed"] * 5
        assert order == [("new", 1), ("failed", 2), ("newer", 1), ("lost", 1), ("lost too", 1)]
        batches = [("claim", 5), ("settle", 2), ("settle", 3)]
        assert stumbling.calls == [*batches, ("claim", 1), ("settle", 1), ("claim", 1), ("settle", 1)]

    def test_poison_event_in_a_batch(self, tmp_path: Path) -> None:
        """An event that kills its process at every attempt is buried, and no other event of its batch is; each runs
        once."""
        url, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"
        code = f"""
            import os
            from oncegate import Gate
            def handler(event):
                with open({str(log)!r}, "a") as file:
                    file.write(event.id + "\\n")
                if event.id == "poison":
                    os._exit(9)
            gate = Gate({url!r}, max_attempts=3, lease="50ms")
            outcomes = gate.run_batch([{{"id": name}} for name in ("a", "b", "poison", "c", "d")], handler)
            print(*(outcome.status for outcome in outcomes))
            """
        ended = []
        for _ in range(12):
            done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60)
            ended.append(done.returncode)
            if done.returncode == 0:
                break
        assert ended == [9, 9, 9, 9, 0]
        assert set(done.stdout.split()) <= {"duplicate", "processed", "buried"}
        ran = log.read_text().split()
        assert ran.count("poison") == 4  # the first attempt ran beside others, and does not count
        # The first kill can come before the completions of "a" and "b" are flushed; nothing else can run twice.
        assert all(ran.count(name) == 1 for name in ("c", "d"))
        assert all(1 <= ran.count(name) <= 2 for name in ("a", "b"))
        gate = Gate(url)
        assert [entry.record.about.delivery_id for entry in gate.store.dead_letters()] == ["poison"]
        gate.close()

    def test_poison_event_beside_another_thread(self, tmp_path: Path) -> None:
        """An event that kills its process at every attempt is buried, but not the event that ran beside it in another
        thread."""
        url = f"sqlite:///{tmp_path}/store.db"
        code = f"""
            import os, sys, threading, time
            from oncegate import Gate
            def handler(event):
                time.sleep(0.05)
                if event.id == "poison":
                    os._exit(9)
                time.sleep(0.05)
            gate, outcomes = Gate({url!r}, max_attempts=3, lease="150ms"), []
            def run(name):
                outcomes.append(gate.run({{"id": name}}, handler))
            threads = [threading.Thread(target=run, args=(name,)) for name in ("poison", "innocent")]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            sys.exit(0 if all(outcome.acked for outcome in outcomes) else 1)
            """
        for _ in range(12):
            done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60)
            if done.returncode == 0:
                break
            time.sleep(0.2)
        gate = Gate(url)
        states = {entry.record.about.delivery_id: entry.record.state for entry in gate.store.browse()}
        gate.close()
        assert states == {"poison": DEAD, "innocent": COMPLETED}

    def test_hung_handler_does_not_stop_other_retries(self, gate: Gate) -> None:
        """A second attempt does not wait for a handler that hangs in another thread; nor does an event that a handler
        runs itself."""
        gate.run_batch([{"id": name} for name in ("slow", "other", "nested")], fail)
        begun, go_on = threading.Event(), threading.Event()

        def hang(event: Event) -> None:
            assert gate.run({"id": "nested"}, succeed).status == "processed"
            begun.set()
            go_on.wait(10)

        thread = threading.Thread(target=gate.run, args=({"id": "slow"}, hang))
        thread.start()
        assert begun.wait(0.9)
        outcome = gate.run({"id": "other"}, succeed)
        go_on.set()
        thread.join()
        assert (outcome.status, outcome.event.attempt) == ("processed", 2)


class TestWaiting:
    def buried(self, store: MemoryStore, *names: str) -> None:
        gate = Gate(store, max_attempts=1)
        for name in names:
            assert gate.run({"id": name}, fail).status == "buried"
        store.redrive([Redrive(entry.namespace, entry.key) for entry in store.dead_letters()])

    def test_redriven_events_run(self, store: MemoryStore) -> None:
        """A redriven dead letter runs with its own payload under its own key; after that it is a duplicate."""
        gate = Gate(store)
        seen: list[Event] = []
        self.buried(store, "a", "b")
        assert gate.run({"id": "a"}, seen.append).status == "duplicate"
        outcomes = gate.run_waiting(seen.append)
        assert [outcome.status for outcome in outcomes] == ["processed", "processed"]
        assert sorted(event.id or "" for event in seen) == ["a", "b"]
        assert [event.attempt for event in seen] == [1, 1]
        assert gate.run({"id": "a"}, seen.append).status == "duplicate"
        assert gate.run_waiting(seen.append) == []

    def test_failing_event_does_not_stop_others(self, store: MemoryStore, clock: ManualClock) -> None:
        """Each call tries each waiting event once. An event that fails waits for its backoff, and is buried in the
        end."""
        self.buried(store, "a", "b", "c")
        gate = Gate(store, max_attempts=2)

        def handler(event: Event) -> None:
            clock.advance(1)
            if event.id == "b":
                fail(event)

        first = {outcome.event.id: outcome.status for outcome in gate.run_waiting(handler)}
        assert first == {"a": "processed", "b": "failed", "c": "processed"}
        assert gate.run({"id": "b"}, handler).status == "duplicate"
        assert gate.run_waiting(handler) == [], "it waits for its backoff"
        clock.advance(1_000_000)
        assert [outcome.status for outcome in gate.run_waiting(handler)] == ["buried"]
        assert gate.run_waiting(handler) == []

    def test_limit(self, store: MemoryStore) -> None:
        """One call runs at most `limit` events."""
        self.buried(store, "a", "b", "c")
        assert len(Gate(store).run_waiting(succeed, limit=2)) == 2
        assert len(Gate(store).run_waiting(succeed, limit=2)) == 1

    def test_unreadable_event_is_buried_again(self, gate: Gate) -> None:
        """A redriven event that cannot be read becomes a dead letter again, without a run."""
        payloads: list[Any] = [b"{", "[[1, 2]]", [[{"id": "nested"}]], object()]
        gate.keep(gate.run_batch(payloads, succeed))
        gate.store.redrive([Redrive(entry.namespace, entry.key) for entry in gate.store.dead_letters()])
        outcomes = gate.run_waiting(succeed)
        assert [outcome.status for outcome in outcomes] == ["buried"] * 4
        assert len(gate.store.dead_letters()) == 4


class LambdaContext:
    """The context of a Lambda invocation; the time left comes from a clock of the test."""

    aws_request_id = "req-1"

    def __init__(self, clock: ManualClock, milliseconds: int) -> None:
        self._clock = clock
        self._end = clock() + milliseconds * 1_000

    def get_remaining_time_in_millis(self) -> int:
        return (self._end - self._clock()) // 1_000


class TestStartBy:
    """Jobs that must not start after a given time."""

    @pytest.mark.parametrize(("took", "starts"), [(8_999, True), (9_000, False), (9_500, False)])
    def test_mark_first(self, clock: ManualClock, took: int, starts: bool) -> None:
        """In mark_first mode, a job whose `start_by` passed while the store marked it is not started. It is a dead
        letter: its copies are duplicates, so no redelivery would run it."""

        class Slow(MemoryStore):
            slow = True

            def claim(self, requests: Any) -> Any:
                if self.slow:
                    self.slow = False
                    clock.advance(took * 1_000)
                return super().claim(requests)

        store, ran = Slow(clock=clock), list[str | None]()
        handle = Gate(store, boot=clock, mode="mark_first").lambda_handler(lambda event: ran.append(event.id))
        answer = handle({"id": "evt-1"}, LambdaContext(clock, 10_000))  # 1 s of 10 s is the reserve
        assert answer["statusCode"] == 200
        assert ran == (["evt-1"] if starts else [])
        letters = [(entry.record.payload, entry.record.error) for entry in store.dead_letters()]
        assert letters == ([] if starts else [(b'{"id":"evt-1"}', "it was marked as done but never started")])
        assert Gate(store, mode="mark_first").run({"id": "evt-1"}, succeed).status == "duplicate"

    @pytest.mark.parametrize("is_lost", [False, True])
    @pytest.mark.parametrize("start_by", [99, 100, 101])
    @pytest.mark.parametrize("valid_until", [99, 100, 101])
    @pytest.mark.parametrize("mode", ["lease", "mark_first"])
    def test_same_rule_as_may_start(self, mode: Any, valid_until: int, start_by: int, is_lost: bool) -> None:
        """A runner starts a handler exactly if `Job.may_start` allows it. The loop of a batch repeats that rule: a call
        would slow the loop down."""
        gate, ran = Gate("memory://", mode=mode, boot=lambda: 100), list[str | None]()
        (job,) = (gate._identify(event) for event in read({"id": "evt-1"}))
        assert isinstance(job, Job)
        gate._engine.claimer.claim([job])
        job.lease.valid_until, job.start_by, job.lease.lost = valid_until, start_by, is_lost
        may_start = job.may_start(100)
        gate._engine.runner.run([job], lambda event: ran.append(event.id))
        assert ran == (["evt-1"] if may_start else [])

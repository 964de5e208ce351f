"""Settlement: what a handler's result or error means, and settlements that the store does not confirm at once."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS
from oncegate.errors import Bury, RetryLater
from oncegate.gate import async_runner
from oncegate.ingress.http_answers import answer_of
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling
from tests.stores.redis_server import RedisServer

PAYLOAD = {"id": "7"}


class Lock:
    """Another program that locks an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.close = self._db.close

    def take(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def release_held(self) -> None:
        self._db.execute("ROLLBACK")

    @property
    def state(self) -> str:
        ((state,),) = self._db.execute("SELECT state FROM claims").fetchall()
        return str(state)

    def until(self, state: str) -> None:
        deadline = time.monotonic() + 5
        while self.state != state and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.state == state


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db?busy_timeout=30ms"


@pytest.fixture
def lock(tmp_path: Path, url: str) -> Iterator[Lock]:
    Gate(url).close()
    with closing(Lock(tmp_path / "a.db")) as lock:
        yield lock


class Effect:
    """A handler during which another program locks the file."""

    def __init__(self, lock: Lock, error: Exception | None = None) -> None:
        self.lock = lock
        self.error = error
        self.count = 0

    def __call__(self, event: Event) -> str:
        self.count += 1
        self.lock.take()
        if self.error is not None:
            raise self.error
        return "done"


def run(gate: Gate, effect: Effect) -> Outcome:
    return gate.run(PAYLOAD, effect)


def arun(gate: Gate, effect: Effect) -> Outcome:
    return asyncio.run(gate.arun(PAYLOAD, effect))


class TestOutages:
    @pytest.mark.parametrize("run_once", [run, arun])
    @pytest.mark.parametrize("ends", [COMPLETED, DEAD])
    def test_shorter_than_the_lease(
        self, url: str, lock: Lock, run_once: Callable[[Gate, Effect], Outcome], ends: str
    ) -> None:
        """The caller gets a failure, but the settlement is recorded when the store is back, and the event does not run
        again."""
        effect = Effect(lock, None if ends == COMPLETED else ValueError("no"))
        with closing(Gate(url, max_attempts=1)) as gate:
            outcome = run_once(gate, effect)
            assert (outcome.status, "did not confirm" in outcome.reason) == ("failed", True)
            lock.release_held()
            lock.until(ends)
            assert gate.run(PAYLOAD, effect).status == ("duplicate" if ends == COMPLETED else "buried")
        assert effect.count == 1

    def test_of_an_inbox(self, url: str, lock: Lock) -> None:
        """A stored event that has run is not taken and run again."""
        effect = Effect(lock)

        async def main() -> None:
            worker = gate.inbox(effect, look="10ms")
            work = asyncio.create_task(worker.work())
            async with asyncio.timeout(5):
                while not worker.figures.failed:
                    await asyncio.sleep(0.01)
            lock.release_held()
            await asyncio.to_thread(lock.until, COMPLETED)
            worker.stop()
            await work

        with closing(Gate(url)) as gate:
            gate.admit([PAYLOAD])
            asyncio.run(main())
        assert effect.count == 1

    def test_longer_than_the_lease(self, url: str, lock: Lock) -> None:
        """The settlement is given up when the lease ends, because another worker may be granted the event: the next
        delivery runs it again."""
        effect = Effect(lock)
        with closing(Gate(url, lease="1s")) as gate:
            before = _trying()
            assert gate.run(PAYLOAD, effect).status == "failed"
            assert len(_trying() - before) == 1
            time.sleep(1.3)
            assert _trying() <= before
            lock.release_held()
            time.sleep(0.1)
            assert lock.state == IN_PROGRESS
            again = gate.run(PAYLOAD, lambda event: "again")
        assert (again.status, again.result, again.event.attempt) == ("processed", "again", 1)

    def test_of_a_server(self, tmp_path: Path) -> None:
        """A Redis server that is killed while a handler runs, and comes back: the event runs once."""
        server = RedisServer(tmp_path, "--appendfsync", "always")
        effects = []

        def effect(event: Event) -> None:
            effects.append(event)
            server.kill()

        try:
            with closing(Gate(server.url, remember=None)) as gate:
                assert gate.run(PAYLOAD, effect).status == "failed"
                server.start()
                server.wait()
                deadline = time.monotonic() + 10
                while (outcome := gate.run(PAYLOAD, effects.append)).status != "duplicate":
                    assert outcome.status in ("in_flight", "failed")
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
        finally:
            server.stop()
        assert len(effects) == 1


class TestEnds:
    """A gate is closed, or a process ends, while a settlement is not confirmed."""

    def test_closing_waits(self, url: str, lock: Lock) -> None:
        """The settlement is recorded before the gate is closed, if the store comes back meanwhile."""
        gate = Gate(url)
        gate.run(PAYLOAD, Effect(lock))
        threading.Timer(0.2, lock.release_held).start()
        gate.close()
        assert lock.state == COMPLETED

    @pytest.mark.parametrize("run_once", [run, arun])
    def test_closing_has_a_bound(self, url: str, lock: Lock, run_once: Callable[[Gate, Effect], Outcome]) -> None:
        """If the store does not come back, the gate is closed when the lease is over."""
        gate = Gate(url, lease="1s")
        start = time.monotonic()
        run_once(gate, Effect(lock))
        gate.close()
        assert time.monotonic() - start < 5

    def test_closed(self, url: str, lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
        """A closed store is not called any more, however long the lease still lasts."""
        monkeypatch.setattr(async_runner, "CLOSE_WITHIN", 0.2)
        before = _trying()
        gate = Gate(url)
        arun(gate, Effect(lock))
        gate.close()
        deadline = time.monotonic() + 5
        while not _trying() <= before:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_end_of_a_process(self, url: str, lock: Lock) -> None:
        """A process that closes no gate records the settlement before it ends."""
        code = f"""
            from oncegate import Gate
            def effect(event):
                print("done", flush=True)
                input()
            print(Gate({url!r}).run({PAYLOAD!r}, effect).status, flush=True)
            """
        with _started(code) as process:
            _expect(process, "done")
            lock.take()
            _say(process)
            _expect(process, "failed")
            lock.release_held()
            assert process.wait(10) == 0
        assert lock.state == COMPLETED

    def test_fork(self, url: str, lock: Lock) -> None:
        """A forked child does not retry the settlements of its parent."""
        code = f"""
            import os
            from oncegate import Gate
            gate = Gate({url!r})
            def effect(event):
                print("done", flush=True)
                input()
            gate.run({PAYLOAD!r}, effect)
            child = os.fork()
            if child == 0:
                os._exit(len(gate._engine._retrier._left))
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            """
        with _started(code) as process:
            _expect(process, "done")
            lock.take()
            _say(process)
            _expect(process, "0")
            lock.release_held()
            assert process.wait(10) == 0
        assert lock.state == COMPLETED


def test_frozen(url: str, lock: Lock) -> None:
    """A process that was frozen past its lease, as on Lambda, does not overwrite what another worker has done since."""
    code = f"""
        from oncegate import Gate
        def effect(event):
            print("done", flush=True)
            input()
        gate = Gate({url!r}, lease="1s")
        print(gate.run({PAYLOAD!r}, effect).status, flush=True)
        input()
        print(gate.run({PAYLOAD!r}, effect).result, flush=True)
        """
    with _started(code) as process:
        _expect(process, "done")
        lock.take()
        _say(process)
        _expect(process, "failed")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # all its threads: a retry may be running
        lock.release_held()
        time.sleep(1.2)
        with closing(Gate(url)) as gate:
            assert gate.run(PAYLOAD, lambda event: "another's").status == "processed"
        process.send_signal(signal.SIGCONT)
        _say(process)
        _expect(process, "another's")
        assert process.wait(10) == 0


def _trying() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "oncegate-unsettled"}


def _started(code: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", dedent(code)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _say(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _expect(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


# ── what a handler returns or raises ────────────────────────────────────────────────────────────────────


def fail(event: Event) -> None:
    raise ValueError(f"no such case: {event.id}")


def succeed(event: Event) -> str:
    return f"did {event.id}"


class TestHandlerExceptions:
    def test_retry_later(self, gate: Gate) -> None:
        """A handler that raises RetryLater with a time fails with that time, and HTTP senders get it as Retry-After."""

        def busy(event: Event) -> None:
            raise RetryLater("the CRM is busy", after=90.5)

        outcome = gate.run({"id": 7}, busy)
        assert (outcome.status, outcome.error, outcome.retry_after) == ("failed", "the CRM is busy", 90_500_000)
        assert outcome.reason == "Failed at attempt 1: the CRM is busy; deliver it again, in 1 m at the earliest."
        assert (b"retry-after", b"91") in answer_of([outcome]).headers
        assert gate.run({"id": 7}, succeed).status == "processed"

    def test_retry_later_counts(self, store: MemoryStore) -> None:
        """An attempt that ends with RetryLater counts, with a time or without: the last attempt buries the event."""

        def busy(event: Event) -> None:
            raise RetryLater("busy", after=1) if event.attempt == 1 else RetryLater("busy")

        gate = Gate(store, max_attempts=3)
        outcomes = [gate.run({"id": 7}, busy) for _ in range(3)]
        assert [outcome.status for outcome in outcomes] == ["failed", "failed", "buried"]
        assert [outcome.retry_after for outcome in outcomes] == [1_000_000, None, None]

    @pytest.mark.parametrize("attempts", [5, None])
    def test_bury(self, store: MemoryStore, attempts: int | None) -> None:
        """An event whose handler raises Bury is a dead letter at once, with max_attempts or without."""

        def refuse(event: Event) -> None:
            raise Bury(f"there is no case {event.id}")

        outcome = Gate(store, max_attempts=attempts).run({"id": 7}, refuse)
        assert (outcome.status, outcome.acked, outcome.error) == ("buried", True, "there is no case 7")
        assert [entry.record.error for entry in store.dead_letters()] == ["there is no case 7"]

    def test_async_handlers(self, gate: Gate) -> None:
        """RetryLater and Bury mean the same in async handlers."""

        async def busy(event: Event) -> None:
            raise RetryLater("busy", after=2) if event.id == "1" else Bury("no")

        async def both() -> list[Outcome]:
            return [await gate.arun({"id": id_}, busy) for id_ in ("1", "2")]

        later, never = asyncio.run(both())
        assert (later.status, later.retry_after, never.status) == ("failed", 2_000_000, "buried")

    def test_public_text(self, gate: Gate) -> None:
        """A log has only the class of the exception, unless the exception says that its text is public."""

        def refuse(event: Event) -> None:
            raise RetryLater(f"secret {event.id}") if event.id == "1" else Bury("no such case", public=True)

        discreet = [gate.run({"id": id_}, refuse).discreet for id_ in ("1", "2")]
        assert discreet[0] == "Failed at attempt 1: RetryLater; deliver it again."
        assert discreet[1].endswith(" after 1 attempt: no such case.")

    @pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 10**9])
    def test_invalid_retry_time(self, after: float) -> None:
        """RetryLater refuses an invalid time when it is made."""
        with pytest.raises(ValueError, match="must be a number of seconds"):
            RetryLater("busy", after)


class TestResults:
    def test_too_large(self, store: MemoryStore) -> None:
        """A result larger than `max_result` is not stored; the original and its duplicates say so. The event is
        processed."""
        gate = Gate(store, max_result=10)
        outcome = gate.run({"id": 1}, lambda event: "x" * 100)
        assert (outcome.status, outcome.result) == ("processed", "x" * 100)
        assert "102 bytes are more than max_result=10" in outcome.reason
        again = gate.run({"id": 1}, succeed)
        assert (again.status, again.result) == ("duplicate", None)
        assert "was not stored" in again.reason

    def test_not_json(self, gate: Gate) -> None:
        """An event whose result is not a JSON value is processed, without a stored result."""
        outcome = gate.run({"id": 1}, lambda event: object())
        assert outcome.status == "processed"
        assert "not a JSON value" in outcome.reason
        assert gate.run({"id": 1}, succeed).status == "duplicate"


class TestSettle:
    def test_retried(self, stumbling: Stumbling) -> None:
        """A settlement that fails is retried, because the effect is done."""
        stumbling.failures = {"settle": 2}
        assert Gate(stumbling).run({"id": 1}, succeed).status == "processed"

    @pytest.mark.parametrize("after", [False, True])
    def test_not_confirmed(self, stumbling: Stumbling, after: bool) -> None:
        """If the store never confirms, the delivery is not acknowledged, whether or not the settlement was written."""
        stumbling.failures, stumbling.after = {"settle": 99}, after
        outcome = Gate(stumbling).run({"id": 1}, succeed)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "did not confirm" in outcome.reason
        (entry,) = stumbling.browse()
        assert entry.record.state == (COMPLETED if after else IN_PROGRESS)


class TestFlushing:
    def test_completions_do_not_wait_for_the_next_handler(self) -> None:
        """A completion is durable within 50 ms of its effect, also while the next handler of the batch runs."""
        gate = Gate("memory://")
        states: list[str] = []

        def handler(event: Event) -> None:
            if event.id == "2":
                time.sleep(0.05)
                states.extend(entry.record.state for entry in sorted(gate.store.browse(), key=_by_id))

        gate.run_batch([{"id": 1}, {"id": 2}, {"id": 3}], handler)
        assert states == [COMPLETED, IN_PROGRESS, IN_PROGRESS]

    def test_quick_batches_are_settled_with_one_write(self, stumbling: Stumbling) -> None:
        """A batch whose handlers are quick costs one claim and one settle."""
        Gate(stumbling).run_batch([{"id": number} for number in range(100)], succeed)
        assert stumbling.calls == [("claim", 100), ("settle", 100)]


def _by_id(entry: object) -> str:
    return str(entry.record.about.delivery_id)  # type: ignore[attr-defined]

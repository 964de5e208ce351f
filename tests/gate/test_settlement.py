"""What was done while the store was away: it is recorded when the store is back, for as long as the lease lasts."""

import asyncio
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
from oncegate.gate import async_runner
from tests.stores.redis_server import RedisServer

PAYLOAD = {"id": "7"}


class Lock:
    """Another program that has an SQLite file to itself."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.close = self._db.close

    def take(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
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
    """A handler during which the file is locked by another."""

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
    @pytest.mark.parametrize("way", [run, arun])
    @pytest.mark.parametrize("ends", [COMPLETED, DEAD])
    def test_shorter_than_the_lease(
        self, url: str, lock: Lock, way: Callable[[Gate, Effect], Outcome], ends: str
    ) -> None:
        """Its caller is told that it failed; but it is recorded when the store is back, and not done again."""
        effect = Effect(lock, None if ends == COMPLETED else ValueError("no"))
        with closing(Gate(url, max_attempts=1)) as gate:
            outcome = way(gate, effect)
            assert (outcome.status, "did not confirm" in outcome.reason) == ("failed", True)
            lock.let_go()
            lock.until(ends)
            assert gate.run(PAYLOAD, effect).status == ("duplicate" if ends == COMPLETED else "buried")
        assert effect.count == 1

    def test_of_an_inbox(self, url: str, lock: Lock) -> None:
        """What was kept and run is not taken and run once more."""
        effect = Effect(lock)

        async def main() -> None:
            worker = gate.inbox(effect, look="10ms")
            work = asyncio.create_task(worker.work())
            async with asyncio.timeout(5):
                while not worker.figures.failed:
                    await asyncio.sleep(0.01)
            lock.let_go()
            await asyncio.to_thread(lock.until, COMPLETED)
            worker.stop()
            await work

        with closing(Gate(url)) as gate:
            gate.admit([PAYLOAD])
            asyncio.run(main())
        assert effect.count == 1

    def test_longer_than_the_lease(self, url: str, lock: Lock) -> None:
        """It is given up when another could be granted it: the next delivery does it again."""
        effect = Effect(lock)
        with closing(Gate(url, lease="1s")) as gate:
            before = _trying()
            assert gate.run(PAYLOAD, effect).status == "failed"
            assert len(_trying() - before) == 1
            time.sleep(1.3)
            assert _trying() <= before
            lock.let_go()
            time.sleep(0.1)
            assert lock.state == IN_PROGRESS
            again = gate.run(PAYLOAD, lambda event: "again")
        assert (again.status, again.result, again.event.attempt) == ("processed", "again", 1)

    def test_of_a_server(self, tmp_path: Path) -> None:
        """A Redis server that is killed while a handler runs, and comes back, has its effect once."""
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
    """A gate, or a process, that ends while something is unsettled."""

    def test_closing_waits(self, url: str, lock: Lock) -> None:
        """What was done is recorded before the gate is closed, if the store comes back meanwhile."""
        gate = Gate(url)
        gate.run(PAYLOAD, Effect(lock))
        threading.Timer(0.2, lock.let_go).start()
        gate.close()
        assert lock.state == COMPLETED

    @pytest.mark.parametrize("way", [run, arun])
    def test_closing_does_not_wait_in_vain(self, url: str, lock: Lock, way: Callable[[Gate, Effect], Outcome]) -> None:
        """If it does not, the gate is closed when nothing can come of it any more."""
        gate = Gate(url, lease="1s")
        start = time.monotonic()
        way(gate, Effect(lock))
        gate.close()
        assert time.monotonic() - start < 5

    def test_closed(self, url: str, lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store that is closed is asked no more, however long the lease still is."""
        monkeypatch.setattr(async_runner, "CLOSE_WITHIN", 0.2)
        before = _trying()
        gate = Gate(url)
        arun(gate, Effect(lock))
        gate.close()
        deadline = time.monotonic() + 5
        while not _trying() <= before:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_the_end_of_a_process(self, url: str, lock: Lock) -> None:
        """A process that closes nothing records before it ends what it has done."""
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
            lock.let_go()
            assert process.wait(10) == 0
        assert lock.state == COMPLETED

    def test_a_child(self, url: str, lock: Lock) -> None:
        """What is unsettled at a fork is left to the parent."""
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
            lock.let_go()
            assert process.wait(10) == 0
        assert lock.state == COMPLETED


def test_frozen(url: str, lock: Lock) -> None:
    """A process that was frozen past its lease, as Lambda does it, leaves alone what another has done since."""
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
        lock.let_go()
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

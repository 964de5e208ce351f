"""Observers: told of everything, able to break or slow nothing."""

import subprocess
import sys
import threading
import time
from textwrap import dedent

import pytest

from oncegate import Event, Gate
from oncegate.errors import SettingError
from oncegate.gate import observers
from oncegate.gate.observers import Notice
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling


def succeed(event: Event) -> str:
    return "done"


def fail(event: Event) -> None:
    raise ValueError("boom")


def test_what_is_told(store: MemoryStore) -> None:
    """Each step has its notice, in order, with the event, the key and the outcome."""
    notices: list[Notice] = []
    gate = Gate(store, observers=[notices.append], namespace="crm", max_attempts=1, remember=None)
    outcomes = [gate.run({"id": 1}, succeed), gate.run({"id": 1}, succeed), gate.run({"id": 2}, fail)]
    gate.run("{", succeed)
    gate.close()
    assert [notice.name for notice in notices] == [
        "claim.granted",
        "event.processed",
        "event.duplicate",
        "claim.granted",
        "event.buried",
        "event.invalid",
    ]
    assert notices[0].event is not None
    assert notices[0].event.attempt == 1
    assert notices[0].key == outcomes[0].key
    assert [notice.outcome for notice in notices[1:3]] == outcomes[:2]
    assert {notice.namespace for notice in notices} == {"crm"}


def test_counted_without_observers(gate: Gate) -> None:
    """Counting needs nobody who watches."""
    gate.run_batch([{"id": 1}, {"id": 1}, {"id": 2}], succeed)
    assert gate.counts == {"claim.granted": 2, "event.processed": 2, "event.duplicate": 1}


def test_a_notice_cannot_be_changed(store: MemoryStore) -> None:
    """Observers share one frozen notice."""
    caught: list[Exception] = []

    def meddle(notice: Notice) -> None:
        try:
            notice.name = "changed"  # type: ignore[misc]
        except AttributeError as error:
            caught.append(error)

    gate = Gate(store, observers=[meddle])
    gate.run({"id": 1}, succeed)
    gate.close()
    assert len(caught) == 2


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
def test_an_observer_that_raises(store: MemoryStore, error: BaseException) -> None:
    """Whatever an observer raises changes nothing for the gate or for the other observers; it is counted."""
    heard: list[str] = []

    def broken(notice: Notice) -> None:
        raise error

    gate = Gate(store, observers=[broken, lambda notice: heard.append(notice.name)])
    assert gate.run({"id": 1}, succeed).status == "processed"
    gate.close()
    assert heard == ["claim.granted", "event.processed"]
    assert gate.counts["observer.failed"] == 2


def test_a_slow_observer(store: MemoryStore) -> None:
    """An observer that hangs does not hold up the gate, not even its closing for long."""
    hang = threading.Event()
    gate = Gate(store, observers=[lambda notice: hang.wait(30)])
    start = time.monotonic()
    gate.run_batch([{"id": number} for number in range(100)], succeed)
    assert time.monotonic() - start < 1
    gate.close()
    assert time.monotonic() - start < 5
    hang.set()


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """A process that has come to its end without closing its gates."""
    return subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=30)


def test_at_the_end_of_the_process() -> None:
    """What observers were not told yet when a process ends they are told then, of every gate."""
    done = ended(
        """
        import os, time
        from oncegate import Gate

        def observer(notice):
            time.sleep(0.02)
            if notice.name == "event.processed":
                os.write(1, f"{notice.event.id}\\n".encode())  # at once, as two threads do this

        for half in (0, 5):
            gate = Gate("memory://", observers=[observer])
            gate.run_batch([{"id": number} for number in range(half, half + 5)], lambda event: None)
        """
    )
    assert (sorted(done.stdout.split()), done.stderr) == ([str(number) for number in range(10)], "")


def test_an_observer_that_never_ends() -> None:
    """A process is held up at its end for a short time at most, however many gates are watched."""
    program = """
        import time
        from oncegate import Gate

        for number in range(3):
            gate = Gate("memory://", observers=[lambda notice: time.sleep(60)])
            gate.run({"id": number}, lambda event: None)
    """
    began = time.monotonic()
    assert ended(program).returncode == 0
    assert time.monotonic() - began < 5.5


def test_too_many_notices(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What piles up beyond the bound is dropped and counted; the counts stay whole."""
    monkeypatch.setattr(observers, "_MOST_QUEUED", 10)
    hang, heard = threading.Event(), []

    def slow(notice: Notice) -> None:
        hang.wait(30)
        heard.append(notice)

    gate = Gate(store, observers=[slow])
    gate.run_batch([{"id": number} for number in range(100)], succeed)
    hang.set()
    gate.close()
    counts = gate.counts
    assert counts["event.processed"] == 100
    assert counts["observer.dropped"] > 50
    assert len(heard) + counts["observer.dropped"] == 200


def test_a_lost_lease(store: MemoryStore) -> None:
    """A claim that is lost while its handler runs is told of once."""
    notices: list[Notice] = []
    gate = Gate(store, observers=[notices.append], lease="60ms")

    def overtaken(event: Event) -> None:
        assert event.key is not None
        store._records["default"].clear()
        time.sleep(0.15)

    assert gate.run({"id": 1}, overtaken).status == "failed"
    gate.close()
    (lost,) = [notice for notice in notices if notice.name == "lease.lost"]
    assert lost.detail == str(notices[0].key)


def test_what_was_settled_is_not_lost(stumbling: Stumbling) -> None:
    """Renewing the rest of a long batch does not look like a loss of what is completed already."""
    gate = Gate(stumbling, lease="300ms")
    outcomes = gate.run_batch([{"id": number} for number in range(3)], lambda event: time.sleep(0.15))
    assert {outcome.status for outcome in outcomes} == {"processed"}
    assert "lease.lost" not in gate.counts
    assert ("renew", 1) in stumbling.calls


def test_kept(gate: Gate) -> None:
    """A refused event that is kept as a dead letter is told of under its key."""
    (kept,) = gate.keep([gate.run("{", succeed)])
    assert kept.kept is not None
    assert gate.counts["event.kept"] == 1


@pytest.mark.parametrize("observers", [print, [1], ["log"]])
def test_observers_that_cannot_be(observers: object) -> None:
    """Observers are a list of things that can be called."""
    with pytest.raises(SettingError, match="observers"):
        Gate("memory://", observers=observers)  # type: ignore[arg-type]

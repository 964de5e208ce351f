"""Observers: notices, their counts, and the JSON log. Observers cannot delay or fail an event."""

import json
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from io import StringIO
from textwrap import dedent
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys
from oncegate.errors import SettingError
from oncegate.gate import JsonLog, Notice, observers
from oncegate.gate.observers import OutcomeQueue, PlaceObserver, QueuedOutcomes
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling


def succeed(event: Event) -> str:
    return "done"


def fail(event: Event) -> None:
    raise ValueError("boom")


def test_notices(store: MemoryStore) -> None:
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
    """Notices are counted without observers, too."""
    gate.run_batch([{"id": 1}, {"id": 1}, {"id": 2}], succeed)
    assert gate.counts == {"claim.granted": 2, "event.processed": 2, "event.duplicate": 1}


def test_notice_is_frozen(store: MemoryStore) -> None:
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
def test_observer_raises(store: MemoryStore, error: BaseException) -> None:
    """An exception of an observer changes nothing for the gate or for the other observers; it is counted."""
    heard: list[str] = []

    def broken(notice: Notice) -> None:
        raise error

    gate = Gate(store, observers=[broken, lambda notice: heard.append(notice.name)])
    assert gate.run({"id": 1}, succeed).status == "processed"
    gate.close()
    assert heard == ["claim.granted", "event.processed"]
    assert gate.counts["observer.failed"] == 2


def test_slow_observer(store: MemoryStore) -> None:
    """An observer that hangs does not delay an event, and closing the gate only briefly."""
    hang = threading.Event()
    gate = Gate(store, observers=[lambda notice: hang.wait(30)])
    start = time.monotonic()
    gate.run_batch([{"id": number} for number in range(100)], succeed)
    assert time.monotonic() - start < 1
    gate.close()
    assert time.monotonic() - start < 5
    hang.set()


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends without closing its gates."""
    return subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=30)


def test_flush_at_exit() -> None:
    """Notices that are queued when a process ends are delivered then, for every gate."""
    done = run_program(
        """
        import os, time
        from oncegate import Gate

        def observer(notice):
            time.sleep(0.02)
            if notice.name == "event.processed":
                os.write(1, f"{notice.event.id}\\n".encode())  # unbuffered: two threads write

        for half in (0, 5):
            gate = Gate("memory://", observers=[observer])
            gate.run_batch([{"id": number} for number in range(half, half + 5)], lambda event: None)
        """
    )
    assert (sorted(done.stdout.split()), done.stderr) == ([str(number) for number in range(10)], "")


def test_flush_at_exit_has_a_bound() -> None:
    """The exit of a process waits only briefly for observers, however many gates there are."""
    program = """
        import time
        from oncegate import Gate

        for number in range(3):
            gate = Gate("memory://", observers=[lambda notice: time.sleep(60)])
            gate.run({"id": number}, lambda event: None)
    """
    began = time.monotonic()
    assert run_program(program).returncode == 0
    assert time.monotonic() - began < 5.5


def test_too_many_notices(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices beyond the bound are dropped and counted; the counts of events stay complete."""
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


# ── outcomes in a queue ───────────────────────────────────────────────────────────────────────────────────


def queue_of(most: int = 10, most_bytes: int = 1_000_000) -> OutcomeQueue:
    """A queue without a thread: the test takes its items."""

    def start() -> None:
        queue.is_started = True

    queue = OutcomeQueue(most, most_bytes, start)
    return queue


def test_outcomes_of_a_call_are_queued_together(store: MemoryStore) -> None:
    """All outcomes of a call are one item of the queue, with their place and time; other observers still get
    notices."""
    queue, notices = queue_of(), list[Notice]()
    gate = Gate(store, namespace="crm", observers=[PlaceObserver(queue, "calls"), notices.append])
    outcomes = gate.run_batch([{"id": 1}, {"id": 2}, {"id": 1}], succeed)
    taken = queue.take(100)
    (item,) = taken
    assert isinstance(item, QueuedOutcomes)
    assert (item.place, item.namespace) == ("calls", "crm")
    assert [(each.status, each.event) for each in item.outcomes] == [(each.status, each.event) for each in outcomes]
    assert abs(item.at - time.time() * 1e6) < 60e6
    assert (queue.count, bool(queue)) == (0, False)
    assert gate._observers._background.flush(10)
    assert [notice.name for notice in notices if notice.outcome] == ["event.processed"] * 2 + ["event.duplicate"]


def test_a_full_queue_drops_and_counts(store: MemoryStore) -> None:
    """Beyond its limits a queue takes nothing, and counts what it did not take."""
    queue = queue_of(most=2)
    gate = Gate(store, observers=[PlaceObserver(queue, "calls")])
    for number in range(5):
        gate.run({"id": number}, succeed)
    assert (queue.count, queue.dropped) == (2, 3)
    queue.take(1)
    gate.run({"id": 5}, succeed)
    assert (queue.count, queue.dropped) == (2, 3)
    small = queue_of(most_bytes=1)
    Gate(store, observers=[PlaceObserver(small, "calls")]).run({"id": 6}, succeed)
    assert (small.count, small.dropped) == (0, 1)


def test_a_queue_holds_no_results(store: MemoryStore) -> None:
    """A queue holds neither the result of a handler nor the result and the payload of an original: its bound in bytes
    does not count them. The caller still gets them."""
    queue = queue_of()
    gate = Gate(store, observers=[PlaceObserver(queue, "calls")])
    for _ in range(2):
        assert gate.run({"id": 1}, lambda event: "x" * 1_000).result == "x" * 1_000
    outcomes = [outcome for item in queue.take(100) if isinstance(item, QueuedOutcomes) for outcome in item.outcomes]
    assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
    assert [outcome.result for outcome in outcomes] == [None, None]
    original = outcomes[1].original
    assert original is not None
    assert (original.result, original.payload) == (None, None)
    assert "Duplicate of 1, processed" in outcomes[1].reason


def test_flush_of_a_queue(store: MemoryStore) -> None:
    """`flush` waits for the items before it, but not for a queue that is not used, or closed."""
    queue = queue_of()
    assert queue.flush(0)
    gate = Gate(store, observers=[PlaceObserver(queue, "calls")])
    gate.run({"id": 1}, succeed)
    assert not gate._observers.flush(0.01)
    *_, waiter = queue.take(100)
    assert isinstance(waiter, threading.Event)
    queue.is_closed = True
    assert queue.flush(0)
    gate.run({"id": 2}, succeed)
    assert queue.dropped == 1


def test_a_thread_that_cannot_start(store: MemoryStore) -> None:
    """If the thread cannot start, `flush` does not wait, a full queue counts what it drops, and every item tries to
    start the thread again."""
    tries = list[int]()
    queue = OutcomeQueue(2, 1_000_000, lambda: tries.append(1))
    gate = Gate(store, observers=[PlaceObserver(queue, "calls")])
    for number in range(3):
        gate.run({"id": number}, succeed)
    assert (queue.count, queue.dropped, len(tries)) == (2, 1, 3)
    began = time.monotonic()
    assert not queue.flush(10)
    assert time.monotonic() - began < 5
    assert len(tries) == 4


def test_a_queue_that_raises_fails_no_event(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the queue is counted, and the event has its outcome."""
    monkeypatch.setattr(OutcomeQueue, "put", None)
    gate = Gate(store, observers=[PlaceObserver(queue_of(), "calls")])
    assert gate.run({"id": 1}, succeed).status == "processed"
    assert gate.counts["observer.failed"] == 1


def test_how_long_a_handler_took(store: MemoryStore) -> None:
    """An outcome has the time of its handler; without a run, it has none."""

    def slow(event: Event) -> None:
        time.sleep(0.02)
        if event.body.get("fail"):
            raise ValueError

    gate = Gate(store)
    times = [outcome.took for outcome in gate.run_batch([{"id": 1}, {"id": 2, "fail": True}, {"id": 1}], slow)]
    assert all(20_000 <= took < 10_000_000 for took in times[:2] if took is not None)
    assert [took is None for took in times] == [False, False, True]
    assert gate.run({"id": 1}, slow).took is None


def test_lost_lease(store: MemoryStore) -> None:
    """A claim that is lost while its handler runs has one notice."""
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


def test_settled_lease_is_not_lost(stumbling: Stumbling) -> None:
    """Renewing the rest of a long batch does not report settled claims as lost."""
    gate = Gate(stumbling, lease="300ms")
    outcomes = gate.run_batch([{"id": number} for number in range(3)], lambda event: time.sleep(0.15))
    assert {outcome.status for outcome in outcomes} == {"processed"}
    assert "lease.lost" not in gate.counts
    assert ("renew", 1) in stumbling.calls


def test_kept(gate: Gate) -> None:
    """A refused event that is stored as a dead letter has a notice."""
    (kept,) = gate.keep([gate.run("{", succeed)])
    assert kept.kept is not None
    assert gate.counts["event.kept"] == 1


@pytest.mark.parametrize("observers", [print, [1], ["log"]])
def test_invalid_observers(observers: object) -> None:
    """Observers must be a list of callables."""
    with pytest.raises(SettingError, match="observers"):
        Gate("memory://", observers=observers)  # type: ignore[arg-type]


# ── the JSON log ────────────────────────────────────────────────────────────────────────────────────────


def fail_with_name(event: Event) -> None:
    raise ValueError(f"no case for {event.body['name']}")


def logged(payloads: list[Any], handler: Any = lambda event: None, **settings: Any) -> list[dict[str, Any]]:
    """The log lines of a gate that takes these payloads."""
    stream = StringIO()
    gate = Gate("memory://", observers=[JsonLog(stream)], wall=lambda: 1_700_000_000_123_456, **settings)
    gate.keep([outcome for outcome in gate.run_batch(payloads, handler) if outcome.status == "invalid"])
    gate.close()
    assert stream.getvalue().count("\n") == len(stream.getvalue().splitlines())
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_line_for_each_event() -> None:
    """Each event of a batch has one line, in order, whatever other notices it has."""
    lines = logged([{"id": 1}, {"id": 1}, {"id": 2, "n": 1}, {"id": 2, "n": 2}, "[", {"id": 3}])
    statuses = ["processed", "duplicate", "processed", "conflict", "invalid", "processed"]
    assert [line["status"] for line in lines] == statuses


def test_fields_of_a_line() -> None:
    """A line has the time, the outcome, what identifies the event, and the state and time of the event."""
    event = Event(
        source="genesys",
        id="evt-1",
        type="call.ended",
        entity="conv-7",
        state="PEER",
        occurred_at=datetime(2023, 11, 14, 23, 13, 19, 900_499, timezone(timedelta(hours=1))),
        body={"id": "evt-1"},
    )
    (line,) = logged([event], namespace="crm")
    key = line.pop("key")
    assert (len(key), bytes.fromhex(key) != b"") == (32, True)
    assert line == {
        "time": "2023-11-14T22:13:20.123Z",
        "status": "processed",
        "kind": None,
        "event_id": "evt-1",
        "namespace": "crm",
        "source": "genesys",
        "type": "call.ended",
        "entity": "conv-7",
        "state": "PEER",
        "occurred_at": "2023-11-14T22:13:19.900Z",
        "attempt": 1,
        "reason": "Processed at the first attempt.",
    }


def test_attempt_of_an_accepted_event() -> None:
    """An accepted event has no attempt in the log, also if the store granted it with its admission."""
    stream = StringIO()
    gate = Gate("memory://", observers=[JsonLog(stream)])
    gate.admit([{"id": 1}])
    gate.run_waiting(lambda event: None)
    gate.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["status"], line["attempt"]) for line in lines] == [("accepted", None), ("processed", 1)]
    granted = Event(source="plain", id="evt-2", body={}, attempt=1)
    assert observers.fields_of(Outcome("accepted", granted), "default")["attempt"] is None


def test_long_names() -> None:
    """The type, entity and state of an event are cut in the log, however long they are."""
    (line,) = logged([{"id": 1, "type": "t" * 100_000, "conversationId": "e" * 100_000, "state": "s" * 100_000}])
    assert [line[name] for name in ("type", "entity", "state")] == [each * 256 + "…" for each in "tes"]
    assert line["occurred_at"] is None


@pytest.mark.parametrize("payload", [b'{"card":4111111111111111e999}', b'{"id":4111111111111111.5}'])
def test_refused_payload(payload: bytes) -> None:
    """The reason for which a payload is refused does not quote the payload."""
    (line,) = logged([payload])
    assert (line["status"], "4111" in json.dumps(line)) == ("invalid", False)


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_no_payload_in_the_log(max_attempts: int) -> None:
    """Neither the payload nor the text of an exception is logged, when the event fails and later."""
    payload = {"id": "evt-1", "name": "Ada Lovelace"}
    lines = logged([payload, payload], fail_with_name, max_attempts=max_attempts)
    assert "ValueError" in lines[0]["reason"]
    assert "Lovelace" not in json.dumps(lines)


def no_key(event: Event) -> Any:
    raise KeyError(event.body["name"])


def test_no_text_of_a_key_function() -> None:
    """The text of a key function's exception is not logged for an event that runs all the same."""
    (line,) = logged([{"id": "evt-1", "name": "Ada Lovelace"}], key=no_key, on_missing_key="unguarded")
    assert line["reason"] == "Run without protection from duplicates: its key function raised KeyError."


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("Failed at attempt 1: ValueError, and no copy", {"mode": "mark_first"}),
        ("Failed: its key function raised KeyError, and no copy", {"key": no_key}),
        ("ValueError, and no copy", {"key": keys.state_change(), "max_attempts": 1}),
    ],
)
def test_no_payload_if_no_copy_is_stored(stumbling: Stumbling, reason: str, settings: dict[str, Any]) -> None:
    """Nor is it logged if the store fails while a copy of the event is stored: after a failure, a refusal, or beside a
    dead letter."""

    def fail_with_the_store(event: Event) -> None:
        stumbling.failures = {"claim": 1}
        fail_with_name(event)

    change = {"conversationId": "c-1", "type": "call", "state": "held", "name": "Ada Lovelace"}
    payloads = [{**change, "timestamp": 1_765_551_600_000 + later} for later in (0, 100)]
    gate = Gate(stumbling, **settings)
    outcomes = gate.run_batch(payloads, fail_with_the_store)
    stumbling.failures.setdefault("claim", 1)
    if outcomes[0].status == "invalid":
        outcomes = gate.keep(outcomes)
    assert reason in outcomes[-1].discreet
    assert "Lovelace" in outcomes[-1].reason
    assert "Lovelace" not in "".join(outcome.discreet for outcome in outcomes)


def test_no_payload_beside_a_dead_letter(stumbling: Stumbling) -> None:
    """Nor is it logged later, when only the record of the dead letter still has the text."""
    change = {"conversationId": "c-1", "type": "call", "state": "held", "name": "Ada Lovelace"}
    gate = Gate(stumbling, key=keys.state_change(), max_attempts=1)
    buried = gate.run({**change, "timestamp": 1_765_551_600_000}, fail_with_name)
    stumbling.failures = {"settle": 99}
    outcome = gate.run({**change, "timestamp": 1_765_551_600_100}, fail_with_name)
    assert f"Failed: dead letter {buried.key}, and no copy could be stored" in outcome.discreet
    assert "Lovelace" not in outcome.discreet


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J", "\x7f", "\x85\x9b31m", "\u2028\u2029", "\u202e", "\r\n", "\U000e0041", "é😀"]
)
def test_no_control_characters(hostile: str) -> None:
    """A line is printable ASCII, whatever the event's names are, and decodes to exactly those names."""
    stream = StringIO()
    gate = Gate("memory://", observers=[JsonLog(stream)])
    gate.run({"id": f"a{hostile}b", "type": hostile}, lambda event: None)
    gate.close()
    (line, rest) = stream.getvalue().split("\n", 1)
    assert (line.isascii(), line.isprintable(), rest) == (True, True, "")
    assert (json.loads(line)["event_id"], json.loads(line)["type"]) == (f"a{hostile}b", hostile)


def test_current_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream the log writes to `sys.stdout` as set at the time of writing."""
    gate = Gate("memory://", observers=[JsonLog()])
    stream = StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    gate.run({"id": 1}, lambda event: None)
    gate.close()
    assert json.loads(stream.getvalue())["status"] == "processed"


def test_one_write_and_a_flush() -> None:
    """A line is written with one call and flushed, so that lines of two processes do not mix."""

    class Watched(StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def write(self, text: str) -> int:
            self.calls.append("write")
            return super().write(text)

        def flush(self) -> None:
            self.calls.append("flush")

    stream = Watched()
    gate = Gate("memory://", observers=[JsonLog(stream)])
    gate.run({"id": 1}, lambda event: None)
    gate.close()
    assert stream.calls == ["write", "flush"]


def test_unwritable_log() -> None:
    """Events are processed although their log cannot be written, and the failures are counted."""
    stream = StringIO()
    stream.close()
    gate = Gate(MemoryStore(), observers=[JsonLog(stream)])
    assert gate.run({"id": 1}, lambda event: None).status == "processed"
    gate.close()
    assert gate.counts["observer.failed"] == 1


def test_other_notices_are_not_logged() -> None:
    """A notice that is not the outcome of an event has no line."""
    stream = StringIO()
    JsonLog(stream)(Notice("lease.lost", 0, "default", detail="00"))
    assert stream.getvalue() == ""

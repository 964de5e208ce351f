"""The JSON log: one line for each outcome, which tells what happened and nothing that was in the payload."""

import json
import sys
from io import StringIO
from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.gate import JsonLog, Notice
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling


def fail(event: Event) -> None:
    raise ValueError(f"no case for {event.body['name']}")


def logged(payloads: list[Any], handler: Any = lambda event: None, **settings: Any) -> list[dict[str, Any]]:
    """The lines that taking these payloads through a gate leaves in a log."""
    stream = StringIO()
    gate = Gate("memory://", observers=[JsonLog(stream)], wall=lambda: 1_700_000_000_123_456, **settings)
    gate.keep([outcome for outcome in gate.run_batch(payloads, handler) if outcome.status == "invalid"])
    gate.close()
    assert stream.getvalue().count("\n") == len(stream.getvalue().splitlines())
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_line_for_each_event() -> None:
    """Each event of a batch has one line, in order, whatever else the gate told of it."""
    lines = logged([{"id": 1}, {"id": 1}, {"id": 2, "n": 1}, {"id": 2, "n": 2}, "[", {"id": 3}])
    statuses = ["processed", "duplicate", "processed", "conflict", "invalid", "processed"]
    assert [line["status"] for line in lines] == statuses


def test_what_a_line_says() -> None:
    """A line has the time, the outcome, and the names by which the event is known."""
    event = Event(source="genesys", id="evt-1", type="call.ended", entity="conv-7", body={"id": "evt-1"})
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
        "attempt": 1,
        "reason": "Processed at the first attempt.",
    }


def test_long_names() -> None:
    """An event that calls itself or its entity by a text of any length makes no longer line than another."""
    (line,) = logged([{"id": 1, "type": "t" * 100_000, "conversationId": "e" * 100_000}])
    assert (line["type"], line["entity"]) == ("t" * 256 + "…", "e" * 256 + "…")


@pytest.mark.parametrize("payload", [b'{"card":4111111111111111e999}', b'{"id":4111111111111111.5}'])
def test_what_is_refused(payload: bytes) -> None:
    """The reason for which a payload is refused does not repeat what is wrong in it."""
    (line,) = logged([payload])
    assert (line["status"], "4111" in json.dumps(line)) == ("invalid", False)


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_discreet(max_attempts: int) -> None:
    """Neither the payload nor what an exception said of it is logged, when it fails and ever after."""
    payload = {"id": "evt-1", "name": "Ada Lovelace"}
    lines = logged([payload, payload], fail, max_attempts=max_attempts)
    assert "ValueError" in lines[0]["reason"]
    assert "Lovelace" not in json.dumps(lines)


def no_key(event: Event) -> Any:
    raise KeyError(event.body["name"])


def test_discreet_of_a_key() -> None:
    """Nor is what a key function said, of an event that runs all the same."""
    (line,) = logged([{"id": "evt-1", "name": "Ada Lovelace"}], key=no_key, on_missing_key="unguarded")
    assert line["reason"] == "Run without protection from duplicates: its key function raised KeyError."


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("Failed at attempt 1: ValueError, and no copy", {"mode": "mark_first"}),
        ("Failed: its key function raised KeyError, and no copy", {"key": no_key}),
        ("ValueError, and no copy", {"key": keys.state_change(), "max_attempts": 1}),
    ],
)
def test_discreet_of_what_could_not_be_kept(stumbling: Stumbling, said: str, settings: dict[str, Any]) -> None:
    """Nor is it when the store fails while a copy of what failed, was refused or joins a dead letter is kept."""

    def fail_with_the_store(event: Event) -> None:
        stumbling.failures = {"claim": 1}
        fail(event)

    change = {"conversationId": "c-1", "type": "call", "state": "held", "name": "Ada Lovelace"}
    payloads = [{**change, "timestamp": 1_765_551_600_000 + later} for later in (0, 100)]
    gate = Gate(stumbling, **settings)
    outcomes = gate.run_batch(payloads, fail_with_the_store)
    stumbling.failures.setdefault("claim", 1)
    if outcomes[0].status == "invalid":
        outcomes = gate.keep(outcomes)
    assert said in outcomes[-1].discreet
    assert "Lovelace" in outcomes[-1].reason
    assert "Lovelace" not in "".join(outcome.discreet for outcome in outcomes)


def test_discreet_of_what_joins_a_dead_letter(stumbling: Stumbling) -> None:
    """Nor is it later, when only the record of the dead letter still says it."""
    change = {"conversationId": "c-1", "type": "call", "state": "held", "name": "Ada Lovelace"}
    gate = Gate(stumbling, key=keys.state_change(), max_attempts=1)
    buried = gate.run({**change, "timestamp": 1_765_551_600_000}, fail)
    stumbling.failures = {"settle": 99}
    outcome = gate.run({**change, "timestamp": 1_765_551_600_100}, fail)
    assert f"Failed: dead letter {buried.key}, and no copy could be stored" in outcome.discreet
    assert "Lovelace" not in outcome.discreet


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J", "\x7f", "\x85\x9b31m", "\u2028\u2029", "\u202e", "\r\n", "\U000e0041", "é😀"]
)
def test_cannot_steer_a_terminal(hostile: str) -> None:
    """A line is printable ASCII whatever an event calls itself, and still says exactly that."""
    stream = StringIO()
    gate = Gate("memory://", observers=[JsonLog(stream)])
    gate.run({"id": f"a{hostile}b", "type": hostile}, lambda event: None)
    gate.close()
    (line, rest) = stream.getvalue().split("\n", 1)
    assert (line.isascii(), line.isprintable(), rest) == (True, True, "")
    assert (json.loads(line)["event_id"], json.loads(line)["type"]) == (f"a{hostile}b", hostile)


def test_stdout_is_looked_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream the log goes to what stdout is when there is something to say."""
    gate = Gate("memory://", observers=[JsonLog()])
    stream = StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    gate.run({"id": 1}, lambda event: None)
    gate.close()
    assert json.loads(stream.getvalue())["status"] == "processed"


def test_one_write_and_a_flush() -> None:
    """A line is written at once and passed on at once, so that lines of two processes do not mix."""

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


def test_a_log_that_cannot_be_written() -> None:
    """Events are taken although their log is gone, and the failures are counted."""
    stream = StringIO()
    stream.close()
    gate = Gate(MemoryStore(), observers=[JsonLog(stream)])
    assert gate.run({"id": 1}, lambda event: None).status == "processed"
    gate.close()
    assert gate.counts["observer.failed"] == 1


def test_other_notices_are_not_logged() -> None:
    """What is not the outcome of an event leaves no line."""
    stream = StringIO()
    JsonLog(stream)(Notice("lease.lost", 0, "default", detail="00"))
    assert stream.getvalue() == ""

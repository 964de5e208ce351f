"""The page on troubles is true: its commands exist, and what it says one sees is what one sees."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate, keys, open_store
from oncegate.cli.main import run
from oncegate.errors import StoreError
from oncegate.gate.options import DEFAULTS, OPTIONS
from oncegate.inspection.records import sentence
from oncegate.stores.memory import MemoryStore
from oncegate.stores.redis import checks
from oncegate.testing import ManualClock
from tests import test_docs, test_guide
from tests.test_guide import DOCS

PAGE = DOCS / "troubleshooting.md"
TEXT = " ".join(PAGE.read_text().split())

CALL = {"id": "evt-1", "conversationId": "c-1", "timestamp": 1765551752433, "data": {"status": "ringing"}}
ENDED = {"id": "a", "type": "call.ended", "conversationId": "c-1", "timestamp": "2026-02-03T04:05:06.100Z"}


def nothing(event: object) -> None:
    pass


def fails(event: object) -> None:
    raise ValueError("boom")


def conflict(_folder: Path) -> str:
    gate = Gate("memory://", key=keys.event_id)
    gate.run(CALL, nothing)
    return gate.run(CALL | {"data": {"status": "connected"}}, nothing).reason


def kept_conflict(_folder: Path) -> str:
    gate = Gate("memory://", key=keys.event_id)
    gate.run_batch([CALL, CALL | {"data": {}}], nothing)
    return str(gate.store.dead_letters()[0].record.error)


def missing_key(_folder: Path) -> str:
    return Gate("memory://", key=keys.fields("timestamp")).run({"id": 1}, nothing).reason


def second_attempt(_folder: Path) -> str:
    gate = Gate("memory://")
    gate.run(CALL, fails)
    return gate.run(CALL, nothing).reason


def in_flight(_folder: Path) -> str:
    clock, said = ManualClock(), list[str]()
    store = MemoryStore(clock=clock)

    def at_work(event: object) -> None:
        clock.advance(3_000_000)
        said.append(Gate(store, remember=None).run(CALL, nothing).reason)

    Gate(store).run(CALL, at_work)
    return said[0]


def too_old(_folder: Path) -> str:
    return Gate("memory://", max_age="7d", on_too_old="bury").run(CALL, nothing).reason


def locked(folder: Path) -> str:
    path = folder / "oncegate.db"
    store = open_store(f"sqlite:///{path}?busy_timeout=10ms")
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    said = Gate(store).run(CALL, nothing).reason
    other.close()
    store.close()
    return said


def left_alone(_folder: Path) -> str:
    class Away(MemoryStore):
        remote = True

        def claim(self, requests: Any) -> Any:
            raise StoreError("it is away")

    gate = Gate(Away(), breaker="50ms")
    return [gate.run(CALL, nothing).reason for _ in range(8)][-1]


def lost(_folder: Path) -> str:
    clock = ManualClock()
    store = MemoryStore(clock=clock)

    def overtaken(event: object) -> None:
        clock.advance("31s")
        Gate(store, remember=None).run(CALL, nothing)

    return Gate(store).run(CALL, overtaken).reason


def may_evict(_folder: Path) -> str:
    with pytest.raises(StoreError) as refused:
        checks._check_eviction({"maxmemory": "1", "maxmemory_policy": "allkeys-lru"}, "…")
    return str(refused.value)


@pytest.mark.parametrize(
    ("seen", "happens"),
    [
        ("Conflict: same key as evt-1 (processed", conflict),
        (" but different content (at data.status)", conflict),
        ("is known with different content", kept_conflict),
        ("Refused: the fields key needs timestamp, which the event does not have.", missing_key),
        ("Processed at attempt 2.", second_attempt),
        ("In flight: another worker holds the claim for up to 27 s more; deliver it again after that.", in_flight),
        ("and max_age is 7 d: ", too_old),
        ("oncegate.db locked for too long; nothing was written", locked),
        ("circuit breaker open after failures in a row, next call in ", left_alone),
        ("its claim was lost", lost),
        (
            "Redis at … may evict records to make room (maxmemory-policy allkeys-lru), and an evicted event would run",
            may_evict,
        ),
    ],
)
def test_what_one_sees(seen: str, happens: Callable[[Path], str], tmp_path: Path) -> None:
    """What the page quotes is what is said when it happens."""
    assert seen in TEXT
    assert seen in happens(tmp_path)


def test_what_a_record_says(tmp_path: Path) -> None:
    """`keys show` says of an event in hand what the page says, and that its lease moves."""
    store = open_store(f"sqlite:///{tmp_path}/oncegate.db")
    said: list[str] = []

    def at_work(event: object) -> None:
        (entry,) = store.browse()
        said.append(sentence(entry.record))

    Gate(store).run(CALL, at_work)
    store.close()
    assert re.sub(r"\d+ \w+", "…", said[0]) == "In progress: the lease ends in … unless the worker renews it."
    assert "`In progress: the lease ends in … unless the worker renews it.`" in TEXT


def test_what_read_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Two payloads in a file are told apart as the page has it."""
    monkeypatch.chdir(tmp_path)
    echo = [ENDED, ENDED | {"id": "b", "timestamp": "2026-02-03T04:05:06.300Z"}]
    state = ENDED | {"type": "call", "state": "connected", "agent": "a"}
    for payloads, said in (
        (
            [state | {"id": "b", "state": "answered", "timestamp": "2026-02-03T04:05:05.900Z"}, state],
            "1 and 2 report the states answered and connected of one entity, 200 ms apart",
        ),
        (
            [state, state | {"id": "b", "timestamp": "2026-02-03T04:05:08.100Z", "agent": "b"}],
            "1 and 2 report the same state (connected), 2 s apart; they differ at agent, id, timestamp",
        ),
        (echo, 'state_change("500ms") treats 1 and 2 as one event but their content differs'),
        (
            [_envelope("a"), _envelope("b")],
            "auto treats 1 and 2 as one event; event_id treats 1 and 2 as different events",
        ),
    ):
        (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, payloads)))
        run(["read", "both.jsonl"])
        assert said in capfd.readouterr().out
        assert said in TEXT


def _envelope(name: str) -> dict[str, Any]:
    topic = "v2.detail.events.conversation"
    body = {"eventTime": 1765551752433, "conversationId": "c-1", "sessionId": "s-1", "disconnectType": "PEER"}
    detail = {"topicName": f"{topic}.c-1.customer.end", "eventBody": body}
    return {"id": name, "detail-type": f"{topic}.{{id}}.customer.end", "source": "aws.partner/x", "detail": detail}


def test_commands_exist() -> None:
    """Every command of ours, with its options, is one that there is."""
    page = PAGE.read_text()
    typed = re.findall(r"^ {4}(oncegate .+)$", page, re.MULTILINE) + re.findall(r"`(oncegate [a-z]+ [^`]+)`", page)
    assert len(typed) > 15
    for command in typed:
        test_docs.test_commands_exist(command)


def test_settings_exist() -> None:
    """Every policy and setting that is named with its value is one that there is."""
    named = re.findall(r"`(\w+)=\"(\w+)\"`", TEXT)
    assert len(named) > 5
    for name, value in named:
        assert value in OPTIONS[name].choices
    for name in re.findall(r"`(max_\w+|\w*retention|lease|breaker|namespace)`", TEXT):
        assert name in DEFAULTS


def test_rules_exist() -> None:
    """Every rule of the doctor that is named is one of its rules."""
    rules = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", (DOCS / "doctor.md").read_text(), re.MULTILINE)
    named = re.findall(r"`((?:rule|settings|store|queue|function)\.[a-z_]+)`", TEXT)
    assert len(named) > 5
    assert set(named) <= set(rules)


def test_every_trouble_is_listed() -> None:
    """The list at the top has each section, and links lead somewhere."""
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert re.findall(r"^- \[(.+?)\]\(#", PAGE.read_text(), re.MULTILINE) == headings
    test_guide.test_links_lead_somewhere(PAGE)

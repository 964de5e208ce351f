"""Replays under a name."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate, keys
from oncegate.claims import EventSummary
from oncegate.inspection.replays import no_replay, replay
from oncegate.journal import ChangedEvent, RowFilter
from oncegate.settings import Settings, examine

PAYLOAD = b'{"id": "evt-1", "type": "call", "n": 1}'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {"store": f"sqlite:///{tmp_path}/store.db", "journal": f"sqlite:///{tmp_path}/journal.db"}
    return examine(flags=flags, environ={})[0]


@pytest.fixture
def gate(settings: Settings) -> Iterator[Gate]:
    with closing(settings.gate(observers=(), remember=None)) as gate:
        yield gate


def event_of(gate: Gate) -> ChangedEvent:
    """The event of PAYLOAD, after it was processed."""
    outcome = gate.run(PAYLOAD, lambda event: None)
    return ChangedEvent("default", bytes.fromhex(str(outcome.key)), EventSummary("plain", "call", None, None, "evt-1"))


def test_once_for_each_name(settings: Settings, gate: Gate) -> None:
    """A replay runs once for each name. The record of the event stays as it is."""
    event, ran = event_of(gate), []
    with closing(settings.operator_log("ada")) as log:
        for name, status in (("one", "accepted"), ("one", "duplicate"), ("two", "accepted")):
            assert replay(gate.store, settings, event, PAYLOAD, name, log).status == status
        gate.run_waiting(lambda event: ran.append(str(event.key)))
        again = replay(gate.store, settings, event, PAYLOAD, "one", log)
        assert (again.status, again.key is not None and str(again.key) in ran) == ("duplicate", True)
    assert len(set(ran)) == len(ran) == 2
    assert gate.run(PAYLOAD, lambda event: ran.append("again")).status == "duplicate"
    with closing(settings.open_journal()) as journal:
        rows = journal.rows(RowFilter(term=event.key.hex(), operators=True))
        assert [(row.kind, row.kept.hex()) for row in rows] == [("replay", ran[1]), ("replay", ran[0])]
        assert 'under the name "two"' in rows[0].reason
        assert len(journal.rows(RowFilter(term=ran[0], operators=True))) == 1


def test_the_key_of_an_archive(settings: Settings, gate: Gate) -> None:
    """The key is that of a replay from an archive with on_replay="run", so that the two do not run twice."""
    event = event_of(gate)
    with closing(settings.operator_log("ada")) as log:
        outcome = replay(gate.store, settings, event, PAYLOAD, "archive", log)
    read = Event(source="plain", body={})
    assert str(outcome.key) == str(keys.make("replay", read, [event.key.hex(), "archive"]))


def test_other_content_with_the_same_name(settings: Settings, gate: Gate) -> None:
    """A second replay with the same name runs nothing and buries nothing, whatever its content."""
    event = event_of(gate)
    with closing(settings.operator_log("ada")) as log:
        replay(gate.store, settings, event, PAYLOAD, "one", log)
        assert replay(gate.store, settings, event, PAYLOAD.replace(b"1}", b"2}"), "one", log).status == "duplicate"
    assert gate.store.dead_letters() == []


@pytest.mark.parametrize(
    ("flags", "event", "payload", "reason"),
    [
        ({}, ChangedEvent("default", b"", EventSummary("plain")), None, "Set journal_payloads"),
        ({}, ChangedEvent("other", b"", EventSummary("plain")), PAYLOAD, "No route of the settings"),
        ({}, ChangedEvent("default", b"", EventSummary("call", "pay")), PAYLOAD, "only its callers can run"),
        ({}, ChangedEvent("default", b"", EventSummary("plain")), b"{", "cannot be read"),
        ({"store": "redis://localhost"}, ChangedEvent("default", b"", EventSummary("plain")), PAYLOAD, "Postgres"),
        ({"mode": "mark_first"}, ChangedEvent("default", b"", EventSummary("plain")), PAYLOAD, "mode=lease"),
        ({}, ChangedEvent("default", b"", EventSummary("plain")), PAYLOAD, None),
    ],
)
def test_reasons(flags: dict[str, str], event: ChangedEvent, payload: bytes | None, reason: str | None) -> None:
    """An event that cannot be replayed has a reason, with the setting that would change it."""
    found = no_replay(examine(flags=flags, environ={})[0], event, payload)
    assert found is None if reason is None else reason in (found or "")

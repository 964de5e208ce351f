"""Redrive and drop in batches, and the dead letters that no handler can run."""

from collections.abc import Iterator

import pytest

from oncegate import Event, Gate
from oncegate.claims import COMPLETED, RELEASED
from oncegate.inspection.operators import (
    BulkKind,
    RedriveWarnings,
    Selection,
    about_reset,
    address_of,
    all_dead_letters,
    change_dead_letters,
)
from oncegate.settings import examine
from oncegate.stores.base import Entry, Inbox, Store, TakeRequest


def fail(event: Event) -> None:
    raise ValueError(event.id)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate("memory://", max_attempts=1, remember=None)
    yield gate
    gate.close()


def selected(store: Store) -> Selection:
    selection = Selection(lambda entry: entry.record.first_seen)
    for entry in all_dead_letters(store, None):
        selection.add(entry)
    return selection


@pytest.mark.parametrize("kind", ["redrive", "drop"])
def test_batches(gate: Gate, kind: BulkKind) -> None:
    """Dead letters are changed 100 at a time. The caller can stop after each batch."""
    gate.run_batch([{"id": number} for number in range(250)], fail)
    addresses = selected(gate.store).addresses
    changes = change_dead_letters(gate.store, kind, addresses)
    assert next(changes) == addresses[:100]
    assert len(list(all_dead_letters(gate.store, None))) == 150
    assert [len(changed) for changed in changes] == [100, 50]
    states = {entry.record.state for entry in gate.store.browse(limit=1_000)}
    assert states == ({RELEASED} if kind == "redrive" else set())


@pytest.mark.parametrize("kind", ["redrive", "drop"])
def test_what_another_process_has_changed(gate: Gate, kind: BulkKind) -> None:
    """A dead letter that was redriven or dropped meanwhile is left as it is, and is not reported as changed."""
    gate.run_batch([{"id": number} for number in range(3)], fail)
    first, second, third = selected(gate.store).addresses
    list(change_dead_letters(gate.store, "redrive", [first]))
    list(change_dead_letters(gate.store, "drop", [second]))
    assert list(change_dead_letters(gate.store, kind, [first, second, third])) == [[third]]
    assert [entry.record.state for entry in gate.store.browse(key=first.key)] == [RELEASED]


def test_a_selection(gate: Gate) -> None:
    """A selection has the address of each dead letter, and the newest ten of them without their payloads."""
    gate.run_batch([{"id": number} for number in range(25)], fail)
    done = gate.run({"id": "done"}, lambda event: None)
    selection = selected(gate.store)
    (entry,) = gate.store.browse(key=bytes.fromhex(str(done.key)))
    assert entry.record.state == COMPLETED
    selection.add(entry)
    assert (len(selection.addresses), len(selection.newest), selection.namespaces) == (25, 10, {"default"})
    assert {address_of(each) for each in selection.newest} <= set(selection.addresses)
    assert all(each.record.payload is None for each in selection.newest)


def test_events_that_no_handler_can_run(gate: Gate) -> None:
    """There are warnings for calls of functions and for unreadable events, with three examples each."""
    gate.run({"id": "runs"}, fail)
    for number in range(4):
        gate.keep([gate.run(b"{%d" % number, fail)])
        with pytest.raises(ValueError, match=str(number)):
            gate.once(name="pay")(fail)(Event(source="plain", id=str(number), body={"n": number}))
    warned = RedriveWarnings(examine(flags={}, environ={})[0])
    assert list(warned.sentences()) == []
    for entry in all_dead_letters(gate.store, None):
        warned.add(entry)
    calls, _, unreadable, _ = warned.sentences()
    assert calls.startswith("4 calls of a function cannot be redriven")
    assert unreadable.startswith("4 events cannot be read")
    assert calls.count(",") == unreadable.count("), ") == 3
    assert unreadable.endswith(", ….")


def test_a_conflict_that_is_redriven(gate: Gate) -> None:
    """A warning names the conflicts: the event that has their key was accepted before."""
    gate.run({"id": "evt-1", "amount": 180}, lambda event: None)
    gate.run({"id": "evt-1", "amount": 99}, lambda event: None)
    warned = RedriveWarnings(examine(flags={}, environ={})[0])
    (entry,) = all_dead_letters(gate.store, None)
    warned.add(entry)
    first, second = warned.sentences()
    assert first.startswith("1 conflict: an event with the same key and other content was accepted before: ")
    assert entry.key.hex() in first
    assert second == "Redrive a conflict only if its content must run too. Then both contents take effect."


def test_a_reset_that_deletes_a_payload(gate: Gate) -> None:
    """The sentences about a reset say that the event is lost with its payload, also if it runs now."""
    gate.admit([{"id": 1}])
    (entry,) = gate.store.browse()
    lost = "is lost unless it is delivered again."
    assert list(about_reset(gate.store, entry))[1:] == [f"The stored payload is deleted too. The event {lost}"]
    assert isinstance(gate.store, Inbox)
    assert len(gate.store.take([TakeRequest(entry.namespace, b"o" * 16, 60_000_000)])) == 1
    (entry,) = gate.store.browse()
    twice, payload = list(about_reset(gate.store, entry))[1:]
    assert "The event may run twice" in twice
    assert payload == f"The stored payload is deleted too. If the run does not succeed, the event {lost}"


def test_a_reset_of_a_published_event(gate: Gate) -> None:
    """The sentences about a reset name the record of the consumer."""

    def publish(event: Event) -> None:
        """Publishes to the bus."""

    publish.publishes_to = "bus"  # type: ignore[attr-defined]
    published = gate.run({"id": 1}, publish)
    consumed = gate.run({"id": 1}, lambda event: None)
    entry: Entry
    (entry,) = gate.store.browse(key=bytes.fromhex(str(published.key)))
    first, second = about_reset(gate.store, entry)
    assert first.startswith("Published to bus")
    assert str(consumed.key) in second

"""Modes: mark_first, and `seen`."""

from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.claims import COMPLETED, Redrive
from oncegate.errors import OncegateError, StoreUnavailable
from oncegate.stores.base import TakeRequest
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from oncegate.testing.race_contract import race
from tests.gate.conftest import Stumbling


def succeed(event: Event) -> str:
    return "done"


def fail(event: Event) -> None:
    raise ValueError("boom")


class TestMarkFirst:
    def test_one_write_for_each_batch(self, stumbling: Stumbling) -> None:
        """The claim completes the events: a batch costs one write, and its events are duplicates from then on."""
        gate = Gate(stumbling, mode="mark_first")
        outcomes = gate.run_batch([{"id": number} for number in range(50)], succeed)
        assert {outcome.status for outcome in outcomes} == {"processed"}
        assert stumbling.calls == [("claim", 50)]
        assert gate.run({"id": 7}, succeed).status == "duplicate"

    def test_done_before_the_handler_runs(self, store: MemoryStore) -> None:
        """The event is marked as done while the handler runs: a crash loses it and never doubles it."""
        gate = Gate(store, mode="mark_first")
        states: list[str] = []

        def handler(event: Event) -> None:
            states.extend(entry.record.state for entry in store.browse())
            states.append(gate.run({"id": 1}, succeed).status)

        gate.run({"id": 1}, handler)
        assert states == [COMPLETED, "duplicate"]

    def test_failure_is_buried_and_acknowledged(self, store: MemoryStore) -> None:
        """A failed event becomes a dead letter under a key of its own, and a copy of it is a duplicate."""
        gate = Gate(store, mode="mark_first")
        outcome = gate.run({"id": 1}, fail)
        assert (outcome.status, outcome.acked) == ("buried", True)
        assert outcome.reason == f"Buried as dead letter {outcome.kept}, and marked as done: ValueError: boom."
        (letter,) = store.dead_letters()
        assert (letter.key.hex(), letter.record.payload) == (str(outcome.kept), b'{"id":1}')
        assert gate.run({"id": 1}, succeed).status == "duplicate"

    def test_redriven_failure_runs(self, store: MemoryStore) -> None:
        """A redriven failure runs."""
        Gate(store, mode="mark_first").run({"id": 1}, fail)
        store.redrive([Redrive(entry.namespace, entry.key) for entry in store.dead_letters()])
        gate = Gate(store, mode="mark_first")
        assert [outcome.status for outcome in gate.run_waiting(succeed)] == ["processed"]
        assert {entry.record.state for entry in store.browse()} == {COMPLETED}
        assert gate.run_waiting(succeed) == []

    def test_failure_after_a_redrive(self, store: MemoryStore, clock: ManualClock) -> None:
        """An event that fails again, after its dead letter was redriven and its key has expired, becomes another dead
        letter."""
        gate = Gate(store, mode="mark_first", retention="10s", remember=None)
        first = gate.run({"id": 1}, fail)
        clock.advance("5s")
        store.redrive([Redrive(entry.namespace, entry.key) for entry in store.dead_letters()])
        gate.run_waiting(succeed)
        clock.advance("5s")
        second = gate.run({"id": 1}, fail)
        assert (second.status, second.acked) == ("buried", True)
        (letter,) = store.dead_letters()
        assert (letter.key.hex(), letter.record.payload) == (str(second.kept), b'{"id":1}')
        assert second.kept != first.kept

    @pytest.mark.parametrize("redriven", ["not yet", "waits", "runs", "was left behind"])
    def test_failure_of_other_content(self, store: MemoryStore, clock: ManualClock, redriven: str) -> None:
        """Other content that fails under an expired key does not replace the first dead letter."""
        gate = Gate(store, mode="mark_first", retention="10s", remember=None)
        gate.run({"id": 1, "n": 1}, fail)
        if redriven != "not yet":
            store.redrive([Redrive(entry.namespace, entry.key) for entry in store.dead_letters()])
        if redriven in ("runs", "was left behind"):
            store.take([TakeRequest("default", b"another", 60_000_000 if redriven == "runs" else 1)])
        clock.advance("10s")
        outcome = gate.run({"id": 1, "n": 2}, fail)
        assert (outcome.status, outcome.acked) == ("buried", True)
        payloads = [entry.record.payload for entry in store.browse() if entry.record.payload is not None]
        assert sorted(payloads) == [b'{"id":1,"n":1}', b'{"id":1,"n":2}']

    def test_unstarted_events_are_buried(self, store: MemoryStore) -> None:
        """After Ctrl-C in a batch, events that were marked and never started become dead letters."""

        def interrupted(event: Event) -> None:
            if event.id == "2":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Gate(store, mode="mark_first").run_batch([{"id": number} for number in (1, 2, 3)], interrupted)
        letters = {entry.record.about.delivery_id: entry.record.error for entry in store.dead_letters()}
        assert letters == {"2": "KeyboardInterrupt", "3": "it was marked as done but never started"}

    def test_no_start_after_expiry(self, store: MemoryStore) -> None:
        """An event may start until its record expires, however long its batch takes. After that another worker could be
        granted it, so it becomes a dead letter."""
        boot = ManualClock(0)
        gate = Gate(store, mode="mark_first", lease="1s", retention="90s", boot=boot)
        outcomes = gate.run_batch([{"id": number} for number in range(4)], lambda event: boot.advance("30s"))
        assert [outcome.status for outcome in outcomes] == ["processed"] * 3 + ["buried"]

    def test_dead_letter_not_stored(self, stumbling: Stumbling) -> None:
        """If the dead letter cannot be stored, the outcome says so and is not acknowledged."""
        stumbling.failures = {"settle": 99}
        outcome = Gate(stumbling, mode="mark_first").run({"id": 1}, fail)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "no copy could be stored" in outcome.reason

    def test_retention_may_be_short(self, store: MemoryStore, clock: ManualClock) -> None:
        """The retention may be shorter than the lease, because nothing is held."""
        gate = Gate(store, mode="mark_first", retention="500ms", remember=None)
        assert gate.run({"id": 1}, succeed).status == "processed"
        clock.advance("499ms")
        assert gate.run({"id": 1}, succeed).status == "duplicate"
        clock.advance("1ms")
        assert gate.run({"id": 1}, succeed).status == "processed"


class TestSeen:
    def test_first_and_second(self, gate: Gate) -> None:
        """The first call returns False, later calls return True."""
        assert [gate.seen({"id": 1}), gate.seen(b'{"id":1}'), gate.seen({"id": 2})] == [False, True, False]

    @pytest.mark.parametrize(
        ("policy", "seen", "dead"),
        [
            ("bury", [False, True, True, True], 1),
            ("run", [False, False, True, True], 0),
            ("duplicate", [False, True, True, True], 0),
        ],
    )
    def test_other_content(self, store: MemoryStore, policy: Any, seen: list[bool], dead: int) -> None:
        """Other content under the same key is judged by `on_conflict`: a dead letter, an event of its own, or a
        copy."""
        gate = Gate(store, on_conflict=policy)
        assert [gate.seen({"id": 1, "n": n}) for n in (1, 2, 2, 1)] == seen
        assert len(store.dead_letters()) == dead
        assert gate.counts["policy.conflict"] > 0

    def test_same_events_as_run(self, gate: Gate) -> None:
        """`seen` and `run` share their keys."""
        gate.run({"id": 1}, succeed)
        assert gate.seen({"id": 1})
        assert not gate.seen({"id": 2})
        assert gate.run({"id": 2}, succeed).status == "duplicate"

    def test_threads(self, gate: Gate) -> None:
        """Of concurrent threads, one gets False."""
        assert sorted(race([lambda: gate.seen({"id": 1})] * 8)) == [False] + [True] * 7

    @pytest.mark.parametrize("payload", [b"{", 5, {"id": 1.5}, [], [{"id": 1}, {"id": 2}], {}])
    def test_invalid_payload(self, store: MemoryStore, payload: Any) -> None:
        """A payload without an event, or an event without a key, raises, and nothing is marked."""
        with pytest.raises(OncegateError):
            Gate(store, key=keys.event_id).seen(payload)
        assert store.browse() == []

    def test_store_down(self, stumbling: Stumbling) -> None:
        """If the store does not answer, `seen` raises."""
        stumbling.failures = {"claim": 1}
        with pytest.raises(StoreUnavailable):
            Gate(stumbling).seen({"id": 1})

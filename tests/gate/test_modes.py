"""Modes: mark first, and `seen`."""

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
        """Claiming is completing: a batch costs one write, and its events are duplicates from then on."""
        gate = Gate(stumbling, mode="mark_first")
        outcomes = gate.run_batch([{"id": number} for number in range(50)], succeed)
        assert {outcome.status for outcome in outcomes} == {"processed"}
        assert stumbling.calls == [("claim", 50)]
        assert gate.run({"id": 7}, succeed).status == "duplicate"

    def test_done_before_the_handler_runs(self, store: MemoryStore) -> None:
        """While the handler runs the event is marked already: a crash loses it and never doubles it."""
        gate = Gate(store, mode="mark_first")
        states: list[str] = []

        def handler(event: Event) -> None:
            states.extend(entry.record.state for entry in store.browse())
            states.append(gate.run({"id": 1}, succeed).status)

        gate.run({"id": 1}, handler)
        assert states == [COMPLETED, "duplicate"]

    def test_a_failure_buries_and_acks(self, store: MemoryStore) -> None:
        """What fails is kept as a dead letter under a key of its own, and a copy of it is a duplicate."""
        gate = Gate(store, mode="mark_first")
        outcome = gate.run({"id": 1}, fail)
        assert (outcome.status, outcome.acked) == ("buried", True)
        assert outcome.reason == f"Buried as dead letter {outcome.kept}, and marked as done: ValueError: boom."
        (letter,) = store.dead_letters()
        assert (letter.key.hex(), letter.record.payload) == (str(outcome.kept), b'{"id":1}')
        assert gate.run({"id": 1}, succeed).status == "duplicate"

    def test_a_redriven_failure_runs(self, store: MemoryStore) -> None:
        """A person may still have it run."""
        Gate(store, mode="mark_first").run({"id": 1}, fail)
        store.redrive([Redrive(entry.namespace, entry.key) for entry in store.dead_letters()])
        gate = Gate(store, mode="mark_first")
        assert [outcome.status for outcome in gate.run_waiting(succeed)] == ["processed"]
        assert {entry.record.state for entry in store.browse()} == {COMPLETED}
        assert gate.run_waiting(succeed) == []

    def test_a_failure_of_what_was_redriven_and_forgotten(self, store: MemoryStore, clock: ManualClock) -> None:
        """An event that comes once more after all that is kept as well, beside the dead letter that was run."""
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
    def test_a_failure_of_another_content(self, store: MemoryStore, clock: ManualClock, redriven: str) -> None:
        """Other content that fails under a key that was forgotten never takes the place of what failed before."""
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

    def test_what_never_started_is_kept(self, store: MemoryStore) -> None:
        """Ctrl-C in a batch: what was marked and never ran is kept, not lost."""

        def interrupted(event: Event) -> None:
            if event.id == "2":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Gate(store, mode="mark_first").run_batch([{"id": number} for number in (1, 2, 3)], interrupted)
        letters = {entry.record.about.delivery_id: entry.record.error for entry in store.dead_letters()}
        assert letters == {"2": "KeyboardInterrupt", "3": "it was marked as done but never started"}

    def test_no_effect_starts_after_it_was_forgotten(self, store: MemoryStore) -> None:
        """Until its record expires an event may start, however long its batch takes; after that another worker could
        have been granted it, and it is kept."""
        boot = ManualClock(0)
        gate = Gate(store, mode="mark_first", lease="1s", retention="90s", boot=boot)
        outcomes = gate.run_batch([{"id": number} for number in range(4)], lambda event: boot.advance("30s"))
        assert [outcome.status for outcome in outcomes] == ["processed"] * 3 + ["buried"]

    def test_a_copy_that_cannot_be_kept(self, stumbling: Stumbling) -> None:
        """When not even the dead letter can be kept, the outcome says so and is not acknowledged."""
        stumbling.failures = {"settle": 99}
        outcome = Gate(stumbling, mode="mark_first").run({"id": 1}, fail)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "no copy could be stored" in outcome.reason

    def test_retention_may_be_short(self, store: MemoryStore, clock: ManualClock) -> None:
        """Nothing is held, so a key may be forgotten sooner than a lease would last."""
        gate = Gate(store, mode="mark_first", retention="500ms", remember=None)
        assert gate.run({"id": 1}, succeed).status == "processed"
        clock.advance("499ms")
        assert gate.run({"id": 1}, succeed).status == "duplicate"
        clock.advance("1ms")
        assert gate.run({"id": 1}, succeed).status == "processed"


class TestSeen:
    def test_first_and_second(self, gate: Gate) -> None:
        """The first time no, from then on yes."""
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
        """Other content under the same key is what the policy says: kept and not to be run, an event, or a copy."""
        gate = Gate(store, on_conflict=policy)
        assert [gate.seen({"id": 1, "n": n}) for n in (1, 2, 2, 1)] == seen
        assert len(store.dead_letters()) == dead
        assert gate.counts["policy.conflict"] > 0

    def test_what_is_run_was_seen(self, gate: Gate) -> None:
        """`seen` and `run` speak of the same events."""
        gate.run({"id": 1}, succeed)
        assert gate.seen({"id": 1})
        assert not gate.seen({"id": 2})
        assert gate.run({"id": 2}, succeed).status == "duplicate"

    def test_threads(self, gate: Gate) -> None:
        """Of threads that ask at once, one is told no."""
        assert sorted(race([lambda: gate.seen({"id": 1})] * 8)) == [False] + [True] * 7

    @pytest.mark.parametrize("payload", [b"{", 5, {"id": 1.5}, [], [{"id": 1}, {"id": 2}], {}])
    def test_what_cannot_be_identified(self, store: MemoryStore, payload: Any) -> None:
        """What is no event, or has no key, is neither seen nor new: that is an error, and nothing is marked."""
        with pytest.raises(OncegateError):
            Gate(store, key=keys.event_id).seen(payload)
        assert store.browse() == []

    def test_store_down(self, stumbling: Stumbling) -> None:
        """A store that does not answer is no answer."""
        stumbling.failures = {"claim": 1}
        with pytest.raises(StoreUnavailable):
            Gate(stumbling).seen({"id": 1})

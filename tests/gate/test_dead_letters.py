"""Dead letters: copies of conflicting, refused and failed events."""

import asyncio
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys, read
from oncegate.claims import Redrive
from oncegate.errors import Unkeepable
from oncegate.gate.job import UnguardedEvent
from oncegate.gate.outcome import Cause
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling


class Handler:
    """Records the events that it runs, and returns `result`."""

    def __init__(self, result: Any = "done") -> None:
        self.seen: list[Event] = []
        self.result = result

    def __call__(self, event: Event) -> Any:
        self.seen.append(event)
        return self.result


@pytest.fixture
def handler() -> Handler:
    return Handler()


def fail(event: Event) -> None:
    raise ValueError(f"no such case: {event.id}")


def succeed(event: Event) -> str:
    return f"did {event.id}"


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


class TestConflicts:
    ONE, OTHER = {"id": 1, "n": 1}, {"id": 1, "n": 2}

    def test_bury(self, store: MemoryStore, handler: Handler) -> None:
        """By default other content under a known key is stored as a dead letter."""
        gate = Gate(store)
        gate.run(self.ONE, handler)
        outcome = gate.run(self.OTHER, handler)
        assert (outcome.status, len(handler.seen)) == ("conflict", 1)
        assert [entry.key for entry in store.dead_letters()] == [outcome.kept and outcome.kept.digest]
        assert gate.counts["policy.conflict"] == 1

    @pytest.mark.parametrize("admits", [True, False])
    def test_concurrent_copies(self, store: MemoryStore, handler: Handler, admits: bool) -> None:
        """Equal conflicting events that arrive at the same time share one dead letter, and all of them are
        conflicts."""
        gate = Gate(store)
        gate.run(self.ONE, handler)

        async def outcomes() -> list[str]:
            if admits:
                found = await asyncio.gather(*(gate.aadmit(self.OTHER) for _ in range(5)))
                return [outcome.status for outcomes in found for outcome in outcomes]
            return [each.status for each in await asyncio.gather(*(gate.arun(self.OTHER, handler) for _ in range(5)))]

        assert asyncio.run(outcomes()) == ["conflict"] * 5
        assert len(store.dead_letters()) == 1
        gate.close()

    def test_copy_being_stored(self, stumbling: Stumbling, handler: Handler) -> None:
        """While another worker stores the same copy, the event is in flight: not acknowledged, and not failed."""
        gate = Gate(stumbling)
        gate.run(self.ONE, handler)
        stumbling.failures["settle"] = 10
        assert gate.run(self.OTHER, handler).status == "failed"
        stumbling.failures["settle"] = 0
        outcome = gate.run(self.OTHER, handler)
        assert (outcome.status, outcome.acked) == ("in_flight", False)
        assert outcome.reason.endswith("another worker is storing the same copy at this moment; deliver it again.")

    def test_stored_then_acknowledged(self, gate: Gate) -> None:
        """Other content under a known key does not run: it becomes one dead letter, and is then acknowledged."""
        handler = Handler()
        gate.run({"id": "a", "n": 1}, handler)
        outcomes = [gate.run({"id": "a", "n": 2}, handler) for _ in range(2)]
        assert statuses(outcomes) == ["conflict"] * 2
        assert all(outcome.acked for outcome in outcomes)
        (entry,) = gate.store.dead_letters()
        assert entry.record.payload == b'{"id":"a","n":2}'
        assert entry.key.hex() == str(outcomes[0].kept)
        assert len(handler.seen) == 1

    def test_original_is_unchanged(self, gate: Gate) -> None:
        """A conflict changes nothing for copies of the original."""
        gate.run({"id": "a", "n": 1}, Handler("one"))
        gate.run({"id": "a", "n": 2}, Handler("two"))
        assert gate.run({"id": "a", "n": 1}, Handler("three")).result == "one"

    def test_within_a_batch(self, gate: Gate) -> None:
        """Two contents under one key in one batch: the first runs, the second becomes a dead letter."""
        handler = Handler()
        outcomes = gate.run_batch([{"id": "a", "n": 1}, {"id": "a", "n": 2}], handler)
        assert statuses(outcomes) == ["processed", "conflict"]
        assert [event.body["n"] for event in handler.seen] == [1]

    @pytest.mark.parametrize("verb", ["claim", "settle"])
    def test_copy_not_stored(self, stumbling: Stumbling, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        """A conflict whose copy could not be stored is not acknowledged."""
        gate = Gate(stumbling)
        gate.run({"id": 1, "n": 1}, succeed)
        judged = stumbling.claim

        def judged_then_away(requests: Any) -> Any:
            verdicts = judged(requests)
            stumbling.failures = {verb: 99}
            return verdicts

        monkeypatch.setattr(stumbling, "claim", judged_then_away)
        outcome = gate.run({"id": 1, "n": 2}, succeed)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "no copy could be stored" in outcome.reason


ONE = {"id": 1, "data": {"status": "open", "amount": 1}}
OTHER = {"id": 1, "data": {"status": "closed", "amount": 1}, "n": 2}


class TestDifferences:
    def test_original_in_the_cache(self, store: MemoryStore) -> None:
        """A conflict lists the paths at which it differs, while the original is cached."""
        gate = Gate(store)
        gate.run(ONE, succeed)
        outcome = gate.run(OTHER, succeed)
        assert outcome.differs == ("data.status", "n")
        assert "but different content (at data.status, n). Stored as dead letter" in outcome.reason

    def test_in_one_batch(self, gate: Gate) -> None:
        """Also if both events are in one batch."""
        outcomes = gate.run_batch([ONE, OTHER], succeed)
        assert outcomes[1].differs == ("data.status", "n")

    def test_with_a_dead_letter(self, store: MemoryStore) -> None:
        """A dead letter has its payload, so it can always be compared."""
        Gate(store, max_attempts=1).run(ONE, lambda event: 1 / 0)
        assert Gate(store).run(OTHER, succeed).differs == ("data.status", "n")

    def test_original_not_available(self, store: MemoryStore) -> None:
        """Another process finds a conflict, but cannot tell where it differs."""
        Gate(store).run(ONE, succeed)
        outcome = Gate(store).run(OTHER, succeed)
        assert (outcome.status, outcome.differs) == ("conflict", ())
        assert "but different content. Stored as dead letter" in outcome.reason


class TestRefused:
    def test_stored_once(self, gate: Gate) -> None:
        """A refused event can be stored as a dead letter with its bytes, once, however often it arrives."""
        for _ in range(2):
            (stored,) = gate.keep([gate.run(b'{"id":1.5}', Handler())])
            assert stored.status == "invalid"
            assert str(stored.kept) in stored.reason
        (entry,) = gate.store.dead_letters()
        assert (entry.record.payload, entry.key.hex()) == (b'{"id":1.5}', str(stored.kept))

    def test_equal_copies_share_a_dead_letter(self, gate: Gate) -> None:
        """Equal refused events of one request share a dead letter, and each is `invalid`."""
        stored = gate.keep(gate.run_batch(["[5, 5, 6]"], Handler()))
        assert statuses(stored) == ["invalid"] * 3
        assert len(gate.store.dead_letters()) == 2

    def test_not_stored(self, stumbling: Stumbling) -> None:
        """A refused event whose copy could not be stored is `failed`, so that it is delivered again."""
        gate = Gate(stumbling)
        refused = gate.run(b"{", succeed)
        stumbling.failures = {"claim": 1}
        assert [outcome.status for outcome in gate.keep([refused])] == ["failed"]


def bury_keyless(gate: Gate) -> Outcome:
    """The outcome of an event without a key that has failed and is buried."""
    (event,) = read({"n": 1})
    item = UnguardedEvent(event, "it has no id", Outcome("invalid", event))
    item.outcome = Outcome("failed", event, error="ValueError: boom", raised="ValueError")
    return gate._engine.dead_letters.bury_unguarded(item)


class TestWithoutKey:
    def test_buried(self, gate: Gate) -> None:
        """Equal events have a dead letter each. Nothing is marked as done, because there is no key."""
        outcomes = [bury_keyless(gate) for _ in range(2)]
        assert statuses(outcomes) == ["buried", "buried"]
        assert len(gate.store.dead_letters()) == 2
        assert outcomes[0].reason == f"Buried as dead letter {outcomes[0].kept}: ValueError: boom."

    @pytest.mark.parametrize("verb", ["claim", "settle"])
    def test_store_unavailable(self, stumbling: Stumbling, verb: str) -> None:
        stumbling.failures = {verb: 99}
        outcome = bury_keyless(Gate(stumbling))
        assert (outcome.status, outcome.cause) == ("failed", Cause.STORE_UNAVAILABLE)

    def test_too_large_for_the_store(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store answers, so a worker must not wait for it."""

        def settle(_settlements: Any) -> Any:
            raise Unkeepable("400 kB at most")

        monkeypatch.setattr(store, "settle", settle)
        outcome = bury_keyless(Gate(store))
        assert (outcome.status, outcome.cause) == ("failed", None)
        assert outcome.error == "ValueError: boom, and no copy could be stored: 400 kB at most"


class TestMadeByHand:
    """Events that were made by hand, without a delivered document."""

    def test_buried(self, store: MemoryStore) -> None:
        """Its dead letter holds the body as JSON, and a redrive runs it with that body."""
        gate = Gate(store, max_attempts=1)
        outcome = gate.run(Event(source="crm", id="7", body={"id": 7, "amount": 5}), fail)
        assert (outcome.status, outcome.acked) == ("buried", True)
        (entry,) = store.dead_letters()
        assert entry.record.payload == b'{"amount":5,"id":7}'
        store.redrive([Redrive(entry.namespace, entry.key)])
        (redriven,) = gate.run_waiting(succeed)
        assert (redriven.result, redriven.event.body) == ("did 7", {"id": 7, "amount": 5})

    def test_conflict(self, store: MemoryStore, gate: Gate) -> None:
        """The copy of a conflict holds the body as JSON, too."""
        outcomes = gate.run_batch([Event(source="crm", id="7", body={"amount": n}) for n in (5, 6)], succeed)
        assert [outcome.status for outcome in outcomes] == ["processed", "conflict"]
        assert [entry.record.payload for entry in store.dead_letters()] == [b'{"amount":6}']

    def test_mark_first(self, store: MemoryStore) -> None:
        """So does the dead letter of an event that failed after it was marked as done."""
        Gate(store, mode="mark_first").run(Event(source="crm", id="7", body={"amount": 5}), fail)
        assert [entry.record.payload for entry in store.dead_letters()] == [b'{"amount":5}']

    def test_refused(self, store: MemoryStore) -> None:
        """Refused events with different bodies become different dead letters."""
        gate = Gate(store, key=keys.event_id)
        refused = gate.run_batch([Event(source="crm", body={"amount": n}) for n in (5, 6)], fail)
        assert [outcome.status for outcome in refused] == ["invalid", "invalid"]
        assert len({str(outcome.kept) for outcome in gate.keep(refused)}) == 2
        assert sorted(entry.record.payload or b"" for entry in store.dead_letters()) == [
            b'{"amount":5}',
            b'{"amount":6}',
        ]

    def test_empty_delivery(self, gate: Gate) -> None:
        """A delivery without a byte is stored without a byte."""
        gate.keep([gate.run(b"", fail)])
        assert [entry.record.payload for entry in gate.store.dead_letters()] == [b""]

    def test_not_json(self, store: MemoryStore) -> None:
        """An event whose body is not a JSON value is refused before anything is claimed, and the others of its batch
        run."""
        events = [Event(source="crm", id="7", body={"handle": object()}), Event(source="crm", id="8", body={})]
        outcomes = Gate(store).run_batch(events, succeed)
        assert [outcome.status for outcome in outcomes] == ["invalid", "processed"]
        assert outcomes[0].reason.startswith("Refused: its body is not a JSON value (")
        assert len(store.browse()) == 1

    @pytest.mark.parametrize("mode", ["lease", "mark_first"])
    def test_body_changed_by_the_handler(self, store: MemoryStore, mode: Any) -> None:
        """An event whose body the handler has made unencodable cannot be stored; it is not acknowledged, and its reason
        says so."""

        def spoils(event: Event) -> None:
            event.body["handle"] = object()
            fail(event)

        outcome = Gate(store, mode=mode, max_attempts=1).run(Event(source="crm", id="7", body={}), spoils)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert (
            "and no copy could be stored: the event was made by hand, and its body is not a JSON value"
            in outcome.reason
        )
        assert store.dead_letters() == []

"""Dead letters: copies of conflicting, refused and failed events."""

import asyncio
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys
from oncegate.claims import Redrive
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
        """By default other content under a known key is kept as a dead letter."""
        gate = Gate(store)
        gate.run(self.ONE, handler)
        outcome = gate.run(self.OTHER, handler)
        assert (outcome.status, len(handler.seen)) == ("conflict", 1)
        assert [entry.key for entry in store.dead_letters()] == [outcome.kept and outcome.kept.digest]
        assert gate.counts["policy.conflict"] == 1

    @pytest.mark.parametrize("admits", [True, False])
    def test_bury_copies_of_one_moment(self, store: MemoryStore, handler: Handler, admits: bool) -> None:
        """Equal ones that come at the same moment share one dead letter, and are conflicts all."""
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

    def test_bury_while_another_does(self, stumbling: Stumbling, handler: Handler) -> None:
        """While another worker is keeping the same copy, it is not acknowledged, and no failure: it comes again."""
        gate = Gate(stumbling)
        gate.run(self.ONE, handler)
        stumbling.failures["settle"] = 10
        assert gate.run(self.OTHER, handler).status == "failed"
        stumbling.failures["settle"] = 0
        outcome = gate.run(self.OTHER, handler)
        assert (outcome.status, outcome.acked) == ("in_flight", False)
        assert outcome.reason.endswith("another worker is storing the same copy at this moment; deliver it again.")

    def test_a_copy_is_kept_and_then_acked(self, gate: Gate) -> None:
        """Other content under a known key is not run and not lost: it is a dead letter of its own, kept once."""
        handler = Handler()
        gate.run({"id": "a", "n": 1}, handler)
        outcomes = [gate.run({"id": "a", "n": 2}, handler) for _ in range(2)]
        assert statuses(outcomes) == ["conflict"] * 2
        assert all(outcome.acked for outcome in outcomes)
        (entry,) = gate.store.dead_letters()
        assert entry.record.payload == b'{"id":"a","n":2}'
        assert entry.key.hex() == str(outcomes[0].kept)
        assert len(handler.seen) == 1

    def test_the_original_stays(self, gate: Gate) -> None:
        """A conflict changes nothing for copies of the original."""
        gate.run({"id": "a", "n": 1}, Handler("one"))
        gate.run({"id": "a", "n": 2}, Handler("two"))
        assert gate.run({"id": "a", "n": 1}, Handler("three")).result == "one"

    def test_within_a_batch(self, gate: Gate) -> None:
        """Two contents under one key in one batch: the first runs, the second is kept."""
        handler = Handler()
        outcomes = gate.run_batch([{"id": "a", "n": 1}, {"id": "a", "n": 2}], handler)
        assert statuses(outcomes) == ["processed", "conflict"]
        assert [event.body["n"] for event in handler.seen] == [1]

    @pytest.mark.parametrize("verb", ["claim", "settle"])
    def test_conflict_without_a_copy(self, stumbling: Stumbling, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        """A conflict whose copy could not be kept is not acknowledged."""
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
    def test_names_what_differs(self, store: MemoryStore) -> None:
        """A conflict says where the two differ, while the original is at hand."""
        gate = Gate(store)
        gate.run(ONE, succeed)
        outcome = gate.run(OTHER, succeed)
        assert outcome.differs == ("data.status", "n")
        assert "but different content (at data.status, n). Stored as dead letter" in outcome.reason

    def test_in_one_batch(self, gate: Gate) -> None:
        """Also if both come together."""
        outcomes = gate.run_batch([ONE, OTHER], succeed)
        assert outcomes[1].differs == ("data.status", "n")

    def test_with_a_dead_letter(self, store: MemoryStore) -> None:
        """A dead letter has its payload, so it can be compared at any time."""
        Gate(store, max_attempts=1).run(ONE, lambda event: 1 / 0)
        assert Gate(store).run(OTHER, succeed).differs == ("data.status", "n")

    def test_when_it_is_not_known(self, store: MemoryStore) -> None:
        """Another process knows that they differ, but not where."""
        Gate(store).run(ONE, succeed)
        outcome = Gate(store).run(OTHER, succeed)
        assert (outcome.status, outcome.differs) == ("conflict", ())
        assert "but different content. Stored as dead letter" in outcome.reason


class TestRefused:
    def test_kept(self, gate: Gate) -> None:
        """What was refused can be kept as a dead letter with its bytes, once however often it comes."""
        for _ in range(2):
            (kept,) = gate.keep([gate.run(b'{"id":1.5}', Handler())])
            assert kept.status == "invalid"
            assert str(kept.kept) in kept.reason
        (entry,) = gate.store.dead_letters()
        assert (entry.record.payload, entry.key.hex()) == (b'{"id":1.5}', str(kept.kept))

    def test_equal_ones_are_kept_once(self, gate: Gate) -> None:
        """Copies of one refused event in one request share a dead letter, and none of them is told to come again."""
        kept = gate.keep(gate.run_batch(["[5, 5, 6]"], Handler()))
        assert statuses(kept) == ["invalid"] * 3
        assert len(gate.store.dead_letters()) == 2

    def test_keep(self, stumbling: Stumbling) -> None:
        """A refused event whose copy could not be kept is not refused for good."""
        gate = Gate(stumbling)
        refused = gate.run(b"{", succeed)
        stumbling.failures = {"claim": 1}
        assert [outcome.status for outcome in gate.keep([refused])] == ["failed"]


class TestMadeByHand:
    """Events without the document that they came as."""

    def test_buried(self, store: MemoryStore) -> None:
        """A dead letter of one holds what it says, as JSON, and is run with that when it is redriven."""
        gate = Gate(store, max_attempts=1)
        outcome = gate.run(Event(source="crm", id="7", body={"id": 7, "amount": 5}), fail)
        assert (outcome.status, outcome.acked) == ("buried", True)
        (entry,) = store.dead_letters()
        assert entry.record.payload == b'{"amount":5,"id":7}'
        store.redrive([Redrive(entry.namespace, entry.key)])
        (redriven,) = gate.run_waiting(succeed)
        assert (redriven.result, redriven.event.body) == ("did 7", {"id": 7, "amount": 5})

    def test_a_conflict(self, store: MemoryStore, gate: Gate) -> None:
        """The copy that is kept of a conflict holds it too."""
        outcomes = gate.run_batch([Event(source="crm", id="7", body={"amount": n}) for n in (5, 6)], succeed)
        assert [outcome.status for outcome in outcomes] == ["processed", "conflict"]
        assert [entry.record.payload for entry in store.dead_letters()] == [b'{"amount":6}']

    def test_marked_first(self, store: MemoryStore) -> None:
        """So does what is kept of a failure after it was marked as done."""
        Gate(store, mode="mark_first").run(Event(source="crm", id="7", body={"amount": 5}), fail)
        assert [entry.record.payload for entry in store.dead_letters()] == [b'{"amount":5}']

    def test_refused(self, store: MemoryStore) -> None:
        """Refused ones are kept apart, each by what it says."""
        gate = Gate(store, key=keys.event_id)
        refused = gate.run_batch([Event(source="crm", body={"amount": n}) for n in (5, 6)], fail)
        assert [outcome.status for outcome in refused] == ["invalid", "invalid"]
        assert len({str(outcome.kept) for outcome in gate.keep(refused)}) == 2
        assert sorted(entry.record.payload or b"" for entry in store.dead_letters()) == [
            b'{"amount":5}',
            b'{"amount":6}',
        ]

    def test_an_empty_delivery(self, gate: Gate) -> None:
        """What was delivered without a byte is kept as that."""
        gate.keep([gate.run(b"", fail)])
        assert [entry.record.payload for entry in gate.store.dead_letters()] == [b""]

    def test_no_json(self, store: MemoryStore) -> None:
        """A body that is no JSON value is refused before anything is claimed, and its neighbours run."""
        events = [Event(source="crm", id="7", body={"handle": object()}), Event(source="crm", id="8", body={})]
        outcomes = Gate(store).run_batch(events, succeed)
        assert [outcome.status for outcome in outcomes] == ["invalid", "processed"]
        assert outcomes[0].reason.startswith("Refused: its body is not a JSON value (")
        assert len(store.browse()) == 1

    @pytest.mark.parametrize("mode", ["lease", "mark_first"])
    def test_no_longer_json(self, store: MemoryStore, mode: Any) -> None:
        """One that cannot be kept is not acknowledged, and its outcome says so."""

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

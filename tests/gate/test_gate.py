"""The gate in lease mode: each event runs once, and each delivery has an outcome."""

import threading
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys, open_store
from oncegate.errors import SettingError, SeveralEvents
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from oncegate.testing.race_contract import race

JSON_VALUES = [0, False, "", [], {}, None, 1.5, "text", [1, [2]], {"a": {"b": None}}, True, -1, 2**60]


class Handler:
    """Records its events, and fails `failures` times before it returns `result`."""

    def __init__(self, result: Any = None, failures: int = 0) -> None:
        self.seen: list[Event] = []
        self.result = result
        self.failures = failures

    def __call__(self, event: Event) -> Any:
        self.seen.append(event)
        if self.failures > 0:
            self.failures -= 1
            raise ValueError("boom")
        return self.result


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


class TestOnce:
    def test_first_is_processed_and_second_a_duplicate(self, gate: Gate) -> None:
        """The handler runs for the first delivery only; both have the same key."""
        handler = Handler()
        first, second = gate.run({"id": "a"}, handler), gate.run(b'{"id":"a"}', handler)
        assert (first.status, second.status, second.kind) == ("processed", "duplicate", "redelivery")
        assert first.key == second.key
        assert len(handler.seen) == 1

    def test_event_has_its_claim(self, gate: Gate) -> None:
        """The event that the handler gets has its key, attempt and fence."""
        handler = Handler()
        outcome = gate.run({"id": "a", "type": "t"}, handler)
        (event,) = handler.seen
        assert (event.id, event.type, event.body) == ("a", "t", {"id": "a", "type": "t"})
        assert (event.key, event.attempt) == (outcome.key, 1)
        assert event.fence > 0

    @pytest.mark.parametrize("result", JSON_VALUES)
    def test_results(self, gate: Gate, result: Any) -> None:
        """A duplicate has the result of the original, whichever JSON value it is."""
        assert gate.run({"id": "a"}, Handler(result)).result == result
        again = gate.run({"id": "a"}, Handler("another"))
        assert again.status == "duplicate"
        assert again.result == result
        assert type(again.result) is type(result)

    def test_retention(self, store: MemoryStore, clock: ManualClock) -> None:
        """After its retention a key is forgotten, and its event is new."""
        gate, handler = Gate(store, retention="1h", remember=None), Handler()
        gate.run({"id": "a"}, handler)
        clock.advance("59m")
        assert gate.run({"id": "a"}, handler).status == "duplicate"
        clock.advance("1m")
        assert gate.run({"id": "a"}, handler).status == "processed"

    def test_namespaces(self, store: MemoryStore) -> None:
        """Gates with different namespaces on one store do not share events."""
        handler = Handler()
        assert Gate(store, namespace="crm").run({"id": "a"}, handler).status == "processed"
        assert Gate(store, namespace="wfm").run({"id": "a"}, handler).status == "processed"
        assert Gate(store, namespace="crm").run({"id": "a"}, handler).status == "duplicate"

    def test_threads(self, gate: Gate) -> None:
        """Of threads that deliver one event at once, one runs the handler; the others are in flight."""
        started, go_on = threading.Event(), threading.Event()

        def slow(event: Event) -> None:
            started.set()
            go_on.wait(10)

        worker = threading.Thread(target=gate.run, args=({"id": "a"}, slow))
        worker.start()
        started.wait(10)
        outcomes = race([lambda: gate.run({"id": "a"}, slow)] * 6)
        go_on.set()
        worker.join()
        assert statuses(outcomes) == ["in_flight"] * 6
        assert {outcome.kind for outcome in outcomes} == {"concurrent"}
        assert not any(outcome.acked for outcome in outcomes)
        assert gate.run({"id": "a"}, slow).status == "duplicate"

    def test_run_takes_one_event(self, gate: Gate) -> None:
        """A payload with several events, or none, is refused before anything is claimed."""
        for payload, advice in (([{"id": 1}, {"id": 2}], "use run_batch"), ([], "holds none; pass an event")):
            with pytest.raises(SeveralEvents, match=advice):
                gate.run(payload, Handler())
        assert gate.store.browse() == []


class TestRefused:
    def test_missing_key(self, store: MemoryStore) -> None:
        """An event without a part of its key is refused with the paths tried; nothing is claimed."""
        handler = Handler()
        outcomes = Gate(store, key=keys.fields("data.case", "state")).run_batch([{"id": 1}, {"state": "x"}], handler)
        assert statuses(outcomes) == ["invalid"] * 2
        assert "data.case" in outcomes[1].reason
        assert (handler.seen, store.browse()) == ([], [])
        assert not any(outcome.acked for outcome in outcomes)

    def test_key_function_raises(self, store: MemoryStore) -> None:
        """An exception of a key function refuses the event with that text; the others of the batch run."""
        gate = Gate(store, key=lambda event: event.body["case"])
        outcomes = gate.run_batch([{"id": 1}, {"case": 2}], Handler())
        assert statuses(outcomes) == ["invalid", "processed"]
        assert "KeyError: 'case'" in outcomes[0].reason

    def test_unreadable(self, gate: Gate) -> None:
        """A payload that cannot be read is refused by itself, with its bytes and the reason."""
        outcomes = gate.run_batch([b"{", {"id": 1}, "5"], Handler())
        assert statuses(outcomes) == ["invalid", "processed", "invalid"]
        assert outcomes[0].event.raw == b"{"


class TestBatch:
    def test_outcomes_in_order(self, gate: Gate) -> None:
        """There is one outcome for each event, in the order of the payloads."""
        outcomes = gate.run_batch([{"id": 1}, [{"id": 2}, {"id": 3}], "x", '{"id":4}'], Handler())
        assert [outcome.event.id for outcome in outcomes] == ["1", "2", "3", None, "4"]
        assert statuses(outcomes) == ["processed", "processed", "processed", "invalid", "processed"]

    @pytest.mark.parametrize("known", [False, True])
    def test_copies_do_not_share_results(self, gate: Gate, known: bool) -> None:
        """Changing the result of one outcome changes no other."""
        if known:
            gate.run({"id": 1}, lambda event: {"cases": [1]})
        outcomes = gate.run_batch([{"id": 1}] * 3, lambda event: {"cases": [1]})
        outcomes[1].result["cases"].append(2)
        outcomes[1].result["more"] = True
        assert [outcome.result for outcome in outcomes] == [
            {"cases": [1]},
            {"cases": [1, 2], "more": True},
            {"cases": [1]},
        ]

    @pytest.mark.parametrize("result", [{"lock": object()}, {"n": float("nan")}], ids=["no JSON", "nan"])
    def test_result_that_cannot_be_copied(self, gate: Gate, result: Any) -> None:
        """The copy has no result, like a later duplicate, and says why."""
        first, copy = gate.run_batch([{"id": 1}] * 2, lambda event: result)
        assert (first.result, copy.status, copy.result) == (result, "duplicate", None)
        assert "its result was not copied, because it is not a JSON value" in copy.reason

    def test_copies_are_coalesced(self, gate: Gate) -> None:
        """Copies within a batch are duplicates of the first, with its result."""
        handler = Handler("done")
        outcomes = gate.run_batch([{"id": 1}, {"id": 1}, {"id": 2}, {"id": 1}], handler)
        assert statuses(outcomes) == ["processed", "duplicate", "processed", "duplicate"]
        assert [outcome.result for outcome in outcomes] == ["done"] * 4
        assert [event.id for event in handler.seen] == ["1", "2"]

    def test_copies_of_a_failure(self, gate: Gate) -> None:
        """If the first fails, its copies are not acknowledged either, and cost no attempt."""
        handler = Handler(failures=1)
        outcomes = gate.run_batch([{"id": 1}, {"id": 1}], handler)
        assert statuses(outcomes) == ["failed", "failed"]
        assert gate.run({"id": 1}, handler).event.attempt == 2

    def test_copies_of_a_duplicate(self, gate: Gate) -> None:
        """Copies of an event that was processed before are all duplicates."""
        gate.run({"id": 1}, Handler("before"))
        outcomes = gate.run_batch([{"id": 1}, {"id": 1}], Handler())
        assert statuses(outcomes) == ["duplicate", "duplicate"]
        assert [outcome.result for outcome in outcomes] == ["before"] * 2

    def test_failure_of_one_event(self, gate: Gate) -> None:
        """An event that fails does not affect the others of its batch."""
        handler = Handler(failures=1)
        outcomes = gate.run_batch([{"id": number} for number in range(5)], handler)
        assert statuses(outcomes) == ["failed"] + ["processed"] * 4

    def test_copies_have_the_attempt(self, gate: Gate) -> None:
        """A copy has the attempt of the first."""
        outcomes = gate.run_batch([{"id": 1}, {"id": 1}], Handler(failures=1))
        assert {outcome.reason for outcome in outcomes} == {"Failed at attempt 1: ValueError: boom; deliver it again."}

    @pytest.mark.parametrize("payload", [b'{"id":1}', '{"id":1}', {"id": 1}])
    def test_one_payload_is_no_batch(self, gate: Gate, payload: Any) -> None:
        """A single payload, which could be mistaken for a list of its parts, is refused."""
        with pytest.raises(SettingError, match="in a list"):
            gate.run_batch(payload, Handler())

    def test_empty(self, gate: Gate) -> None:
        """Without payloads there are no outcomes."""
        assert gate.run_batch([], Handler()) == []


class TestSettings:
    @pytest.mark.parametrize("store", [Path("x.db"), 5, None])
    def test_what_is_no_url(self, store: Any) -> None:
        """Only a URL names a store."""
        with pytest.raises(SettingError, match="the store must be a URL"):
            open_store(store)

    @pytest.mark.parametrize("url", ["", "redis//x", "mysql://x", "memory", "memory://x"])
    def test_urls_that_name_no_store(self, url: str) -> None:
        """A URL that names no store is refused with those that would do."""
        with pytest.raises(SettingError, match=r"use one of: memory, sqlite|write memory://"):
            Gate(url)

    def test_a_store_by_its_url(self) -> None:
        """A gate opens the store that a URL names."""
        gate = Gate("memory://")
        assert gate.run({"id": 1}, Handler()).status == "processed"
        gate.close()


async def _async(event: Event) -> None: ...


def _generator(event: Event) -> Any:
    yield event


class TestHandlers:
    @pytest.mark.parametrize("handler", [_async, _generator, None, "handler"])
    def test_invalid_handlers(self, gate: Gate, handler: Any) -> None:
        """An async function, a generator function and a value that is not callable are refused before anything is
        claimed."""
        with pytest.raises(SettingError):
            gate.run({"id": 1}, handler)
        assert gate.store.browse() == []

    @pytest.mark.parametrize("hidden", [_async, _generator])
    def test_returned_coroutines_and_generators(self, gate: Gate, hidden: Any) -> None:
        """A function that returns a coroutine or a generator has done nothing: the event fails."""

        def handler(event: Event) -> Any:
            return hidden(event)

        outcome = gate.run({"id": 1}, handler)
        assert outcome.status == "failed"
        assert "which was not run" in outcome.reason


@pytest.mark.parametrize("store", [None, b"redis://me:secret@localhost", MemoryStore, object()])
def test_invalid_store(store: Any) -> None:
    """An invalid store is refused when the gate is made, not at the first event."""
    with pytest.raises(SettingError, match=f"store must be a URL, .*, not {type(store).__name__}$"):
        Gate(store)


@pytest.mark.parametrize("place", ["memory://", "sqlite:///closed.db"])
def test_closed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `close`, no handler runs, with every store. The event fails and says why."""
    monkeypatch.chdir(tmp_path)
    gate, handler = Gate(place), Handler()
    gate.close()
    outcome = gate.run({"id": "evt-1"}, handler)
    assert (outcome.status, outcome.acked, handler.seen) == ("failed", False, [])
    assert "was closed" in outcome.reason

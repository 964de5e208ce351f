"""The completion cache: bursts of copies are answered here, and never wrongly."""

import re
from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.claims import Redrive, Reset
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling


def succeed(event: Event) -> dict[str, int]:
    return {"n": 1}


def fail(event: Event) -> None:
    raise ValueError("boom")


def claims(stumbling: Stumbling) -> int:
    return sum(verb == "claim" for verb, _ in stumbling.calls)


def test_burst_of_copies(stumbling: Stumbling) -> None:
    """Copies of an event that was just completed are answered without the store, with result and original, and
    counted."""
    gate = Gate(stumbling)
    gate.run({"id": "a"}, succeed)
    outcomes = [gate.run({"id": "a"}, fail) for _ in range(50)]
    assert {outcome.status for outcome in outcomes} == {"duplicate"}
    assert (outcomes[0].kind, outcomes[0].result) == ("redelivery", {"n": 1})
    assert re.fullmatch(r"Duplicate of a, processed \d+ ms ago; the handler was not run again\.", outcomes[0].reason)
    assert claims(stumbling) == 1
    assert gate.counts["memory.hit"] == 50


def test_results_are_not_shared(stumbling: Stumbling) -> None:
    """Each copy gets its own result: changing one changes no other."""
    gate = Gate(stumbling)
    gate.run({"id": "a"}, succeed)
    gate.run({"id": "a"}, fail).result["n"] = 2
    assert gate.run({"id": "a"}, fail).result == {"n": 1}


def test_completion_of_another_process(stumbling: Stumbling) -> None:
    """A duplicate that the store has answered is cached, too."""
    Gate(stumbling).run({"id": "a"}, succeed)
    other = Gate(stumbling)
    assert [other.run({"id": "a"}, fail).result for _ in range(3)] == [{"n": 1}] * 3
    assert claims(stumbling) == 2


def test_remember(stumbling: Stumbling) -> None:
    """After `remember` the store is asked again."""
    boot = ManualClock(0)
    gate = Gate(stumbling, remember="10s", boot=boot)
    gate.run({"id": "a"}, succeed)
    boot.advance(9_999_999)
    gate.run({"id": "a"}, succeed)
    assert claims(stumbling) == 1
    boot.advance(1)
    gate.run({"id": "a"}, succeed)
    assert claims(stumbling) == 2


@pytest.mark.parametrize("one", [0, 1])
def test_never_past_its_expiry(store: MemoryStore, clock: ManualClock, one: int) -> None:
    """A retention shorter than `remember` is kept to the microsecond, also for completions that another process
    wrote."""
    boot = ManualClock(0)

    def pass_time(by: int) -> None:
        clock.advance(by)
        boot.advance(by)

    gates = [Gate(store, retention="2s", lease="1s", remember="60s", boot=boot) for _ in range(2)]
    gates[0].run({"id": "a"}, succeed)
    pass_time(1_000_000)
    assert [gate.run({"id": "a"}, fail).status for gate in gates] == ["duplicate"] * 2
    pass_time(999_999)
    assert [gate.run({"id": "a"}, fail).status for gate in gates] == ["duplicate"] * 2
    pass_time(1)
    assert gates[one].run({"id": "a"}, succeed).status == "processed"


def test_other_content_goes_to_the_store(stumbling: Stumbling) -> None:
    """The cache compares key and content: a conflict is still a conflict."""
    gate = Gate(stumbling)
    gate.run({"id": "a"}, succeed)
    assert gate.run({"id": "a", "n": 2}, succeed).status == "conflict"


@pytest.mark.parametrize("settings", [{"key": keys.once_per("case", "id")}, {"on_conflict": "duplicate"}])
def test_unbound_content_goes_to_the_store(stumbling: Stumbling, settings: dict[str, Any]) -> None:
    """Other content goes to the store also where it counts as a copy: the store has confirmed the cached content
    only."""
    gate = Gate(stumbling, **settings)
    gate.run({"id": "a"}, succeed)
    statuses = [gate.run({"id": "a", "n": n}, succeed).status for n in (2, 2)]
    assert (statuses, gate.counts.get("memory.hit", 0)) == (["duplicate"] * 2, 0)
    assert claims(stumbling) == 3
    assert gate.run({"id": "a"}, succeed).status == "duplicate"
    assert gate.counts["memory.hit"] == 1


def test_failures_are_not_cached(stumbling: Stumbling) -> None:
    """An event that failed, or whose completion was not confirmed, is claimed again."""
    gate = Gate(stumbling)
    assert gate.run({"id": "a"}, fail).status == "failed"
    assert gate.run({"id": "a"}, succeed).status == "processed"
    stumbling.failures = {"settle": 1_000}  # retries in the background must not succeed either
    assert gate.run({"id": "b"}, succeed).status == "failed"
    assert gate.run({"id": "b"}, succeed).status == "in_flight"


def test_redriven_event(store: MemoryStore) -> None:
    """A redriven dead letter runs, whatever the cache holds of other keys."""
    gate = Gate(store, max_attempts=1)
    outcome = gate.run({"id": "a"}, fail)
    assert outcome.key is not None
    store.redrive([Redrive("default", outcome.key.digest)])
    assert [outcome.status for outcome in gate.run_waiting(succeed)] == ["processed"]
    assert gate.run({"id": "a"}, fail).status == "duplicate"


def test_off(stumbling: Stumbling) -> None:
    """With remember=None, a key that an operator has reset is new at once."""
    gate = Gate(stumbling, remember=None)
    outcome = gate.run({"id": "a"}, succeed)
    assert outcome.key is not None
    stumbling.reset([Reset("default", outcome.key.digest)])
    assert gate.run({"id": "a"}, succeed).status == "processed"


def test_large_result(stumbling: Stumbling) -> None:
    """A large result is not cached, but read from the store."""
    gate = Gate(stumbling)
    gate.run({"id": "a"}, lambda event: "x" * 10_000)
    assert len(gate.run({"id": "a"}, fail).result) == 10_000
    assert claims(stumbling) == 2


def test_bounded(stumbling: Stumbling) -> None:
    """However many events are completed, at most about 10,000 are cached."""
    gate = Gate(stumbling)
    for start in range(0, 30_000, 500):
        gate.run_batch([{"id": number} for number in range(start, start + 500)], succeed)
    memory = gate._engine.claimer._cache
    assert len(memory._new) + len(memory._old) <= 11_000
    before = claims(stumbling)
    gate.run({"id": 29_999}, succeed)
    gate.run({"id": 0}, succeed)
    assert claims(stumbling) == before + 1


def test_large_document(stumbling: Stumbling) -> None:
    """A large document is not cached: it only serves to tell where a conflict differs."""
    gate = Gate(stumbling)
    gate.run({"id": "a", "text": "x" * 10_000}, succeed)
    assert [known.document for known in gate._engine.claimer._cache._new.values()] == [None]


def test_old_entries_are_dropped(stumbling: Stumbling) -> None:
    """Entries are dropped after their time, also if no others fill the cache."""
    boot = ManualClock(0)
    gate = Gate(stumbling, remember="10s", boot=boot)
    gate.run_batch([{"id": number} for number in range(100)], succeed)
    for _ in range(2):
        boot.advance("10s")
        gate.run({"id": str(boot.now)}, succeed)
    memory = gate._engine.claimer._cache
    assert len(memory._new) + len(memory._old) == 2

"""The engine: events that the store holds until they are run (`admit`)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.claims import RELEASED
from oncegate.errors import SettingError
from oncegate.gate.async_runner import MOST_IN_A_BATCH
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling

CALL = {"id": "evt-1", "type": "call.ended"}


def statuses(gate: Gate, *payloads: object) -> list[str]:
    return [outcome.status for outcome in gate.admit(payloads)]


def test_accepted_once(gate: Gate) -> None:
    """A new event is accepted, and every copy is a duplicate: in the batch, later, and with `run`."""
    first, copy = gate.admit([CALL, CALL])
    assert (first.status, first.reason) == ("accepted", "Accepted: the event is stored and will be run.")
    assert (copy.status, copy.kind) == ("duplicate", "redelivery")
    (again,) = gate.admit([CALL])
    assert again.reason.startswith("Duplicate of evt-1, first seen ")
    assert again.reason.endswith(", which is stored and waits to be run.")
    assert gate.run(CALL, lambda event: None).status == "duplicate"
    assert gate.counts["event.accepted"] == 1


def test_accepted_and_run(gate: Gate) -> None:
    """An accepted event runs with all that was delivered; after that a copy has its result."""
    gate.admit([CALL])
    seen: list[Event] = []

    def handler(event: Event) -> str:
        seen.append(event)
        return "done"

    (outcome,) = gate.run_waiting(handler)
    assert (outcome.status, seen[0].id, seen[0].body, seen[0].attempt) == ("processed", "evt-1", CALL, 1)
    assert gate.admit([CALL])[0].result == "done"


def test_other_content(store: MemoryStore) -> None:
    """Other content is buried, accepted as an event of its own, or dropped, by the policy."""
    other = CALL | {"type": "call.started"}
    key = keys.event_id
    assert statuses(Gate(store, key=key, namespace="a"), CALL, other) == ["accepted", "conflict"]
    assert len(store.dead_letters("a")) == 1
    assert statuses(Gate(store, key=key, namespace="b", on_conflict="run"), CALL, other) == ["accepted", "accepted"]
    assert statuses(Gate(store, key=key, namespace="c", on_conflict="duplicate"), CALL, other)[1] == "duplicate"


def test_without_a_key(store: MemoryStore) -> None:
    """An event without a key is refused; with on_missing_key="unguarded" every copy is accepted and runs."""
    gate = Gate(store, key=keys.fields("no.such"))
    assert statuses(gate, CALL) == ["invalid"]
    unguarded = Gate(store, key=keys.fields("no.such"), on_missing_key="unguarded")
    assert statuses(unguarded, CALL, CALL) == ["accepted", "accepted"]
    assert len(unguarded.run_waiting(lambda event: None)) == 2


def test_too_old(store: MemoryStore) -> None:
    """An event that is too old is buried instead of stored."""
    gate = Gate(store, max_age="1h", on_too_old="bury")
    (outcome,) = gate.admit([CALL | {"timestamp": "2020-01-01T00:00:00Z"}])
    assert outcome.status == "buried"
    assert len(store.dead_letters()) == 1
    assert gate.run_waiting(lambda event: None) == []


def test_state_changes(store: MemoryStore) -> None:
    """Emissions of one change are accepted once; when it is processed, their own keys are known, too."""
    gate = Gate(store, key=keys.state_change(window="500ms"), remember=None)
    first = {"id": "a", "conversationId": "c", "state": "connected", "timestamp": "2026-01-01T00:00:00.000Z"}
    echo = first | {"id": "b", "timestamp": "2026-01-01T00:00:00.200Z"}
    assert statuses(gate, first) == ["accepted"]
    (outcome,) = gate.admit([echo])
    assert (outcome.status, outcome.kind) == ("duplicate", "state-echo")
    assert [outcome.status for outcome in gate.run_waiting(lambda event: None)] == ["processed"]
    assert statuses(gate, echo) == ["duplicate"]


def test_made_by_hand(gate: Gate) -> None:
    """An event without a delivered document cannot be stored, and is refused."""
    (outcome,) = gate.admit([Event(source="plain", id="evt-1", body=CALL)])
    assert (outcome.status, outcome.acked) == ("invalid", False)
    assert "no raw document" in outcome.reason
    assert gate.store.browse() == []


def test_unreadable(gate: Gate) -> None:
    """A payload that cannot be read is refused by itself; the others are accepted."""
    assert statuses(gate, b"{", CALL) == ["invalid", "accepted"]


@pytest.mark.parametrize("after", [False, True])
def test_store_away(stumbling: Stumbling, after: bool) -> None:
    """If the store does not answer, nothing is accepted, whatever the policy for claims is. The next delivery is
    accepted, or a duplicate if only the answer was lost."""
    gate = Gate(stumbling, on_store_error="unguarded", unguarded_types=["call.ended"])
    stumbling.failures["admit"], stumbling.after = 1, after
    assert statuses(gate, CALL) == ["failed"]
    assert statuses(gate, CALL) == ["duplicate" if after else "accepted"]


def test_invalid_store_or_mode(gate: Gate, store: MemoryStore) -> None:
    """A store without an inbox and the mode mark_first are refused; so is a payload that is not in a list."""

    class Plain:
        """A store without the verb."""

        claim = MemoryStore.claim

    with pytest.raises(SettingError, match="needs a store with an inbox"):
        Gate(Plain()).admit([CALL])  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="would complete them before"):
        Gate(store, mode="mark_first").admit([CALL])
    with pytest.raises(SettingError, match=r"admit\(\) takes several payloads in a list"):
        gate.admit(CALL)


def test_callers_share_their_writes(tmp_path: Path, stumbling: Stumbling) -> None:
    """Concurrent coroutines share few writes; each gets its own answer, also for several events."""
    gate = Gate(stumbling)

    async def main() -> list[list[str]]:
        calls = [gate.aadmit({"id": f"evt-{number % 50}"}) for number in range(100)]
        several = gate.aadmit([{"id": "x"}, {"id": "y"}, b"{"])
        return [[outcome.status for outcome in outcomes] for outcomes in await asyncio.gather(*calls, several)]

    *single, several = asyncio.run(main())
    assert sorted(status for (status,) in single) == ["accepted"] * 50 + ["duplicate"] * 50
    assert several == ["accepted", "accepted", "invalid"]
    assert len([verb for verb, _ in stumbling.calls if verb == "admit"]) <= 3


def test_cached_copies(stumbling: Stumbling) -> None:
    """A copy of an event that this process saw completed is answered without the store."""
    gate = Gate(stumbling)
    gate.admit([CALL])
    gate.run_waiting(lambda event: None)
    stumbling.calls.clear()
    assert statuses(gate, CALL) == ["duplicate"]
    assert asyncio.run(gate.aadmit(CALL))[0].status == "duplicate"
    assert stumbling.calls == []


def test_one_of_several_writes_fails() -> None:
    """If one of several writes raises, no event stays claimed: stored events can be taken by any worker."""

    class Breaking(MemoryStore):
        writes = 0

        def admit(self, requests: Any) -> Any:
            self.writes += 1
            if self.writes == 2:
                raise RuntimeError("a fault of ours")
            return super().admit(requests)

    store = Breaking()
    gate = Gate(store)
    items = [gate._identify(event) for event in read([{"id": str(number)} for number in range(MOST_IN_A_BATCH + 1)])]
    with pytest.raises(RuntimeError):
        asyncio.run(gate._engine.async_runner.admit(items, len(items)))
    gate.drain()
    entries = store.browse(limit=len(items))
    gate.close()
    assert (len(entries), {entry.record.state for entry in entries}) == (MOST_IN_A_BATCH, {RELEASED})


def test_backoff(store: MemoryStore, clock: ManualClock) -> None:
    """After a failure an event waits for the backoff, doubled each time up to its limit, less up to half by jitter."""
    gate = Gate(store, backoff="1s", backoff_limit="3s", max_attempts=9)
    gate.admit([CALL])
    for longest in (1, 2, 3, 3):
        (outcome,) = gate.run_waiting(lambda event: 1 / 0)
        assert outcome.reason.endswith("ZeroDivisionError: division by zero; the event is stored and will be retried.")
        clock.advance(longest * 500_000 - 1)
        assert gate.run_waiting(lambda event: None) == []
        clock.advance(longest * 500_000 + 1)
    assert [outcome.status for outcome in gate.run_waiting(lambda event: None)] == ["processed"]

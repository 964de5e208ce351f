"""The claimer: what the store answers, and what follows if it does not answer."""

import asyncio
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.claims import Claim, EventSummary
from oncegate.errors import StoreReadOnly, StoreUnavailable
from oncegate.gate.claimer import guarded
from oncegate.stores.base import BatchesMixedOperations, Store
from oncegate.stores.circuit_breaker import IN_A_ROW, CircuitBreaker
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling


class Handler:
    """Records its runs; raises `error` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[Event] = []
        self.error = error

    def __call__(self, event: Event) -> str:
        self.runs.append(event)
        if self.error is not None:
            raise self.error
        return "done"


class ReadOnly(MemoryStore):
    """A store that can be made read-only, and unreadable."""

    def __init__(self) -> None:
        super().__init__()
        self.writable = self.readable = True
        self.reads = 0

    def _apply(self, operations: Any, **how: Any) -> Any:
        if not self.writable:
            raise StoreReadOnly("the store is full")
        return super()._apply(operations, **how)

    def browse(self, *args: Any, **wanted: Any) -> Any:
        self.reads += 1
        if not self.readable:
            raise StoreUnavailable("the store is away")
        return super().browse(*args, **wanted)


class TestNoWrites:
    def test_answered_by_reading(self) -> None:
        """A read-only store still answers completed, stored and buried events. Other events fail, except for those that
        may run unguarded."""
        store, handler, failing = ReadOnly(), Handler(), Handler(ValueError("boom"))
        gate = Gate(store, remember=None, max_attempts=2, on_store_error="unguarded", unguarded_types=["alarm"])
        gate.run({"id": "done", "type": "alarm"}, handler)
        gate.admit([b'{"id": "kept"}'])
        for _ in range(2):
            gate.run({"id": "buried"}, failing)
        gate.run({"id": "released"}, failing)
        store.writable = False
        events = [
            {"id": "done", "type": "alarm"},
            b'{"id": "kept"}',
            {"id": "buried"},
            {"id": "released"},
            {"id": "done", "type": "alarm", "other": 1},
            {"id": "new"},
            {"id": "new", "type": "alarm"},
        ]
        outcomes = gate.run_batch(events, handler)
        expected = ["duplicate", "duplicate", "buried", "failed", "unguarded", "failed", "unguarded"]
        assert [outcome.status for outcome in outcomes] == expected
        assert outcomes[0].result == "done"
        assert len(handler.runs) == 1 + expected.count("unguarded")
        assert [outcome.status for outcome in gate.admit([b'{"id": "kept"}', b'{"id": 1}'])] == ["duplicate", "failed"]
        assert gate.seen({"id": "done", "type": "alarm"}) is True
        with pytest.raises(StoreReadOnly):
            gate.seen({"id": "new"})

    def test_unreadable_store(self) -> None:
        """A store that cannot be read either is read once a second at most."""
        store, boot = ReadOnly(), ManualClock(0)
        gate = Gate(store, boot=boot, remember=None)
        gate.run({"id": "done"}, Handler())
        store.writable = store.readable = False
        for _ in range(2):
            outcomes = gate.run_batch([{"id": number} for number in range(20)], Handler())
            assert {outcome.status for outcome in outcomes} == {"failed"}
        assert store.reads == 1
        store.readable = True
        boot.advance("1s")
        assert gate.run({"id": "done"}, Handler()).status == "duplicate"


class TestStoreAway:
    def test_claim(self, stumbling: Stumbling) -> None:
        """If the store does not answer, nothing runs and nothing is acknowledged."""
        stumbling.failures = {"claim": 1}
        gate = Gate(stumbling)
        seen: list[Event] = []
        outcomes = gate.run_batch([{"id": 1}, {"id": 2}], seen.append)
        assert [(outcome.status, outcome.acked) for outcome in outcomes] == [("failed", False)] * 2
        assert "the store is away" in outcomes[0].reason
        assert seen == []


class Remote(Stumbling):
    """A store that a gate calls through the circuit breaker."""

    remote = True


class Unmixed:
    """A remote store that cannot mix operations in one batch."""

    remote = True
    claim, settle, renew = MemoryStore.claim, MemoryStore.settle, MemoryStore.renew


async def succeed(event: Event) -> None: ...


def claim_of(number: int) -> Claim:
    return Claim("default", b"key-%d" % number, b"owner", b"", 30_000_000, 60_000_000, EventSummary("plain", "t"))


class TestGuardedStore:
    """Mixed batches behind the circuit breaker."""

    @pytest.mark.parametrize(("store", "mixes"), [(Remote(), True), (Unmixed(), False)], ids=["mixed", "unmixed"])
    def test_same_ability_as_the_store(self, store: Any, mixes: bool) -> None:
        """A guarded store can mix operations exactly if the store can: the method is on its class, where isinstance()
        looks for it from Python 3.12 on."""
        behind = guarded(store, CircuitBreaker(50_000, ManualClock(0)))
        assert isinstance(store, BatchesMixedOperations) is mixes
        assert isinstance(behind, BatchesMixedOperations) is mixes
        assert hasattr(type(behind), "together") is mixes

    def test_dead_letters_are_counted_by_the_store(self) -> None:
        """A guarded store passes the count of dead letters to the store."""
        store = Remote()
        store.count_dead_letters = lambda namespace, limit: limit  # type: ignore[method-assign]
        behind: Any = guarded(store, CircuitBreaker(50_000, ManualClock(0)))
        assert behind.count_dead_letters("default", 7) == 7

    def test_failing_mixed_batches_open_the_breaker(self) -> None:
        """Failures of mixed batches count: after IN_A_ROW of them the breaker is open, and the store is not called."""
        store, changes = Remote(), list[str]()
        breaker = CircuitBreaker(50_000, ManualClock(0), lambda name, why: changes.append(name))
        behind: Any = guarded(store, breaker)
        store.failures["together"] = 2 * IN_A_ROW
        for number in range(IN_A_ROW):
            assert changes == []
            with pytest.raises(StoreUnavailable, match="the store is away"):
                behind.together([claim_of(number)])
        assert changes == ["breaker.opened"]
        with pytest.raises(StoreUnavailable, match="circuit breaker open"):
            behind.together([claim_of(IN_A_ROW)])
        assert store.calls == [("together", 1)] * IN_A_ROW

    def test_concurrent_callers_share_a_write(self) -> None:
        """A settlement and a claim of concurrent `arun` calls reach a remote store in one mixed batch."""
        store = Remote()
        assert self.settle_beside_a_claim(store) == ["processed", "processed"]
        assert store.calls == [("claim", 1), ("together", 2), ("settle", 1)]

    def test_an_open_breaker_stops_mixed_batches(self) -> None:
        """While the breaker is open, no mixed batch reaches the store. The settlement is sent by itself, because its
        effect is done; its answer closes the breaker, so the claim is sent, too."""
        store = Remote()

        async def open_the_breaker(gate: Gate) -> None:
            store.failures["claim"] = IN_A_ROW
            for number in range(IN_A_ROW):
                assert (await gate.arun({"id": f"away-{number}"}, succeed)).status == "failed"
            assert gate.counts["breaker.opened"] == 1
            store.calls.clear()

        assert self.settle_beside_a_claim(store, open_the_breaker) == ["processed", "processed"]
        assert store.calls == [("settle", 1), ("claim", 1), ("settle", 1)]

    def settle_beside_a_claim(self, store: Store, while_it_runs: Any = None) -> list[str]:
        """Run an event whose handler returns in the turn of the loop in which another event is handed in; the statuses
        of both."""
        gate = Gate(store)
        others: list[asyncio.Task[Any]] = []

        async def handler(_event: Event) -> None:
            if while_it_runs is not None:
                await while_it_runs(gate)
            others.append(asyncio.create_task(gate.arun({"id": "second"}, succeed)))

        async def main() -> list[str]:
            first = await gate.arun({"id": "first"}, handler)
            return [first.status, (await others[0]).status]

        return asyncio.run(main())

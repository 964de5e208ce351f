"""The claimer: what the store answers, and what follows if it does not answer."""

from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.errors import StoreReadOnly, StoreUnavailable
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling


class Handler:
    """Counts its runs; fails if it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[Event] = []
        self.error = error

    def __call__(self, event: Event) -> str:
        self.runs.append(event)
        if self.error is not None:
            raise self.error
        return "done"


class ReadOnly(MemoryStore):
    """A store that takes no writes when it is told to, and may not be readable either."""

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
    def test_what_is_known(self) -> None:
        """Of a store that takes no writes, what is done, kept or buried is told by reading; nothing else is answered or
        run, but for what may run unguarded."""
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
        said = ["duplicate", "duplicate", "buried", "failed", "unguarded", "failed", "unguarded"]
        assert [outcome.status for outcome in outcomes] == said
        assert outcomes[0].result == "done"
        assert len(handler.runs) == 1 + said.count("unguarded")
        assert [outcome.status for outcome in gate.admit([b'{"id": "kept"}', b'{"id": 1}'])] == ["duplicate", "failed"]
        assert gate.seen({"id": "done", "type": "alarm"}) is True
        with pytest.raises(StoreReadOnly):
            gate.seen({"id": "new"})

    def test_what_cannot_be_read(self) -> None:
        """A store that cannot be read either is tried once a second, whatever comes."""
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
        """When the store cannot be asked, nothing runs and nothing is acknowledged."""
        stumbling.failures = {"claim": 1}
        gate = Gate(stumbling)
        seen: list[Event] = []
        outcomes = gate.run_batch([{"id": 1}, {"id": 2}], seen.append)
        assert [(outcome.status, outcome.acked) for outcome in outcomes] == [("failed", False)] * 2
        assert "the store is away" in outcomes[0].reason
        assert seen == []

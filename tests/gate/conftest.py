"""Fixtures: a gate on a new memory store, a store that fails on demand, and waiting for a condition."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncegate import Gate, read
from oncegate.errors import StoreUnavailable
from oncegate.gate.job import Job
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def gate(store: MemoryStore) -> Gate:
    return Gate(store)


def left_by_another(store: MemoryStore, clock: ManualClock, *payloads: Any) -> None:
    """Let another worker claim these events and never settle them; their leases are over afterwards."""
    gate = Gate(store)
    jobs = [gate._identify(event) for payload in payloads for event in read(payload)]
    gate._engine.claimer.claim([job for job in jobs if isinstance(job, Job)])
    clock.advance("31s")


class Stumbling(MemoryStore):
    """A memory store whose methods fail a given number of times, before or after they have done their work."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock)
        self.failures: dict[str, int] = {}
        self.after = False
        self.calls: list[tuple[str, int]] = []

    def _stumble(self, verb: str, call: Callable[[Any], Any], batch: Any) -> Any:
        self.calls.append((verb, len(batch)))
        if self.failures.get(verb, 0) <= 0:
            return call(batch)
        self.failures[verb] -= 1
        if self.after:
            call(batch)
        raise StoreUnavailable(f"the store is away ({verb})")

    def claim(self, requests: Any) -> Any:
        return self._stumble("claim", super().claim, requests)

    def admit(self, requests: Any) -> Any:
        return self._stumble("admit", super().admit, requests)

    def together(self, operations: Any) -> Any:
        return self._stumble("together", super().together, operations)

    def take(self, wants: Any) -> Any:
        return self._stumble("take", super().take, wants)

    def settle(self, settlements: Any) -> Any:
        return self._stumble("settle", super().settle, settlements)

    def renew(self, leases: Any) -> Any:
        return self._stumble("renew", super().renew, leases)


@pytest.fixture
def stumbling() -> Stumbling:
    return Stumbling()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)

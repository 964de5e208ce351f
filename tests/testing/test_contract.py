"""The contract itself: a store that is wrong in one line does not pass it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from oncegate import claims
from oncegate.claims import COMPLETED, Claim, Complete, Operation, Record, Release
from oncegate.clocks import Clock
from oncegate.stores import memory
from oncegate.stores.memory import MemoryStore
from oncegate.testing.comparing import machine

Step = Callable[[Record | None, Operation, int], tuple[Record | None, Any]]


def forgets_expiry(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    unexpiring = replace(record, expires_at=None) if record is not None else None
    return claims.step(unexpiring, operation, now)


def lease_one_longer(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    late = isinstance(operation, Claim) and record is not None and record.lease_until == now
    return claims.step(record, operation, now - 1 if late else now)


def unfenced(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    if isinstance(operation, Complete) and record is not None:
        operation = replace(operation, fence=record.fence)
    return claims.step(record, operation, now)


def deleting_release(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    return (None if isinstance(operation, Release) and answer else after), answer


def binds_nothing(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    if isinstance(operation, Claim):
        operation = replace(operation, binds=False)
    return claims.step(record, operation, now)


def sliding(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    if after is record and after is not None and after.state == COMPLETED:
        after = replace(after, expires_at=now + 60)
    return after, answer


@pytest.mark.parametrize("step", [forgets_expiry, lease_one_longer, unfenced, deleting_release, binds_nothing, sliding])
def test_the_comparison_catches(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with one rule broken differs from the model within the histories that are tried."""
    monkeypatch.setattr(memory, "step", step)
    assert_caught(lambda clock: MemoryStore(clock=clock))


def assert_caught(open_empty: Callable[[Clock], MemoryStore]) -> None:
    # Found is enough here: the shortest history that shows it would take minutes to find.
    tried = settings(max_examples=500, stateful_step_count=40, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(open_empty), settings=tried)


def test_the_comparison_catches_a_shared_namespace() -> None:
    """A store that mixes namespaces up differs from the model."""

    class Mixed(MemoryStore):
        def _apply(self, operations: Any, *, admits: bool = False) -> list[Any]:
            return super()._apply([replace(operation, namespace="a") for operation in operations], admits=admits)

    def open_mixed(clock: Clock) -> MemoryStore:
        return Mixed(clock=clock)

    assert_caught(open_mixed)

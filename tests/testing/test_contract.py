"""The contract fails for a store with one broken rule."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import Struct
from msgspec.structs import replace

from oncegate import claims
from oncegate.claims import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    Abandon,
    Admit,
    Claim,
    Complete,
    Forget,
    Operation,
    Record,
    Redrive,
    Release,
)
from oncegate.clocks import Clock
from oncegate.stores import memory
from oncegate.stores.memory import MemoryStore
from oncegate.testing.claim_contract import ClaimContract
from oncegate.testing.clock import ManualClock
from oncegate.testing.inbox_contract import InboxContract
from oncegate.testing.model_comparison import machine
from oncegate.testing.operator_contract import ForgetContract
from oncegate.testing.settle_contract import AttemptContract

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


def seeds_one_content(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """The content of a seeded record is compared like a known content."""
    if isinstance(operation, Claim) and record is not None and not record.payload_hash and operation.binds:
        operation = replace(operation, payload_hash=b"other")
        record = replace(record, payload_hash=b"seeded")
    return claims.step(record, operation, now)


def sliding(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    if after is record and after is not None and after.state == COMPLETED:
        after = replace(after, expires_at=now + 60)
    return after, answer


def counts_every_loss(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """Every lost attempt counts, also the first."""
    after, answer = claims.step(record, operation, now)
    lost = record is not None and after is not None and after.lost == record.lost + 1 == 1
    return _changed(after, answer, attempts=after.attempts + 1) if lost else (after, answer)  # type: ignore[union-attr]


def counts_no_loss(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    lost = record is not None and after is not None and after.lost == record.lost + 1 > 1
    return _changed(after, answer, attempts=after.attempts - 1) if lost else (after, answer)  # type: ignore[union-attr]


def forgets_losses(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """An unstarted release sets the count of lost attempts to 0, as a failed one does."""
    after, answer = claims.step(record, operation, now)
    forgets = isinstance(operation, Release) and operation.unstarted and after is not record
    return _changed(after, answer, lost=0) if forgets else (after, answer)


def keeps_losses(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """A completion keeps `lost`."""
    after, answer = claims.step(record, operation, now)
    completed = isinstance(operation, Complete) and after is not record and record is not None
    return _changed(after, answer, lost=record.lost) if completed else (after, answer)  # type: ignore[union-attr]


def counts_unavailable(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    if isinstance(operation, Release):
        operation = replace(operation, unavailable=False)
    return claims.step(record, operation, now)


def unavailable_since_now(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """`unavailable_since` is the time of the last such release, not of the first."""
    after, answer = claims.step(record, operation, now)
    moved = isinstance(operation, Release) and operation.unavailable and not operation.unstarted and after is not record
    return _changed(after, answer, unavailable_since=now) if moved else (after, answer)


def hands_nothing_on(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    if isinstance(operation, Complete):
        operation = replace(operation, handed_to=None)
    return claims.step(record, operation, now)


def redrives_with_losses(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    redriven = isinstance(operation, Redrive) and answer is True and record is not None
    return _changed(after, answer, lost=record.lost) if redriven else (after, answer)  # type: ignore[union-attr]


def erases_the_owner(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    return _changed(after, answer, owner=b"") if isinstance(operation, Forget) and answer else (after, answer)


def removes_dead_letters(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    after, answer = claims.step(record, operation, now)
    is_dead = record is not None and record.state == DEAD
    return (None, answer) if isinstance(operation, Forget) and is_dead else (after, answer)


def admits_without_a_loss(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """A payload that is attached to a record with an expired lease does not change the counts."""
    after, answer = claims.step(record, operation, now)
    lapsed = isinstance(operation, Admit) and after is not record and record is not None and record.state == IN_PROGRESS
    if not lapsed or after is None or after.first_seen != record.first_seen:  # type: ignore[union-attr]
        return after, answer
    return _changed(after, answer, attempts=record.attempts, lost=record.lost)  # type: ignore[union-attr]


def abandons_anything(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Any]:
    """Abandon accepts the claim of another instance."""
    if isinstance(operation, Abandon) and record is not None:
        operation = replace(operation, owner=record.owner, fence=record.fence)
    return claims.step(record, operation, now)


def _changed(after: Record | None, answer: Any, **fields: Any) -> tuple[Record | None, Any]:
    """The step with some fields of the record changed."""
    assert after is not None
    wrong = replace(after, **fields)
    return wrong, replace(answer, record=wrong) if isinstance(answer, Struct) else answer


@pytest.mark.parametrize(
    "step",
    [
        forgets_expiry,
        lease_one_longer,
        unfenced,
        deleting_release,
        binds_nothing,
        seeds_one_content,
        sliding,
        counts_every_loss,
        counts_unavailable,
        hands_nothing_on,
        abandons_anything,
    ],
)
def test_the_comparison_catches(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with one broken rule differs from the model within the histories that are tried."""
    monkeypatch.setattr(memory, "step", step)
    assert_caught(lambda clock: MemoryStore(clock=clock))


@pytest.mark.parametrize(
    ("step", "row"),
    [
        (counts_every_loss, AttemptContract().test_the_first_loss_does_not_count),
        (counts_no_loss, AttemptContract().test_the_first_loss_does_not_count),
        (forgets_losses, AttemptContract().test_unstarted_keeps_a_row_of_losses),
        (keeps_losses, partial(AttemptContract().test_completing_resets_the_counts, result=None, handed_to=None)),
        (counts_unavailable, AttemptContract().test_unavailable_gives_the_attempt_back),
        (unavailable_since_now, AttemptContract().test_unavailable_gives_the_attempt_back),
        (hands_nothing_on, lambda store, clock: AttemptContract().test_handed_on_in_a_batch(store)),
        (redrives_with_losses, AttemptContract().test_buried_keeps_the_counts),
        (admits_without_a_loss, InboxContract().test_admitted_after_two_losses),
        (seeds_one_content, ClaimContract().test_seeded_again),
        (erases_the_owner, lambda store, clock: ForgetContract().test_forget_completed(store, b"null", None)),
        (removes_dead_letters, ForgetContract().test_forget_dead_letter),
    ],
)
def test_the_rows_catch(step: Step, row: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that counts attempts wrongly fails the test of that rule, and a correct store passes it."""
    clock = ManualClock()
    row(store=MemoryStore(clock=clock), clock=clock)
    monkeypatch.setattr(memory, "step", step)
    with pytest.raises(AssertionError):
        row(store=MemoryStore(clock=clock), clock=clock)


def assert_caught(open_empty: Callable[[Clock], MemoryStore]) -> None:
    # Without shrinking: to find the shortest history would take minutes.
    tried = settings(max_examples=500, stateful_step_count=40, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(open_empty), settings=tried)


def test_the_comparison_catches_a_shared_namespace() -> None:
    """A store that mixes namespaces differs from the model."""

    class Mixed(MemoryStore):
        def _apply(self, operations: Any, *, admits: bool = False) -> list[Any]:
            return super()._apply([replace(operation, namespace="a") for operation in operations], admits=admits)

    def open_mixed(clock: Clock) -> MemoryStore:
        return Mixed(clock=clock)

    assert_caught(open_mixed)

"""Order within an entity: its events run one at a time, in the order in which they happened."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from oncegate.claims import Admit, Admitted, Granted, Operation, Record, step

Entity = tuple[str, str | None]  # namespace and entity; None: the event has no entity, and no order


def keep_first_leases(
    operations: Sequence[Operation], find_busy: Callable[[Collection[Entity]], Collection[Entity]]
) -> list[Operation]:
    """Return the operations; an admission keeps its lease only if its event may run at once.

    An event may run at once if it has no entity, or if it happened first of its entity in this batch and the store
    keeps no other event of the entity. `find_busy` returns those of some entities that the store keeps events of."""
    firsts: dict[Entity, Admit] = {}
    for request in (operation for operation in operations if isinstance(operation, Admit)):
        entity = _entity(request)
        first = firsts.setdefault(entity, request)
        if first is not request and _happened(request) < _happened(first):
            firsts[entity] = request
    busy = find_busy([entity for entity, first in firsts.items() if entity[1] is not None and first.lease])

    def keeps_lease(operation: Operation) -> bool:
        if not isinstance(operation, Admit) or not operation.lease or operation.about.entity is None:
            return True
        entity = _entity(operation)
        return firsts[entity] is operation and entity not in busy

    return [each if keeps_lease(each) else replace(each, lease=0) for each in operations]


def batch_positions(operations: Sequence[Operation]) -> list[int]:
    """Return for each admission how many admissions of its entity are before it in the batch; 0 for all else."""
    counts: Counter[Entity] = Counter()
    positions = [0] * len(operations)
    for index, operation in enumerate(operations):
        if isinstance(operation, Admit) and operation.about.entity is not None:
            entity = _entity(operation)
            positions[index] = counts[entity]
            counts[entity] += 1
    return positions


def step_at_position(before: Record | None, operation: Operation, now: int, position: int) -> tuple[Record | None, Any]:
    """Return what `step` returns, with `first_seen` of a new record moved `position` microseconds after now.

    Events of one entity without a time, or with the same time, run in the order of `first_seen`. Without this, all
    events of a batch would have the same."""
    after, answer = step(before, operation, now)
    is_new = before is None or (before.expires_at is not None and before.expires_at <= now)
    if not position or not is_new or not isinstance(answer, Admitted | Granted):
        return after, answer
    after = replace(answer.record, first_seen=now + position)
    return after, replace(answer, record=after)


def _entity(request: Admit) -> Entity:
    return request.namespace, request.about.entity


def _happened(request: Admit) -> float:
    return inf if request.about.occurred_at is None else request.about.occurred_at

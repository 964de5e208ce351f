"""Rules that make the events of an entity run one at a time, in the order in which they happened."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from oncegate.claims import Admit, Admitted, Granted, Operation, Record, step

Entity = tuple[str, str | None]  # namespace and entity; None: the event has no entity and is not ordered


def keep_first_leases(
    operations: Sequence[Operation], find_busy: Callable[[Collection[Entity]], Collection[Entity]]
) -> list[Operation]:
    """Return the operations, but without the lease of each admission whose event may not run at once.

    An event may run at once if it has no entity. An event with an entity may run at once if it is the first event of
    this entity in the batch, by the time at which the events happened, and the store keeps no other event of the
    entity. `find_busy` takes entities and returns the entities among them that have events in the store."""
    firsts: dict[Entity, Admit] = {}
    for request in (operation for operation in operations if isinstance(operation, Admit)):
        entity = _entity(request)
        first = firsts.setdefault(entity, request)
        if first is not request and _occurred_at(request) < _occurred_at(first):
            firsts[entity] = request
    busy = find_busy([entity for entity, first in firsts.items() if entity[1] is not None and first.lease])

    def keeps_lease(operation: Operation) -> bool:
        if not isinstance(operation, Admit) or not operation.lease or operation.about.entity is None:
            return True
        entity = _entity(operation)
        return firsts[entity] is operation and entity not in busy

    return [operation if keeps_lease(operation) else replace(operation, lease=0) for operation in operations]


def batch_positions(operations: Sequence[Operation]) -> list[int]:
    """Return a number for each operation. For an admission, it is how many earlier admissions of the batch have the
    same entity. For an admission without an entity and for other operations, it is 0."""
    counts: Counter[Entity] = Counter()
    positions = [0] * len(operations)
    for index, operation in enumerate(operations):
        if isinstance(operation, Admit) and operation.about.entity is not None:
            entity = _entity(operation)
            positions[index] = counts[entity]
            counts[entity] += 1
    return positions


def step_at_position(before: Record | None, operation: Operation, now: int, position: int) -> tuple[Record | None, Any]:
    """Return what `step` returns, but set `first_seen` of a new record to `position` microseconds after `now`.

    Events of one entity that have no time, or the same time, run in the order of `first_seen`. Without the added
    microseconds, all events of a batch would have the same `first_seen`."""
    after, answer = step(before, operation, now)
    is_new = before is None or (before.expires_at is not None and before.expires_at <= now)
    if not position or not is_new or not isinstance(answer, Admitted | Granted):
        return after, answer
    after = replace(answer.record, first_seen=now + position)
    return after, replace(answer, record=after)


def _entity(request: Admit) -> Entity:
    return request.namespace, request.about.entity


def _occurred_at(request: Admit) -> float:
    return inf if request.about.occurred_at is None else request.about.occurred_at

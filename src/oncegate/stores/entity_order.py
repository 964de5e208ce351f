"""Lines: what is kept for one entity runs one at a time, in the order in which it happened."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from oncegate.claims import Admit, Admitted, Granted, Operation, Record, step

# A namespace and an entity.
Line = tuple[str, str | None]


def keep_first_leases(
    operations: Sequence[Operation], busy: Callable[[Collection[Line]], Collection[Line]]
) -> list[Operation]:
    """These operations, with a lease for admissions only of what may run at once. `busy` tells which of some lines have
    something kept already."""
    firsts: dict[Line, Admit] = {}
    for request in (operation for operation in operations if isinstance(operation, Admit)):
        line = (request.namespace, request.about.entity)
        first = firsts.setdefault(line, request)
        if first is not request and _happened(request) < _happened(first):
            firsts[line] = request
    waiting = busy([line for line, first in firsts.items() if line[1] is not None and first.lease])

    def is_free(operation: Operation) -> bool:
        if not isinstance(operation, Admit) or not operation.lease or operation.about.entity is None:
            return True
        line = (operation.namespace, operation.about.entity)
        return firsts[line] is operation and line not in waiting

    return [each if is_free(each) else replace(each, lease=0) for each in operations]


def batch_positions(operations: Sequence[Operation]) -> list[int]:
    """How many of one batch each admission has before it in its line. What tells no time, or the same, is put in order
    by when it was first seen: so each is seen so many microseconds after the first."""
    before: Counter[Line] = Counter()
    places = [0] * len(operations)
    for place, operation in enumerate(operations):
        if isinstance(operation, Admit) and operation.about.entity is not None:
            line = (operation.namespace, operation.about.entity)
            places[place] = before[line]
            before[line] += 1
    return places


def step_at_position(before: Record | None, operation: Operation, now: int, place: int) -> tuple[Record | None, Any]:
    """What `step` answers to an admission that has so many before it: what was absent is seen so much later."""
    after, answer = step(before, operation, now)
    absent = before is None or (before.expires_at is not None and before.expires_at <= now)
    if not place or not absent or not isinstance(answer, Admitted | Granted):
        return after, answer
    after = replace(answer.record, first_seen=now + place)
    return after, replace(answer, record=after)


def _happened(request: Admit) -> float:
    return inf if request.about.occurred_at is None else request.about.occurred_at

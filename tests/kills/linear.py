"""Whether `oncegate.claims.step` can explain the answers for a key, one operation after the other.

This is for histories in which every request was sent once and answered. The search looks for an order that respects
real time (an operation that was answered before another was requested comes first) and in which the shipped function
gives each recorded answer.

A claim is applied at the time that its answer shows, or at the start of the lease of its grant, because a store may
read its clock again before it answers. Settlements and renewals show no time. They are applied at the earliest possible
time, so a renewed lease ends in the model no later than in the store. When a record shows a later end, the model uses
it. Everything else must be equal.

Two answers are allowed beyond those of the function. A claim that overlaps another operation on its key may be in
flight, as for a store that does not wait for locks. And a claim may be applied twice: Postgres first writes absent
records and then reads the whole batch, so if this takes longer than the lease, the claim takes over from itself.
"""

import sys
from itertools import accumulate
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import (
    IN_PROGRESS,
    Bury,
    Claim,
    Complete,
    EventSummary,
    Granted,
    Record,
    Release,
    Renew,
    Settlement,
    step,
)
from tests.kills.history import Item, Operation, Shown

_LONG: Final = 3_600_000_000  # longer than any history, so that no record expires
_ABOUT: Final = EventSummary("plain")


class _State(Struct, frozen=True, gc=False):
    record: Record | None = None
    renewed: bool = False


class _Node(Struct, frozen=True, gc=False):
    """The operations that are in order, as bits, and the resulting record."""

    done: int
    state: _State


class _Placed(Struct, frozen=True, gc=False):
    """An operation by the time of its request. `alone`: no other operation overlaps it."""

    operation: Operation
    begin: int
    end: int
    alone: bool


def explained(operations: list[Operation], ahead: int) -> bool:
    """Whether such an order exists for the history of one key. `ahead` is how far the clock of the store is ahead of
    ours."""
    placed = _placed(operations)
    everything = (1 << len(placed)) - 1
    nodes, seen = [_Node(0, _State())], set()
    while nodes:
        node = nodes.pop()
        if node.done == everything:
            return True
        if node not in seen:
            seen.add(node)
            nodes += reversed([_Node(node.done | 1 << place, after) for place, after in _next(placed, node, ahead)])
    return False


def _placed(operations: list[Operation]) -> list[_Placed]:
    ordered = sorted(operations, key=lambda each: each.begin)
    ends = [each.end or 0 for each in ordered]
    before = [0, *accumulate(ends, max)]
    after = [*(each.begin for each in ordered[1:]), sys.maxsize]
    return [
        _Placed(each, each.begin, ends[place], before[place] < each.begin and ends[place] < after[place])
        for place, each in enumerate(ordered)
    ]


def _next(placed: list[_Placed], node: _Node, ahead: int) -> list[tuple[int, _State]]:
    """Every operation that can come next: it was requested before any remaining one was answered."""
    left = [place for place in range(_first(node.done), len(placed)) if not node.done >> place & 1]
    until = min(placed[place].end for place in left)
    possible = ((place, _after(placed[place], node.state, ahead)) for place in left if placed[place].begin <= until)
    return [(place, after) for place, after in possible if after is not None]


def _first(done: int) -> int:
    """The position of the first operation that is not done."""
    return (~done & (done + 1)).bit_length() - 1


def _after(placed: _Placed, state: _State, ahead: int) -> _State | None:
    """The state after an operation, if its answer is possible."""
    item, answer = placed.operation.item, placed.operation.answer
    if isinstance(answer, Shown):
        return _claimed(item, answer, state, alone=placed.alone)
    record, told = step(state.record, _settlement(item), placed.begin + ahead)
    return _State(record, state.renewed or item.verb == "renew") if told is answer else None


def _claimed(item: Item, shown: Shown, state: _State, *, alone: bool) -> _State | None:
    claim = Claim(item.namespace, item.key, item.owner, b"", item.lease, _LONG, _ABOUT, binds=False)
    found = _caught_up(shown, state)
    counted_from = shown.lease_until - item.lease if shown.verdict == "Granted" else shown.at
    if found.record is None and shown.lost == 1:
        found = _State(step(None, claim, shown.fence - 1)[0])
    for moment in (shown.at, min(shown.at, counted_from)):
        record, told = step(found.record, claim, moment)
        if type(told).__name__ == shown.verdict and _shows(shown, record):
            return _State(record, found.renewed and record is found.record)
        if isinstance(told, Granted) and shown.verdict == "InFlight" and not alone and _shows(shown, found.record):
            return found
    return None


def _caught_up(shown: Shown, state: _State) -> _State:
    """A renewed lease ends when a record shows it, if that is not before its earliest possible end."""
    record = state.record
    if record is None or not state.renewed or (record.owner, record.fence) != (shown.owner, shown.fence):
        return state
    if record.state != IN_PROGRESS or shown.lease_until < record.lease_until:
        return state
    return _State(replace(record, lease_until=shown.lease_until), True)


def _shows(shown: Shown, record: Record | None) -> bool:
    if record is None:
        return False
    ends = record.state != IN_PROGRESS or record.lease_until == shown.lease_until
    as_shown = (shown.state, shown.owner, shown.fence, shown.attempts, shown.lost)
    return ends and (record.state, record.owner, record.fence, record.attempts, record.lost) == as_shown


def _settlement(item: Item) -> Settlement | Renew:
    proof = (item.namespace, item.key, item.owner, item.fence)
    match item.verb:
        case "renew":
            return Renew(*proof, item.lease)
        case "release":
            return Release(*proof)
        case "bury":
            return Bury(*proof, _LONG, b"{}", "poison")
        case _:
            return Complete(*proof, _LONG)

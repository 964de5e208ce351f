"""Zombies: workers stopped past their lease, replaced by another, and continued."""

import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import COMPLETED, Record
from tests.kills.checker import Check, check
from tests.kills.crew import Crew, crew, resume, stopped, wait_until
from tests.kills.history import read_history
from tests.kills.judge import Finding, judge, records_of
from tests.kills.kills import new_world
from tests.kills.points import Strike
from tests.kills.worker import BATCH, Plan, Way

# Points at which a worker can be stopped so that another takes over: all except those in a transaction, which blocks
# the others.
STOPS: Final[dict[Way, tuple[str, ...]]] = {
    "run": ("claim written", "before the effect", "half-way", "after the effect", "renew called", "settle called"),
    "batch": ("claim written", "before the effect", "half-way", "after the effect", "renew called", "settle called"),
    "transaction": ("claim written", "transact called"),
}
_NOT_BEGUN: Final = frozenset({"claim written", "transact called"})
_LEASE: Final = "500ms"  # no worker may be stopped in a renewal by accident: that would block its successor
_LONGER_THAN_A_BEAT: Final = 0.3
_SUCCESSOR: Final = "successor"
_REFUSED: Final = frozenset({"failed", "in_flight"})


class Rising(Struct, frozen=True):
    """How many were stopped, the final findings, and each sign of a stale write or a late start."""

    zombies: int
    finding: Finding
    stale: tuple[str, ...]
    history: Check

    def __add__(self, other: "Rising") -> "Rising":
        return Rising(*(getattr(self, field) + getattr(other, field) for field in self.__struct_fields__))

    @property
    def complaints(self) -> list[str]:
        return [*self.stale, *self.finding.complaints, *self.history.complaints]


def rise(way: Way, point: str, zombies: int, **changes: Any) -> Rising:
    """Stop so many workers at a point, let one successor do all their work, and let them continue."""
    size = BATCH if way == "batch" else 1
    with new_world(way, zombies * size, lease=_LEASE, **changes) as plan, crew() as hands:
        dead = [_stopping(plan, point, number, size) for number in range(zombies)]
        undead = [hands.start(each) for each in dead]
        for each in undead:
            wait_until(partial(stopped, each), f"{each.name} stopped at {point}")
        held = records_of(plan.world)
        hands.run(replace(plan, name=_SUCCESSOR))
        taken = records_of(plan.world)
        _go_on(hands, undead)
        stale = [*_takeovers(held, taken), *_changes(taken, records_of(plan.world)), *_claims(dead, point)]
        stale += _writes(plan) + (_late_starts(plan) if point in _NOT_BEGUN else [])
        return Rising(zombies, judge(plan), tuple(stale), check(read_history(plan.folder)))


def _stopping(plan: Plan, point: str, number: int, size: int) -> Plan:
    mine = tuple(plan.world.events[number * size : (number + 1) * size])
    stop = Strike(point, 1, signal.SIGSTOP)
    pause = _LONGER_THAN_A_BEAT if point == "renew called" else 0.0
    return replace(plan, name=f"zombie-{number}", only=mine, strike=stop, pause=pause)


def _go_on(hands: Crew, undead: Sequence[ForkServerProcess]) -> None:
    for each in undead:
        resume(each)
    hands.finish()


# ── the signs ─────────────────────────────────────────────────────────────────────────────────────────────


def _takeovers(held: dict[str, Record], taken: dict[str, Record]) -> list[str]:
    """Without a takeover, nothing could be stale."""
    return [f"{event} was not taken over" for event, record in taken.items() if not _taken_over(held[event], record)]


def _taken_over(before: Record, after: Record) -> bool:
    higher = after.fence > before.fence and after.owner != before.owner
    return higher and after.state == COMPLETED and after.result == msgspec.json.encode(_SUCCESSOR)


def _changes(taken: dict[str, Record], last: dict[str, Record]) -> list[str]:
    return [f"the record of {event} was changed" for event in taken if last.get(event) != taken[event]]


def _claims(dead: Sequence[Plan], point: str) -> list[str]:
    """What a zombie reports as done. The event at which it was stopped fails, and other events of its batch do not
    start."""
    at_it = "in_flight" if point == "claim written" else "failed"
    signs = []
    for plan in dead:
        said = dict(word.split(" ") for word in plan.world.said(plan.name) if " " in word)
        wrong = [event for event in plan.only if said.get(event) not in _REFUSED]
        wrong += [event for event in plan.only[:1] if said.get(event) != at_it and event not in wrong]
        signs += [f"{plan.name} has {event} {said.get(event)}" for event in wrong]
    return signs


def _writes(plan: Plan) -> list[str]:
    if plan.way != "transaction":
        return []
    return [f"{worker} wrote a row of {event}" for event, _, worker in plan.world.rows() if worker != _SUCCESSOR]


def _late_starts(plan: Plan) -> list[str]:
    attempts = Counter(plan.world.attempts())
    return [f"an effect of {event} began after its lease" for event, count in attempts.items() if count > 1]

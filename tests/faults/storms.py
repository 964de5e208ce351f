"""Workers whose network is cut, reset and delayed while they run."""

import random
from contextlib import ExitStack, closing
from functools import reduce
from operator import add
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from tests.faults.grounds import Ground
from tests.faults.rough import KINDS, RoughProxy, Weather
from tests.kills.checker import Check, check
from tests.kills.crew import crew
from tests.kills.history import read_history
from tests.kills.judge import Finding, judge, records_of
from tests.kills.kills import new_world
from tests.kills.worker import Plan, Way

_CUTS_OF_A_WORLD: Final = 30
_EVENTS_FOR_A_CUT: Final = 5
_LEASE: Final = "400ms"
_ROOMY: Final = "1s"


class Storm(Struct, frozen=True):
    """The number of faults by kind, the final findings, the check of the history, and the number of grants that never
    started: the cost of lost answers to claims."""

    struck: dict[str, int]
    finding: Finding
    history: Check
    spent: int

    def __add__(self, other: "Storm") -> "Storm":
        struck = {kind: self.struck.get(kind, 0) + other.struck.get(kind, 0) for kind in KINDS}
        return Storm(struck, self.finding + other.finding, self.history + other.history, self.spent + other.spent)

    @property
    def cuts(self) -> int:
        return sum(self.struck.values())

    @property
    def complaints(self) -> list[str]:
        return self.finding.complaints + self.history.complaints


def storm(ground: Ground, way: Way, cuts: int, seed: int, **changes: Any) -> Storm:
    """Run workers in as many worlds as needed until so many requests were disturbed."""
    chance = random.Random(seed)  # noqa: S311  # must be repeatable
    storms: list[Storm] = []
    while (left := cuts - sum(each.cuts for each in storms)) > 0:
        weather = Weather(chance.getrandbits(32))
        storms.append(_weathered(ground, way, weather, min(left, _CUTS_OF_A_WORLD), 3, lease=_LEASE, **changes))
    return reduce(add, storms)


def lost_answers(ground: Ground, way: Way, kind: str, cuts: int, seed: int, **changes: Any) -> Storm:
    """One worker that only loses answers and has time to retry."""
    return _weathered(ground, way, Weather(seed, (kind,)), cuts, 1, lease=_ROOMY, **changes)


def _weathered(ground: Ground, way: Way, weather: Weather, cuts: int, workers: int, **changes: Any) -> Storm:
    with ExitStack() as stack:
        proxy = stack.enter_context(closing(RoughProxy(ground.port, weather)))
        place = ground.at(proxy.port)
        plan = stack.enter_context(new_world(way, cuts * _EVENTS_FOR_A_CUT, place=place, **changes))
        stack.callback(setattr, weather, "left", 0)  # also for the cleanup
        hands = stack.enter_context(crew())
        weather.left = cuts
        for number in range(workers):
            hands.start(replace(plan, name=f"worker-{number}", seed=number))
        hands.finish()
        weather.left = 0
        hands.run(replace(plan, name="last"))
        return _found(plan, weather)


def _found(plan: Plan, weather: Weather) -> Storm:
    finding = judge(plan)
    grants = sum(1 + record.fence - record.first_seen for record in records_of(plan.world).values())
    return Storm(dict(weather.struck), finding, check(read_history(plan.folder)), grants - finding.attempted)

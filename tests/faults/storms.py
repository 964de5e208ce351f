"""Storms: workers whose network is cut, reset and held up while they work."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
_ROOMY: Final = "3s"


class Storm(Struct, frozen=True):
    """What struck how often, what was found in the end, how its history was, and how many attempts were counted that
    were never begun: what lost answers to claims have cost."""

    struck: dict[str, int]
    finding: Finding
    history: Check
    spent: int
    in_vain: tuple[str, ...] = ()

    def __add__(self, other: "Storm") -> "Storm":
        struck = {kind: self.struck.get(kind, 0) + other.struck.get(kind, 0) for kind in KINDS}
        return Storm(
            struck,
            self.finding + other.finding,
            self.history + other.history,
            self.spent + other.spent,
            self.in_vain + other.in_vain,
        )

    @property
    def cuts(self) -> int:
        return sum(self.struck.values())

    @property
    def complaints(self) -> list[str]:
        return [*self.in_vain, *self.finding.complaints, *self.history.complaints]


def storm(ground: Ground, way: Way, cuts: int, seed: int, **changes: Any) -> Storm:
    """Workers in as many worlds as it takes until so many requests were struck."""
    chance = random.Random(seed)  # noqa: S311  # to be repeated
    storms: list[Storm] = []
    while (left := cuts - sum(each.cuts for each in storms)) > 0:
        weather = Weather(chance.getrandbits(32), min(left, _CUTS_OF_A_WORLD))
        storms.append(_weathered(ground, way, weather, chance, workers=3, lease=_LEASE, **changes))
    return reduce(add, storms)


def lost_answers(ground: Ground, way: Way, kind: str, cuts: int, seed: int, **changes: Any) -> Storm:
    """One worker that loses only answers, and has time to ask for them again: no attempt may be spent on them."""
    weather = Weather(seed, cuts, (kind,))
    chance = random.Random(seed)  # noqa: S311  # to be repeated
    run = _weathered(ground, way, weather, chance, workers=1, lease=_ROOMY, **changes)
    if not run.spent:
        return run
    return replace(run, in_vain=(f"{run.spent} attempts were spent on lost answers",))


def _weathered(
    ground: Ground, way: Way, weather: Weather, chance: random.Random, workers: int, **changes: Any
) -> Storm:
    events = weather.left * _EVENTS_FOR_A_CUT
    with _rough(ground, weather) as proxy, new_world(way, events, place=ground.at(proxy.port), **changes) as plan:
        with crew() as hands:
            for number in range(workers):
                hands.start(replace(plan, name=f"worker-{number}", seed=chance.getrandbits(32)))
            hands.finish()
            weather.left = 0
            hands.run(replace(plan, name="last"))
        return _found(plan, weather)


@contextmanager
def _rough(ground: Ground, weather: Weather) -> Iterator[RoughProxy]:
    with closing(RoughProxy(ground.port, weather)) as proxy:
        yield proxy


def _found(plan: Plan, weather: Weather) -> Storm:
    finding = judge(plan)
    attempts = sum(record.attempts for record in records_of(plan.world).values())
    return Storm(dict(weather.struck), finding, check(read_history(plan.folder)), attempts - finding.attempted)

"""Workers killed at a named point, at any statement, by a poisonous event, and at random."""

import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from itertools import count
from operator import add
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from tests.kills.checker import Check, check
from tests.kills.crew import Crew, Stuck, begun, crew, killed, wait_until
from tests.kills.history import read_history
from tests.kills.judge import Finding, judge
from tests.kills.places import SQLITE, Place
from tests.kills.points import Strike
from tests.kills.worker import Plan, Way

FEW: Final = 6
_MANY: Final = 150
_KILLS_OF_A_WORLD: Final = 20
_MOST_DEATHS: Final = 12
_KILLED: Final = -signal.SIGKILL
_PAUSE: Final = 0.004
_LONGER_THAN_A_BEAT: Final = 0.2
_BETWEEN: Final = (0.002, 0.04)


class Run(Struct, frozen=True):
    """How many workers were killed, the findings after the last worker finished, and the check of the history."""

    kills: int
    finding: Finding
    history: Check

    def __add__(self, other: "Run") -> "Run":
        return Run(self.kills + other.kills, self.finding + other.finding, self.history + other.history)

    @property
    def complaints(self) -> list[str]:
        return self.finding.complaints + self.history.complaints


def found(kills: int, plan: Plan) -> Run:
    return Run(kills, judge(plan), check(read_history(plan.folder), abandons=not plan.place.remote))


@contextmanager
def new_world(way: Way, events: int = FEW, **changes: Any) -> Iterator[Plan]:
    """A plan for a world in a new folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="oncegate-kills-") as folder:
        plan = Plan(folder, events, way, **changes)
        plan.world.begin()
        try:
            yield plan
        finally:
            plan.world.end()


def strike(way: Way, blow: Strike, **changes: Any) -> Run:
    """Kill or stop one worker, and let the next finish the world."""
    with new_world(way, **changes) as plan, crew() as hands:
        code = hands.run(replace(plan, strike=blow, name="struck"))
        _drain(hands, plan)
        return found(int(code == _KILLED), plan)


def strike_at(way: Way, point: str, **changes: Any) -> Run:
    """Strike a worker at a named point of its second event. For a renewal, its effect takes longer."""
    beating = point.startswith("renew")
    pause = _LONGER_THAN_A_BEAT if beating else 0.0
    return strike(way, Strike(point, 1 if beating else 2), pause=pause, **changes)


def sweep(way: Way, point: str = "statement", **changes: Any) -> Iterator[Run]:
    """Strike at the first SQL statement or request to a server, then at the second and so on, until a worker ends
    before its strike."""
    for passage in count(1):
        run = strike(way, Strike(point, passage), **changes)
        yield run
        if not run.kills:
            return


def poison(way: Way, events: tuple[str, ...], **changes: Any) -> Run:
    """Start workers until one survives the poisonous events."""
    with new_world(way, poison=events, **changes) as plan, crew() as hands:
        for deaths in range(_MOST_DEATHS):
            if hands.run(replace(plan, name=f"worker-{deaths}")) != _KILLED:
                return found(deaths, plan)
        raise Stuck(f"{', '.join(events)} killed {_MOST_DEATHS} workers and was never buried")


def at_random(way: Way, kills: int, seed: int, workers: int = 2, place: Place = SQLITE) -> Run:
    """Keep so many workers running and kill them at random, in as many worlds as needed. Returns all results
    together."""
    chance = random.Random(seed)  # noqa: S311  # must be repeatable
    runs: list[Run] = []
    while (left := kills - sum(run.kills for run in runs)) > 0:
        runs.append(_harried(way, min(left, _KILLS_OF_A_WORLD), workers, chance, place))
    return reduce(add, runs)


def _harried(way: Way, kills: int, workers: int, chance: random.Random, place: Place) -> Run:
    with new_world(way, _MANY, pause=_PAUSE, place=place) as plan, crew() as hands:
        struck = _harry(hands, [_next(plan, number, chance) for number in range(workers)], kills, chance)
        _drain(hands, plan)
        return found(struck, plan)


def _harry(hands: Crew, plans: list[Plan], kills: int, chance: random.Random) -> int:
    """Kill one of the workers from time to time and start another, until enough were killed or no work is left."""
    workers = [hands.start(plan) for plan in plans]
    for struck in range(kills):
        victim = chance.randrange(len(workers))
        wait_until(partial(begun, plans[victim], workers[victim]), "a worker at work")
        time.sleep(chance.uniform(*_BETWEEN))
        if not killed(workers[victim]):
            return struck
        plans[victim] = _next(plans[victim], len(workers) + struck, chance)
        workers[victim] = hands.start(plans[victim])
    return kills


def _next(plan: Plan, number: int, chance: random.Random) -> Plan:
    return replace(plan, name=f"worker-{number}", seed=chance.getrandbits(32))


def _drain(hands: Crew, plan: Plan) -> None:
    """Let the surviving workers finish, and then one more worker without faults."""
    hands.finish()
    hands.run(replace(plan, name="last", pause=0.0))

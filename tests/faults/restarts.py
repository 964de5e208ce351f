"""A server that is killed and started again while workers run."""

import random
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from oncegate.durations import Duration
from tests.faults.grounds import Ground
from tests.kills.crew import crew, wait_until
from tests.kills.kills import Run, found, new_world
from tests.kills.worker import Plan, Way

_WORKERS: Final = 2
_EVENTS_FOR_A_RESTART: Final = 40
_PAUSE: Final = 0.004
_ACKNOWLEDGED: Final = (8, 24)
_AWAY: Final = (0.05, 0.3)


def restart(
    ground: Ground,
    way: Way,
    times: int,
    seed: int,
    breaker: Duration | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Run:
    """Kill the server so many times while workers run, and wait each time until they continue on their own. `meanwhile`
    is called while the server is down, for example to change its disk."""
    chance = random.Random(seed)  # noqa: S311  # must be repeatable
    events = times * _EVENTS_FOR_A_RESTART
    with new_world(way, events, place=ground.place, pause=_PAUSE, breaker=breaker) as plan, crew() as hands:
        for number in range(_WORKERS):
            hands.start(replace(plan, name=f"worker-{number}", seed=chance.getrandbits(32)))
        for number in range(times):
            some = number * _EVENTS_FOR_A_RESTART + chance.randrange(*_ACKNOWLEDGED)
            _wait_for(plan, events - some, "events to be acknowledged")
            _bounce(ground, chance.uniform(*_AWAY), meanwhile)
            _wait_for(plan, max(0, len(plan.world.waiting()) - 1), "work to go on")
        hands.finish()
        hands.run(replace(plan, name="last", pause=0.0))
        return found(0, plan)


def _wait_for(plan: Plan, left: int, what: str) -> None:
    wait_until(lambda: len(plan.world.waiting()) <= left, what)


def _bounce(ground: Ground, away: float, meanwhile: Callable[[], None]) -> None:
    ground.crash()
    try:
        time.sleep(away)
        meanwhile()
    finally:
        ground.start()

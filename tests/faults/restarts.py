"""Restarts: a server that is killed and started again while workers work."""

import random
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.durations import Duration
from tests.faults.grounds import Ground
from tests.kills.crew import crew, wait_until
from tests.kills.kills import Run, found, new_world
from tests.kills.worker import Way

_WORKERS: Final = 2
_EVENTS_FOR_A_RESTART: Final = 40
_PAUSE: Final = 0.004
_AWAY: Final = (0.05, 0.3)


class Restarted(Struct, frozen=True):
    """How often the server was restarted, whether events were acknowledged after each, and what was found."""

    restarts: int
    resumed: int
    run: Run

    @property
    def complaints(self) -> list[str]:
        stuck = self.restarts - self.resumed
        return ([f"nothing went on after {stuck} restarts"] if stuck else []) + self.run.complaints


def restart(
    ground: Ground,
    way: Way,
    times: int,
    seed: int,
    breaker: Duration | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Restarted:
    """Kill the server so many times under workers that are half-way through their events; `meanwhile`, while it is
    down, something may happen to its disk."""
    chance = random.Random(seed)  # noqa: S311  # to be repeated
    events = times * _EVENTS_FOR_A_RESTART
    with new_world(way, events, place=ground.place, pause=_PAUSE, breaker=breaker) as plan, crew() as hands:
        for number in range(_WORKERS):
            hands.start(replace(plan, name=f"worker-{number}", seed=chance.getrandbits(32)))
        resumed = 0
        for number in range(times):
            few = events - (number * _EVENTS_FOR_A_RESTART + chance.randrange(8, 24))
            wait_until(lambda few=few: len(plan.world.waiting()) <= few, "events acknowledged")  # type: ignore[misc]
            ground.crash()
            before = len(plan.world.waiting())
            time.sleep(chance.uniform(*_AWAY))
            if meanwhile is not None:
                meanwhile()
            ground.start()
            wait_until(lambda before=before: len(plan.world.waiting()) < before, "work after a restart")  # type: ignore[misc]
            resumed += 1
        hands.finish()
        hands.run(replace(plan, name="last", pause=0.0))
        return Restarted(times, resumed, found(0, plan))

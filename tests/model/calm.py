"""The liveness check: from any state, without further faults, all work ends.

A fixed scheduler drives the workers. A worker that can continue continues. If none can, a worker takes new work. If
there is none, or another worker holds it, time passes. From each state this gives one path, and paths meet, so the
check of all states costs little more than one step for each.
"""

from tests.model import world
from tests.model.parts import LIVENESS, Violation
from tests.model.space import BITS, Calm, Space, unpack


class Calmness:
    def __init__(self, space: Space, failing: bool) -> None:
        self._space = space
        self._way = Calm._fields.index("failing" if failing else "going")
        self._ends: set[int] = set()

    def check(self, state: int) -> None:
        path: set[int] = set()
        while state not in self._ends:
            if state in path:
                raise Violation(LIVENESS, "without further faults, the workers go round in circles")
            path.add(state)
            then = self._next(state)
            if then == state:
                break
            state = then
        self._ends |= path

    def _next(self, state: int) -> int:
        """The next state; the same state at the end."""
        space = self._space
        shared, *workers = unpack(state)
        starting = None
        for at in (2, 1, 0):
            does = space.calm.get(shared << BITS | workers[at]) or space.find_calm(shared, workers[at])
            entry = does[self._way]
            if entry is not None:
                return space.moved(entry, workers, at)
            if does.starting is not None:
                starting = (does.starting, workers, at)
        return space.moved(*starting) if starting is not None else self._wait(state)

    def _wait(self, state: int) -> int:
        space = self._space
        shared, *workers = unpack(state)
        if world.ended(space.game, space.shared[shared], [space.workers[worker] for worker in workers]):
            return state
        then = space.tick(shared, *workers)
        if then in (-1, state):
            raise Violation(LIVENESS, "nothing more can happen, and not everything is done")
        return then

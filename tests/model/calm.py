"""The liveness check: from any state, without further faults, all work ends.

A fixed scheduler drives the workers. A worker that can continue continues. If none can, a worker takes new work. If
there is none, or another worker holds it, time passes. From each state this gives one path, and paths meet, so the
check of all states costs little more than one step for each.
"""

from tests.model import world
from tests.model.parts import LIVENESS, Violation
from tests.model.space import BITS, MASK, SHARED, TWO, Calm, Space, unpack


class Calmness:
    def __init__(self, space: Space, failing: bool) -> None:
        self._space = space
        self._way = Calm._fields.index("failing" if failing else "going")
        self._paths: dict[int, int] = {}  # by state: the number of the first path that contains it

    def check(self, start: int, number: int) -> None:
        """Follow the path from a state until a state of an earlier path. Every path has its own number."""
        paths, state = self._paths, start
        while (path := paths.get(state)) is None:
            paths[state] = number
            then = self._next(state)
            if then == state:
                return
            state = then
        if path == number:
            raise Violation(LIVENESS, "without further faults, the workers go round in circles")

    def _next(self, state: int) -> int:
        """The next state; the same state at the end."""
        space, way = self._space, self._way
        shared, one, two, three = state >> SHARED, state >> TWO & MASK, state >> BITS & MASK, state & MASK
        starting = None
        for worker, left, right in ((three, one, two), (two, one, three), (one, two, three)):
            does = space.calm.get(shared << BITS | worker) or space.find_calm(shared, worker)
            row = does[way]
            if row is not None:
                return space.moved(row, left, right)
            if does.starting is not None:
                starting = (does.starting, left, right)
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

"""Breadth-first search of a space: every state within the bounds is visited once, the nearest first.

Because the nearest states come first, the trace to a broken invariant is a shortest one.
"""

import time
from array import array
from types import ModuleType
from typing import NamedTuple

from oncegate import claims as shipped
from tests.model.calm import Calmness
from tests.model.parts import Rules, Setting, Violation
from tests.model.space import BITS, MASK, SHARED, TWO, Space
from tests.model.trace import Counterexample, tell


class Report(NamedTuple):
    """The result of a search. `complete`: every state within the bounds was visited, and the limit left out none."""

    setting: str
    states: int
    transitions: int
    complete: bool
    seconds: float
    broken: Counterexample | None
    labels: frozenset[str]


def explore(setting: Setting, limit: int, *, rules: Rules | None = None, claims: ModuleType = shipped) -> Report:
    """Visit up to `limit` states, or stop at the first state that breaks an invariant."""
    began = time.perf_counter()
    search = Search(Space(setting, rules or Rules(), claims))
    broken = search.visit(limit) or search.end()
    return Report(
        setting.name,
        len(search.states),
        search.transitions,
        search.complete,
        time.perf_counter() - began,
        broken,
        frozenset(search.space.labels),
    )


class Search:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.states: list[int] = []  # in the order of discovery, so this is the queue, too
        self.transitions = 0
        self.complete = False
        self._parents = array("I")

    def visit(self, limit: int) -> Counterexample | None:
        states, parents, at = self.states, self._parents, 0
        try:
            states.append(self.space.first())
            parents.append(0)
            seen = set(states)
            while at < len(states) < limit:
                found = self._after(states[at])
                self.transitions += len(found)
                for state in found:
                    if state not in seen:
                        seen.add(state)
                        states.append(state)
                        parents.append(at)
                at += 1
        except Violation as violation:
            return tell(self.space, self._way(at), violation)
        self.complete = at == len(states)
        return None

    def end(self) -> Counterexample | None:
        """Check that from every state found all work ends without further faults."""
        for failing in (False, True):
            calmness = Calmness(self.space, failing)
            for at, state in enumerate(self.states):
                try:
                    calmness.check(state, at)
                except Violation as violation:
                    return tell(self.space, self._way(at), violation)
        return None

    def _way(self, at: int) -> list[int]:
        way = [self.states[at]]
        while at:
            at = self._parents[at]
            way.append(self.states[at])
        return way[::-1]

    def _after(self, state: int) -> list[int]:
        """Every state that is one step away. Without helper functions, because it runs a million times."""
        space = self.space
        moves, trusted, stir = space.moves, space.trusted, space.stir
        shared, one, two, three = state >> SHARED, state >> TWO & MASK, state >> BITS & MASK, state & MASK
        found = space.disturbed(shared, one, two, three)
        last = -1
        for mover, left, right in ((one, two, three), (two, one, three), (three, one, two)):
            if mover == last:
                continue
            last = mover
            rows = moves.get(shared << BITS | mover)
            if rows is None:
                rows = space.find_moves(shared, mover)
            for then, a, stirs, gained in rows:
                b, c = left, right  # in order, unless the move stirs them
                if stirs:
                    b, c = stir(stirs, b), stir(stirs, c)
                    if b > c:
                        b, c = c, b
                if gained and gained & (trusted[b] | trusted[c]) and space.exclusive[then]:
                    raise Violation(1, "two workers hold valid claims on one key at the same time")
                if a <= b:
                    found.append(then << SHARED | a << TWO | b << BITS | c)
                elif a <= c:
                    found.append(then << SHARED | b << TWO | a << BITS | c)
                else:
                    found.append(then << SHARED | b << TWO | c << BITS | a)
        return found

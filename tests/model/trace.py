"""The trace to a broken invariant, in words, with names for the workers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tests.model.parts import LIVENESS, Move, Violation
from tests.model.space import Space, pack, unpack

_NAMES: Final = ("worker 1", "worker 2", "worker 3")


class Counterexample(NamedTuple):
    """A shortest trace that breaks an invariant. The last step breaks it."""

    invariant: int
    what: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"Invariant {self.invariant} is broken: {self.what}."])


class _Scene(NamedTuple):
    """A state whose workers keep their names."""

    shared: int
    workers: tuple[tuple[int, str], ...]

    @property
    def state(self) -> int:
        return pack(self.shared, *(worker for worker, _ in self.workers))


def tell(space: Space, way: list[int], violation: Violation) -> Counterexample:
    shared, *workers = unpack(way[0])
    scene = _Scene(shared, tuple(zip(workers, _NAMES, strict=True)))
    steps = []
    for _, then in pairwise(way):
        label, scene = next(found for found in _after(space, scene) if found[1].state == then)
        steps.append(label)
    return Counterexample(violation.invariant, violation.what, (*steps, _last(space, scene, violation)))


def _after(space: Space, scene: _Scene) -> Iterator[tuple[str, _Scene]]:
    yield from _tick(space, scene)
    for at, (worker, name) in enumerate(scene.workers):
        for move in space.spoken_moves(scene.shared, worker):
            entry = space.entry(move, worker)
            others = [(space.stir(entry.stirs, other), called) for other, called in scene.workers]
            others[at] = (entry.worker, name)
            yield f"{name} {move.label}", _Scene(entry.shared, tuple(others))
    for move in space.spoken_happenings(scene.shared):
        entry = space.entry(move, 0)
        others = [(space.stir(entry.stirs, other), called) for other, called in scene.workers]
        yield move.label, _Scene(entry.shared, tuple(others))


def _tick(space: Space, scene: _Scene) -> Iterator[tuple[str, _Scene]]:
    stopped = [name for worker, name in scene.workers if space.claimed[worker] & space.lapsing[scene.shared]]
    label = f"time passes, and {' and '.join(stopped)} is stopped past its lease" if stopped else "time passes"
    then = space.tick(scene.shared, *(worker for worker, _ in scene.workers))
    if then >= 0:
        aged = tuple((space.worker_later[worker], name) for worker, name in scene.workers)
        yield label, _Scene(unpack(then)[0], aged)


def _last(space: Space, scene: _Scene, violation: Violation) -> str:
    """The step that breaks the invariant, as far as it is known."""
    if violation.invariant == LIVENESS:
        return "from here on nothing goes wrong any more"
    for worker, name in scene.workers:
        others = [space.trusted[other] for other, called in scene.workers if called != name]
        label = _breaking(space, space.spoken_moves(scene.shared, worker), worker, others)
        if label is not None:
            return f"{name} {label}" if label else f"{name}: {violation.what}"
    return _breaking(space, space.spoken_happenings(scene.shared), 0, []) or "time passes"


def _breaking(space: Space, moves: Iterator[Move], worker: int, others: list[int]) -> str | None:
    """The label of the move that breaks an invariant; empty if it breaks before the label is set, None if no move
    breaks one."""
    label = ""
    try:
        for move in moves:
            label = move.label
            gained = space.entry(move, worker).gained
            if any(gained & other for other in others):
                return label
            label = ""
    except Violation:
        return label
    return None

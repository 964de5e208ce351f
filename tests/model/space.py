"""States as numbers: every shared part and every worker has a number, and moves are tables of numbers.

A state is one integer: the number of the shared part followed by the sorted numbers of the workers. So worlds that
differ only in the numbering of workers are one state. The set of visited states is exact; it does not use hashes.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Final, NamedTuple, TypeAlias

from tests.model import world
from tests.model.ledger import Ledger
from tests.model.parts import IDLE, Move, Rules, Setting, Shared, Stir, Worker
from tests.model.turn import Game, told
from tests.model.worker import moves

BITS: Final = 14
TWO: Final = 2 * BITS
MASK: Final = (1 << BITS) - 1
SHARED: Final = 3 * BITS

# An `Entry` as the tables hold it: Python unpacks a plain tuple faster than a named one.
Row: TypeAlias = tuple[int, int, int, int]


class Entry(NamedTuple):
    """A move in numbers. `gained` are the keys, as bits, that the worker holds from now on."""

    shared: int
    worker: int
    stirs: int
    gained: int

    @property
    def row(self) -> Row:
        return (self.shared, self.worker, self.stirs, self.gained)


class Calm(NamedTuple):
    """The moves of a worker without faults: continue, continue with a failing handler, or take work."""

    going: Row | None
    failing: Row | None
    starting: Row | None


class Space:
    """The tables, filled on demand. Filling an entry checks the invariants of the resulting state."""

    def __init__(self, setting: Setting, rules: Rules, claims: ModuleType) -> None:
        self.game = Game(setting, rules, Ledger(claims, setting))
        self.shared: list[Shared] = []
        self.workers: list[Worker] = []
        self.trusted: list[int] = []
        self.claimed: list[int] = []
        self.lapsing: list[int] = []
        self.exclusive: list[bool] = []
        self.labels: set[str] = set()
        self._shared_ids: dict[Shared, int] = {}
        self._worker_ids: dict[Worker, int] = {}
        self._stirs: list[tuple[Stir, ...]] = [()]
        self._stir_ids: dict[tuple[Stir, ...], int] = {(): 0}
        self.moves: dict[int, list[Row]] = {}
        self.calm: dict[int, Calm] = {}
        self.happenings: dict[int, list[Row]] = {}
        self.stirred: dict[int, int] = {}
        self.worker_later: dict[int, int] = {}
        self.later: dict[int, int] = {}

    def first(self) -> int:
        idle = self._worker(IDLE)
        return pack(self._share(world.beginning(self.game.setting)), idle, idle, idle)

    # ── one step, in numbers ──────────────────────────────────────────────────────────────────────────────

    def disturbed(self, shared: int, one: int, two: int, three: int) -> list[int]:
        """The states that time or the environment leads to."""
        rows = self.happenings.get(shared)
        if rows is None:
            rows = self._find_happenings(shared)
        found = [
            pack(then, self.stir(stirs, one), self.stir(stirs, two), self.stir(stirs, three))
            for then, _, stirs, _ in rows
        ]
        then = self.tick(shared, one, two, three)
        if then >= 0:
            found.append(then)
        return found

    def tick(self, shared: int, one: int, two: int, three: int) -> int:
        """The state one tick later, or -1 if the tick would need a fault and none is left."""
        stopped = self.lapsing[shared]
        if stopped:
            stopped &= self.claimed[one] | self.claimed[two] | self.claimed[three]
        then = self.later.get(shared << BITS | stopped)
        if then is None:
            then = self._find_later(shared, stopped)
        if then < 0:
            return -1
        ages = self.worker_later
        try:
            return pack(then, ages[one], ages[two], ages[three])
        except KeyError:
            for worker in (one, two, three):
                self._find_worker_later(worker)
            return pack(then, ages[one], ages[two], ages[three])

    def moved(self, row: Row, left: int, right: int) -> int:
        """The state after the move of a worker beside the two others."""
        then, worker, stirs, _ = row
        if stirs:
            left, right = self.stir(stirs, left), self.stir(stirs, right)
        return pack(then, worker, left, right)

    def stir(self, stirs: int, worker: int) -> int:
        if not stirs:
            return worker
        then = self.stirred.get(stirs << BITS | worker)
        return self.find_stirred(stirs, worker) if then is None else then

    # ── filling the tables ────────────────────────────────────────────────────────────────────────────────

    def find_moves(self, shared: int, worker: int) -> list[Row]:
        rows: list[Row] = []
        kinds: dict[str, Row] = {}
        for move in self.spoken_moves(shared, worker):
            row = self.entry(move, worker).row
            rows.append(row)
            kinds.setdefault(move.kind, row)
        going = kinds.get("go")
        self.moves[shared << BITS | worker] = rows
        self.calm[shared << BITS | worker] = Calm(going, kinds.get("fail", going), kinds.get("start"))
        return rows

    def find_calm(self, shared: int, worker: int) -> Calm:
        self.find_moves(shared, worker)
        return self.calm[shared << BITS | worker]

    def _find_happenings(self, shared: int) -> list[Row]:
        idle = self._worker(IDLE)
        rows = [self.entry(move, idle).row for move in self.spoken_happenings(shared)]
        self.happenings[shared] = rows
        return rows

    def find_stirred(self, stirs: int, worker: int) -> int:
        after = self.workers[worker]
        for stir in self._stirs[stirs]:
            after = told(after, stir)
        self.stirred[stirs << BITS | worker] = ident = self._worker(after)
        return ident

    def _find_worker_later(self, worker: int) -> int:
        self.worker_later[worker] = ident = self._worker(world.worker_later(self.game.setting, self.workers[worker]))
        return ident

    def _find_later(self, shared: int, stopped: int) -> int:
        """The shared part one tick later, or -1 if no fault is left to stop those workers."""
        before = self.shared[shared]
        possible = not stopped or before.faults
        ident = self._share(world.later(self.game, before, stopped)) if possible else -1
        self.labels.add("is stopped past its lease" if stopped and possible else "time passes")
        self.later[shared << BITS | stopped] = ident
        return ident

    def spoken_moves(self, shared: int, worker: int) -> Iterator[Move]:
        return moves(self.game, self.shared[shared], self.workers[worker])

    def spoken_happenings(self, shared: int) -> Iterator[Move]:
        return world.disturbances(self.game, self.shared[shared])

    # ── numbering ─────────────────────────────────────────────────────────────────────────────────────────

    def entry(self, move: Move, before: int) -> Entry:
        stirs = self._stir_ids.setdefault(move.stirs, len(self._stirs))
        if stirs == len(self._stirs):
            self._stirs.append(move.stirs)
        self.labels.add(move.label)
        worker = self._worker(move.worker)
        gained = self.trusted[worker] & ~self.trusted[before]
        return Entry(self._share(move.shared), worker, stirs, gained)

    def _share(self, shared: Shared) -> int:
        ident = self._shared_ids.get(shared)
        if ident is None:
            world.check(self.game, shared)
            ident = self._shared_ids[shared] = len(self.shared)
            self.shared.append(shared)
            self.lapsing.append(world.lapsing(self.game.ledger, shared))
            self.exclusive.append(not shared.meddled and not shared.skewed)
        return ident

    def _worker(self, worker: Worker) -> int:
        ident = self._worker_ids.get(worker)
        if ident is None:
            trusted = world.trusted(worker)
            ident = self._worker_ids[worker] = len(self.workers)
            assert ident <= MASK, "more workers than numbers for them"
            self.workers.append(worker)
            self.trusted.append(trusted)
            self.claimed.append(world.claimed(worker))
        return ident


def pack(shared: int, one: int, two: int, three: int) -> int:
    if one > two:
        one, two = two, one
    if two > three:
        two, three = three, two
        if one > two:
            one, two = two, one
    return shared << SHARED | one << TWO | two << BITS | three


def unpack(state: int) -> tuple[int, int, int, int]:
    return state >> SHARED, state >> TWO & MASK, state >> BITS & MASK, state & MASK

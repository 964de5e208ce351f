"""Workers that send all kinds of requests for shared keys, to produce a history."""

import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from msgspec.structs import replace

from oncegate import open_store
from oncegate.claims import Bury, Claim, ClaimProof, Complete, EventSummary, Granted, Release, Renew, Settlement
from oncegate.errors import StoreError
from oncegate.stores.base import Store
from tests.faults.grounds import Ground
from tests.kills.ablations import ablate
from tests.kills.checker import Check, check
from tests.kills.crew import crew
from tests.kills.history import Recorder, read_history
from tests.kills.kills import new_world
from tests.kills.worker import Plan

_WORKERS: Final = 3
_BATCH: Final = 16
_KEYS: Final = 24
_FOR_A_KEY: Final = 0.06  # seconds for which workers use the same keys; claims that they still hold are settled late
_LEASE: Final = 8_000
_RETENTION: Final = 3_600_000_000
_REMEMBERED: Final = 64
_LONGEST_LIFE: Final = 300


_TRIES: Final = 3
_CLOCK_SET: Final = 20  # microseconds; a larger change of the wall clock makes the check of a history wrong


def stressed(ground: Ground, operations: int, seed: int, ablation: str | None = None) -> Check:
    """The history of workers that have sent about so many operations. The checker compares the clock of the store with
    the monotonic clock of the workers. If the machine's wall clock was set meanwhile, the history is made again."""
    for _ in range(_TRIES):
        before = _wall_ahead()
        found = _stressed(ground, operations, seed, ablation)
        if abs(_wall_ahead() - before) < _CLOCK_SET:
            return found
    raise RuntimeError(f"the clock of this machine was set in {_TRIES} runs; run this again")


def _wall_ahead() -> int:
    """How far the wall clock is ahead of the monotonic clock, in microseconds: the most exact of many readings."""
    readings = []
    for _ in range(100):
        begin, wall, end = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((end - begin, wall - (begin + end) // 2))
    return min(readings)[1] // 1_000


def _stressed(ground: Ground, operations: int, seed: int, ablation: str | None) -> Check:
    chance = random.Random(seed)  # noqa: S311  # must be repeatable
    with new_world("run", operations // _WORKERS, place=ground.place, ablation=ablation) as plan, crew() as hands:
        for number in range(_WORKERS):
            hands.start(replace(plan, name=f"worker-{number}", seed=chance.getrandbits(32)), ask_for_everything)
        hands.finish()
        return check(read_history(plan.folder), search=True)


def ask_for_everything(plan: Plan) -> None:
    """The main function of a worker process. `plan.events` is the number of operations."""
    signal.alarm(_LONGEST_LIFE)
    if plan.ablation is not None:
        ablate(plan.ablation)
    with closing(open_store(plan.world.url)) as store:
        Recorder(plan.folder, plan.name).watch(store)
        _Asker(store, random.Random(plan.seed), plan.events).run()  # noqa: S311  # must be repeatable


class _Asker:
    """Claims the current keys, and settles or renews its grants in all possible ways, at once or later."""

    def __init__(self, store: Store, chance: random.Random, operations: int) -> None:
        self._store = store
        self._chance = chance
        self._left = operations
        self._asked: deque[Claim] = deque(maxlen=_REMEMBERED)
        self._held: deque[ClaimProof] = deque(maxlen=_REMEMBERED)
        self._settled: deque[Settlement] = deque(maxlen=_REMEMBERED)

    def run(self) -> None:
        while self._left > 0:
            for ask in (self._claim, self._claim_again, self._renew, self._settle, self._settle_again):
                try:
                    ask()
                except StoreError:
                    continue

    def _claim(self) -> None:
        present = int(time.monotonic() / _FOR_A_KEY)
        keys = self._chance.sample(range(_KEYS), _BATCH)
        self._ask([_claim_of(f"{present}-{key}".rjust(16)[-16:].encode()) for key in keys])

    def _claim_again(self) -> None:
        """Repeat a claim as if its answer had been lost."""
        self._ask(self._some(self._asked))

    def _ask(self, claims: list[Claim]) -> None:
        verdicts = self._counted(self._store.claim, claims)
        self._asked += claims
        granted = (verdict.record for verdict in verdicts if isinstance(verdict, Granted))
        by_owner = {claim.owner: claim for claim in claims}
        self._held += [
            ClaimProof("stress", by_owner[record.owner].key, record.owner, record.fence)
            for record in granted
            if record.owner in by_owner
        ]

    def _renew(self) -> None:
        self._counted(self._store.renew, [Renew(*_proof(held), _LEASE) for held in self._some(self._held)])

    def _settle(self) -> None:
        settlements = [self._ending(held) for held in self._some(self._held)]
        self._settled += settlements
        self._counted(self._store.settle, settlements)

    def _settle_again(self) -> None:
        self._counted(self._store.settle, self._some(self._settled))

    def _counted(self, verb: Callable[[Any], list[Any]], batch: list[Any]) -> list[Any]:
        self._left -= len(batch)
        return verb(batch)

    def _some(self, kept: deque[Any]) -> list[Any]:
        return self._chance.sample(list(kept), min(len(kept), _BATCH // 2))

    def _ending(self, held: ClaimProof) -> Settlement:
        chosen = self._chance.random()
        if chosen < 0.5:
            return Release(*_proof(held))
        return Complete(*_proof(held), _RETENTION) if chosen < 0.9 else Bury(*_proof(held), _RETENTION, b"{}", "poison")


def _claim_of(key: bytes) -> Claim:
    return Claim("stress", key, os.urandom(16), b"h" * 16, _LEASE, _RETENTION, EventSummary("plain"))


def _proof(held: ClaimProof) -> tuple[str, bytes, bytes, int]:
    return held.namespace, held.key, held.owner, held.fence

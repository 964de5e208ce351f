"""Measure the inbox: how long good events wait for their handler while others fail."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.measure import Sizes, by_turns, median
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import Event, Gate, read

_RATE = 150  # events per second
_SLOW = 0.05  # share of events whose handler takes two seconds
_SLOW_FOR = 2.0
_FAILING = 0.03  # share of events whose handler always raises


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    progress.stage("inbox, good events beside failing ones")
    turns = {"failing": partial(_p99, sizes, folder, _FAILING), "all good": partial(_p99, sizes, folder, 0.0)}
    rounds = by_turns(turns, min(sizes.rounds, 3), 0, progress)
    return [
        Row(
            f"inbox, p99 delay of good events, {_FAILING:.0%} fail",
            "ms",
            median(rounds, lambda took: took["failing"] * 1e3),
            median(rounds, lambda took: took["all good"] * 1e3),
            "none fail",
            median(rounds, lambda took: took["failing"] / took["all good"]),
            Aim("at most", 2),
        )
    ]


@dataclass
class Delays:
    """A handler that records the delay from admission to start for each good event. Some handlers are slow, and some
    fail."""

    seconds: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        begun = time.perf_counter()
        if event.body["fails"]:
            raise ValueError("always")
        self.seconds.append(begun - event.body["sent"])
        if event.body["slow"]:
            time.sleep(_SLOW_FOR)


def _p99(sizes: Sizes, folder: Path, failing: float) -> float:
    delays = measured(folder / f"inbox-{time.monotonic_ns()}.db", sizes.inbox_seconds, failing)
    return sorted(delays)[int(len(delays) * 0.99)]


def measured(path: Path, seconds: float, failing: float) -> list[float]:
    """The delays of the good events during so many seconds, when this share of the events always fails."""
    handler, log = Delays(), logging.getLogger("oncegate.work")
    before = log.level
    log.setLevel(logging.CRITICAL)  # the failures are intended
    try:
        asyncio.run(_sent(Gate(f"sqlite:///{path}"), handler, seconds, failing))
    finally:
        log.setLevel(before)
    return handler.seconds


async def _sent(gate: Gate, handler: Delays, seconds: float, failing: float) -> None:
    chance = random.Random(7)
    worker = gate.inbox(handler, at_work=256, drain="10s")
    working = asyncio.create_task(worker.work())
    begun = time.perf_counter()
    for number in range(int(seconds * _RATE)):
        await asyncio.sleep(max(0.0, begun + number / _RATE - time.perf_counter()))
        draw = chance.random()
        body = {
            "id": f"evt-{number}",
            "sent": time.perf_counter(),
            "fails": draw < failing,
            "slow": failing <= draw < failing + _SLOW,
        }
        await worker.admit(read(body))
    worker.stop()
    await working
    gate.close()

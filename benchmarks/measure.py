"""How things are measured: contestants by turns, so that the machine's noise falls on all of them alike."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.progress import Progress

# One turn of a contestant: prepares outside the clock, works inside it, tells the seconds.
Turn = Callable[[], float]
# The seconds of one round, by the contestant's name.
Round = Mapping[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much of everything. An event count is what one contestant does in one turn."""

    rounds: int
    warm_ups: int
    sqlite_events: int
    postgres_events: int
    memory_events: int
    memory_keys: int
    concurrent_events: int
    read_events: int
    redis_events: int
    redis_singles: int
    redis_keys: int
    redis_concurrent: int
    sqs_events: int
    http_requests: int
    inbox_seconds: float
    imports: int
    scale_keys: int


def by_turns(turns: Mapping[str, Turn], rounds: int, warm_ups: int, progress: Progress) -> list[Round]:
    """All rounds, each a turn of every contestant in order; a warm-up is a round that is not counted."""
    taken: list[Round] = []
    for number in range(1 - warm_ups, rounds + 1):
        progress.step(f"round {number} of {rounds}" if number > 0 else "warming up")
        taken.append({name: turn() for name, turn in turns.items()})
    return taken[warm_ups:]


def timed(work: Callable[[], object]) -> float:
    """Garbage that others left is collected before; the collector stays on, as it does in service."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(rounds: Sequence[Round], figure: Callable[[Round], float]) -> float:
    """The median over the rounds of a figure that is computed within each. A ratio of two medians would
    compare one round's lucky moment with another's unlucky one."""
    return statistics.median(figure(took) for took in rounds)

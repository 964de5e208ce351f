"""Measure competitors in turns, so that the noise of the machine affects all of them equally."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.progress import Progress

# One turn of a competitor: prepares untimed, works timed, and returns the seconds.
Turn = Callable[[], float]
# The seconds of one round, by the name of the competitor.
Round = Mapping[str, float]


@dataclass(frozen=True)
class Sizes:
    """The amount of work. An event count is the work of one competitor in one turn."""

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
    journal_rows: int
    analyzed_deliveries: int
    imports: int
    scale_keys: int


def by_turns(turns: Mapping[str, Turn], rounds: int, warm_ups: int, progress: Progress) -> list[Round]:
    """Run all rounds. Each round is one turn of every competitor, in order. Warm-up rounds are not counted."""
    taken: list[Round] = []
    for number in range(1 - warm_ups, rounds + 1):
        progress.step(f"round {number} of {rounds}" if number > 0 else "warming up")
        taken.append({name: turn() for name, turn in turns.items()})
    return taken[warm_ups:]


def timed(work: Callable[[], object]) -> float:
    """The seconds of the work. Garbage of earlier turns is collected first. The collector stays on, as in
    production."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(rounds: Sequence[Round], figure: Callable[[Round], float]) -> float:
    """The median over the rounds of a figure that is computed within each round. A ratio of two medians would compare a
    fast moment of one round with a slow moment of another."""
    return statistics.median(figure(took) for took in rounds)

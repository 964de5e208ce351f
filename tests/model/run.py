"""Run many searches, on all processors."""

import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.model.explore import Report, explore
from tests.model.parts import Setting


def explore_all(work: Iterable[tuple[Setting, int]]) -> Iterator[Report]:
    """Explore each setting up to its limit. The reports come in the order of completion.

    The processes are spawned, because the caller may have threads. Garbage collection is off: a search creates millions
    of objects and no cycles.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=gc.disable) as pool:
        futures = [pool.submit(explore, setting, limit) for setting, limit in work]
        for future in as_completed(futures):
            yield future.result()

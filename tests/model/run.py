"""Many searches, on as many processors as there are."""

import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.model.explore import Report, explore
from tests.model.parts import Setting


def explore_all(work: Iterable[tuple[Setting, int]]) -> Iterator[Report]:
    """Explore each setting up to its limit; the reports come as they are done.

    The processes are spawned, since the caller may have threads, and collect no garbage: a search makes millions
    of objects and no cycles."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=gc.disable) as pool:
        futures = [pool.submit(explore, setting, limit) for setting, limit in work]
        for future in as_completed(futures):
            yield future.result()

"""`python -m benchmarks.resident ours|raw KEYS`: the resident bytes that one completed key adds to a process."""

import gc
import os
import sys

from benchmarks.events import BATCH, fresh
from benchmarks.memory import STATM, Bare, fill_ours, fill_raw
from oncegate.stores.memory import MemoryStore


def main(kind: str, keys: int) -> None:
    store, bare = MemoryStore(), Bare()
    before = _resident()
    for _ in range(keys // BATCH):
        (batch,) = fresh(BATCH)
        if kind == "ours":
            fill_ours(store, batch)
        else:
            fill_raw(bare, batch)
    print((_resident() - before) / keys)


def _resident() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

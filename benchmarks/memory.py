"""Compare the memory store with a dict: the time of claim and complete, and the memory of a completed key."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.events import RESULT, RETENTION, Batch, completions, fresh
from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate.clocks import wall
from oncegate.stores.memory import MemoryStore

Bare = dict[bytes, tuple[object, ...]]
Kept = TypeVar("Kept")

STATM = Path("/proc/self/statm")  # Linux only; elsewhere the row about memory is left out


def rows(sizes: Sizes, _folder: Path, progress: Progress) -> list[Row]:
    return [_speed(sizes, progress), *([_room(sizes, progress)] if STATM.exists() else [])]


def _speed(sizes: Sizes, progress: Progress) -> Row:
    progress.stage("memory store, speed")
    events = sizes.memory_events
    turns = {"ours": partial(_turn, events, MemoryStore, fill_ours), "raw": partial(_turn, events, Bare, fill_raw)}
    rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
    return Row(
        "memory claim + complete",
        "events/s",
        median(rounds, lambda took: events / took["ours"]),
        median(rounds, lambda took: events / took["raw"]),
        "dict",
        median(rounds, lambda took: took["raw"] / took["ours"]),
        Aim("at least", 0.25),
    )


def _room(sizes: Sizes, progress: Progress) -> Row:
    progress.stage(f"memory store, memory of {sizes.memory_keys:,} keys")
    ours, raw = (_resident(kind, sizes.memory_keys) for kind in ("ours", "raw"))
    name = f"memory per completed key, at {sizes.memory_keys:,}"
    return Row(name, "bytes", ours, raw, "dict", ours / raw, Aim("at most", 300, on="ours"))


def _resident(kind: str, keys: int) -> float:
    """Measured in a new process, whose memory is not fragmented by other work."""
    command = [sys.executable, "-m", "benchmarks.resident", kind, str(keys)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _turn(events: int, new: Callable[[], Kept], fill: Callable[[Kept, Batch], None]) -> float:
    target, batches = new(), fresh(events)

    def work() -> None:
        for batch in batches:
            fill(target, batch)

    return timed(work)


def fill_ours(store: MemoryStore, claims: Batch) -> None:
    answers = store.settle(completions(claims, store.claim(claims)))
    assert all(answers)


def fill_raw(bare: Bare, claims: Batch) -> None:
    now = wall()
    for claim in claims:
        bare[claim.key] = (
            "P",
            claim.owner,
            now,
            now + claim.lease,
            1,
            claim.payload_hash,
            now + claim.retention,
            claim.about,
            now,
            None,
            None,
            None,
            None,
        )
    now = wall()
    for claim in claims:
        held = bare[claim.key]
        bare[claim.key] = ("C", *held[1:3], 0, *held[4:6], now + RETENTION, *held[7:9], now, RESULT, None, None)

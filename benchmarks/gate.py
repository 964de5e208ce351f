"""The gate around the store: what its bookkeeping costs, and what concurrent callers gain by sharing their writes."""

import asyncio
import os
import statistics
import time
from functools import partial
from pathlib import Path

from benchmarks.events import BATCH, TYPE, completions, fresh
from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.reading import decoded, deliveries
from benchmarks.report import Aim, Row
from oncegate import Event, Gate
from oncegate.events import Key
from oncegate.gate.jobs import Job
from oncegate.stores.memory import MemoryStore

_CALLERS = 64


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    return [_bookkeeping(sizes, progress), _from_bytes(sizes, progress), _concurrent(sizes, folder, progress)]


def _bookkeeping(sizes: Sizes, progress: Progress) -> Row:
    """All that is neither reading nor making a key nor the handler nor the store: that one is asked for the same by
    hand, and its time subtracted."""
    progress.stage("gate, bookkeeping")
    batches = sizes.memory_events // BATCH
    rounds = by_turns({"gate": partial(_gate, batches), "store": partial(_store, batches)}, sizes.rounds, 1, progress)
    microseconds = 1e6 / BATCH
    return Row(
        "gate bookkeeping, memory store, key given",
        "µs/event",
        median(rounds, lambda took: microseconds * (took["gate"] - took["store"])),
        median(rounds, lambda took: microseconds * took["store"]),
        "the store itself",
        median(rounds, lambda took: (took["gate"] - took["store"]) / took["store"]),
        Aim("at most", 3, on="ours"),
    )


def _gate(batches: int) -> float:
    """The seconds of a usual batch: the median leaves out those in which the garbage of others was collected."""
    gate = Gate("memory://")
    return statistics.median(_gate_batch(gate) for _ in range(batches))


def _gate_batch(gate: Gate) -> float:
    jobs = [_job() for _ in range(BATCH)]
    start = time.perf_counter()
    outcomes = gate._told(gate._engine.through(jobs, _nothing))
    seconds = time.perf_counter() - start
    assert outcomes[-1].status == "processed"
    return seconds


def _store(batches: int) -> float:
    store = MemoryStore()
    return statistics.median(_store_batch(store) for _ in range(batches))


def _store_batch(store: MemoryStore) -> float:
    (claims,) = fresh(BATCH)
    start = time.perf_counter()
    verdicts = store.claim(claims)
    seconds = time.perf_counter() - start
    ends = completions(claims, verdicts)
    start = time.perf_counter()
    store.settle(ends)
    return seconds + time.perf_counter() - start


def _from_bytes(sizes: Sizes, progress: Progress) -> Row:
    """All of it: an envelope of Genesys Cloud read, its key made, claimed, run and settled on the memory store."""
    progress.stage("gate, from bytes to outcome")
    batches = sizes.read_events // BATCH
    rounds = by_turns(
        {"gate": partial(_bytes, batches), "decode": partial(_decode, batches)}, sizes.rounds, 1, progress
    )
    microseconds = 1e6 / BATCH
    return Row(
        "gate, bytes to outcome, memory store",
        "µs/event",
        median(rounds, lambda took: microseconds * took["gate"]),
        median(rounds, lambda took: microseconds * took["decode"]),
        "msgspec decode + SHA-256",
        median(rounds, lambda took: took["gate"] / took["decode"]),
        Aim("at most", 12, on="ours"),
    )


def _bytes(batches: int) -> float:
    gate = Gate("memory://")
    return statistics.median(_bytes_batch(gate) for _ in range(batches))


def _bytes_batch(gate: Gate) -> float:
    payloads = deliveries(BATCH)
    start = time.perf_counter()
    outcomes = gate.run_batch(payloads, _nothing)
    seconds = time.perf_counter() - start
    assert outcomes[-1].status == "processed"
    return seconds


def _decode(batches: int) -> float:
    return statistics.median(_decode_batch() for _ in range(batches))


def _decode_batch() -> float:
    payloads = deliveries(BATCH)
    start = time.perf_counter()
    for payload in payloads:
        decoded(payload)
    return time.perf_counter() - start


def _job() -> Job:
    event = Event(source="plain", id=os.urandom(18).hex(), type=TYPE, body={}, raw=b"{}")
    return Job(event, Key(os.urandom(16), "event_id", (event.id,)), os.urandom(16))


def _nothing(event: Event) -> None:
    """The least that a handler can do."""


def _concurrent(sizes: Sizes, folder: Path, progress: Progress) -> Row:
    progress.stage(f"arun, {_CALLERS} callers")
    events = sizes.concurrent_events
    turns = {"ours": partial(_together, folder, events), "singly": partial(_singly, folder, events // 10)}
    rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
    return Row(
        f"arun with {_CALLERS} callers, SQLite FULL",
        "events/s",
        median(rounds, lambda took: events / took["ours"]),
        median(rounds, lambda took: events // 10 / took["singly"]),
        "run, one at a time",
        median(rounds, lambda took: 10 * took["singly"] / took["ours"]),
        Aim("at least", 8),
    )


def _singly(folder: Path, events: int) -> float:
    gate = _on_new_file(folder)

    def work() -> None:
        for number in range(events):
            gate.run({"id": number}, _nothing)

    seconds = timed(work)
    gate.close()
    return seconds


def _together(folder: Path, events: int) -> float:
    gate = _on_new_file(folder)
    seconds = timed(lambda: asyncio.run(_call(gate, events)))
    gate.close()
    return seconds


async def _call(gate: Gate, events: int) -> None:
    """Each caller takes the next event as soon as it is done with one."""
    numbers = iter(range(events))

    async def nothing(event: Event) -> None: ...

    async def caller() -> None:
        for number in numbers:
            await gate.arun({"id": number}, nothing)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


def _on_new_file(folder: Path) -> Gate:
    return Gate(f"sqlite:///{folder}/gate-{time.monotonic_ns()}.db")

"""Measure the gate: the cost of its bookkeeping, and the gain of concurrent callers that share their writes."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.events import BATCH, TYPE, completions, fresh
from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.reading import decoded, deliveries
from benchmarks.report import Aim, Row
from oncegate import Event, Gate
from oncegate.events import Key
from oncegate.gate.job import Job
from oncegate.stores.memory import MemoryStore

_CALLERS = 64

_Target = TypeVar("_Target")


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    return [_bookkeeping(sizes, progress), _from_bytes(sizes, progress), _concurrent(sizes, folder, progress)]


def _bookkeeping(sizes: Sizes, progress: Progress) -> Row:
    """The time of the gate without reading, key, handler and store. The same store calls are made directly, and their
    time is subtracted."""
    progress.stage("gate, bookkeeping")
    batches = sizes.memory_events // BATCH
    gate, store = _Batches(batches, _new_gate, _gate_batch), _Batches(batches, MemoryStore, _store_batch)
    by_turns({"gate": gate, "store": store}, sizes.rounds, 1, progress)
    return Row(
        f"gate bookkeeping, memory store, key given; median {gate.median - store.median:.1f}",
        "µs/event",
        gate.least - store.least,
        store.least,
        "the store itself",
        (gate.least - store.least) / store.least,
        Aim("at most", 3, on="ours"),
    )


def _from_bytes(sizes: Sizes, progress: Progress) -> Row:
    """The whole path: read a Genesys Cloud envelope, make its key, claim, run and settle it on the memory store."""
    progress.stage("gate, from bytes to outcome")
    batches = sizes.read_events // BATCH
    gate, decode = _Batches(batches, _new_gate, _bytes_batch), _Batches(batches, _nothing_new, _decode_batch)
    by_turns({"gate": gate, "decode": decode}, sizes.rounds, 1, progress)
    return Row(
        f"gate, bytes to outcome, memory store; median {gate.median:.1f}",
        "µs/event",
        gate.least,
        decode.least,
        "msgspec decode + SHA-256",
        gate.least / decode.least,
        Aim("at most", 12, on="ours"),
    )


class _Batches(Generic[_Target]):
    """A competitor that processes many batches in each turn, on a new object, and records the time of each batch.

    Other processes can only add to the time, so the minimum is the time of the code itself, as the documentation of
    timeit says. The median is the time on this machine under its current load.
    """

    def __init__(self, batches: int, new: Callable[[], _Target], batch: Callable[[_Target], float]) -> None:
        self._batches = batches
        self._new = new
        self._batch = batch
        self._took: list[float] = []

    def __call__(self) -> float:
        target = self._new()
        took = [self._batch(target) for _ in range(self._batches)]
        self._took += took
        return sum(took)

    @property
    def least(self) -> float:
        """In microseconds per event."""
        return min(self._took) * 1e6 / BATCH

    @property
    def median(self) -> float:
        return statistics.median(self._took) * 1e6 / BATCH


def _new_gate() -> Gate:
    return Gate("memory://")


def _gate_batch(gate: Gate) -> float:
    jobs = [_job() for _ in range(BATCH)]
    start = time.perf_counter()
    outcomes = gate._observed(gate._engine.run_batch(jobs, _nothing))
    seconds = time.perf_counter() - start
    assert outcomes[-1].status == "processed"
    return seconds


def _store_batch(store: MemoryStore) -> float:
    (claims,) = fresh(BATCH)
    start = time.perf_counter()
    verdicts = store.claim(claims)
    seconds = time.perf_counter() - start
    ends = completions(claims, verdicts)
    start = time.perf_counter()
    store.settle(ends)
    return seconds + time.perf_counter() - start


def _bytes_batch(gate: Gate) -> float:
    payloads = deliveries(BATCH)
    start = time.perf_counter()
    outcomes = gate.run_batch(payloads, _nothing)
    seconds = time.perf_counter() - start
    assert outcomes[-1].status == "processed"
    return seconds


def _nothing_new() -> None:
    """Decoding needs no object."""


def _decode_batch(_nothing: None) -> float:
    payloads = deliveries(BATCH)
    start = time.perf_counter()
    for payload in payloads:
        decoded(payload)
    return time.perf_counter() - start


def _job() -> Job:
    event = Event(source="plain", id=os.urandom(18).hex(), type=TYPE, body={}, raw=b"{}")
    return Job(event, Key(os.urandom(16), "event_id", (event.id,)), os.urandom(16))


def _nothing(event: Event) -> None:
    """A handler that does nothing."""


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
    """Each caller takes the next event when it has finished one."""
    numbers = iter(range(events))

    async def nothing(event: Event) -> None: ...

    async def caller() -> None:
        for number in numbers:
            await gate.arun({"id": number}, nothing)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


def _on_new_file(folder: Path) -> Gate:
    return Gate(f"sqlite:///{folder}/gate-{time.monotonic_ns()}.db")

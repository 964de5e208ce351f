"""Compare the Redis store with SET NX of redis-py, and the gate on Redis with well-known idempotency libraries.

Both sides use redis-py and a server that this run starts, with an append-only file that is synced every second. The
library processes one event at a time. A batch of Oncegate has other semantics (its lease must cover the whole batch),
so the table shows single events, too.
"""

import asyncio
import gc
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from idemkit.adapters.queue import IdempotentConsumer
from idemkit.backends.redis import RedisBackend
from idemkit.core.policy import QueueConfig
from msgspec.structs import replace
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.events import BATCH, RETENTION, Batch, completions, fresh
from benchmarks.measure import Round, Sizes, Turn, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import Event, Gate
from oncegate.stores import open_store
from oncegate.stores.base import Store
from tests.stores.redis_server import RedisServer

_RETENTION_S: Final = RETENTION // 1_000_000
_SETTLING: Final = 1.0
_SHOWN: Final = {"claims": "claims, keys given, by 100", "batches": "gate, by 100", "single": "gate, one by one"}
# The rows of batches through the whole gate, with reading and keys, have no aim. The rows of claims alone have one.
_AIMS: Final = {
    "claims new": Aim("at least", 25),
    "claims duplicate": Aim("at least", 60),
    "batches new": None,
    "batches duplicate": None,
    "single new": Aim("at least", 1.5),
    "single duplicate": Aim("at least", 3),
}

_CALLERS: Final = 64

Payload = dict[str, Any]
Caller = AbstractAsyncContextManager[Callable[[Payload], Awaitable[Any]]]


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    # The append-only file is not rewritten during the run: a rewrite would fall into the turn of one competitor.
    server = RedisServer(folder / "redis", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
    try:
        return [
            _against_raw(server, sizes, progress),
            *_against_powertools(server, sizes, progress),
            _against_idemkit(server, sizes, progress),
            _room(server, sizes, progress),
        ]
    finally:
        server.stop()


# ── the store against the raw client ──────────────────────────────────────────────────────────────────────


def _against_raw(server: RedisServer, sizes: Sizes, progress: Progress) -> Row:
    progress.stage("Redis, batches")
    events = sizes.redis_events
    turns = {"ours": partial(_store_turn, server, events), "raw": partial(_raw_turn, server, events)}
    rounds = _rounds(server, turns, sizes, progress)
    return _rate("Redis claim + complete", rounds, events, "raw", "pipelined SET NX", Aim("at least", 0.8))


def _store_turn(server: RedisServer, events: int) -> float:
    store = open_store(server.url)
    seconds = _claims_turn(store, events, repeated=False)
    store.close()
    return seconds


def _raw_turn(server: RedisServer, events: int) -> float:
    batches = fresh(events)

    def work() -> None:
        for claims in batches:
            _set_all(server.client, claims)

    return timed(work)


def _set_all(client: Redis, claims: Batch) -> None:
    pipeline = client.pipeline(transaction=False)
    for claim in claims:
        pipeline.set(b"raw:" + claim.key, claim.owner, nx=True, ex=_RETENTION_S)
    assert all(pipeline.execute())


def _rounds(server: RedisServer, turns: Mapping[str, Turn], sizes: Sizes, progress: Progress) -> list[Round]:
    """Run all rounds, each turn on an empty server: the time of a command grows with the data, so otherwise the figures
    would depend on the number of rounds."""

    def on_empty(turn: Turn) -> float:
        _empty(server)
        return turn()

    emptied = {name: partial(on_empty, turn) for name, turn in turns.items()}
    return by_turns(emptied, sizes.rounds, sizes.warm_ups, progress)


def _empty(server: RedisServer) -> None:
    server.client.execute_command("FLUSHALL", "SYNC")


# ── the gate against Powertools ───────────────────────────────────────────────────────────────────────────


def _against_powertools(server: RedisServer, sizes: Sizes, progress: Progress) -> list[Row]:
    progress.stage("Redis, against Powertools")
    gate = Gate(server.url, remember=None)  # off, because Powertools asks the server for every duplicate, too
    guarded = _guarded(server)
    counts = {"claims": sizes.redis_events, "batches": sizes.redis_events}
    counts |= dict.fromkeys(("single", "theirs"), sizes.redis_singles)
    turns: dict[str, Turn] = {}
    for what, repeated in (("new", False), ("duplicate", True)):
        turns[f"claims {what}"] = partial(_claims_turn, gate.store, counts["claims"], repeated)
        turns[f"batches {what}"] = partial(_gate_turn, gate, counts["batches"], BATCH, repeated)
        turns[f"single {what}"] = partial(_gate_turn, gate, counts["single"], 1, repeated)
        turns[f"theirs {what}"] = partial(_powertools_turn, guarded, counts["theirs"], repeated)
    rounds = _rounds(server, turns, sizes, progress)
    gate.store.close()
    per_event = [{name: seconds / counts[name.split()[0]] for name, seconds in took.items()} for took in rounds]
    return [_compared(name, per_event, aim) for name, aim in _AIMS.items()]


def _compared(name: str, per_event: Sequence[Round], aim: Aim | None) -> Row:
    how, what = name.split()
    theirs = f"theirs {what}"
    return Row(
        f"Redis {_SHOWN[how]}, {what} events",
        "events/s",
        median(per_event, lambda took: 1 / took[name]),
        median(per_event, lambda took: 1 / took[theirs]),
        "Powertools, one at a time",
        median(per_event, lambda took: took[theirs] / took[name]),
        aim,
    )


def _payloads(events: int) -> list[Payload]:
    return [{"id": str(uuid.uuid4()), "type": "call.ended", "detail": {"number": n}} for n in range(events)]


def _claims_turn(store: Store, events: int, repeated: bool) -> float:
    """The store calls of the gate, without the gate."""
    batches = fresh(events)

    def work() -> None:
        for claims in batches:
            assert all(store.settle(completions(claims, store.claim(claims))))

    if not repeated:
        return timed(work)
    work()
    copies = [[replace(claim, owner=os.urandom(16)) for claim in claims] for claims in batches]
    return timed(lambda: [store.claim(claims) for claims in copies])


def _gate_turn(gate: Gate, events: int, size: int, repeated: bool) -> float:
    payloads = _payloads(events)
    batches = [payloads[start : start + size] for start in range(0, events, size)]

    def work() -> None:
        for batch in batches:
            gate.run_batch(batch, _nothing)

    if repeated:
        work()
    return timed(work)


def _nothing(_event: Event) -> None:
    """A handler that does nothing: the work around it is measured."""


def _guarded(server: RedisServer) -> Callable[..., Any]:
    """A function guarded by Powertools, with the id of the event as its key and no validation: its minimum work."""
    client: Any = Redis(port=server.port, decode_responses=True)
    layer = CachePersistenceLayer(client=client)
    config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=_RETENTION_S)

    config.register_lambda_context(_Context())  # type: ignore[arg-type]  # all that it asks of one

    def handle(*, event: Payload) -> None:
        """A handler that does nothing: the work around it is measured."""

    guard: Callable[[Callable[..., None]], Callable[..., Any]] = idempotent_function(
        data_keyword_argument="event", persistence_store=layer, config=config
    )
    return guard(handle)


class _Context:
    """Powertools warns at every call without a context."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def _powertools_turn(guarded: Callable[..., Any], events: int, repeated: bool) -> float:
    payloads = _payloads(events)

    def work() -> None:
        for payload in payloads:
            guarded(event=payload)

    if repeated:
        work()
    return timed(work)


# ── many callers against idemkit ──────────────────────────────────────────────────────────────────────────


def _against_idemkit(server: RedisServer, sizes: Sizes, progress: Progress) -> Row:
    progress.stage(f"Redis, {_CALLERS} callers, against idemkit")
    events = sizes.redis_concurrent
    turns: dict[str, Turn] = {
        "ours": lambda: _together_turn(server, _gates_arun, events),
        "theirs": lambda: _together_turn(server, _consumers_dispatch, events),
    }
    rounds = _rounds(server, turns, sizes, progress)
    name = f"Redis arun, {_CALLERS} callers"
    return _rate(name, rounds, events, "theirs", "idemkit's consumer", Aim("at least", 4))


def _together_turn(server: RedisServer, caller: "Callable[[RedisServer], Caller]", events: int) -> float:
    """The seconds that so many callers take to process all events. Each takes the next event when it has finished
    one."""
    return asyncio.run(_together(caller(server), _payloads(events)))


async def _together(caller: "Caller", payloads: list[Payload]) -> float:
    async with caller as call:
        await call(_payloads(1)[0])
        waiting = iter(payloads)

        async def work() -> None:
            for payload in waiting:
                await call(payload)

        gc.collect()  # garbage of earlier turns, as before every other turn
        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(_CALLERS)))
        return time.perf_counter() - start


@asynccontextmanager
async def _gates_arun(server: RedisServer) -> AsyncIterator[Callable[[Payload], Awaitable[Any]]]:
    gate = Gate(server.url)

    async def nothing(_event: Event) -> None:
        """A handler that does nothing: the work around it is measured."""

    yield lambda payload: gate.arun(payload, nothing)
    gate.store.close()


@asynccontextmanager
async def _consumers_dispatch(server: RedisServer) -> AsyncIterator[Callable[[Payload], Awaitable[Any]]]:
    client = AsyncRedis(port=server.port)

    async def nothing(_message: Payload) -> None:
        """A handler that does nothing: the work around it is measured."""

    config = QueueConfig(
        dedup_id=lambda message: message["id"],
        visibility_timeout_seconds=60,
        receive_count=lambda _message: 1,
        expires_after_seconds=_RETENTION_S,
    )
    consumer = IdempotentConsumer(backend=RedisBackend(client), config=config, handler=nothing)
    yield consumer.dispatch
    await client.aclose()


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────


def _room(server: RedisServer, sizes: Sizes, progress: Progress) -> Row:
    progress.stage(f"Redis, memory of {sizes.redis_keys:,} keys")
    ours = _memory(server, sizes.redis_keys, _fill_store)
    raw = _memory(server, sizes.redis_keys, _fill_raw)
    name = f"Redis memory per completed key, at {sizes.redis_keys:,}"
    return Row(name, "bytes", ours, raw, "SET NX", ours / raw, Aim("at most", 220, on="ours"))


def _memory(server: RedisServer, keys: int, fill: Callable[[RedisServer, list[Batch]], None]) -> float:
    _empty(server)
    before = _used(server)
    fill(server, fresh(keys))
    return (_used(server) - before) / keys


def _used(server: RedisServer) -> float:
    """The memory after the server has finished resizing its tables, which it does in small steps."""
    time.sleep(_SETTLING)
    return float(server.client.info("memory")["used_memory"])


def _fill_store(server: RedisServer, batches: list[Batch]) -> None:
    store = open_store(server.url)
    for claims in batches:
        store.settle(completions(claims, store.claim(claims)))
    store.close()


def _fill_raw(server: RedisServer, batches: list[Batch]) -> None:
    for claims in batches:
        _set_all(server.client, claims)


def _rate(name: str, rounds: list[Round], events: int, other: str, other_name: str, aim: Aim) -> Row:
    return Row(
        name,
        "events/s",
        median(rounds, lambda took: events / took["ours"]),
        median(rounds, lambda took: events / took[other]),
        other_name,
        median(rounds, lambda took: took[other] / took["ours"]),
        aim,
    )

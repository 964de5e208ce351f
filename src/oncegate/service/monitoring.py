"""Looks at the store: what is told of it to those who watch the service, in time whatever the store does."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from oncegate.claims import Address
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import CanProbe, Store

_log = logging.getLogger("oncegate.service")

_WITHIN = 1.0
_PROBE_WITHIN = 800_000
_LOOK_EVERY = 30.0
_NOWHERE = [Address("oncegate.service", b"ready")]


class StoreProbe:
    """A question to the store, in a thread that no event needs. Whoever asks while it is under way waits for the same
    answer, so that a store which hangs holds one thread."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oncegate-look")
        self._asked: Future[object] | None = None

    async def answered(self) -> bool:
        """Whether the store has answered in time."""
        return await self.problem() is None

    async def problem(self) -> StoreError | None:
        """Why it has not, if so."""
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(self._ask)
        try:
            async with asyncio.timeout(_WITHIN):
                await asyncio.shield(asyncio.wrap_future(self._asked))
        except StoreError as error:
            return error
        except TimeoutError:
            return StoreUnavailable(f"the store did not answer within {_WITHIN:.0f} s")
        return None

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class Readiness:
    """Whether the store can be used, as it is told to those who ask; the log is told in full when that changes."""

    def __init__(self, store: Store) -> None:
        self._look = probe(store)
        self._known: str | None = None

    async def problem(self) -> str | None:
        """What keeps the store from being used, in words that tell nothing of where it is; None if nothing does."""
        error = await self._look.problem()
        brief = None if error is None else error.brief
        if brief != self._known:
            self._known = brief
            if error is None:
                _log.warning("the store can be used again")
            else:
                _log.warning("the store cannot be used: %s", error)
        return brief

    async def watch(self, stop: asyncio.Event) -> None:
        """Look now and then, so that the log has it also where nobody asks."""
        while not stop.is_set():
            await self.problem()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await stop.wait()
            except TimeoutError:
                """Time to look again."""

    def close(self) -> None:
        self._look.close()


def probe(store: Store) -> StoreProbe:
    """Whether it can be written, if it can tell; else whether it can be asked for something that is not there."""
    if isinstance(store, CanProbe):
        return StoreProbe(lambda: store.probe(_PROBE_WITHIN))
    return StoreProbe(lambda: store.load(_NOWHERE))


# Metrics: what the service counts, for Prometheus. docs/guide/webhooks.md says what each means.


CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()

_STORE_ERRORS = ("policy.store_error", "inbox.failed")
_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One registry for the whole service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._deliveries = Deliveries()
        self._registry.register(self._deliveries)
        self._latency = Histogram(
            "oncegate_latency_seconds",
            "From the head of a request to its answer.",
            ["route"],
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self._refusals = Total(
            "oncegate_signature_refusals", "Requests whose signature was refused.", ["route"], registry=self._registry
        )
        self._limited = Total(
            "oncegate_limited", "Requests of a route that sent too much.", ["route"], registry=self._registry
        )
        self._shed = Total("oncegate_shed", "Requests refused for want of room.", registry=self._registry)
        self.in_hand = Gauge("oncegate_in_hand", "Requests that are being taken.", registry=self._registry)
        self._waiting = Gauge(
            "oncegate_inbox_waiting",
            "Events that the store keeps until they have run.",
            ["route"],
            registry=self._registry,
        )
        self._hung = Gauge(
            "oncegate_handlers_hung",
            "Plain handlers that have not returned in time.",
            ["route"],
            registry=self._registry,
        )

    def hung(self, route: str, count: Callable[[], float]) -> None:
        """Tell of the handlers of a route that hang, whenever somebody asks."""
        self._hung.labels(route).set_function(count)

    def watch(self, route: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """Tell of what the gate of a route has counted, whenever somebody asks."""
        self._deliveries.watch(route, counts)

    def kinds(self, route: str) -> Callable[[Sequence[Outcome]], None]:
        """What counts the kinds of what came in by a route, which its gate does not tell apart."""
        return self._deliveries.kinds(route)

    def latency(self, route: str) -> Callable[[float], None]:
        return self._latency.labels(route).observe

    def refusals(self, route: str) -> Callable[[], None]:
        return self._refusals.labels(route).inc

    def limited(self, route: str) -> Callable[[], None]:
        return self._limited.labels(route).inc

    def shed(self) -> None:
        self._shed.inc()

    def waiting(self, route: str, count: int) -> None:
        self._waiting.labels(route).set(count)

    def shown(self) -> bytes:
        return generate_latest(self._registry)


class Deliveries(Collector):
    """Events by route, status and kind, and failures of the store, as the gates have counted them.

    Nothing is added up while events pass but kinds, in the loop of the service: an observer would be told of every
    event in a thread of its own, and that thread would cost more than the count."""

    def __init__(self) -> None:
        self._counts: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._kinds: dict[str, Counter[tuple[str, str]]] = {}

    def watch(self, route: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts[route] = counts

    def kinds(self, route: str) -> Callable[[Sequence[Outcome]], None]:
        kinds = self._kinds.setdefault(route, Counter())

        def count(outcomes: Sequence[Outcome]) -> None:
            for outcome in outcomes:
                if outcome.kind is not None:
                    kinds[outcome.status, outcome.kind] += 1

        return count

    def collect(self) -> Iterator[Metric]:
        deliveries = CounterMetricFamily(
            "oncegate_deliveries", "Events by what became of them.", labels=["route", "status", "kind"]
        )
        errors = CounterMetricFamily(
            "oncegate_store_errors", "Times that the store did not answer, by what was asked.", labels=["route"]
        )
        for route, told in self._counts.items():
            counts = told()
            for (status, kind), count in sorted(self._by_kind(route, counts).items()):
                deliveries.add_metric([route, status, kind], count)
            errors.add_metric([route], sum(counts.get(name, 0) for name in _STORE_ERRORS))
        yield deliveries
        yield errors

    def _by_kind(self, route: str, counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """By status as the gate counts; those whose kind is known apart from the rest."""
        kinds = self._kinds.get(route, Counter())
        found: dict[tuple[str, str], int] = dict(kinds)
        for name, count in counts.items():
            area, _, status = name.partition(".")
            rest = count - sum(known for (kept, _), known in kinds.items() if kept == status)
            if area == "event" and status != "kept" and rest > 0:
                found[status, ""] = rest
        return found

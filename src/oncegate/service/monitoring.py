"""Readiness and metrics of the service.

A probe answers within a second, even if the store hangs. docs/reference/metrics.md describes each metric.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from oncegate.claims import Address
from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.journal import Recorder
from oncegate.stores.base import CanProbe, Store, count_dead_letters

_log = logging.getLogger("oncegate.service")

_PROBE_TIMEOUT = 1.0  # seconds
_STORE_PROBE_TIMEOUT = 800_000  # microseconds; less than _PROBE_TIMEOUT, so that the store can report the error
_WATCH_INTERVAL = 30.0  # seconds
_RECENT_PROBES = 9
_COUNT_INTERVAL = 60_000_000  # microseconds
_MAX_COUNTED = 1_000
_ABSENT = [Address("oncegate.service", b"ready")]


# ── probes and readiness ──────────────────────────────────────────────────────────────────────────────────


class StoreProbe:
    """Calls the store in a separate thread that runs no events. Concurrent callers share one call, so a store that does
    not answer blocks only this thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oncegate-probe")
        self._pending: Future[object] | None = None
        self.durations: deque[float] = deque(maxlen=_RECENT_PROBES)  # seconds that the last successful calls took

    async def succeeds(self) -> bool:
        """Call the store. Returns whether it answered within a second and without an error."""
        return await self.error() is None

    async def error(self) -> StoreError | None:
        """Call the store, or join the call in progress. Returns its error or timeout; None if it succeeded."""
        if self._pending is None or self._pending.done():
            self._pending = self._thread.submit(self._call_timed)
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                await asyncio.shield(asyncio.wrap_future(self._pending))
        except StoreError as error:
            return error
        except TimeoutError:
            return StoreUnavailable(f"the store did not answer within {_PROBE_TIMEOUT:.0f} s")
        return None

    def _call_timed(self) -> None:
        start = time.perf_counter()
        self._call()
        self.durations.append(time.perf_counter() - start)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def probe(store: Store) -> StoreProbe:
    """A probe of the store. If the store implements CanProbe, the probe checks writes; otherwise it only reads."""
    if isinstance(store, CanProbe):
        return StoreProbe(lambda: store.probe(_STORE_PROBE_TIMEOUT))
    return StoreProbe(lambda: store.load(_ABSENT))


class Readiness:
    """Checks whether the store is usable. Logs each change: the full error, or that the store is usable again."""

    def __init__(self, store: Store) -> None:
        self._probe = probe(store)
        self._last: str | None = None

    @property
    def latency(self) -> int | None:
        """The median of the last probes in microseconds; None if the store has not answered yet."""
        recent = sorted(self._probe.durations)
        return int(recent[len(recent) // 2] * 1_000_000) if recent else None

    async def problem(self) -> str | None:
        """Probe the store. Returns why it is not usable, without its address, because the answer is public; None if the
        store is usable."""
        error = await self._probe.error()
        brief = None if error is None else error.brief
        if brief != self._last:
            self._last = brief
            if error is None:
                _log.warning("the store can be used again")
            else:
                _log.warning("the store cannot be used: %s", error)
        return brief

    async def watch(self, stop: asyncio.Event) -> None:
        """Probe every 30 s until `stop` is set. An outage is then logged even if no client requests /readyz."""
        while not stop.is_set():
            await self.problem()
            try:
                async with asyncio.timeout(_WATCH_INTERVAL):
                    await stop.wait()
            except TimeoutError:
                """Probe again."""

    def close(self) -> None:
        self._probe.close()


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────


class DeadLetterCounter:
    """Counts the dead letters of namespaces in a separate thread.

    The dead letters are counted at most once a minute, and only up to 1,000 for each namespace, because a count takes
    time in proportion to its result, and some stores are billed for it. Payloads are not read: they may need hundreds
    of megabytes of memory."""

    def __init__(
        self, store: Store, namespaces: Collection[str], report: Callable[[str, int], None], boot: Clock
    ) -> None:
        """`report` is called with a namespace and its number of dead letters."""
        self._store = store
        self._namespaces = namespaces
        self._report = report
        self._boot = boot
        self._probe = StoreProbe(self._count)
        self._next = 0
        self._is_closed = False

    async def update(self) -> None:
        """Count if the last count began more than a minute ago. Waits at most a second for the result. If the store
        fails, the last numbers stay."""
        if self._boot() >= self._next:
            self._next = self._boot() + _COUNT_INTERVAL
            await self._probe.succeeds()

    def _count(self) -> None:
        for namespace in self._namespaces:
            if not self._is_closed:
                self._report(namespace, count_dead_letters(self._store, namespace, _MAX_COUNTED))

    def close(self) -> None:
        self._is_closed = True
        self._probe.close()


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────


CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()

_STORE_ERRORS = ("policy.store_error", "inbox.failed")
_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

KindCounter = Counter[tuple[str, str]]


class Metrics:
    """The metrics of all routes, in one registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._deliveries = Deliveries()
        self._registry.register(self._deliveries)
        self._latency = Histogram(
            "oncegate_latency_seconds",
            "Seconds from the head of a request to its response.",
            ["route"],
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self._refusals = Total(
            "oncegate_signature_refusals", "Requests with an invalid signature.", ["route"], registry=self._registry
        )
        self._limited = Total(
            "oncegate_limited",
            "Requests rejected by the limits of their route (max_rate, max_live_keys).",
            ["route"],
            registry=self._registry,
        )
        self._shed = Total(
            "oncegate_shed", "Requests rejected because the in-flight limit was reached.", registry=self._registry
        )
        self.in_hand = Gauge("oncegate_in_hand", "Requests in flight.", registry=self._registry)
        self._waiting = Gauge(
            "oncegate_inbox_waiting",
            "Events in the inbox that have not completed.",
            ["route"],
            registry=self._registry,
        )
        self._dead_letters = Gauge(
            "oncegate_dead_letters",
            "Dead letters in the store, counted at most once a minute; 1000 means 1000 or more.",
            ["route"],
            registry=self._registry,
        )
        self._hung = Gauge(
            "oncegate_handlers_hung",
            "Synchronous handlers that have exceeded their timeout and still run.",
            ["route"],
            registry=self._registry,
        )

    def hung(self, route: str, count: Callable[[], float]) -> None:
        """At each scrape, call `count` for the number of hung handlers of a route."""
        self._hung.labels(route).set_function(count)

    def watch(self, route: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """At each scrape, call `counts` for the counters of the gate of a route."""
        self._deliveries.watch(route, counts)

    def kinds(self, route: str) -> KindCounter:
        """The counter of events by (status, kind), which the route updates. The gate counts events by status only."""
        return self._deliveries.kinds(route)

    def journal(self, recorder: Recorder) -> None:
        """At each scrape, read the number of rows that the recorder has written and dropped."""
        self._registry.register(JournalRows(recorder))

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

    def dead_letters(self, route: str, count: int) -> None:
        self._dead_letters.labels(route).set(count)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class Deliveries(Collector):
    """Collects the number of events by route, status and kind, and the number of store errors. Reads the counters of
    the gates at each scrape.

    Only kinds are counted for each event, on the event loop of the service. An observer was rejected: it would receive
    every event in a separate thread, and the switch to that thread would cost more than the count."""

    def __init__(self) -> None:
        self._counts: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._kinds: dict[str, KindCounter] = {}

    def watch(self, route: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts[route] = counts

    def kinds(self, route: str) -> KindCounter:
        return self._kinds.setdefault(route, Counter())

    def collect(self) -> Iterator[Metric]:
        deliveries = CounterMetricFamily(
            "oncegate_deliveries", "Events by route, status and kind.", labels=["route", "status", "kind"]
        )
        errors = CounterMetricFamily("oncegate_store_errors", "Store calls that failed or timed out.", labels=["route"])
        for route, read_counts in self._counts.items():
            counts = read_counts()
            for (status, kind), count in sorted(self._by_kind(route, counts).items()):
                deliveries.add_metric([route, status, kind], count)
            errors.add_metric([route], sum(counts.get(name, 0) for name in _STORE_ERRORS))
        yield deliveries
        yield errors

    def _by_kind(self, route: str, counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Counts by (status, kind). The number of events without a kind is the count of the gate minus the number of
        events with a kind."""
        kinds = self._kinds.get(route, Counter())
        found: dict[tuple[str, str], int] = dict(kinds)
        for name, count in counts.items():
            area, _, status = name.partition(".")
            rest = count - sum(known for (counted, _), known in kinds.items() if counted == status)
            if area == "event" and status != "kept" and rest > 0:
                found[status, ""] = rest
        return found


class JournalRows(Collector):
    """Collects how many rows the journal has written and dropped."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("oncegate_journal_rows", "Rows written to the journal.", value=self._recorder.written)
        yield CounterMetricFamily(
            "oncegate_journal_dropped", "Rows that the journal has dropped.", value=self._recorder.dropped
        )

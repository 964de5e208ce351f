"""Metrics: what the service counts, for Prometheus. docs/guide/webhooks.md says what each means."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from oncegate.gate import Notice
from oncegate.gate.log import outcome_of

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()

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
        self._store_errors = Total(
            "oncegate_store_errors",
            "Times that the store did not answer for an event, or for what it keeps.",
            ["route"],
            registry=self._registry,
        )
        self.in_hand = Gauge("oncegate_in_hand", "Requests that are being taken.", registry=self._registry)
        self._waiting = Gauge(
            "oncegate_inbox_waiting",
            "Events that the store keeps until they have run.",
            ["route"],
            registry=self._registry,
        )

    def observer(self, route: str) -> Callable[[Notice], None]:
        """What counts what the gate of a route tells."""
        store_errors = self._store_errors.labels(route)
        counted = self._deliveries.counted

        def count(notice: Notice) -> None:
            outcome = outcome_of(notice)
            if outcome is not None:
                counted(route, outcome.status, outcome.kind or "")
            elif notice.name in ("policy.store_error", "inbox.failed"):
                store_errors.inc()

        return count

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
    """Events by route, status and kind. Counted here and put into families when asked: labels cost more than a sum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def counted(self, route: str, status: str, kind: str) -> None:
        with self._lock:
            self._counts[route, status, kind] += 1

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def _families(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "oncegate_deliveries", "Events by what became of them.", labels=["route", "status", "kind"]
        )
        with self._lock:
            counts = dict(self._counts)
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        yield family

"""The service put together: from settings to an application, and from start to stop."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from oncegate.claims import Address
from oncegate.clocks import since_boot, wall
from oncegate.durations import microseconds, times
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.gate import Gate
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer
from oncegate.service.admission import Admission, InboxAdmission, InFlightBudget, InlineAdmission
from oncegate.service.app import App
from oncegate.service.monitoring import Metrics, Readiness, StoreProbe
from oncegate.service.route import NO_LIMITS, Limits, LiveKeys, Rate, Route
from oncegate.service.route_config import (
    check_keys,
    metrics_verifier,
    name_of,
    proxies_of,
    routes_of,
    unkept,
    verifier_for,
)
from oncegate.settings import Settings
from oncegate.signatures import Verifier
from oncegate.stores.base import Entry, Inbox, Store

_log = logging.getLogger("oncegate.service")

_AT_WORK = 256
_PAGE = 1_000
_CLOSE_WITHIN = 3.0


class Service:
    """All that a running service has: one store, and for each route a gate and a door."""

    def __init__(
        self, settings: Settings, handlers: Mapping[str, AsyncHandler | Handler | None], observers: Sequence[Observer]
    ) -> None:
        self._settings = settings
        self.ended = True
        self._drained = threading.Event()
        self._routes = routes_of(settings)
        check_keys(settings)
        verifiers = {path: verifier_for(route) for path, route in self._routes.items()}
        proxies, asking = proxies_of(settings), metrics_verifier(settings)
        self._metrics = Metrics()
        self._threads = ThreadPoolExecutor(settings["threads"], thread_name_prefix="oncegate-worker")
        self._may_be_late = any(route["on_store_error"] == "unguarded" for route in self._routes.values())
        self._store = settings.open_store(late=self._may_be_late)
        self._readiness = Readiness(self._store)
        self._counting = StoreProbe(self._count_kept)
        try:
            self._gates = {path: route.gate(self._store, observers=observers) for path, route in self._routes.items()}
            self._doors = {path: self._door(path, handlers[path], verifiers[path]) for path in self._routes}
        except BaseException:  # nothing will be served, so nothing stays open
            self._store.close()
            raise
        self.app = App(
            self._doors,
            self._metrics,
            room=InFlightBudget(settings["max_in_hand"], settings["serve.max_bytes_in_hand"]),
            proxies=proxies,
            readiness=self._readiness,
            stuck=self._stuck,
            counting=self._counting.answered,
            starting=self._start,
            metrics_verifier=asking,
            metrics_apart=settings["serve.metrics_host"] is not None,
        )

    def _door(self, path: str, handler: AsyncHandler | Handler | None, verifier: Verifier | None) -> Route:
        route, gate, name = self._routes[path], self._gates[path], name_of(path)
        self._metrics.watch(name, partial(getattr, gate, "counts"))
        taking = self._taking(gate, handler)
        self._metrics.hung(name, lambda: taking.hung)
        return Route(
            name,
            taking,
            self._metrics,
            verifier=verifier,
            hints=route.hints(),
            limits=_limits(route),
            most=route["serve.max_events"],
        )

    def _taking(self, gate: Gate, handler: AsyncHandler | Handler | None) -> Admission:
        if self._settings["serve.mode"] == "inline" and handler is not None:
            return InlineAdmission(gate, handler, self._threads)
        try:
            return InboxAdmission(
                gate, handler, self._threads, at_work=_AT_WORK, drain=self._settings["serve.drain_within"]
            )
        except SettingError as error:
            raise unkept(self._settings, error) from error

    def _stuck(self) -> str | None:
        """Why events are no longer run, if handlers that hang have taken all threads of a route."""
        for door in self._doors.values():
            if door.taking.threads_left <= 0:
                hung = times(door.taking.hung, "handler")
                return f"route {door.name} has no thread left to run events: {hung} did not return; start it again"
        return None

    def close(self) -> None:
        """Let go of the store when the last handler is recorded. What runs on when the time to drain is over cannot be
        stopped, and is not waited for: `ended` tells."""
        closing = threading.Thread(target=self._close, name="oncegate-closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_WITHIN)
        self.ended = self._drained.is_set() and not any(door.taking.left_running for door in self._doors.values())

    def _close(self) -> None:
        self._readiness.close()
        self._counting.close()
        self._threads.shutdown()
        for gate in self._gates.values():
            gate.drain()
        self._drained.set()  # what is left to do is to write the log, which nobody may read
        for gate in self._gates.values():
            gate.close()

    async def _start(self) -> None:
        for path, door in self._doors.items():
            if (limit := door.limits.live_keys) is not None:
                known = _known(self._store, self._routes[path]["namespace"])
                try:
                    await asyncio.to_thread(limit.count_in, known)
                except StoreUnavailable as error:
                    if not self._may_be_late:
                        raise
                    _log.warning("route %s: max_live_keys counts from 0: %s", name_of(path), error)

    def _count_kept(self) -> None:
        """Counted when somebody asks: it is the store that knows, since others keep and take too."""
        if isinstance(self._store, Inbox):
            for path, route in self._routes.items():
                self._metrics.waiting(name_of(path), self._store.kept(route["namespace"]))


def _limits(route: Settings) -> Limits:
    rate, keys = route["serve.max_rate"], route["serve.max_live_keys"]
    if rate is None and keys is None:
        return NO_LIMITS
    return Limits(
        None if rate is None else Rate(rate, since_boot),
        None if keys is None else LiveKeys(keys, microseconds(route["retention"]), wall),
    )


def _known(store: Store, namespace: str) -> Iterator[Entry]:
    """Every record of a namespace."""
    after: Address | None = None
    while page := store.browse(namespace, after=after, limit=_PAGE):
        yield from page
        after = Address(page[-1].namespace, page[-1].key)

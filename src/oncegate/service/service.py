"""Build the service from settings. All paths share one store; each path has its own gate, route and handler."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from oncegate.clocks import since_boot, wall
from oncegate.console.access import Access
from oncegate.console.app import Console
from oncegate.console.site import ServiceFigures, Site
from oncegate.durations import microseconds, times
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.gate import Gate
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer, log_outcomes
from oncegate.journal import Recorder
from oncegate.service.admission import Admission, InboxAdmission, InFlightBudget, InlineAdmission
from oncegate.service.app import App
from oncegate.service.config import (
    check_keys,
    inbox_error,
    metrics_verifier,
    proxies_of,
    verifier_for,
)
from oncegate.service.monitoring import DeadLetterCounter, Metrics, Readiness, StoreProbe
from oncegate.service.route import NO_LIMITS, Limits, LiveKeys, Rate, Route
from oncegate.settings import Settings
from oncegate.settings.routes import name_of, routes_of
from oncegate.signatures import Verifier
from oncegate.stores.base import Inbox, scan

_log = logging.getLogger("oncegate.service")

_MAX_RUNNING = 256
_CLOSE_TIMEOUT = 3.0  # seconds


class Service:
    """Holds the parts of a running service, starts them and stops them."""

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, AsyncHandler | Handler | None],
        observers: Sequence[Observer],
        recorder: Recorder | None = None,
    ) -> None:
        self._settings = settings
        self.ended = True
        self._drained = threading.Event()
        self._route_settings = routes_of(settings)
        check_keys(settings)
        verifiers = {path: verifier_for(route) for path, route in self._route_settings.items()}
        self._proxies, token_verifier = proxies_of(settings), metrics_verifier(settings)
        self._has_log = log_outcomes(observers)
        self._recorder = recorder
        self._metrics = Metrics()
        if recorder is not None:
            self._metrics.journal(recorder)
        self._threads = ThreadPoolExecutor(settings["threads"], thread_name_prefix="oncegate-worker")
        self._may_start_without_store = any(
            route["on_store_error"] == "unguarded" for route in self._route_settings.values()
        )
        self._store = settings.open_store(late=self._may_start_without_store)
        self._readiness = Readiness(self._store)
        self._inbox_count = StoreProbe(self._count_inbox)
        namespaces = {route["namespace"] for route in self._route_settings.values()}
        self._dead_letters = DeadLetterCounter(self._store, namespaces, self._report_dead_letters, since_boot)
        try:
            self._gates = {
                path: route.gate(self._store, observers=[*observers, *self._recorder_of(path)])
                for path, route in self._route_settings.items()
            }
            self._routes = {path: self._route(path, handlers[path], verifiers[path]) for path in self._route_settings}
        except BaseException:  # the service will not start, so the store must not stay open
            self._store.close()
            raise
        self._budget = InFlightBudget(settings["max_in_hand"], settings["serve.max_bytes_in_hand"])
        self.app = App(
            self._routes,
            self._metrics,
            budget=self._budget,
            proxies=self._proxies,
            readiness=self._readiness,
            blocked=self._blocked_reason,
            update_metrics=self._update_metrics,
            on_start=self._start,
            metrics_verifier=token_verifier,
            metrics_apart=settings["serve.metrics_host"] is not None,
        )

    def add_console(self, tokens: Sequence[str], address: str | None = None) -> None:
        """Serve the console at /console, for people who have one of these tokens. Must be called before the start.
        `address` is the URL at which the service listens, for the commands that the console shows. The console opens
        the store again, so that its pages do not delay events. A store in memory cannot be opened again."""
        in_memory = self._settings["store"].startswith("memory://")
        site = Site(self._settings, (lambda: self._store) if in_memory else None, self._figures, address)
        self.app.console = Console(site, Access(tokens), self._proxies)

    def _figures(self) -> ServiceFigures:
        """Figures that need no read of the store: a read would use the connection that events wait for."""
        breakers = {name_of(path): gate._engine.breaker for path, gate in self._gates.items()}
        return ServiceFigures(
            in_flight=self._budget.requests,
            breakers={route: breaker.state for route, breaker in breakers.items() if breaker is not None},
            store_latency=self._readiness.latency,
        )

    def _recorder_of(self, path: str) -> list[Observer]:
        return [] if self._recorder is None else [self._recorder.of(name_of(path), awaits_keep=True)]

    def _route(self, path: str, handler: AsyncHandler | Handler | None, verifier: Verifier | None) -> Route:
        settings, gate, name = self._route_settings[path], self._gates[path], name_of(path)
        self._metrics.watch(name, partial(getattr, gate, "counts"))
        admission = self._admission(gate, handler)
        self._metrics.hung(name, lambda: admission.hung)
        return Route(
            name,
            admission,
            self._metrics,
            verifier=verifier,
            hints=settings.hints(),
            limits=_limits(settings),
            most=settings["serve.max_events"],
        )

    def _admission(self, gate: Gate, handler: AsyncHandler | Handler | None) -> Admission:
        if self._settings["serve.mode"] == "inline" and handler is not None:
            return InlineAdmission(gate, handler, self._threads, has_log=self._has_log)
        try:
            return InboxAdmission(
                gate, handler, self._threads, max_running=_MAX_RUNNING, drain=self._settings["serve.drain_within"]
            )
        except SettingError as error:
            raise inbox_error(self._settings, error) from error

    def _blocked_reason(self) -> str | None:
        """The reason why the events of a route can no longer run: hung handlers occupy all its threads. None if
        every route has a thread left."""
        for route in self._routes.values():
            if route.admission.threads_left <= 0:
                hung = times(route.admission.hung, "handler")
                return (
                    f"route {route.name} has no thread left to run events: {hung} did not return; restart the service"
                )
        return None

    def close(self) -> None:
        """Close the gates and the store after the outcome of the last handler has been recorded. Waits at most 3 s,
        because a synchronous handler cannot be stopped. Afterwards `ended` says whether all handlers have ended."""
        closing = threading.Thread(target=self._close, name="oncegate-closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)
        self.ended = self._drained.is_set() and not any(route.admission.left_running for route in self._routes.values())

    def _close(self) -> None:
        self._readiness.close()
        self._inbox_count.close()
        self._dead_letters.close()
        self._threads.shutdown()
        for gate in self._gates.values():
            gate.drain()
        # All outcomes are recorded now. `close` writes the rest of the log, and may block if nobody reads the pipe.
        self._drained.set()
        for gate in self._gates.values():
            gate.close()
        if self.app.console is not None:
            self.app.console.close()
        if self._recorder is not None:
            self._recorder.close()

    async def _start(self) -> None:
        """Start the recorder. For each route with `max_live_keys`, count the records that are already in the store."""
        if self._recorder is not None:
            self._recorder.start()
        for path, route in self._routes.items():
            if (limit := route.limits.live_keys) is not None:
                try:
                    await asyncio.to_thread(self._count_records, limit, self._route_settings[path]["namespace"])
                except StoreUnavailable as error:
                    if not self._may_start_without_store:
                        raise
                    _log.warning("route %s: max_live_keys counts from 0: %s", name_of(path), error)

    def _count_records(self, limit: LiveKeys, namespace: str) -> None:
        """Count the records of a namespace. Uses `scan`, which reads the store once. On Redis and DynamoDB, `browse`
        would read the whole store again for each page."""
        limit.count_in(scan(self._store, namespace))

    async def _update_metrics(self) -> None:
        await asyncio.gather(self._inbox_count.succeeds(), self._dead_letters.update())

    def _report_dead_letters(self, namespace: str, count: int) -> None:
        for path, route in self._route_settings.items():
            if route["namespace"] == namespace:
                self._metrics.dead_letters(name_of(path), count)

    def _count_inbox(self) -> None:
        """Update the metric of waiting events from the store. This is done at each scrape, because other processes add
        and take events too."""
        if isinstance(self._store, Inbox):
            for path, route in self._route_settings.items():
                self._metrics.waiting(name_of(path), self._store.kept(route["namespace"]))


def _limits(route: Settings) -> Limits:
    rate, keys = route["serve.max_rate"], route["serve.max_live_keys"]
    if rate is None and keys is None:
        return NO_LIMITS
    return Limits(
        None if rate is None else Rate(rate, since_boot),
        None if keys is None else LiveKeys(keys, microseconds(route["retention"]), wall),
    )

"""OpenTelemetry: an observer that makes a span of each event that has come to its outcome.

Needs the extra `otel`. Where spans go is set up as for any other program, in code or by `opentelemetry-instrument`. As
with every observer, a gate neither waits for it nor fails with it.
"""

import threading
from collections import OrderedDict
from importlib.util import find_spec
from typing import Any, Final

from oncegate.errors import MissingExtra, SettingError

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise MissingExtra(f"tracing (no {error.name} here)", "otel") from error

from oncegate.gate.observers import Notice, fields_of, outcome_of
from oncegate.gate.outcome import STATUSES

NAME: Final = "oncegate.event"
_MOST_OPEN: Final = 10_000
_NANOSECONDS: Final = 1_000  # in a microsecond
_NOWHERE: Final = (
    "so that spans would go nowhere; start it with opentelemetry-instrument oncegate … (pip install"
    " opentelemetry-distro opentelemetry-exporter-otlp)"
)


class Tracing:
    """One span for each outcome: from the grant on if the handler ran, else of no length.

    Its attributes are those of a line in the log, with `oncegate.` before them: nothing in them is of the payload but
    what names the event. It is an error for what failed, was buried, conflicts or could not be read."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("oncegate", tracer_provider=provider)
        self._granted: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, notice: Notice) -> None:
        if notice.name == "claim.granted":
            self._began(notice)
        elif (outcome := outcome_of(notice)) is not None:
            told = fields_of(outcome, notice.namespace)
            reason = told.pop("reason")
            span = self._tracer.start_span(
                NAME,
                context=Context(),  # none that this thread happens to be in
                kind=SpanKind.CONSUMER,
                attributes={f"oncegate.{name}": value for name, value in told.items() if value is not None},
                start_time=self._start(notice) * _NANOSECONDS,
            )
            if STATUSES[outcome.status].is_error:
                span.set_status(Status(StatusCode.ERROR, reason))
            span.end(notice.at * _NANOSECONDS)

    def _began(self, notice: Notice) -> None:
        """Claims that come to no outcome, since they were given back, are forgotten when there are many others."""
        with self._lock:
            self._granted[_claim(notice)] = notice.at
            if len(self._granted) > _MOST_OPEN:
                self._granted.popitem(last=False)

    def _start(self, notice: Notice) -> int:
        with self._lock:
            return min(self._granted.pop(_claim(notice), notice.at), notice.at)


def tracing() -> Tracing:
    """The observer for a process that was set up to send its spans somewhere; SettingError if it was not."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise SettingError(f"no OpenTelemetry SDK is set up in this process, {_NOWHERE}")
    return Tracing()


def check_installed(where: str) -> None:
    """Refuse what no process could be set up for."""
    if find_spec("opentelemetry.sdk") is None:
        raise SettingError(f"{where}: no OpenTelemetry SDK is installed, {_NOWHERE}")


def _claim(notice: Notice) -> tuple[Any, ...]:
    event = notice.event
    key = None if event is None or event.key is None else event.key.digest
    return notice.namespace, key, 0 if event is None else event.fence

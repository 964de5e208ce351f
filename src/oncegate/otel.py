"""An observer that creates an OpenTelemetry span for each outcome.

It needs the extra `otel`. Configure the export of spans as for any other program, in code or with
`opentelemetry-instrument`. Like every observer, it cannot delay or fail an event.
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
    raise MissingExtra(f"tracing ({error.name} is not installed)", "otel") from error

from oncegate.gate.observers import Notice, fields_of, outcome_of
from oncegate.gate.outcome import STATUSES

NAME: Final = "oncegate.event"
_MOST_OPEN: Final = 10_000
_NANOSECONDS: Final = 1_000  # per microsecond
_NO_EXPORT: Final = (
    "so spans would not be exported; start the service with opentelemetry-instrument oncegate … (pip install"
    " opentelemetry-distro opentelemetry-exporter-otlp)"
)


class Tracing:
    """One span for each outcome. It starts when the claim was granted; if the handler did not run, its length is zero.

    The attributes are the fields of a log line with the prefix `oncegate.`; of the payload they hold only what
    identifies the event. The status is an error for failed, buried, conflicting and invalid events."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("oncegate", tracer_provider=provider)
        self._granted: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, notice: Notice) -> None:
        if notice.name == "claim.granted":
            self._note_grant(notice)
        elif (outcome := outcome_of(notice)) is not None:
            fields = fields_of(outcome, notice.namespace)
            reason = fields.pop("reason")
            span = self._tracer.start_span(
                NAME,
                context=Context(),  # not the current span of this thread, which is unrelated
                kind=SpanKind.CONSUMER,
                attributes={f"oncegate.{name}": value for name, value in fields.items() if value is not None},
                start_time=self._start(notice) * _NANOSECONDS,
            )
            if STATUSES[outcome.status].is_error:
                span.set_status(Status(StatusCode.ERROR, reason))
            span.end(notice.at * _NANOSECONDS)

    def _note_grant(self, notice: Notice) -> None:
        """Remember when a claim was granted. A released claim has no outcome, so the oldest entries are dropped."""
        with self._lock:
            self._granted[_claim(notice)] = notice.at
            if len(self._granted) > _MOST_OPEN:
                self._granted.popitem(last=False)

    def _start(self, notice: Notice) -> int:
        with self._lock:
            return min(self._granted.pop(_claim(notice), notice.at), notice.at)


def tracing() -> Tracing:
    """The observer of this process. Raises SettingError if the process has no OpenTelemetry SDK configured."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise SettingError(f"no OpenTelemetry SDK is configured in this process, {_NO_EXPORT}")
    return Tracing()


def check_installed(where: str) -> None:
    """Raise SettingError if no OpenTelemetry SDK is installed. `where` is the place of the setting."""
    if find_spec("opentelemetry.sdk") is None:
        raise SettingError(f"{where}: no OpenTelemetry SDK is installed, {_NO_EXPORT}")


def _claim(notice: Notice) -> tuple[Any, ...]:
    event = notice.event
    key = None if event is None or event.key is None else event.key.digest
    return notice.namespace, key, 0 if event is None else event.fence

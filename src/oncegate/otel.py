"""An observer that creates an OpenTelemetry span for each outcome.

This module needs the extra `otel`. Configure the export of spans as for any other program, in code or with
`opentelemetry-instrument`. Like every observer, this observer cannot delay or fail an event.
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
_MAX_GRANTS: Final = 10_000
_NANOSECONDS: Final = 1_000  # per microsecond
_NO_EXPORT: Final = (
    "so spans would not be exported; start the service with opentelemetry-instrument oncegate … (pip install"
    " opentelemetry-distro opentelemetry-exporter-otlp)"
)


class Tracing:
    """Creates one span for each outcome. The span starts at the time at which the claim was granted. If the handler did
    not run, the length of the span is zero.

    The attributes are the fields of a log line, with the prefix `oncegate.`. They contain no other part of the payload
    than the fields that identify the event. The status of the span is an error for failed, buried, conflicting and
    invalid events."""

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
                context=Context(),  # no parent: the current span of this thread is unrelated
                kind=SpanKind.CONSUMER,
                attributes={f"oncegate.{name}": value for name, value in fields.items() if value is not None},
                start_time=self._start(notice) * _NANOSECONDS,
            )
            if STATUSES[outcome.status].is_error:
                span.set_status(Status(StatusCode.ERROR, reason))
            span.end(notice.at * _NANOSECONDS)

    def _note_grant(self, notice: Notice) -> None:
        """Remember when a claim was granted. A released claim has no outcome that would remove its entry, so the oldest
        entry is dropped when there are too many."""
        with self._lock:
            self._granted[_claim_id(notice)] = notice.at
            if len(self._granted) > _MAX_GRANTS:
                self._granted.popitem(last=False)

    def _start(self, notice: Notice) -> int:
        with self._lock:
            return min(self._granted.pop(_claim_id(notice), notice.at), notice.at)


def tracing() -> Tracing:
    """Return an observer for this process. Raises SettingError if no OpenTelemetry SDK is configured in this
    process."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise SettingError(f"no OpenTelemetry SDK is configured in this process, {_NO_EXPORT}")
    return Tracing()


def check_installed(where: str) -> None:
    """Raise SettingError if no OpenTelemetry SDK is installed. `where` is the place of the setting, for the message."""
    if find_spec("opentelemetry.sdk") is None:
        raise SettingError(f"{where}: no OpenTelemetry SDK is installed, {_NO_EXPORT}")


def _claim_id(notice: Notice) -> tuple[Any, ...]:
    event = notice.event
    key = None if event is None or event.key is None else event.key.digest
    return notice.namespace, key, 0 if event is None else event.fence

"""OpenTelemetry: one span for each outcome, as the exporter of the SDK receives it."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from oncegate import Event, Gate, Outcome
from oncegate.cli.serve import _observers
from oncegate.errors import SettingError
from oncegate.gate.observers import Notice
from oncegate.otel import Tracing, tracing
from oncegate.settings import load
from oncegate.stores.memory import MemoryStore


def test_without_the_extra() -> None:
    """Without OpenTelemetry, the import fails with the `pip install` command."""
    code = "import sys; sys.modules['opentelemetry'] = None; import oncegate.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("needs an optional dependency: pip install 'oncegate[otel]'")


def spans_of(do: Callable[[Gate], object], max_attempts: int = 5) -> Sequence[ReadableSpan]:
    """The spans of the work that a function does with a gate."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with closing(Gate(MemoryStore(), observers=[Tracing(provider)], max_attempts=max_attempts)) as gate:
        do(gate)
    provider.shutdown()
    return exporter.get_finished_spans()


def test_a_span_for_each_outcome() -> None:
    """Each delivery is one span, with the data of its outcome and nothing of the payload."""
    body = {"id": "evt-1", "type": "call.ended", "conversationId": "c-1", "secret": "s3cret"}
    outcomes: list[Outcome] = []

    def twice(gate: Gate) -> None:
        outcomes.extend(gate.run(body, lambda event: time.sleep(0.02)) for _ in range(2))

    first, second = spans_of(twice)
    assert (first.name, first.kind, first.parent) == ("oncegate.event", SpanKind.CONSUMER, None)
    assert dict(first.attributes or {}) == {
        "oncegate.status": "processed",
        "oncegate.event_id": "evt-1",
        "oncegate.key": str(outcomes[0].key),
        "oncegate.namespace": "default",
        "oncegate.source": "plain",
        "oncegate.type": "call.ended",
        "oncegate.entity": "c-1",
        "oncegate.attempt": 1,
    }
    assert second.attributes is not None
    assert (second.attributes["oncegate.status"], second.attributes["oncegate.kind"]) == ("duplicate", "redelivery")
    assert first.context != second.context
    assert "s3cret" not in first.to_json() + second.to_json()


def test_as_long_as_the_handler() -> None:
    """A span lasts from the grant to the outcome. The span of a duplicate has no length."""
    first, second = spans_of(lambda gate: [gate.run({"id": "1"}, lambda event: time.sleep(0.02)) for _ in range(2)])
    assert first.start_time and first.end_time and second.start_time and second.end_time  # noqa: PT018
    assert 20_000_000 <= first.end_time - first.start_time < 5_000_000_000
    assert second.start_time == second.end_time


def test_errors() -> None:
    """A failure is an error span, without the text of the exception."""

    def fail(event: Event) -> None:
        raise ValueError("s3cret")

    failed, buried = spans_of(lambda gate: [gate.run({"id": "1"}, fail) for _ in range(2)], max_attempts=2)
    assert (failed.status.status_code, buried.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    assert failed.status.description == "Failed at attempt 1: ValueError; deliver it again."
    (processed,) = spans_of(lambda gate: gate.run({"id": "1"}, lambda event: None))
    assert processed.status.status_code is StatusCode.UNSET


def test_a_broken_exporter() -> None:
    """If tracing fails, events are processed, and the failure is counted."""

    class Broken(Tracing):
        def _start(self, notice: object) -> int:
            raise RuntimeError("no")

    with closing(Gate(MemoryStore(), observers=[Broken()])) as gate:
        assert gate.run({"id": "1"}, lambda event: None).status == "processed"
        gate._observers.flush(5)
        assert gate.counts["observer.failed"] == 1


def test_spans_without_an_outcome_are_dropped() -> None:
    """Claims without an outcome do not use memory for ever."""
    observer = Tracing(TracerProvider())
    for fence in range(10_050):
        observer(Notice("claim.granted", 1, "default", Event(source="plain", body={}, fence=fence)))
    assert len(observer._granted) == 10_000


def test_a_process_without_an_sdk() -> None:
    """Tracing without an SDK is rejected, with the command to use."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    with pytest.raises(SettingError, match="start the service with opentelemetry-instrument oncegate"):
        tracing()
    with pytest.raises(SettingError, match="no OpenTelemetry SDK is configured"):
        _observers(load(environ={}, flags={"serve.trace": True}))


def test_off_by_default() -> None:
    """A service without tracing does not import the library."""
    code = "import sys, oncegate.cli.main; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_with_an_sdk() -> None:
    """In a process with an SDK, the setting is enough."""
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from oncegate.cli.serve import _observers
from oncegate.settings import load
trace.set_tracer_provider(TracerProvider())
print(*(type(each).__name__ for each in _observers(load(environ={}, flags={"serve.trace": True}))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("JsonLog Tracing\n", "")

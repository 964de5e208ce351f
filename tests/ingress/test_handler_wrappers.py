"""Handlers that try to end the process fail their event only."""

import asyncio
import io
import json
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncegate import Event, Gate, read
from oncegate.errors import RetryLater
from oncegate.gate import JsonLog
from oncegate.ingress.handler_wrappers import contained, interrupts_told_apart, logged
from oncegate.stores.memory import MemoryStore
from tests.stores.servers import until

ENDS = pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "the handler called sys.exit(3)"),
        (KeyboardInterrupt(), "the handler raised KeyboardInterrupt"),
        (GeneratorExit(), "the handler raised GeneratorExit"),
    ],
)
(EVENT,) = read({"id": "1"})


def raising(error: BaseException, *, awaited: bool) -> Callable[[Event], Any]:
    async def coroutine(event: Event) -> None:
        raise error

    def function(event: Event) -> None:
        raise error

    return coroutine if awaited else function


@ENDS
@pytest.mark.parametrize("awaited", [True, False])
def test_a_worker_continues(error: BaseException, message: str, awaited: bool) -> None:
    """Any exception of a handler, async or plain, fails its event, and the worker runs the next event."""
    gate = Gate(MemoryStore(), max_attempts=1)
    gate.admit([{"id": 1}, {"id": 2}])
    failing = raising(error, awaited=awaited)

    def done(event: Event) -> Any:
        if event.id == "1":
            return failing(event)
        worker.stop()
        return asyncio.sleep(0) if awaited else None

    async def handler(event: Event) -> None:
        await done(event)

    worker = gate.inbox(handler if awaited else done, at_work=1)
    worker.run()
    (dead,) = gate.store.dead_letters()
    assert (dead.record.about.delivery_id, dead.record.error) == ("1", f"RuntimeError: {message}")
    assert gate.run({"id": 2}, lambda event: None).status == "duplicate"


@ENDS
def test_a_plain_call_is_contained(error: BaseException, message: str) -> None:
    """Within `interrupts_told_apart`, a KeyboardInterrupt that the handler raises itself is a failure."""
    with interrupts_told_apart(), pytest.raises(RuntimeError) as raised:
        contained(raising(error, awaited=False))(EVENT)
    assert (str(raised.value), raised.value.__cause__) == (message, error)


def interrupt(_event: Event) -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c() -> None:
    """Ctrl-C is never treated as a failure of the handler."""
    with pytest.raises(KeyboardInterrupt):
        contained(interrupt)(EVENT)
    with pytest.raises(KeyboardInterrupt):
        logged(interrupt)(EVENT)
    with interrupts_told_apart(), pytest.raises(KeyboardInterrupt):
        contained(interrupt)(EVENT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_discarded_coroutine() -> None:
    """A handler whose coroutine is closed does not fail its event: it ends like every coroutine."""

    async def handler(event: Event) -> None:
        await asyncio.sleep(60)

    async def begun() -> Any:
        coroutine: Any = logged(handler)(EVENT)
        coroutine.send(None).cancel()  # what it waits for
        return coroutine

    asyncio.run(begun()).close()


class Sink:
    """A handler that fails as a sink does."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, event: Event) -> None:
        raise RetryLater(f"{self.kind} to https://crm.example/a failed", public=f"{self.kind} failed")


class TestLog:
    @pytest.mark.parametrize("awaited", [True, False])
    def test_once(self, awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
        """A failure is logged by the wrapper or with the outcome, but not twice. Both say where the handler failed."""
        for observers in ([], [JsonLog(stream := io.StringIO())]):
            gate = Gate(MemoryStore(), observers=observers)
            gate.admit([{"id": "evt-1"}])
            worker = gate.inbox(raising(ValueError("hunter2"), awaited=awaited))
            thread = threading.Thread(target=worker.run)
            thread.start()
            until(lambda worker=worker: worker.figures.failed > 0, "the failure")  # type: ignore[misc]
            worker.stop()
            thread.join()
            gate.close()
        (record,) = caplog.records
        assert record.getMessage().startswith("the handler failed at event 'evt-1' with ValueError\n")
        assert f"{__file__}" in record.getMessage()
        (line,) = [each for each in map(json.loads, stream.getvalue().splitlines()) if each["status"] == "failed"]
        assert f"{__file__}:" in line["stack"]
        assert "hunter2" not in caplog.text + stream.getvalue()

    @pytest.mark.parametrize("kind", ["forward", "publish"])
    def test_a_sink(self, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        """The failure of a sink is logged as its own failure, not as the failure of a handler, on one line."""
        with pytest.raises(RetryLater):
            logged(Sink(kind))(EVENT)
        assert caplog.messages == [f"event '1': {kind} failed"]
        caplog.clear()
        with pytest.raises(RetryLater):
            logged(Sink(kind), has_log=True)(EVENT)
        assert caplog.messages == []

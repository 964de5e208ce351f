"""Handlers that try to end the process fail their event only."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from oncegate import Event, Gate, read
from oncegate.ingress.handler_wrappers import contained, interrupts_told_apart, logged
from oncegate.stores.memory import MemoryStore

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

"""Who shares a process, and who has it alone: by threads, with every bound."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncegate.gate.limiter import HandlerRuns, inside


@pytest.fixture
def process() -> HandlerRuns:
    return HandlerRuns()


def alone(process: HandlerRuns, token: object, within: float = 5.0, alone_for: float = 5.0) -> bool:
    return process.enter_alone(token, 60, within=within, alone_for=alone_for)


def waits(process: HandlerRuns, kind: str) -> bool:
    deadline = time.monotonic() + 5
    while not getattr(process, kind):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return True


def test_alone_at_once(process: HandlerRuns) -> None:
    """Where nothing runs one is alone at once, however short its time; where something does it is not."""
    assert alone(process, "suspect", within=0.0)
    process.leave("suspect")
    assert process.enter_now("other", 60)
    assert not alone(process, "suspect", within=0.0)
    process.leave("other")
    assert alone(process, "suspect", within=0.0)


def test_nothing_starts_beside_it(process: HandlerRuns) -> None:
    """Others do not start while one waits to be alone or is, and start as soon as it has left."""
    process.enter_now("running", 60)
    with ThreadPoolExecutor() as threads:
        suspect = threads.submit(alone, process, "suspect")
        assert waits(process, "_suspects")
        assert not process.enter_now("new", 60)
        other = threads.submit(process.enter, "other", 60)
        process.leave("running")
        assert suspect.result(5)
        assert not process.enter_now("new", 60)
        assert not other.done()
        process.leave("suspect")
        other.result(5)


def test_others_have_their_turn_between_two(process: HandlerRuns) -> None:
    """What waits to run beside others starts before the next that must be alone."""
    assert alone(process, "first")
    with ThreadPoolExecutor() as threads:
        second = threads.submit(alone, process, "second")
        assert waits(process, "_suspects")
        other = threads.submit(process.enter, "other", 60)
        assert waits(process, "_others")
        process.leave("first")
        other.result(5)
        assert not second.done()
        process.leave("other")
        assert second.result(5)


def test_one_that_gives_up_leaves_another_alone(process: HandlerRuns) -> None:
    """A suspect that has waited in vain for another to end does not let others in beside that."""
    assert alone(process, "first")
    assert not alone(process, "second", within=0.01)
    assert not process.enter_now("other", 60)


def test_every_wait_has_a_bound(process: HandlerRuns) -> None:
    """One that hangs keeps others out for a while only, and one that must be alone does not wait for it for good."""
    assert alone(process, "hangs", alone_for=0.05)
    begun = time.monotonic()
    process.enter("other", 60)
    assert time.monotonic() - begun < 2
    process.leave("other")
    assert not alone(process, "suspect", within=0.01), "what hangs still runs"
    process.add("hangs", 0.01)
    assert alone(process, "suspect", within=2), "it has run for longer than it can hold its claim"


def test_one_whose_loop_is_blocked(process: HandlerRuns) -> None:
    """One that asked and can neither look nor give up keeps nobody out when its time is over."""
    process.enter_now("running", 60)
    process.enqueue("suspect", 60, 5.0, lambda: None, within=0.05)
    begun = time.monotonic()
    process.enter("other", 60)
    assert 0.04 < time.monotonic() - begun < 2


def test_within_a_handler(process: HandlerRuns) -> None:
    """A handler that runs another event in its own place waits for nobody."""
    process.enter_now("outer", 60)
    token = inside.set(True)
    try:
        assert alone(process, "inner")
        process.enter("inner too", 60)
    finally:
        inside.reset(token)


def test_an_interrupt_while_it_waits(process: HandlerRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while one waits to be alone: it does not wait any longer."""

    class Interrupted(threading.Event):
        def wait(self, timeout: Any = None) -> bool:
            raise KeyboardInterrupt

    process.enter_now("running", 60)
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            alone(process, "suspect")
    assert process.enter_now("other", 60)

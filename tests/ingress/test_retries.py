"""Retries for a bus that does not deliver again: when an event is moved, and the movers."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate import Gate, read
from oncegate.carriers.buses import BusMessage
from oncegate.gate.outcome import Cause, Outcome
from oncegate.ingress import retries
from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain
from oncegate.ingress.messages import Message, MessageEvent
from oncegate.ingress.retries import InboxMover, LocalRetries, NoMover, UnguardedAttempts
from oncegate.ingress.worker import WorkerContext
from tests.ingress.sqs.queues import call
from tests.ingress.test_dispatcher import in_loop


def work_of(gate: Gate, payload: dict[str, Any]) -> MessageEvent:
    (event,) = read(payload)
    return MessageEvent(Message("m-1", 1), event, gate._identify(event), in_groups=False)


class Clock:
    now = 1

    def __call__(self) -> int:
        return self.now


def dispatcher() -> Dispatcher[MessageEvent]:
    async def run(_work: MessageEvent) -> Next:
        return RunAgain(60)

    return Dispatcher(run, lambda _works: None, most=4)


@in_loop
async def test_three_attempts() -> None:
    """An event is moved after three failed attempts. A claim that another worker holds is not an attempt."""
    decide = LocalRetries(dispatcher(), Clock(), 4)
    work = work_of(Gate("memory://"), call(1))
    assert not decide.is_used_up(work, 1, failed=False)
    assert not decide.is_used_up(work, 1, failed=True)
    assert not decide.is_used_up(work, 1, failed=True)
    assert decide.is_used_up(work, 1, failed=True)


@in_loop
async def test_thirty_seconds() -> None:
    """An event is moved if its next attempt would start more than 30 s after its first failure."""
    clock = Clock()
    decide, gate = LocalRetries(dispatcher(), clock, 4), Gate("memory://")
    assert decide.is_used_up(work_of(gate, call(1)), 31, failed=True)
    work = work_of(gate, call(2))
    assert not decide.is_used_up(work, 20, failed=True)
    clock.now += 20_000_000
    assert decide.is_used_up(work, 11, failed=True)


@in_loop
async def test_half_of_the_events_wait() -> None:
    """An event is moved at its first failure if more than half of the events in hand would wait for a retry."""
    waiting, gate = dispatcher(), Gate("memory://")
    decide = LocalRetries(waiting, Clock(), 4)
    assert not decide.is_used_up(work_of(gate, call(1)), 1, failed=True)
    for number in (1, 2):
        waiting.offer(work_of(gate, call(number, "c-1")), "c-1")
    await asyncio.sleep(0.05)
    assert waiting.held_items == 2
    assert decide.is_used_up(work_of(gate, call(3)), 1, failed=True)
    decide = LocalRetries(dispatcher(), Clock(), 4)
    together = [work_of(gate, call(number)) for number in range(3)]
    assert [decide.is_used_up(work, 1, failed=True) for work in together] == [False, False, True]
    decide.note_start(together[0])
    assert not decide.is_used_up(together[2], 1, failed=True)
    assert LocalRetries(dispatcher(), Clock(), 1).is_used_up(work_of(gate, call(3)), 1, failed=True)


def mover_of(gate: Gate) -> InboxMover:
    context = WorkerContext(
        gate._engine.under(), gate._events, gate._identify, gate._observers, gate._engine.boot, gate.keep
    )
    return InboxMover(gate.inbox(print), context, "kafka://events")


@in_loop
async def test_the_inbox_has_the_event() -> None:
    """A moved event waits in the inbox, and later events of its entity must follow. Its copies are duplicates."""
    gate = Gate("memory://")
    mover, work = mover_of(gate), work_of(gate, call(1, "c-1"))
    assert not mover.must_follow(work)
    assert await mover.move(work, gate._identify(work.event), 1)
    assert mover.must_follow(work_of(gate, call(2, "c-1")))
    assert not mover.must_follow(work_of(gate, call(2, "c-2")))
    assert (await gate.arun(call(1, "c-1"), print)).status == "duplicate"
    gate.close()


@in_loop
async def test_an_event_that_another_worker_runs() -> None:
    """An event whose claim is held by another worker cannot be moved: that worker will settle it."""
    gate, runs, ends = Gate("memory://"), asyncio.Event(), asyncio.Event()

    async def handler(_event: Any) -> None:
        runs.set()
        await ends.wait()

    running = asyncio.create_task(gate.arun(call(1), handler))
    await runs.wait()
    work = work_of(gate, call(1))
    assert not await mover_of(gate).move(work, gate._identify(work.event), 1)
    ends.set()
    await running
    gate.close()


@in_loop
async def test_only_so_many_lanes_are_remembered() -> None:
    """The number of remembered entities is limited. The oldest one is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "_MOST_LANES", 2)
        await move_three()


async def move_three() -> None:
    gate = Gate("memory://")
    mover = mover_of(gate)
    works = [work_of(gate, call(number, f"c-{number}")) for number in range(3)]
    for work in works:
        assert await mover.move(work, gate._identify(work.event), 1)
    assert [mover.must_follow(work) for work in works] == [False, True, True]
    gate.close()


@in_loop
async def test_the_key_of_the_publisher() -> None:
    """An event is moved under the key with which it was published, if the namespace has a record of this key. Under its
    own key it would be another event."""
    gate = Gate("memory://", max_attempts=10)
    failed = await gate.arun(call(1), fail)
    (event,) = read(BusMessage(b'{"id": "evt-x", "number": 1}', {"oncegate-key": str(failed.key)}))
    (moved,) = await gate._engine.async_runner.admit([gate._identify(event, trusted=True)])
    assert str(moved.outcome.key) == str(failed.key)
    gate.close()


def fail(_event: Any) -> None:
    raise ValueError("not yet")


def test_the_attempts_of_an_event_without_a_key() -> None:
    """The attempts count as those of an event with a key. While a service is unavailable they do not count, for up to
    `retry_for`."""
    gate, clock = Gate("memory://", max_attempts=2, retry_for="1h"), Clock()
    attempts, work = UnguardedAttempts(gate._engine.config, clock), work_of(gate, call(1))
    failed = Outcome("failed", work.event)
    away = replace(failed, cause=Cause.SERVICE_UNAVAILABLE)
    assert not any(attempts.are_used_up(work.event, each) for each in [away, away, away, failed])
    assert not attempts.are_used_up(work.event, away)
    clock.now += 3_599_000_000
    assert not attempts.are_used_up(work.event, away)
    clock.now += 1_000_000
    assert attempts.are_used_up(work.event, away)
    assert attempts.are_used_up(work.event, failed)
    assert attempts.are_used_up(work_of(gate, call(2)).event, replace(failed, cause=Cause.BURY))


def test_the_count_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of an event begins again after a success, and if too many other events have failed since."""
    monkeypatch.setattr(retries, "_MOST_EVENTS", 2)
    gate = Gate("memory://", max_attempts=2)
    attempts, events = UnguardedAttempts(gate._engine.config, Clock()), [work_of(gate, call(n)).event for n in range(3)]

    def fail_once(number: int) -> bool:
        return attempts.are_used_up(events[number], Outcome("failed", events[number]))

    assert not fail_once(0)
    attempts.forget(events[0])
    assert [fail_once(number) for number in (0, 1, 2)] == [False, False, False]
    assert [fail_once(number) for number in (2, 1, 0)] == [True, True, False]


def test_no_limit_of_attempts() -> None:
    """With max_attempts=None, only `Bury` makes an event without a key a dead letter."""
    gate, clock = Gate("memory://", max_attempts=None, retry_for=None), Clock()
    attempts, work = UnguardedAttempts(gate._engine.config, clock), work_of(gate, call(1))
    failed = Outcome("failed", work.event)
    assert not any(attempts.are_used_up(work.event, failed) for _ in range(99))
    assert not attempts.are_used_up(work.event, replace(failed, cause=Cause.SERVICE_UNAVAILABLE))
    assert attempts.are_used_up(work.event, replace(failed, cause=Cause.BURY))


def test_a_mover_for_several_runs() -> None:
    """A worker may run again after a stop. Each run has an event loop of its own."""
    mover = NoMover()

    async def run() -> None:
        working = asyncio.create_task(mover.work())
        await asyncio.sleep(0)
        assert not working.done()
        mover.stop()
        await working

    for _ in range(2):
        asyncio.run(run())

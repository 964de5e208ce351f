"""A worker on a queue of the emulator: effects, order, failures, stopping, and the cost in requests."""

import asyncio
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, keys
from oncegate.doctor.rules import queue as queue_rules
from oncegate.durations import microseconds
from oncegate.errors import QueueError, RetryLater, StoreUnavailable
from oncegate.gate.options import validate
from oncegate.stores.memory import MemoryStore
from tests.doctor.cases import WITH_A_WORKER, lacking
from tests.ingress.invocations import destination, envelope, message, notification
from tests.ingress.sqs.queues import Cloud, Handler, Queue, call, working
from tests.stores.dynamo_server import DynamoServer, Wire
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "sqs.md").read_text()


def test_copies_in_several_carriers_run_once(queue: Queue, store: str) -> None:
    """Copies of an event in five carriers have one effect, and all messages are deleted."""
    document = envelope(1)
    copies = [document, [document], notification(document)["Sns"], destination(document), message(document)]
    queue.send(*copies, envelope(2))
    handler, gate = Handler(), Gate(store)
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        queue.until_empty()
    assert sorted(handler.ran) == [1, 2]
    figures = worker.figures
    assert (figures.received, figures.processed, figures.duplicates, figures.in_hand) == (6, 2, 4, 0)
    gate.close()


def test_failed_messages_go_to_the_dead_letter_queue(cloud: Cloud, redis: RedisServer) -> None:
    """A message that fails is delivered again after growing pauses, and moves to the dead-letter queue after the
    receives of the redrive policy. So does a message that cannot be read. The gate buries nothing, and other messages
    are processed meanwhile."""
    queue = cloud.queue(receives=2)
    queue.send(call(1, fails=9), "no JSON", call(2), call(3, fails=1))
    handler, gate = Handler(), Gate(redis.url, namespace="failures", max_attempts=1)
    began = time.monotonic()
    with working(gate.worker(queue.source, handler, wait="1s")):
        until(lambda: queue.dead.left() == 2, "two dead letters")
    assert time.monotonic() - began >= 3
    assert Counter(handler.ran) == {1: 2, 2: 1, 3: 2}
    assert queue.left() == 0
    assert gate.store.dead_letters() == []
    gate.close()


def test_a_message_with_several_events(queue: Queue) -> None:
    """A message is deleted when all its events are done. After a redelivery, the events that were done are
    duplicates."""
    queue.send([call(1), call(2, fails=1), call(3)], [])
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    assert Counter(handler.ran) == {1: 1, 2: 2, 3: 1}
    assert gate.counts["event.duplicate"] == 2
    gate.close()


def test_a_failed_unguarded_event_is_delivered_again(queue: Queue) -> None:
    """A failure of an unguarded event is that of its handler, not of the store."""
    queue.send(call(1, fails=1))
    handler, gate = Handler(), Gate("memory://", key=keys.fields("absent"), on_missing_key="unguarded")
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        queue.until_empty()
    assert handler.ran == [1, 1]
    assert (worker.figures.received, worker.figures.failed, worker.figures.processed) == (2, 1, 1)
    gate.close()


def test_an_event_that_another_worker_has_claimed(queue: Queue) -> None:
    """The message is delivered again when the lease of the other worker has ended, not before."""
    store = MemoryStore()
    other = Gate(store, lease="2s")
    job: Any = other._identify(other._only_event(call(1)))
    other._engine.claimer.claim([job])
    assert job.held
    queue.send(call(1))
    handler, gate = Handler(), Gate(store)
    began = time.monotonic()
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        queue.until_empty()
    assert handler.ran == [1]
    assert worker.figures.received == 2
    assert time.monotonic() - began < 20
    gate.close()


def test_retry_later(queue: Queue) -> None:
    """A message whose handler raises RetryLater is delivered again after the time that the handler asks for."""
    began: list[float] = []

    def busy(event: Event) -> None:
        began.append(time.monotonic())
        if len(began) == 1:
            raise RetryLater("busy", after=3)

    queue.send(call(1))
    gate = Gate(MemoryStore())
    with working(gate.worker(queue.source, busy, wait="1s")):
        queue.until_empty()
    first, second = began
    assert 2.5 < second - first < 15
    gate.close()


def test_a_failure_is_logged_with_its_stack(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the stack of a failed handler, but not the message of the exception."""
    queue.send(call(1, fails=1, says="a secret"))
    gate = Gate("memory://")
    with working(gate.worker(queue.source, Handler(), wait="1s")):
        queue.until_empty()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "evt-1" in record.message
    assert "__call__" in record.message
    assert "a secret" not in record.message
    gate.close()


def test_a_deleted_queue_ends_the_worker(queue: Queue) -> None:
    """A worker whose queue is deleted raises QueueError and does not retry for ever."""
    gate = Gate("memory://")
    worker = gate.worker(queue.source, Handler(), wait="1s")
    threading.Timer(0.3, queue.delete).start()
    with pytest.raises(QueueError, match="does not exist"):
        worker.run()
    gate.close()


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_entity_runs_in_order(queue: Queue, store: str) -> None:
    """Events of one entity that the worker holds run one at a time, ordered by their time. A failure delays the later
    events of its entity, which are delivered again with it, and no others."""
    queue.send(*(call(number, "c-1", fails=number == 2) for number in (3, 1, 4, 2)), call(5, "c-2"))
    handler, gate = Handler(), Gate(store)
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    ran = [number for number in handler.ran if number != 5]
    assert ran == [1, 2, 2, 3, 4]
    assert handler.ran.count(5) == 1
    gate.close()


def test_an_event_behind_a_failing_one_runs_in_the_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event behind one that always fails runs out of order before SQS has counted too many receives."""
    monkeypatch.setattr("oncegate.ingress.queue_worker._MAX_SKIPS", 1)
    queue.send(call(1, "c-1", fails=99), call(2, "c-1"))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        until(lambda: 2 in handler.ran, "the second to run")
    assert handler.ran == [1, 1, 2]
    gate.close()


def test_a_group_stops_at_its_failure(fifo: Queue) -> None:
    """In a FIFO queue a group runs in the order of sending, whatever the event times are. Events behind a failure wait
    for it; other groups continue."""
    for number, group in [(3, "a"), (1, "a"), (2, "a"), (9, "b"), (8, "b")]:
        fifo.send(call(number, fails=number == 1), MessageGroupId=group)
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(fifo.source, handler, wait="1s")):
        fifo.until_empty()
    assert [number for number in handler.ran if number < 5] == [3, 1, 1, 2]
    assert [number for number in handler.ran if number > 5] == [9, 8]
    gate.close()


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("full_last_poll")
def test_stop_finishes_running_events_and_releases_the_others(queue: Queue) -> None:
    """A running event ends and its message is deleted. Waiting messages become visible, their events are not claimed,
    and no open poll of the worker receives them again."""
    queue.send(call(1, "c-1", takes=1), call(2, "c-1"), call(3, "c-1"))
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s")):
        until(lambda: handler.ran == [1], "the first to begin")
    assert handler.ran == [1]
    assert queue.left() == queue.visible() == 2
    counts = [message["Attributes"]["ApproximateReceiveCount"] for message in queue.receive()]
    assert counts == ["2", "2"]
    assert [entry.record.state for entry in gate.store.browse()] == ["C"]
    gate.close()


def test_stop_cancels_a_handler_that_exceeds_the_drain_time(queue: Queue) -> None:
    """An async handler that exceeds the drain time is cancelled, its claim is released and its message becomes
    visible."""
    ran = []

    async def handler(event: Event) -> None:
        ran.append(event.id)
        await asyncio.sleep(60)

    queue.send(call(1))
    gate = Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", drain="200ms")
    with working(worker):
        until(lambda: ran == ["evt-1"], "the handler to begin")
    until(lambda: queue.visible() == 1, "the message to be let go")
    assert worker.left_running == 0
    assert [entry.record.state for entry in gate.store.browse()] == ["R"]
    gate.close()


def test_a_second_stop_does_not_wait(queue: Queue) -> None:
    """A second call of stop, or a second signal, ends the wait for handlers."""
    queue.send(call(1))
    begun = threading.Event()

    async def handler(event: Event) -> None:
        begun.set()
        await asyncio.sleep(60)

    gate = Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s")
    began = time.monotonic()
    with working(worker):
        assert begun.wait(5)
        worker.stop()
    assert time.monotonic() - began < 20
    until(lambda: queue.visible() == 1, "the message to be let go")
    gate.close()


def test_a_plain_handler_that_still_runs_is_counted(queue: Queue) -> None:
    """A plain handler cannot be stopped: its message stays hidden for the lease, and `left_running` counts it."""
    go_on = threading.Event()

    def handler(event: Event) -> None:
        go_on.wait(30)

    queue.send(call(1))
    gate = Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", drain="200ms")
    with working(worker):
        until(lambda: worker.figures.in_hand == 1, "the message to be received")
        time.sleep(0.2)
    assert worker.left_running == 1
    assert (queue.left(), queue.visible()) == (1, 0)
    go_on.set()
    gate.close()


# ── the store does not answer ─────────────────────────────────────────────────────────────────────────


class Away(MemoryStore):
    away = True

    def claim(self, requests: Any) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        return super().claim(requests)


def test_messages_are_held_while_the_store_is_away(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """While no event can be claimed, received messages are held and no more are received. So each message is received
    once, and SQS counts no receive that could not succeed."""
    store = Away()
    queue.send(*(call(number) for number in range(40)))
    handler, gate = Handler(), Gate(store)
    worker = gate.worker(queue.source, handler, wait="1s", batch=1, receivers=1)
    with working(worker):
        time.sleep(1)
        few = worker.figures
        store.away = False
        queue.until_empty()
    assert few.received == few.in_hand < 15
    assert worker.figures.received == 40
    assert sorted(handler.ran) == list(range(40))
    assert "event.failed" not in gate.counts
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "events cannot be claimed (the store is away); nothing is received until this ends",
        "events can be claimed again",
    ]
    gate.close()


@pytest.mark.parametrize("mode", ["lease", "mark_first"])
def test_the_end_of_an_outage(queue: Queue, tmp_path: Path, mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The worker reports that events can be claimed again only after the store has answered a claim. A handler that
    started before the outage and ends during the outage does not prove it."""
    server, begun, may_end = RedisServer(tmp_path / "redis"), threading.Event(), threading.Event()

    def handler(event: Event) -> None:
        if event.id == "evt-1":
            begun.set()
            assert may_end.wait(30)

    gate = Gate(server.url, lease="3s", breaker=None, mode=mode)
    worker = gate.worker(queue.source, handler, wait="1s")
    try:
        queue.send(call(1))
        with working(worker):
            assert begun.wait(20)
            server.kill()
            queue.send(call(2))
            until(lambda: "events cannot be claimed" in caplog.text, "the outage")
            may_end.set()
            until(lambda: worker.figures.failed + worker.figures.processed > 0, "the end of the handler")
            time.sleep(0.5)
            assert "can be claimed again" not in caplog.text
            server.start()
            server.wait()
            until(lambda: "events can be claimed again, after" in caplog.text, "the end of the outage", 40)
    finally:
        gate.close()
        server.stop()


class AwayForCopies(MemoryStore):
    """A store that fails, while `away` is set, for every claim under a new key."""

    away = True

    def claim(self, requests: Any) -> Any:
        known = {entry.key for entry in self.browse()}
        if self.away and any(request.key not in known for request in requests):
            raise StoreUnavailable("the store is away")
        return super().claim(requests)


def test_a_conflict_is_held_while_its_copy_cannot_be_stored(queue: Queue) -> None:
    """If the store fails while it stores the copy of a conflict, the message is held and is received once."""
    store, handler = AwayForCopies(), Handler()
    gate = Gate(store)
    store.away = False
    gate.run(call(1), handler)
    store.away = True
    queue.send(call(1, says="else"))
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        until(lambda: worker.figures.in_hand == 1, "the message to be received")
        time.sleep(0.5)
        assert worker.figures.in_hand == 1
        store.away = False
        queue.until_empty()
    assert (worker.figures.received, len(store.dead_letters())) == (1, 1)
    gate.close()


class SlowSettles(MemoryStore):
    """A store that fails to settle while `slow` is set, so that claims stay held."""

    slow = False

    def settle(self, settlements: Any) -> Any:
        if self.slow:
            raise StoreUnavailable("the store is slow")
        return super().settle(settlements)


def test_a_conflict_in_flight_is_not_an_outage(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """While another worker stores the same conflict, its message is delivered again and other messages are
    processed."""
    store, handler = SlowSettles(), Handler()
    another, gate = Gate(store), Gate(store)
    another.run(call(1), handler)
    store.slow = True
    assert another.run(call(1, says="else"), handler).status == "failed"
    store.slow = False
    queue.send(call(1, says="else"), call(2))
    with working(gate.worker(queue.source, handler, wait="1s")):
        until(lambda: handler.ran == [1, 2] and "event.in_flight" in gate.counts, "both to be met")
    assert queue.left() == 1
    assert caplog.records == []
    another.close()
    gate.close()


def test_stop_releases_messages_that_wait_for_the_store(queue: Queue) -> None:
    """A worker that is stopped while the store is away releases its messages."""
    queue.send(call(1))
    gate = Gate(Away())
    worker = gate.worker(queue.source, Handler(), wait="1s")
    with working(worker):
        until(lambda: worker.figures.in_hand == 1, "the message to be received")
    until(lambda: queue.visible() == 1, "the message to be let go")
    gate.close()


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


def scripts(server: RedisServer) -> int:
    """The number of scripts that the server has run."""
    counted = server.client.info("commandstats")
    return sum(counted[name]["calls"] for name in counted if name in ("cmdstat_evalsha", "cmdstat_eval"))


async def nothing(event: Event) -> None:
    """A handler that succeeds."""


def test_ten_events_are_two_round_trips_to_redis(queue: Queue, redis: RedisServer) -> None:
    """A batch of ten new events takes one write for the claims and one for the completions."""
    gate = Gate(redis.url, namespace="costs")
    gate.run({"id": "first"}, lambda event: None)
    queue.send(*(call(number) for number in range(10)))
    before = scripts(redis)
    with working(gate.worker(queue.source, nothing, wait="1s", receivers=1)):
        queue.until_empty()
    assert scripts(redis) - before == 2
    gate.close()


def test_ten_events_are_twenty_requests_to_dynamodb(cloud: Cloud, queue: Queue) -> None:
    """A batch of ten new events takes ten claims and ten completions, sent in parallel."""
    gate = Gate(DynamoServer.url(cloud, "Costs"))
    wire = Wire(gate.store)  # type: ignore[arg-type]  # it is a DynamoStore
    queue.send(*(call(number) for number in range(10)))
    with working(gate.worker(queue.source, nothing, wait="1s", receivers=1)):
        queue.until_empty()
    assert Counter(wire.sent) == {"PutItem": 20}
    gate.close()


@pytest.mark.parametrize(
    ("visibility", "lease", "fits"),
    [
        ("30s", "30s", True),
        ("31s", "30s", True),
        ("29s", "30s", False),
        ("1s", "1001ms", False),
        ("1500ms", "2s", True),
    ],
)
def test_visibility_and_lease(
    queue: Queue, caplog: pytest.LogCaptureFixture, visibility: str, lease: str, fits: bool
) -> None:
    """A worker whose visibility is shorter than the lease logs a warning at the start. The doctor gives the same
    verdict for the same settings, whatever the timeout of the queue is, and its proposal is valid. The guide has the
    rule."""
    gate = Gate("memory://", lease=lease)
    queue.send(call(1))
    with working(gate.worker(queue.source, Handler(), wait="1s", visibility=visibility)):
        queue.until_empty()
    assert ("is shorter than the lease" not in caplog.text) is fits
    for hidden in (1, 40_000):
        facts = lacking(WITH_A_WORKER, queue={"visibility": hidden}, config=validate({"lease": lease}))
        judged = list(queue_rules.lease(replace(facts, worker_visibility=microseconds(visibility, "visibility"))))
        assert (not judged) is fits
        for finding in judged:
            mended = microseconds(finding.mend.partition("=")[2], "visibility")
            assert not list(queue_rules.lease(replace(facts, worker_visibility=mended)))
    assert "**`visibility` must be at least the `lease`.**" in " ".join(GUIDE.split())
    gate.close()

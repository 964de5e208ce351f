"""A worker on a queue of the emulator: what takes effect, what leaves the queue or comes again, and what it costs."""

import asyncio
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
from oncegate.errors import RetryLater
from oncegate.gate.options import validate
from oncegate.stores.memory import MemoryStore
from tests.doctor.cases import WITH_A_WORKER, lacking
from tests.gate.invocations import destination, envelope, message, notification
from tests.ingress.queues import Cloud, Handler, Queue, call, working
from tests.stores.dynamo_server import DynamoServer, Wire
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "sqs.md").read_text()


def test_wrappings_are_one_event(queue: Queue, store: str) -> None:
    """Copies in five wrappings have one effect, and all of them leave the queue."""
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


def test_failures_are_left_to_the_queue(cloud: Cloud, redis: RedisServer) -> None:
    """What fails comes again, a little later each time, and is a dead letter of the queue after as many receives as
    its policy says; so is what cannot be read. The gate buries nothing, and the neighbours are done meanwhile."""
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
    """It is deleted when all of them are done; those that were, are duplicates when it comes again."""
    queue.send([call(1), call(2, fails=1), call(3)], [])
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    assert Counter(handler.ran) == {1: 1, 2: 2, 3: 1}
    assert gate.counts["event.duplicate"] == 2
    gate.close()


def test_what_runs_without_a_claim_comes_again_too(queue: Queue) -> None:
    """A failure is the handler's, and none of the store's, also where nothing was claimed."""
    queue.send(call(1, fails=1))
    handler, gate = Handler(), Gate("memory://", key=keys.fields("absent"), on_missing_key="unguarded")
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        queue.until_empty()
    assert handler.ran == [1, 1]
    assert (worker.figures.received, worker.figures.failed, worker.figures.processed) == (2, 1, 1)
    gate.close()


def test_kept_from_others_while_in_hand(queue: Queue) -> None:
    """A handler that takes longer than the visibility runs once, and so does what waits behind it meanwhile."""
    queue.send(call(1, "c-1", takes=2.5), call(2, "c-1"))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", visibility="1s")
    with working(worker):
        queue.until_empty()
    assert handler.ran == [1, 2]
    assert worker.figures.received == 2
    gate.close()


def test_not_kept_for_longer_than_may_be(queue: Queue) -> None:
    """After `max_hold` a message is no longer kept from others, and nothing of it starts any more."""
    ran, go_on = [], threading.Event()

    def handler(event: Event) -> None:
        ran.append(event.id)
        go_on.wait(30)

    queue.send(call(1, "c-1"), call(2, "c-1"))
    gate = Gate("memory://", max_hold="1s")
    others: list[Any] = []

    def both_taken() -> bool:
        others.extend(queue.receive(VisibilityTimeout=60))
        return len(others) == 2

    with working(gate.worker(queue.source, handler, wait="1s", visibility="1s", in_hand=2)):
        until(lambda: ran == ["evt-1"], "the first to begin")
        until(both_taken, "both to be visible to another")
        go_on.set()
    assert ran == ["evt-1"]
    gate.close()


def test_another_is_at_it(queue: Queue) -> None:
    """A message whose event another worker has claimed comes again when that one's lease is over, and not before."""
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


def test_not_before_the_handler_says(queue: Queue) -> None:
    """What a handler wants to be left alone with comes again when it says, and not after the usual second."""
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


# ── order and room ────────────────────────────────────────────────────────────────────────────────────────


def test_an_entity_runs_in_order(queue: Queue, store: str) -> None:
    """Events of one entity that are in hand run one at a time as they happened; a failure holds up the later ones of
    its entity, which come again with it, and no others."""
    queue.send(*(call(number, "c-1", fails=number == 2) for number in (3, 1, 4, 2)), call(5, "c-2"))
    handler, gate = Handler(), Gate(store)
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    ran = [number for number in handler.ran if number != 5]
    assert ran == [1, 2, 2, 3, 4]
    assert handler.ran.count(5) == 1
    gate.close()


def test_stepping_aside_has_an_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind an event that always fails runs all the same before the queue has counted it too often."""
    monkeypatch.setattr("oncegate.ingress.sqs.worker._STEPS_ASIDE", 1)
    queue.send(call(1, "c-1", fails=99), call(2, "c-1"))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s")
    with working(worker):
        until(lambda: 2 in handler.ran, "the second to run")
    assert handler.ran == [1, 1, 2]
    gate.close()


def test_a_group_stops_at_its_failure(fifo: Queue) -> None:
    """In a FIFO queue a group runs in the order in which it was sent, whatever the events say of when they happened,
    and what comes after a failure waits for it; other groups go on."""
    for number, group in [(3, "a"), (1, "a"), (2, "a"), (9, "b"), (8, "b")]:
        fifo.send(call(number, fails=number == 1), MessageGroupId=group)
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(fifo.source, handler, wait="1s")):
        fifo.until_empty()
    assert [number for number in handler.ran if number < 5] == [3, 1, 1, 2]
    assert [number for number in handler.ran if number > 5] == [9, 8]
    gate.close()


def test_no_more_in_hand_than_there_is_room_for(queue: Queue) -> None:
    """While as many events are in hand as may be, nothing is received; then all the rest is."""
    beside, most = 0, 0

    async def handler(event: Event) -> None:
        nonlocal beside, most
        beside += 1
        most = max(most, beside)
        await asyncio.sleep(0.1)
        beside -= 1

    queue.send(*(call(number) for number in range(12)))
    gate = Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", in_hand=3)
    with working(worker):
        until(lambda: worker.figures.in_hand == 3, "three to be in hand")
        assert queue.visible() >= 6
        queue.until_empty()
    assert most == 3
    assert worker.figures.processed == 12
    gate.close()


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────


def scripts(server: RedisServer) -> int:
    """How many scripts the server has run."""
    counted = server.client.info("commandstats")
    return sum(counted[name]["calls"] for name in counted if name in ("cmdstat_evalsha", "cmdstat_eval"))


async def nothing(event: Event) -> None:
    """An effect that succeeds."""


def test_ten_events_are_two_round_trips_to_redis(queue: Queue, redis: RedisServer) -> None:
    """A batch of ten new events is claimed with one write and completed with another."""
    gate = Gate(redis.url, namespace="costs")
    gate.run({"id": "first"}, lambda event: None)
    queue.send(*(call(number) for number in range(10)))
    before = scripts(redis)
    with working(gate.worker(queue.source, nothing, wait="1s", receivers=1)):
        queue.until_empty()
    assert scripts(redis) - before == 2
    gate.close()


def test_ten_events_are_twenty_requests_to_dynamodb(cloud: Cloud, queue: Queue) -> None:
    """A batch of ten new events is ten claims and ten completions, side by side."""
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
    """A worker whose messages come again before their claims are free says so when it starts; the doctor says the same
    of the same settings, whatever the queue's own timeout is, and its mend fits. The guide has the rule."""
    gate = Gate("memory://", lease=lease)
    queue.send(call(1))
    with working(gate.worker(queue.source, Handler(), wait="1s", visibility=visibility)):
        queue.until_empty()
    assert ("is shorter than the lease" not in caplog.text) is fits
    for hidden in (1, 40_000):
        facts = lacking(WITH_A_WORKER, queue={"visibility": hidden}, terms=validate({"lease": lease}))
        judged = list(queue_rules.lease(replace(facts, worker_visibility=microseconds(visibility, "visibility"))))
        assert (not judged) is fits
        for finding in judged:
            mended = microseconds(finding.mend.partition("=")[2], "visibility")
            assert not list(queue_rules.lease(replace(facts, worker_visibility=mended)))
    assert "**`visibility` must be at least the `lease`**" in GUIDE
    gate.close()

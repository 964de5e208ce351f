"""A worker on a queue of the emulator: what takes effect, what leaves the queue and what comes again."""

import asyncio
import logging
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from oncegate import Event, Gate
from oncegate.errors import QueueError, SettingError, StoreUnavailable
from oncegate.stores.memory import MemoryStore
from tests.gate.invocations import destination, envelope, message, notification
from tests.stores.dynamo_server import DynamoServer, Wire
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until
from tests.work.conftest import Hook
from tests.work.queues import Cloud, Queue, working


class Handler:
    """Remembers the numbers of events in the order in which they ran, and fails at those that say how often."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def __call__(self, event: Event) -> None:
        number = event.body["number"]
        self.ran.append(number)
        time.sleep(event.body.get("takes", 0))
        if self.ran.count(number) <= event.body.get("fails", 0):
            raise ValueError(event.body.get("says"))


def call(number: int, entity: str | None = None, **more: Any) -> dict[str, Any]:
    """A plain event that happened in the second of its number."""
    about = {} if entity is None else {"conversationId": entity}
    return {"id": f"evt-{number}", "time": f"2026-02-03T04:05:{number:02}Z", "number": number, **about, **more}


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
    queue.send(call(1, "c-1", takes=2.5), call(2, "c-1"))
    handler, gate = Handler(), Gate("memory://", max_hold="1s")
    with working(gate.worker(queue.source, handler, wait="1s", visibility="1s", in_hand=2)):
        until(lambda: handler.ran == [1], "the first to begin")
        until(lambda: len(queue.receive(VisibilityTimeout=60)) > 0, "one to be visible", 3)
    assert handler.ran == [1]
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
    assert time.monotonic() - began < 10
    gate.close()


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────


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
    monkeypatch.setattr("oncegate.work.sqs.session._STEPS_ASIDE", 1)
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


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────


def test_stopping_ends_what_runs_and_lets_go_of_the_rest(queue: Queue, store: str) -> None:
    """What runs comes to its end and is deleted; what waited is visible at once, and its event not claimed."""
    queue.send(call(1, "c-1", takes=1), call(2, "c-1"), call(3, "c-1"))
    handler, gate = Handler(), Gate(store)
    with working(gate.worker(queue.source, handler, wait="1s")):
        until(lambda: handler.ran == [1], "the first to begin")
    assert handler.ran == [1]
    assert queue.left() == queue.visible() == 2
    assert [entry.record.state for entry in gate.store.browse()] == ["C"]
    gate.close()


def test_what_does_not_end_in_time_is_cancelled_and_released(queue: Queue) -> None:
    """An async handler that takes longer than there is time is cancelled, its event released and its message shown."""
    ran = []

    async def handler(event: Event) -> None:
        ran.append(event.id)
        await asyncio.sleep(60)

    queue.send(call(1))
    gate = Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", drain="200ms")
    with working(worker):
        until(lambda: ran == ["evt-1"], "the handler to begin")
    assert queue.visible() == 1
    assert worker.left_running == 0
    assert [entry.record.state for entry in gate.store.browse()] == ["R"]
    gate.close()


def test_a_plain_handler_that_goes_on_is_told_of(queue: Queue) -> None:
    """A plain handler cannot be stopped: its message stays hidden while its lease lasts, and it is counted."""
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


# ── trouble ───────────────────────────────────────────────────────────────────────────────────────────────


class Failing:
    """Has the first entry of a batch fail, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.requests: list[int] = []

    def __call__(self, events: Any) -> None:
        events.register("provide-client-params.sqs.DeleteMessageBatch", self._before)
        events.register("after-call.sqs.DeleteMessageBatch", self._after)

    def _before(self, params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        entries = params["Entries"]
        self.requests.append(len(entries))
        if not self.left:
            return params
        # The whole request must have an entry: the last is named twice when there is no other.
        return {**params, "Entries": entries[1:] or [{"Id": "0", "ReceiptHandle": "none"}]}

    def _after(self, parsed: dict[str, Any], **_rest: Any) -> None:
        if self.left:
            self.left -= 1
            failed = {"Id": "0", "Code": "InternalError", "Message": "later", "SenderFault": False}
            parsed["Failed"] = [failed]


def test_a_deletion_that_fails_is_repeated(queue: Queue, hook: Hook) -> None:
    """Of a batch, what was not deleted is sent again, and nothing else."""
    failing = Failing(2)
    hook(failing)
    queue.send(*(call(number) for number in range(10)))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", receivers=1)
    with working(worker):
        queue.until_empty()
    assert sorted(handler.ran) == list(range(10))
    assert worker.figures.received == 10
    assert sum(failing.requests) == 12
    gate.close()


def test_a_deletion_that_keeps_failing_is_only_told(
    queue: Queue,
    hook: Hook,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message comes again, and its event is a duplicate."""
    monkeypatch.setattr("oncegate.work.sqs.batches._TRIES", 2)
    hook(Failing(2))
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s", visibility="1s")):
        queue.until_empty()
    assert handler.ran == [1]
    assert gate.counts["event.duplicate"] >= 1
    assert [record.message.partition(" (")[2] for record in caplog.records] == [
        "InternalError: later); it comes again, as a duplicate"
    ]
    gate.close()


def test_throttling_is_waited_out(queue: Queue, hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that does not answer for a while is asked again, later each time; that is told twice, and nothing is
    lost."""
    refusals = iter(range(3))
    asked: list[float] = []

    def throttle(**_rest: Any) -> None:
        asked.append(time.monotonic())
        if next(refusals, None) is not None:
            raise EndpointConnectionError(endpoint_url="http://nowhere")

    hook(lambda events: events.register("before-send.sqs.ReceiveMessage", throttle))
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    assert handler.ran == [1]
    pauses = [after - before for before, after in pairwise(asked[:4])]
    assert pauses[0] < pauses[1] < pauses[2]
    begun, over = [record.message for record in caplog.records]
    assert begun.startswith("the SQS queue")
    assert begun.endswith("nothing is received until that is over")
    assert over.startswith("the SQS queue")
    assert " answers again, after " in over
    gate.close()


class Away(MemoryStore):
    away = True

    def claim(self, requests: Any) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        return super().claim(requests)


def test_messages_wait_for_the_store(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """While no event can be claimed, what was received stays in hand and no more is: so the queue does not count what
    nobody could help, and each message is received once."""
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
        "events cannot be claimed (the store is away); nothing is received until that is over",
        "events can be claimed again",
    ]
    gate.close()


def test_what_waits_for_the_store_is_let_go_at_the_end(queue: Queue) -> None:
    """A worker that is stopped meanwhile hands the messages back."""
    queue.send(call(1))
    gate = Gate(Away())
    worker = gate.worker(queue.source, Handler(), wait="1s")
    with working(worker):
        until(lambda: worker.figures.in_hand == 1, "the message to be received")
    assert queue.visible() == 1
    gate.close()


def test_the_log_says_where_a_handler_failed(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing that the exception said."""
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


# ── what cannot start ─────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_goes_away_ends_the_worker(queue: Queue) -> None:
    """A worker whose queue is deleted says so instead of asking for ever."""
    gate = Gate("memory://")
    worker = gate.worker(queue.source, Handler(), wait="1s")
    threading.Timer(0.3, queue.delete).start()
    with pytest.raises(QueueError, match="does not exist"):
        worker.run()
    gate.close()


@pytest.mark.parametrize(
    ("source", "ways", "said"),
    [
        ("inbox", {}, "'inbox' names no queue; write sqs://NAME"),
        ("sqs://a queue", {}, "names no queue"),
        ("sqs://q?colour=red", {}, "the address of a queue has no option 'colour'; it has region and endpoint"),
        ("sqs://q?endpoint=here", {}, "endpoint='here' is no address"),
        ("https://sqs.eu-central-1.amazonaws.com/1/", {}, "does not end with the name of a queue"),
        ("sqs://q", {"batch": 11}, "batch=11 must be a whole number from 1 to 10"),
        ("sqs://q", {"wait": "21s"}, "wait='21s' is longer than the 20s that SQS allows"),
        ("sqs://q", {"visibility": "13h"}, "visibility='13h' is longer than the 12h that SQS allows"),
        ("sqs://q", {"in_hand": 0}, "in_hand=0 must be a whole number"),
        ("sqs://q", {"drain": 5}, "drain=5 is not a duration"),
    ],
)
def test_what_cannot_be_meant(source: str, ways: dict[str, Any], said: str) -> None:
    """A worker that could not work is refused when it is made, with what is wrong and what would do."""
    with pytest.raises(SettingError) as refused:
        Gate("memory://").worker(source, Handler(), **ways)
    assert said in str(refused.value)


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

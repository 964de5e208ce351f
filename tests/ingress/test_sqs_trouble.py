"""A worker that is stopped, that has trouble with the queue or the store, and that cannot start."""

import asyncio
import logging
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from oncegate import Event, Gate
from oncegate.errors import QueueError, SettingError, StoreUnavailable
from oncegate.stores.memory import MemoryStore
from tests.ingress.conftest import Hook
from tests.ingress.queues import Handler, Queue, call, working
from tests.stores.dynamo_server import reply
from tests.stores.servers import until


@pytest.mark.usefixtures("patient")
def test_stopping_ends_what_runs_and_lets_go_of_the_rest(queue: Queue) -> None:
    """What runs comes to its end and is deleted; what waited is visible, its event not claimed, and no open poll of
    the worker's own has received it once more."""
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
    until(lambda: queue.visible() == 1, "the message to be let go")
    assert worker.left_running == 0
    assert [entry.record.state for entry in gate.store.browse()] == ["R"]
    gate.close()


def test_told_twice_it_does_not_wait(queue: Queue) -> None:
    """A second call to stop, or a second signal, ends the wait for handlers."""
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
    monkeypatch.setattr("oncegate.ingress.sqs.client._TRIES", 2)
    hook(Failing(2))
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://", lease="1s")
    with working(gate.worker(queue.source, handler, wait="1s", visibility="1s")):
        queue.until_empty()
    assert handler.ran == [1]
    assert gate.counts["event.duplicate"] >= 1
    assert [record.message.partition(" (")[2] for record in caplog.records] == [
        "InternalError: later); it comes again, as a duplicate"
    ]
    gate.close()


def test_trouble_is_waited_out(queue: Queue, hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that cannot be asked for a while is asked again, later each time; that is told twice, and nothing is
    lost."""
    answers = iter([reply(400, "RequestThrottled", "slowly"), None, reply(503, "Odd")])
    asked: list[float] = []

    def trouble(**_rest: Any) -> Any:
        asked.append(time.monotonic())
        if len(asked) > 3:
            return None
        answer = next(answers)
        if answer is None:
            raise EndpointConnectionError(endpoint_url="http://nowhere")
        return answer

    hook(lambda events: events.register("before-send.sqs.ReceiveMessage", trouble))
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(queue.source, handler, wait="1s")):
        queue.until_empty()
    assert handler.ran == [1]
    pauses = [after - before for before, after in pairwise(asked[:4])]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True))
    begun, over = [record.message for record in caplog.records]
    assert "throttled or failed the request (RequestThrottled: slowly)" in begun
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


class Slow(MemoryStore):
    """A store whose claims are held while it is slow to settle."""

    slow = False

    def settle(self, settlements: Any) -> Any:
        if self.slow:
            raise StoreUnavailable("it takes its time")
        return super().settle(settlements)


def test_a_conflict_that_another_keeps_is_no_trouble_of_the_store(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """That another worker is keeping the same conflict just now stops nothing: its message comes again, the others are
    taken."""
    store, handler = Slow(), Handler()
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


def test_what_waits_for_the_store_is_let_go_at_the_end(queue: Queue) -> None:
    """A worker that is stopped meanwhile hands the messages back."""
    queue.send(call(1))
    gate = Gate(Away())
    worker = gate.worker(queue.source, Handler(), wait="1s")
    with working(worker):
        until(lambda: worker.figures.in_hand == 1, "the message to be received")
    until(lambda: queue.visible() == 1, "the message to be let go")
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
        ("sqs://q?endpoint=here", {}, "endpoint='here' is not a valid URL"),
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

"""Received messages: visibility, lanes, order and pauses."""

import threading
from typing import Any

import pytest

from oncegate import Event, Gate, read
from oncegate.ingress.sqs.messages import Message, MessageEvent
from tests.ingress.sqs.queues import Handler, Queue, call, working
from tests.stores.servers import until


def test_messages_in_hand_stay_hidden(queue: Queue) -> None:
    """A handler that takes longer than the visibility timeout runs once, and so does the event that waits behind it."""
    queue.send(call(1, "c-1", takes=2.5), call(2, "c-1"))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", visibility="1s")
    with working(worker):
        queue.until_empty()
    assert handler.ran == [1, 2]
    assert worker.figures.received == 2
    gate.close()


def test_messages_are_hidden_for_max_hold_only(queue: Queue) -> None:
    """After `max_hold` a message becomes visible to other receivers, and no event of it starts here."""
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


@pytest.mark.parametrize(("receives", "seconds"), [(1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (500, 300)])
def test_the_pause_doubles_with_each_receive(receives: int, seconds: int) -> None:
    """A message that failed is delivered again after 1 s, 2 s, 4 s and so on, at most 300 s."""
    attributes = {"ApproximateReceiveCount": str(receives)}
    message = Message({"ReceiptHandle": "h", "Attributes": attributes}, now=0, visibility=30_000_000)
    assert message.pause == seconds


def test_lost_messages_may_not_start() -> None:
    """The visibility of a message ends after its timeout, is extended by a renewal, and is over once it is lost."""
    message = Message({"ReceiptHandle": "h"}, now=5, visibility=30)
    assert message.visible_until == 35
    message.renew(20, 30)
    assert message.visible_until == 50
    message.lose()
    assert message.visible_until == 0


def placed(payload: dict[str, Any], *, fifo: bool = False) -> MessageEvent:
    (event,) = read(payload)
    message = Message({"ReceiptHandle": "h"}, now=0, visibility=30)
    return MessageEvent(message, event, Gate("memory://")._identify(event), fifo=fifo)


def test_lanes() -> None:
    """Events of one entity share a lane, copies without an entity share one; a FIFO queue has one for each group."""
    assert placed(call(1, "c-1")).lane == placed(call(2, "c-1")).lane != placed(call(3, "c-2")).lane
    assert placed(call(1)).lane == placed(call(1)).lane != placed(call(2)).lane
    assert placed(call(1, "c-1"), fifo=True).lane == ("group", None)


def test_order_within_a_lane() -> None:
    """The earlier event has the lower order; in a FIFO queue the order of arrival counts."""
    assert placed(call(1, "c-1")).order < placed(call(2, "c-1")).order
    assert placed(call(1, "c-1"), fifo=True).order == placed(call(2, "c-1"), fifo=True).order == 0

"""Messages that a worker has received from SQS: how long they stay hidden."""

import threading
from typing import Any

from oncegate import Event, Gate
from oncegate.ingress.sqs.messages import SqsMessage
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


def test_lost_messages_may_not_start() -> None:
    """The visibility of a message ends after its timeout, is extended by a renewal, and is over once it is lost."""
    message = SqsMessage({"ReceiptHandle": "h"}, now=5, visibility=30)
    assert [message.may_start(now) for now in (34, 35)] == [True, False]
    message.renew(20, 30)
    assert [message.may_start(now) for now in (49, 50)] == [True, False]
    message.lose()
    assert not message.may_start(0)


def test_the_receives_of_a_message() -> None:
    """SQS counts how often it has delivered a message."""
    received = {"ReceiptHandle": "h", "MessageId": "m-1", "Attributes": {"ApproximateReceiveCount": "3"}}
    message = SqsMessage(received, now=0, visibility=30)
    assert (message.name, message.receives) == ("m-1", 3)
    assert SqsMessage({"ReceiptHandle": "h"}, now=0, visibility=30).receives == 1

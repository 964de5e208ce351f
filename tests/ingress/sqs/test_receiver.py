"""Polls of a queue: free slots, and a queue that does not answer for a while."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from oncegate import Event, Gate
from tests.ingress.sqs.conftest import Hook
from tests.ingress.sqs.queues import Handler, Queue, call, working
from tests.stores.dynamo_server import reply
from tests.stores.servers import until


def test_in_hand_limit(queue: Queue) -> None:
    """While the limit of events in hand is reached, nothing is received. Later everything is received."""
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


def test_an_outage_of_the_queue(queue: Queue, hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that fails for a while is polled again after growing pauses. The outage is logged at its start and its
    end, and no message is lost."""
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
    assert begun.endswith("nothing is received until this ends")
    assert over.startswith("the SQS queue")
    assert " answers again, after " in over
    gate.close()

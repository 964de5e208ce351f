"""Queues of the AWS emulator, and workers in threads."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import botocore.session

from oncegate import Event
from oncegate.ingress.worker import Worker
from tests.stores.dynamo_server import REGION, DynamoServer
from tests.stores.servers import until

_COUNTS = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]


class Cloud(DynamoServer):
    """The emulator, with a queue for each test."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.sqs: Any = botocore.session.Session().create_client(
            "sqs",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",  # noqa: S106  # the emulator takes any
        )
        self._queues = 0

    def queue(self, *, receives: int = 100, **attributes: str) -> "Queue":
        """A new queue whose messages become dead letters after this many receives."""
        self._queues += 1
        suffix = ".fifo" if "FifoQueue" in attributes else ""
        kind = {"FifoQueue": "true"} if suffix else {}
        dead = Queue(self, f"dead-{self._queues}{suffix}", kind)
        policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": str(receives)}
        return Queue(self, f"queue-{self._queues}{suffix}", {**attributes, "RedrivePolicy": json.dumps(policy)}, dead)

    def stop(self) -> None:
        self.sqs.close()
        super().stop()


class Queue:
    def __init__(self, cloud: Cloud, name: str, attributes: dict[str, str], dead: "Queue | None" = None) -> None:
        self._sqs = cloud.sqs
        self.name = name
        self.url = self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.source = f"sqs://{name}?region={REGION}&endpoint={cloud.endpoint}"
        self._dead = dead

    @property
    def arn(self) -> str:
        return str(self._attributes("QueueArn")["QueueArn"])

    @property
    def dead(self) -> "Queue":
        assert self._dead is not None
        return self._dead

    def send(self, *bodies: Any, **more: Any) -> None:
        for body in bodies:
            text = body if isinstance(body, str) else json.dumps(body)
            self._sqs.send_message(QueueUrl=self.url, MessageBody=text, **more)

    def send_all(self, bodies: Sequence[Any]) -> None:
        """Send in batches of ten."""
        entries = [{"Id": str(at), "MessageBody": json.dumps(body)} for at, body in enumerate(bodies)]
        for start in range(0, len(entries), 10):
            self._sqs.send_message_batch(QueueUrl=self.url, Entries=entries[start : start + 10])

    def receive(self, **more: Any) -> list[dict[str, Any]]:
        """Receive the visible messages, as another worker would."""
        names = ["ApproximateReceiveCount"]
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": names, **more}
        messages: list[dict[str, Any]] = self._sqs.receive_message(QueueUrl=self.url, **asked).get("Messages", [])
        return messages

    def left(self) -> int:
        """The number of messages, visible or not."""
        return sum(map(int, self._attributes(*_COUNTS).values()))

    def visible(self) -> int:
        return int(self._attributes(_COUNTS[0])[_COUNTS[0]])

    def until_empty(self, patience: float = 60) -> None:
        until(lambda: self.left() == 0, f"{self.name} to be worked off", patience)

    def delete(self) -> None:
        self._sqs.delete_queue(QueueUrl=self.url)

    def _attributes(self, *names: str) -> dict[str, Any]:
        answer = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))
        attributes: dict[str, Any] = answer["Attributes"]
        return attributes


@contextmanager
def working(worker: Worker) -> Iterator[None]:
    """Run a worker in a thread until the block ends. An exception of the worker is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(40)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


class Handler:
    """Records the numbers of events in the order of running, and fails as often as an event says."""

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

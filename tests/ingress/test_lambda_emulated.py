"""A function behind a queue and a bus, with its claims in DynamoDB, in the emulator `ministack`.

The emulator deletes and redrives messages according to the answer of the function.
"""

import io
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate import open_store
from tests.ingress.invocations import envelope
from tests.stores.dynamo_server import CREDENTIALS, DynamoServer
from tests.stores.servers import until

FUNCTION = """
from oncegate import Gate

def handle(event):
    with open({effects!r}, "a") as file:
        file.write(f"{{event.body['number']}}\\n")
    if event.body.get("fail"):
        raise ValueError("boom")

handler = Gate({store!r}).lambda_handler(handle)
"""


class Cloud(DynamoServer):
    """The emulator with one function, which writes its effects to a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.effects = folder / "effects"
        self.store = self.url("Claims")
        self.function = self._made_function()

    def _made_function(self) -> str:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as package:
            package.writestr("app.py", FUNCTION.format(effects=str(self.effects), store=self.store))
        made = self.client_of("lambda").create_function(
            FunctionName="crm",
            Runtime=f"python3.{sys.version_info.minor}",
            Role="arn:aws:iam::000000000000:role/crm",
            Handler="app.handler",
            Code={"ZipFile": archive.getvalue()},
            Timeout=10,
            Environment={"Variables": CREDENTIALS},
        )
        return str(made["FunctionArn"])

    def ran(self) -> Counter[int]:
        """How often the handler ran for each event."""
        return Counter(map(int, self.effects.read_text().split())) if self.effects.exists() else Counter()


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.stop()


def waiting(sqs: Any, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    return sum(
        int(count) for count in sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"].values()
    )


def address(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def test_behind_a_queue(cloud: Cloud) -> None:
    """Copies have one effect, acknowledged messages are deleted, and failed messages move to the dead-letter queue
    after the receives of the redrive policy."""
    sqs = cloud.client_of("sqs")
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    policy = {"deadLetterTargetArn": address(sqs, dead), "maxReceiveCount": "3"}
    attributes = {"VisibilityTimeout": "2", "RedrivePolicy": json.dumps(policy)}
    queue = sqs.create_queue(QueueName="events", Attributes=attributes)["QueueUrl"]
    for number in (1, 2, 1, 3, 4, 2):
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(envelope(number, fail=number == 3)))
    sqs.send_message(QueueUrl=queue, MessageBody="no JSON")
    cloud.client_of("lambda").create_event_source_mapping(
        EventSourceArn=address(sqs, queue),
        FunctionName="crm",
        BatchSize=10,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    until(lambda: waiting(sqs, dead) == 2 and waiting(sqs, queue) == 0, "the queue to be worked off", 60)
    assert cloud.ran() == {1: 1, 2: 1, 3: 3, 4: 1}
    bodies = [sqs.receive_message(QueueUrl=dead)["Messages"][0]["Body"] for _ in range(2)]
    assert sorted(bodies) == sorted([json.dumps(envelope(3, fail=True)), "no JSON"])
    store = open_store(cloud.store)
    assert store.dead_letters() == []
    store.close()


def test_behind_a_bus(cloud: Cloud) -> None:
    """An event that a rule delivers runs once, also if it is sent to the function again."""
    events, function = cloud.client_of("events"), cloud.client_of("lambda")
    events.put_rule(Name="all", EventPattern='{"source": ["com.example.shop"]}')
    events.put_targets(Rule="all", Targets=[{"Id": "crm", "Arn": cloud.function}])
    entry = {"Source": "com.example.shop", "DetailType": "Order Placed", "Detail": '{"number": 1}'}
    assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
    until(lambda: cloud.ran() == {1: 1}, "the rule's target to run")
    answers = [_invoked(function, envelope(2)) for _ in range(2)]
    assert [json.loads(answer["body"])["status"] for answer in answers] == ["processed", "duplicate"]
    assert cloud.ran() == {1: 1, 2: 1}
    assert _invoked(function, [1])["statusCode"] == 400
    assert "deliver it again" in _invoked(function, envelope(3, fail=True))["errorMessage"]


def _invoked(function: Any, event: Any) -> Any:
    return json.loads(function.invoke(FunctionName="crm", Payload=json.dumps(event))["Payload"].read())

"""SQS queues and EventBridge buses as targets, in the emulator `ministack`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from oncegate import Gate, read
from oncegate.errors import SettingError, TargetError
from oncegate.simulate.aws import EventBridgeTarget, SqsTarget, place_of
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.sender import Rejected
from oncegate.simulate.targets import open_target
from oncegate.simulate.traffic import Plan, deliveries, recorded_deliveries
from tests.simulate.parts import Effects, judged, noting, plan, sent, truth_in
from tests.stores.dynamo_server import CREDENTIALS, REGION, DynamoServer, reply
from tests.stores.servers import free_port

PUT = Plan(events=40, rate=10_000, seed=5, copy_options=CopyOptions(reemit=0.3, replay=0.3, invalid=0.2, by_bus=True))


class Cloud(DynamoServer):
    def target(self, url: str) -> str:
        return f"{url}?region={REGION}&endpoint={self.endpoint}"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path_factory.mktemp("cloud"))
    yield cloud
    cloud.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def bodies(sqs: Any, queue: str) -> list[str]:
    """The bodies of all messages of a queue, which is empty afterwards."""
    found: list[str] = []
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        found += [message["Body"] for message in messages]
        gone = [{"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(messages)]
        sqs.delete_message_batch(QueueUrl=queue, Entries=gone)
    return found


class FirstFails:
    """A client that fails one entry of the first request, as AWS would."""

    def __init__(self, client: Any, operation: str, failure: dict[str, Any]) -> None:
        self._failure = failure
        self._entry: dict[str, Any] | None = None
        self._done = False
        client.meta.events.register(f"before-parameter-build.{operation}", self._hold_back)
        client.meta.events.register(f"after-call.{operation}", self._tell)

    def _hold_back(self, params: dict[str, Any], **_rest: Any) -> None:
        if not self._done and len(params["Entries"]) > 1:
            self._entry = params["Entries"].pop(0)

    def _tell(self, parsed: dict[str, Any], **_rest: Any) -> None:
        if self._entry is None:
            return
        if "Id" in self._entry:
            parsed.setdefault("Failed", []).append({"Id": self._entry["Id"], **self._failure})
        else:
            parsed["FailedEntryCount"] = 1
            parsed["Entries"].insert(0, self._failure)
        self._entry, self._done = None, True


class TestQueue:
    def test_each_is_a_message(self, cloud: Cloud, tmp_path: Path) -> None:
        """Every delivery is one message with the same text, and a gate runs each event exactly once."""
        sqs = cloud.client_of("sqs")
        queue = sqs.create_queue(QueueName="plain")["QueueUrl"]
        sent(open_target(cloud.target("sqs://plain")), plan(40, invalid=0.2), tmp_path / "truth.jsonl")
        found = bodies(sqs, queue)
        assert sorted(found) == sorted(each.copy.raw.decode() for each in deliveries(plan(40, invalid=0.2)))
        done: Effects = []
        gate = Gate("memory://")
        gate.run_batch(found, noting(done))
        gate.close()
        assert judged(tmp_path, done).once

    def test_groups(self, cloud: Cloud, tmp_path: Path) -> None:
        """In a FIFO queue an entity is a message group, and copies are separate messages."""
        sqs = cloud.client_of("sqs")
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        queue = sqs.create_queue(QueueName="ordered.fifo", Attributes=attributes)["QueueUrl"]
        summary = sent(open_target(cloud.target("sqs://ordered.fifo")), plan(15), tmp_path / "truth.jsonl")
        asked: dict[str, Any] = {"QueueUrl": queue, "AttributeNames": ["MessageGroupId"], "MaxNumberOfMessages": 10}
        (first, *_) = sqs.receive_message(**asked)["Messages"]
        assert first["Attributes"]["MessageGroupId"] == read(first["Body"])[0].entity
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        assert sum(map(int, counts.values())) == summary.count() > 15

    def test_failed_entries(self, cloud: Cloud, tmp_path: Path) -> None:
        """An entry that failed for a temporary reason is sent again."""
        sqs = cloud.client_of("sqs")
        queue = sqs.create_queue(QueueName="stumbling")["QueueUrl"]
        target = SqsTarget(cloud.target("sqs://stumbling"))
        FirstFails(target._client, "sqs.SendMessageBatch", {"SenderFault": False, "Code": "InternalError"})
        fast = Plan(events=15, rate=100_000, seed=5)
        summary = sent(target, fast, tmp_path / "truth.jsonl")
        assert (summary.again, summary.count(fate="taken")) == (1, summary.count())
        assert len(bodies(sqs, queue)) == summary.count()

    def test_the_entrys_own_fault(self, cloud: Cloud, tmp_path: Path) -> None:
        """An entry with a sender fault is not sent again."""
        cloud.client_of("sqs").create_queue(QueueName="strict")
        target = SqsTarget(cloud.target("sqs://strict"))
        FirstFails(target._client, "sqs.SendMessageBatch", {"SenderFault": True, "Code": "InvalidMessageContents"})
        summary = sent(target, Plan(events=15, rate=100_000, seed=5), tmp_path / "truth.jsonl")
        assert (summary.again, summary.count(fate="refused")) == (0, 1)
        assert summary.reasons == {"InvalidMessageContents": 1}

    @pytest.mark.parametrize("code", ["ThrottlingException", "RequestThrottled", "InternalFailure"])
    def test_a_busy_service(self, cloud: Cloud, tmp_path: Path, code: str) -> None:
        """A throttled request is sent again."""
        cloud.client_of("sqs").create_queue(QueueName="busy")
        target = SqsTarget(cloud.target("sqs://busy"))
        refusals = [reply(400 if "Thrott" in code else 500, code)]

        def refuse(request: AWSPreparedRequest, **_rest: Any) -> AWSResponse | None:
            return refusals.pop() if refusals else None

        target._client.meta.events.register("before-send.sqs.SendMessageBatch", refuse)
        summary = sent(target, Plan(events=3, rate=100_000, seed=5), tmp_path / "truth.jsonl")
        assert summary.again > 0
        assert summary.count(fate="taken") == summary.count()


class TestBus:
    @pytest.fixture
    def queue(self, cloud: Cloud) -> str:
        """A queue that receives everything on the bus."""
        sqs, events = cloud.client_of("sqs"), cloud.client_of("events")
        queue = str(sqs.create_queue(QueueName="behind-the-bus")["QueueUrl"])
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events.create_event_bus(Name="desk")
        events.put_rule(Name="all", EventBusName="desk", EventPattern='{"source": ["oncegate.simulate"]}')
        events.put_targets(Rule="all", EventBusName="desk", Targets=[{"Id": "queue", "Arn": arn}])
        return queue

    def test_through_a_rule(self, cloud: Cloud, tmp_path: Path, queue: str) -> None:
        """Events through a rule have new envelopes, whose ids the truth file records; a gate runs each event exactly
        once."""
        target = EventBridgeTarget(cloud.target("eventbridge://desk"))
        FirstFails(
            target._client, "events.PutEvents", {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
        )
        summary = sent(target, PUT, tmp_path / "truth.jsonl")
        assert (summary.again, summary.count(fate="taken")) == (1, summary.count())
        found = bodies(cloud.client_of("sqs"), queue)
        assert len(found) == summary.count()
        known = {each.event_id for sent in truth_in(tmp_path).deliveries.values() for each in sent}
        assert {body["id"] for body in map(json.loads, found) if "eventBody" in body["detail"]} <= known
        done: Effects = []
        gate = Gate("memory://")
        outcomes = gate.run_batch(found, noting(done))
        gate.close()
        assert sum(outcome.status == "invalid" for outcome in outcomes) == summary.count("invalid") > 0
        assert judged(tmp_path, done).once
        by_id = [json.dumps({"event_id": name}) for line in done if (name := json.loads(line)["event_id"])]
        assert len(by_id) == len(done)
        assert judged(tmp_path, by_id).once


class TestAddresses:
    @pytest.mark.parametrize("url", ["sqs://nowhere", "eventbridge://nowhere"])
    def test_not_there(self, cloud: Cloud, url: str) -> None:
        """A missing queue or bus is reported before anything is sent."""
        with pytest.raises(TargetError, match=r"(queue|bus) nowhere \(.+\) does not exist; check its name"):
            open_target(cloud.target(url))

    def test_nobody_there(self) -> None:
        """An unreachable endpoint is reported."""
        with pytest.raises(TargetError, match=r"the SQS queue q \(.+\) cannot be reached .* check region, endpoint"):
            open_target(f"sqs://q?region={REGION}&endpoint=http://127.0.0.1:{free_port()}")

    def test_no_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a region, the error says where to write it."""
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        with pytest.raises(TargetError, match=r"the SQS queue q needs a region; write \?region=eu-central-1"):
            open_target("sqs://q")

    def test_what_they_say_they_are(self) -> None:
        """On a bus, simulated events have their own source unless the URL names one."""
        assert place_of("eventbridge://desk").source == "oncegate.simulate"
        assert place_of("eventbridge://desk?source=com.example.crm").source == "com.example.crm"

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("sqs://", "has no valid queue name; write 'sqs://QUEUE"),
            ("sqs://q/x", "has no valid queue name"),
            ("eventbridge://", "has no valid bus name"),
            ("eventbridge://b?regoin=x", "unknown option 'regoin' of eventbridge://; use region, endpoint"),
        ],
    )
    def test_invalid_options(self, url: str, said: str) -> None:
        """An invalid URL is refused."""
        with pytest.raises(SettingError, match=said):
            open_target(url)


def placed(documents: list[bytes]) -> list[tuple[bytes, str | None]]:
    return [(raw, None) for raw in documents]


class TestRecordings:
    """Recorded documents, which may be larger than simulated ones, or not JSON."""

    def test_a_queue(self, cloud: Cloud) -> None:
        """A document that a queue cannot hold is rejected, a large batch is sent in parts, any entity is a group."""
        sqs = cloud.client_of("sqs")
        queue = sqs.create_queue(QueueName="mine.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        entity, text = "a b" + "c" * 200, "x" * 90_000
        large = [json.dumps({"id": each, "conversationId": entity, "text": text}).encode() for each in range(4)]
        documents = [*large, b"\xff\xfe", b"not JSON"]
        target = open_target(cloud.target("sqs://mine.fifo"))
        planned = list(recorded_deliveries(placed(documents), Plan(copy_options=CopyOptions(copies=(1, 1)))))
        answers = target.send(planned)
        target.close()
        assert [type(answer).__name__ for answer in answers] == ["Accepted"] * 4 + ["Rejected", "Accepted"]
        assert sorted(bodies(sqs, queue)) == sorted(raw.decode() for raw in documents if raw[:1] != b"\xff")

    def test_a_bus(self, cloud: Cloud) -> None:
        """A bus accepts only objects."""
        cloud.client_of("events").create_event_bus(Name="mine")
        target = open_target(cloud.target("eventbridge://mine"))
        documents = [b'{"id": "1"}', b"[1]", b"not JSON", b'{"detail-type": "t", "detail": {"n": 1}}']
        answers = target.send(
            list(recorded_deliveries(placed(documents), Plan(copy_options=CopyOptions(copies=(1, 1)))))
        )
        target.close()
        assert [type(answer).__name__ for answer in answers] == ["Accepted", "Rejected", "Rejected", "Accepted"]
        assert answers[1] == Rejected("not a JSON object")

"""Publishing: events sent to a queue or a bus of the AWS emulator."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from oncegate import Event, Gate, keys, read
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.infra.rights import PUBLISH_ACTIONS
from oncegate.sinks import publish
from oncegate.sinks.aws import Publisher, publisher, read_destination
from tests.sinks.conftest import Client
from tests.stores.dynamo_server import REGION, DynamoServer, reply
from tests.stores.servers import until

GENESYS = {
    "version": "0",
    "id": "11111111-2222-3333-4444-555555555555",
    "detail-type": "v2.detail.events.conversation.{id}.customer.end",
    "source": "aws.partner/genesys.com/cloud/org/integration",
    "account": "123456789012",
    "time": "2026-01-02T03:04:06Z",
    "region": "eu-central-1",
    "resources": [],
    "detail": {
        "topicName": "v2.detail.events.conversation.c-1.customer.end",
        "version": "2",
        "timestamp": "2026-01-02T03:04:05.500Z",
        "eventBody": {"eventTime": 1767323045000, "conversationId": "c-1", "sessionId": "s-1"},
        "metadata": {"CorrelationId": "x"},
    },
}
EVENT = Event(source="plain", body={"id": "1"}, raw=b'{"id": "1"}')


@pytest.fixture
def to(aws: DynamoServer) -> Iterator[Callable[..., Publisher]]:
    """Publishers to the emulator, closed after the test."""
    made = []

    def make(place: str, endpoint: str = aws.endpoint, **options: str) -> Publisher:
        given = "".join(f"&{name}={value}" for name, value in options.items())
        made.append(publisher(f"{place}?region={REGION}&endpoint={endpoint}{given}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def received(client: Client, queue: str) -> list[dict[str, Any]]:
    """All messages of a queue, as soon as there is one."""
    sqs, found = client("sqs"), []
    address = sqs.get_queue_url(QueueName=queue)["QueueUrl"]

    def more() -> bool:
        asked = sqs.receive_message(
            QueueUrl=address, MessageAttributeNames=["All"], AttributeNames=["All"], MaxNumberOfMessages=10
        )
        found.extend(asked.get("Messages", []))
        return bool(found)

    until(more, f"a message in {queue}")
    return found


class TestQueue:
    def test_sent_once(self, client: Client, to: Callable[..., Publisher]) -> None:
        """The message is the JSON of the event with its key as an attribute. A copy of the event sends no message."""
        client("sqs").create_queue(QueueName="plain")
        body = b'{ "id": "evt-1" }'
        outcomes = Gate("memory://").run_batch([body, body], to("sqs://plain"))
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
        (message,) = received(client, "plain")
        assert message["Body"] == body.decode()
        attributes = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
        key = str(outcomes[0].key)
        assert attributes == {"oncegate-key": key, "oncegate-source": "plain", "oncegate-attempt": "1"}

    def test_fifo(self, client: Client, to: Callable[..., Publisher]) -> None:
        """In a FIFO queue a second attempt is the same message, and each entity is a group, whatever its name is."""
        client("sqs").create_queue(QueueName="ordered.fifo", Attributes={"FifoQueue": "true"})
        handler = to("sqs://ordered.fifo")
        gate = Gate("memory://")
        events = [gate.run({"id": n, "conversationId": who}, handler).event for n, who in ((1, "c-1"), (2, "c 2 ü"))]
        handler(events[0])
        messages = {message["Body"]: message["Attributes"] for message in received(client, "ordered.fifo")}
        assert len(messages) == 2
        first, second = (messages[event.raw.decode()] for event in events)
        assert (first["MessageDeduplicationId"], first["MessageGroupId"]) == (str(events[0].key), "c-1")
        assert len(second["MessageGroupId"]) == 64

    def test_no_such_queue(self, to: Callable[..., Publisher]) -> None:
        """A missing queue is a failure, and the message says what to do. The event is not buried."""
        with pytest.raises(RetryLater, match=r"the SQS queue none \(http.*\) does not exist; check its name, region"):
            to("sqs://none")(EVENT)

    def test_too_large(self, client: Client, to: Callable[..., Publisher]) -> None:
        """An event that is too large for a message is buried at once."""
        client("sqs").create_queue(QueueName="plain")
        outcome = Gate("memory://").run({"id": "1", "text": "x" * 1_100_000}, to("sqs://plain"))
        assert outcome.status == "buried"
        assert "rejects this event (InvalidParameterValue: " in outcome.reason


class TestStateMachine:
    def test_started_once(self, client: Client, to: Callable[..., Publisher]) -> None:
        """The key is the name of the execution, so a second attempt starts nothing."""
        machines = client("stepfunctions")
        definition = json.dumps({"StartAt": "End", "States": {"End": {"Type": "Succeed"}}})
        role = "arn:aws:iam::000000000000:role/flow"
        arn = machines.create_state_machine(name="cases", definition=definition, roleArn=role)["stateMachineArn"]
        handler = to(f"stepfunctions://{arn}")
        outcome = Gate("memory://").run(b'{"id": "evt-1"}', handler)
        handler(outcome.event)
        (execution,) = machines.list_executions(stateMachineArn=arn)["executions"]
        assert execution["name"] == str(outcome.key)
        found = machines.describe_execution(executionArn=execution["executionArn"])
        assert json.loads(found["input"]) == {"id": "evt-1"}

    def test_no_such_machine(self, to: Callable[..., Publisher]) -> None:
        """A missing state machine is a failure, and the message says what to do. The event is not buried."""
        arn = "arn:aws:states:eu-central-1:000000000000:stateMachine:none"
        with pytest.raises(RetryLater, match=r"state machine .*:none \(http.*\) does not exist; check its name"):
            to(f"stepfunctions://{arn}")(EVENT)


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("sqs://q?region=eu-central-1", "sqs://q?region=eu-central-1"),
        ("sqs://q?timeout=3s&region=eu-central-1", "sqs://q?region=eu-central-1"),
        ("sqs://q", "sqs://q?region=eu-central-1"),
        (
            "sqs://q/?region=eu-central-1&account=123456789012&endpoint=http://127.0.0.1:1",
            "sqs://q?region=eu-central-1",
        ),
        ("sqs://q?region=us-east-1", "sqs://q?region=us-east-1"),
        ("sqs://Q", "sqs://Q?region=eu-central-1"),
        ("eventbridge://bus?source=crm", "eventbridge://bus?region=eu-central-1"),
        ("eventbridge://bus/?region=eu-central-1", "eventbridge://bus?region=eu-central-1"),
    ],
)
def test_one_spelling_of_a_destination(written: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue or a bus has one spelling in records, however its URL is written."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with closing(publisher(written)) as made:
        assert made.publishes_to == place


class TestBus:
    def test_put(self, client: Client, to: Callable[..., Publisher]) -> None:
        """Rules match an event on a bus, the event has its key, and a Genesys event has the same key for the next
        gate."""
        _watch(client, "bus", "seen", {"source": ["crm"], "detail-type": [GENESYS["detail-type"]]})
        outcome = Gate("memory://").run(GENESYS, to("eventbridge://bus", source="crm"))
        assert outcome.status == "processed"
        (message,) = received(client, "seen")
        put = json.loads(message["Body"])
        assert put["resources"] == [f"oncegate:{outcome.key}"]
        assert put["detail"] == GENESYS["detail"]
        (event,) = read(message["Body"])
        assert keys.auto(event) == outcome.key

    def test_a_value_that_is_not_an_object(self, client: Client, to: Callable[..., Publisher]) -> None:
        """A value that cannot be a detail becomes a member of the detail."""
        _watch(client, "other", "others", {"source": ["oncegate"]})
        to("eventbridge://other")(Event(source="plain", body="text", raw=b'"text"'))
        (message,) = received(client, "others")
        put = json.loads(message["Body"])
        assert (put["detail"], put["detail-type"], put["resources"]) == ({"event": "text"}, "event", [])


@pytest.mark.parametrize(("place", "service"), [("sqs://allowed.fifo", "sqs"), ("eventbridge://default", "events")])
def test_the_policy_allows_each_request(client: Client, to: Callable[..., Publisher], place: str, service: str) -> None:
    """The policy of a publisher has exactly the actions that a publication uses."""
    client("sqs").create_queue(QueueName="allowed.fifo", Attributes={"FifoQueue": "true"})
    handler, used = to(place), list[str]()
    handler.open().meta.events.register(
        "before-call", lambda model, **_: used.append(f"{service}:{model.name}"), unique_id="recorder"
    )
    handler(EVENT)
    assert used == list(PUBLISH_ACTIONS[service])


def _watch(client: Client, bus: str, queue: str, pattern: dict[str, Any]) -> None:
    sqs, events = client("sqs"), client("events")
    address = sqs.create_queue(QueueName=queue)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=address, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.create_event_bus(Name=bus)
    events.put_rule(Name="all", EventBusName=bus, EventPattern=json.dumps(pattern))
    events.put_targets(Rule="all", EventBusName=bus, Targets=[{"Id": "1", "Arn": arn}])


class TestFailures:
    """Answers that the emulator cannot give."""

    @pytest.mark.parametrize(
        ("status", "code", "said", "error", "sentence"),
        [
            (400, "ThrottlingException", "Rate exceeded", RetryLater, "throttled or failed the request"),
            (500, "InternalFailure", "", RetryLater, "throttled or failed the request"),
            (400, "AccessDeniedException", "no", RetryLater, r"does not allow events:PutEvents \(no\); allow it"),
            (400, "ExpiredTokenException", "", RetryLater, "does not accept these AWS credentials"),
            (400, "ResourceNotFoundException", "", RetryLater, "does not exist"),
            (
                400,
                "ValidationException",
                "Total size of the entries in the request is over the limit.",
                Bury,
                "rejects this event",
            ),
            (413, "RequestEntityTooLarge", "", Bury, "rejects this event"),
        ],
    )
    def test_answers(
        self,
        to: Callable[..., Publisher],
        status: int,
        code: str,
        said: str,
        error: type[Exception],
        sentence: str,
    ) -> None:
        """A failure that may end or can be fixed is RetryLater after one request. A rejected event is buried."""
        handler = to("eventbridge://bus")
        sent = _answer_with(handler, reply(status, code, said))
        with pytest.raises(error, match=sentence):
            handler(EVENT)
        assert len(sent) == 1

    @pytest.mark.parametrize(
        ("code", "error"),
        [("ThrottlingException", RetryLater), ("InternalFailure", RetryLater), ("MalformedDetail", Bury)],
    )
    def test_a_failed_entry(self, to: Callable[..., Publisher], code: str, error: type[Exception]) -> None:
        """An entry may fail although the request succeeds."""
        handler = to("eventbridge://bus")
        _answer_with(handler, reply(200, "", FailedEntryCount=1, Entries=[{"ErrorCode": code, "ErrorMessage": "no"}]))
        with pytest.raises(error, match=code):
            handler(EVENT)

    def test_unreachable(self, to: Callable[..., Publisher]) -> None:
        """An endpoint that does not answer, or is not AWS, is reported as such."""
        with pytest.raises(RetryLater, match="cannot be reached"):
            to("sqs://plain", endpoint="http://127.0.0.1:9")(EVENT)
        handler = to("sqs://plain")
        _answer_with(handler, reply(404, "404"))
        with pytest.raises(RetryLater, match="does not answer as AWS does; check the endpoint"):
            handler(EVENT)


def _answer_with(handler: Publisher, answer: AWSResponse) -> list[Any]:
    """Answer in place of AWS. Returns the requests that were sent."""
    sent: list[Any] = []

    def send(request: Any, **_rest: Any) -> AWSResponse:
        sent.append(request)
        return answer

    handler.open().meta.events.register("before-send", send)
    return sent


class TestDestinations:
    def test_read(self) -> None:
        """A URL has the name of the destination and its options."""
        queue = read_destination("sqs://q.fifo?region=eu-west-1&account=123456789012&timeout=2s")
        assert (queue.name, queue.region, queue.account, queue.timeout) == ("q.fifo", "eu-west-1", "123456789012", 2.0)
        bus = read_destination("eventbridge://aws/partner-1?endpoint=http://127.0.0.1:1&source=crm")
        assert (bus.name, bus.endpoint, bus.source) == ("aws/partner-1", "http://127.0.0.1:1", "crm")
        assert bus.spoken == "the EventBridge bus aws/partner-1 (http://127.0.0.1:1)"

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("ftp://topic", "unknown scheme 'ftp' to publish to; use sqs, eventbridge, "),
            ("queue", "'queue' is not a URL; use sqs, eventbridge, "),
            ("sqs://", "has no valid queue name; write"),
            ("sqs://a/b", "has no valid queue name"),
            ("sqs://key:secret@q", "has no valid queue name"),
            ("sqs://q?source=x", "unknown option 'source' of sqs://; use region, endpoint, timeout, account"),
            ("sqs://q?account=1", "account='1' is not an AWS account; it must have 12 digits"),
            ("sqs://q?endpoint=here", "endpoint='here' is not a valid URL"),
            ("sqs://q?timeout=5", "timeout='5' is not a duration"),
            ("eventbridge://?region=x", "has no valid bus name"),
            ("eventbridge://b?source=aws.ec2", "the prefix aws. is reserved by AWS"),
            ("eventbridge://[b", "is not a URL"),
            ("stepfunctions://cases", "has no valid ARN of a state machine; write"),
        ],
    )
    def test_invalid_urls(self, url: str, problem: str) -> None:
        """An invalid URL is rejected at the start, with what to write."""
        with pytest.raises(SettingError) as caught:
            publish(url)
        assert problem in str(caught.value)

    def test_no_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing region is reported at the start."""
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        monkeypatch.delenv("AWS_REGION", raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        with pytest.raises(SettingError, match=r"the SQS queue q needs a region; write \?region=eu-central-1"):
            publish("sqs://q")

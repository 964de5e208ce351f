"""The kinds of Lambda invocations, and the answer to each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.claims import Claim, EventSummary, Reset
from oncegate.errors import NotTaken, SettingError, UnknownSource
from oncegate.stores.memory import MemoryStore
from tests.gate.conftest import Stumbling
from tests.ingress.invocations import (
    Context,
    Handler,
    active,
    destination,
    envelope,
    firehose,
    function_url,
    gateway,
    kafka,
    kafka_record,
    message,
    missed,
    nothing,
    notification,
    piped_shard_record,
    rabbit,
    shard_record,
    table_record,
)

SAMPLES: list[Any] = [
    sample["document"] for sample in json.loads((Path(__file__).parent.parent / "data" / "events.json").read_text())
]
NOTHING_MISSED: dict[str, Any] = {"batchItemFailures": []}

CARRIERS: dict[str, Callable[[Any], Any]] = {
    "direct": lambda document: document,
    "destination": destination,
    "array of envelopes": lambda document: [document],
    "SNS": lambda document: {"Records": [notification(document)]},
    "SQS": lambda document: {"Records": [message(document)]},
    "SQS FIFO": lambda document: {"Records": [message(document, group="g")]},
    "SNS in SQS": lambda document: {"Records": [message(notification(document)["Sns"])]},
    "SQS by a pipe": lambda document: [message(document)],
    "Kinesis": lambda document: {"Records": [shard_record(document)]},
    "Kinesis by a pipe": lambda document: [piped_shard_record(document)],
    "Kafka": lambda document: kafka(kafka_record(document)),
    "self-managed Kafka": lambda document: kafka(kafka_record(document), source="SelfManagedKafka"),
    "Kafka by a pipe": lambda document: [{"eventSource": "aws:kafka", **kafka_record(document)}],
    "ActiveMQ": active,
    "RabbitMQ": rabbit,
    "Firehose": firehose,
    "API Gateway": gateway,
    "function URL": function_url,
}


@pytest.fixture
def handler() -> Handler:
    return Handler()


def accepted(answer: dict[str, Any]) -> bool:
    """Whether an answer reports, in the format of its kind, that nothing has to be delivered again."""
    if "records" in answer:
        return {record["result"] for record in answer["records"]} == {"Ok"}
    return answer == NOTHING_MISSED or answer.get("statusCode") == 200


@pytest.mark.parametrize("shape", CARRIERS)
def test_every_document_in_every_carrier(shape: str) -> None:
    """Each sample event runs once in every kind of invocation, and its second delivery is accepted, too."""
    gate, handler = Gate("memory://"), Handler()
    answer = gate.lambda_handler(handler)
    for document in SAMPLES:
        assert accepted(answer(CARRIERS[shape](document), Context()))
        ran = len(handler.seen)
        assert accepted(answer(CARRIERS[shape](document), Context()))
        assert len(handler.seen) == ran
    assert len(handler.seen) == gate.counts["event.processed"] > 40


def test_one_event_in_every_carrier(gate: Gate, handler: Handler) -> None:
    """An event that arrived in one carrier is a duplicate in all others."""
    answer = gate.lambda_handler(handler)
    assert all(accepted(answer(wrap(envelope()), Context())) for wrap in CARRIERS.values())
    assert len(handler.seen) == 1


# ── the table of outcomes ─────────────────────────────────────────────────────────────────────────────────

Given = tuple[Gate, Callable[[Event], Any], Any]


def boom(event: Event) -> None:
    raise ValueError("boom")


def given_duplicate() -> Given:
    gate = Gate("memory://")
    gate.run(envelope(), nothing)
    return gate, boom, envelope()


def given_conflict() -> Given:
    gate = Gate("memory://", key=keys.event_id)
    gate.run({"id": 1, "n": 1}, nothing)
    return gate, boom, {"id": 1, "n": 2}


def given_buried() -> Given:
    gate = Gate("memory://", max_attempts=1)
    gate.run(envelope(), boom)
    return gate, nothing, envelope()


def given_in_flight() -> Given:
    gate, (event,) = Gate("memory://"), read(envelope())
    about, second = EventSummary(event.source, event.type, event.entity, None, event.id), 1_000_000
    key, content = keys.auto(event).digest, keys.content_hash(event)
    gate.store.claim([Claim("default", key, bytes(16), content, 30 * second, 60 * second, about, True)])
    return gate, boom, envelope()


def given_lease_lost() -> Given:
    gate = Gate("memory://")

    def forgotten(event: Event) -> None:
        assert event.key is not None
        gate.store.reset([Reset("default", event.key.digest)])

    return gate, forgotten, envelope()


def given_store_away(*, after: bool = False, **failures: int) -> Given:
    store = Stumbling()
    store.failures, store.after = failures, after
    return Gate(store), nothing, envelope()


HEARTBEAT = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}
ROWS: list[tuple[str, Callable[[], Given]]] = [
    ("processed", lambda: (Gate("memory://"), nothing, envelope())),
    ("duplicate", given_duplicate),
    ("skipped", lambda: (Gate("memory://"), boom, HEARTBEAT)),
    ("unguarded", lambda: (Gate("memory://", key=keys.fields("no"), on_missing_key="unguarded"), nothing, envelope())),
    ("conflict", given_conflict),
    ("buried", given_buried),
    ("missing key", lambda: (Gate("memory://", key=keys.fields("no")), boom, envelope())),
    ("unreadable", lambda: (Gate("memory://"), boom, "no JSON")),
    ("in_flight", given_in_flight),
    ("failed", lambda: (Gate("memory://"), boom, envelope())),
    ("lease lost", given_lease_lost),
    ("store down", lambda: given_store_away(claim=99)),
    ("settle unknown", lambda: given_store_away(settle=99, after=True)),
]
TAKEN = ("processed", "duplicate", "skipped", "unguarded", "conflict", "buried")
REFUSED = ("missing key", "unreadable")


@pytest.mark.parametrize(("row", "given"), ROWS, ids=[name for name, _ in ROWS])
class TestTheTable:
    def test_in_a_batch(self, row: str, given: Callable[[], Given]) -> None:
        """Records that were acknowledged are not reported as failures. All others are, and no dead letter is stored for
        them."""
        gate, function, document = given()
        letters = len(gate.store.dead_letters())
        answer = gate.lambda_handler(function)({"Records": [message(document)]}, Context())
        assert missed(answer) == ([] if row in TAKEN else ["m-1"])
        assert len(gate.store.dead_letters()) == letters + (row == "conflict")

    def test_directly(self, row: str, given: Callable[[], Given]) -> None:
        """An acknowledged event is 200, an event that is rejected for good is stored and 400, and everything else fails
        the invocation."""
        gate, function, document = given()
        letters = len(gate.store.dead_letters())
        handle = gate.lambda_handler(function)
        if row not in TAKEN + REFUSED:
            with pytest.raises(NotTaken) as raised:
                handle(document, Context())
            assert [outcome.acked for outcome in raised.value.outcomes] == [False]
            return
        answer = handle(document, Context())
        body = json.loads(answer["body"])
        assert answer["statusCode"] == (200 if row in TAKEN else 400)
        assert body["status"] == (row if row in TAKEN else "invalid")
        assert sorted(body) == ["key", "kind", "message", "status"]
        assert len(gate.store.dead_letters()) == letters + (row == "conflict" or row in REFUSED)

    def test_by_http(self, row: str, given: Callable[[], Given]) -> None:
        """An acknowledged event is 200, an event that is rejected for good is stored and 400, and everything else is
        503 with Retry-After."""
        gate, function, document = given()
        answer = gate.lambda_handler(function)(gateway(document), Context())
        body = json.loads(answer["body"])
        code = 200 if row in TAKEN else 400 if row in REFUSED else 503
        assert (answer["statusCode"], answer["isBase64Encoded"]) == (code, False)
        assert body["status"] == (row if row in TAKEN else code)
        assert ("retry-after" in answer["headers"]) == (code == 503)
        assert answer["headers"]["content-type"] == f"application/{'json' if code == 200 else 'problem+json'}"
        if row in REFUSED:
            assert len(gate.store.dead_letters()) == 1


@pytest.mark.parametrize(("method", "code"), [("POST", 503), ("GET", 405)])
def test_a_minimal_request(gate: Gate, handler: Handler, method: str, code: int) -> None:
    """A request with few members is answered as a request."""
    context = {"http": {"method": method}}
    body = json.dumps(envelope(1, fail=True))
    event = {"requestContext": context, "headers": {}, "body": body, "isBase64Encoded": False}
    assert gate.lambda_handler(handler)(event, Context())["statusCode"] == code


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_with_records(gate: Gate, handler: Handler) -> None:
    """An event with a request id and a list of records is not a Firehose batch, not even an empty one."""
    event = {"id": "e-1", "requestId": "r", "records": []}
    assert gate.lambda_handler(handler)(event, Context())["statusCode"] == 200
    assert missed(gate.lambda_handler(handler)({"Records": [message({**event, "id": "e-2"}, "m-1")]}, Context())) == []
    assert gate.counts["event.processed"] == 2


def test_several_records(gate: Gate, handler: Handler) -> None:
    """Each record that failed is reported, and no other."""
    records = [message(envelope(n, fail=n in (2, 3)), f"m-{n}") for n in range(1, 6)]
    assert missed(gate.lambda_handler(handler)({"Records": records}, Context())) == ["m-2", "m-3"]
    assert sorted(handler.seen) == [1, 2, 3, 4, 5]


def test_a_record_with_several_events(gate: Gate, handler: Handler) -> None:
    """A record is acknowledged if all its events are. After a redelivery, the events that were processed are
    duplicates."""
    record = message([envelope(1), envelope(2, fail=True), envelope(3)])
    assert missed(gate.lambda_handler(handler)({"Records": [record]}, Context())) == ["m-1"]
    assert handler.seen == [1, 2, 3]
    assert missed(gate.lambda_handler(handler)({"Records": [record]}, Context())) == ["m-1"]
    assert handler.seen == [1, 2, 3, 2]


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_record_without_an_id(gate: Gate, handler: Handler, name: Any) -> None:
    """If a failed record cannot be reported, the whole batch fails."""
    records = [message(envelope(1)), message(envelope(2, fail=True), name)]
    with pytest.raises(NotTaken, match="no id"):
        gate.lambda_handler(handler)({"Records": records}, Context())
    assert handler.seen == [1, 2]


def test_a_value_that_is_not_a_record(gate: Gate, handler: Handler) -> None:
    """A value among the records that is not a record cannot be reported, so the whole batch fails."""
    with pytest.raises(NotTaken, match="no id"):
        gate.lambda_handler(handler)({"Records": [message(envelope(1)), "nonsense"]}, Context())


def test_a_shard_stops_at_its_first_failure(gate: Gate, handler: Handler) -> None:
    """The first failed sequence number is reported, where the stream restarts. No later record has run."""
    records = [shard_record(envelope(n, fail=n in (2, 4)), f"s-{n}") for n in range(1, 6)]
    assert missed(gate.lambda_handler(handler)({"Records": records}, Context())) == ["s-2"]
    assert handler.seen == [1, 2]


def test_a_shard_continues_in_order(gate: Gate) -> None:
    """A failed record runs again before the records after it."""
    seen, failures = [], [2]

    def handle(event: Event) -> None:
        seen.append(event.body["number"])
        if seen[-1] in failures:
            failures.clear()
            raise ValueError

    records = [shard_record(envelope(n), f"s-{n}") for n in range(1, 5)]
    answer = gate.lambda_handler(handle)
    assert missed(answer({"Records": records}, Context())) == ["s-2"]
    assert answer({"Records": records[1:]}, Context()) == NOTHING_MISSED
    assert seen == [1, 2, 2, 3, 4]


def test_a_table_stream(gate: Gate) -> None:
    """A change of a DynamoDB table is an event, named by its sequence number, in the order of its shard."""
    seen = []

    def handle(event: Event) -> None:
        seen.append(event.body["dynamodb"]["SequenceNumber"])
        if seen[-1] == "t-2":
            raise ValueError

    records = [table_record(n, f"t-{n}") for n in range(1, 4)]
    assert missed(gate.lambda_handler(handle)({"Records": records}, Context())) == ["t-2"]
    assert seen == ["t-1", "t-2"]


def test_pipes_name_stream_records_by_their_event_id(gate: Gate, handler: Handler) -> None:
    """A pipe retries exactly the reported records, so the records after a failed one are reported, too."""
    records = [piped_shard_record(envelope(n, fail=n == 2), f"s-{n}") for n in range(1, 4)]
    names = [f"shardId-000000000000:s-{n}" for n in (2, 3)]
    assert missed(gate.lambda_handler(handler)(records, Context())) == names


def test_groups_of_a_standard_queue_imply_no_order(gate: Gate, handler: Handler) -> None:
    """Only a group of a FIFO queue stops at a failure."""
    standard = message({}, group=None)["eventSourceARN"]
    records = [message(envelope(n, fail=n == 1), f"m-{n}", "g", eventSourceARN=standard) for n in (1, 2)]
    assert missed(gate.lambda_handler(handler)({"Records": records}, Context())) == ["m-1"]


# ── Kafka and Amazon MQ ───────────────────────────────────────────────────────────────────────────────────


def test_kafka_partitions_stop_independently(gate: Gate, handler: Handler) -> None:
    """A partition stops at its first failure, whose offset is reported. The other partitions continue."""
    failing = {(0, 11), (0, 12), (2, 31)}
    places = [(0, 10), (0, 11), (0, 12), (1, 20), (1, 21), (2, 30), (2, 31), (2, 32)]
    records = [
        kafka_record(envelope(offset, fail=(partition, offset) in failing), offset, partition)
        for partition, offset in places
    ]
    answer = gate.lambda_handler(handler, report_failures=True)(kafka(*records), Context())
    assert missed(answer) == [{"partition": "calls-0", "offset": 11}, {"partition": "calls-2", "offset": 31}]
    assert sorted(handler.seen) == [10, 11, 20, 21, 30, 31]


def test_a_kafka_batch_that_is_delivered_again(gate: Gate, handler: Handler) -> None:
    """All records of a redelivered batch are duplicates, except for the failed one."""
    batch = kafka(kafka_record(envelope(1), 1), kafka_record(envelope(2), 2), kafka_record(envelope(3, fail=True), 3))
    handle = gate.lambda_handler(handler, report_failures=True)
    assert handle(batch, Context()) == handle(batch, Context())
    assert handler.seen == [1, 2, 3, 3]


def test_kafka_without_report(gate: Gate, handler: Handler) -> None:
    """Unless the mapping is known to read reports, a failed record fails the invocation. It would be lost otherwise."""
    batch = kafka(kafka_record(envelope(1), 1), kafka_record("no JSON", 2), kafka_record(envelope(3, fail=True), 3))
    with pytest.raises(NotTaken):
        gate.lambda_handler(handler)(batch, Context())
    assert (handler.seen, len(gate.store.dead_letters())) == ([1, 3], 1)


def test_a_kafka_record_without_offset(gate: Gate, handler: Handler) -> None:
    """A failed record without an offset cannot be reported, so the whole batch fails."""
    batch = kafka(kafka_record(envelope(1), 1), kafka_record(envelope(2, fail=True), offset=None))  # type: ignore[arg-type]
    with pytest.raises(NotTaken, match="no id"):
        gate.lambda_handler(handler, report_failures=True)(batch, Context())


def test_an_unreadable_kafka_record(gate: Gate, handler: Handler) -> None:
    """An unreadable record is reported as failed. A record without a value is not an event, and does not stop its
    partition."""
    batch = kafka(kafka_record(envelope(1), 1, value=None), kafka_record("no JSON", 2), kafka_record(envelope(3), 3))
    assert missed(gate.lambda_handler(handler, report_failures=True)(batch, Context())) == [
        {"partition": "calls-0", "offset": 2}
    ]
    assert (handler.seen, gate.counts["event.skipped"]) == ([], 1)


def test_kafka_by_a_pipe_stops_too(gate: Gate, handler: Handler) -> None:
    """A pipe has no report for Kafka: the partition stops, and the invocation fails."""
    records = [kafka_record(envelope(n, fail=n == 2), n) for n in (1, 2, 3)]
    with pytest.raises(NotTaken, match="2 of 3 events not taken"):
        gate.lambda_handler(handler)([{"eventSource": "aws:kafka", **record} for record in records], Context())
    assert handler.seen == [1, 2]


@pytest.mark.parametrize("batch", [active, rabbit])
class TestAmazonMq:
    def test_a_failure_fails_the_batch(self, batch: Callable[..., Any], gate: Gate, handler: Handler) -> None:
        """Amazon MQ has no report of failed records: the invocation fails, and completed events are duplicates the next
        time."""
        event = batch(envelope(1), envelope(2, fail=True), envelope(3))
        for _ in range(2):
            with pytest.raises(NotTaken, match="1 of 3 events not taken"):
                gate.lambda_handler(handler)(event, Context())
        assert handler.seen == [1, 2, 3, 2]
        assert gate.counts["event.duplicate"] == 2

    def test_an_unreadable_message(self, batch: Callable[..., Any], gate: Gate, handler: Handler) -> None:
        """An unreadable message would fail its batch for ever, so it is stored as a dead letter and acknowledged."""
        assert gate.lambda_handler(handler)(batch(envelope(1), "no JSON"), Context())["statusCode"] == 400
        assert (handler.seen, len(gate.store.dead_letters())) == ([1], 1)


def test_report_failures_off(gate: Gate, handler: Handler) -> None:
    """With report_failures=False a batch with a failed record fails as a whole, and a batch without one does not."""
    handle = gate.lambda_handler(handler, report_failures=False)
    good, bad = kafka_record(envelope(1), 1), kafka_record(envelope(2, fail=True), 2)
    for event in (kafka(good, bad), {"Records": [message(envelope(2, fail=True))]}):
        with pytest.raises(NotTaken, match=r"not taken|report_failures"):
            handle(event, Context())
    assert handle(kafka(good), Context())["statusCode"] == 200


# ── unknown sources ───────────────────────────────────────────────────────────────────────────────────────

LATTICE = {"method": "POST", "path": "/", "headers": {}, "body": "{}", "isBase64Encoded": False, "version": "2.0"}
FOREIGN: list[tuple[str, Any]] = [
    ("aws:s3", {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {}}]}),
    ("aws:ses", {"Records": [{"eventSource": "aws:ses", "ses": {}}]}),
    ("aws:docdb", {"eventSource": "aws:docdb", "eventSourceArn": "arn:x", "events": [{"event": {}}]}),
    ("aws:kafka", {"eventSource": "aws:kafka", "records": "elsewhere"}),
    ("aws:new", {"eventSource": "aws:new", "messages": []}),
    ("acme:bus", {"eventSource": "acme:bus", "eventSourceArn": "arn:x", "records": []}),
    ("aws:new", [{"eventSource": "aws:new", "data": "e30="}]),
    ("CloudFront", {"Records": [{"cf": {"request": {}}}]}),
    ("unknown Records", {"Records": [{"messageId": "chat-1", "body": "{hello}"}]}),
    ("unknown records", {"records": {"calls-0": [kafka_record({"a": 1})]}}),
    ("VPC Lattice", {**LATTICE, "requestContext": {"serviceNetworkArn": "arn:x", "targetGroupArn": "arn:y"}}),
    ("VPC Lattice", {"raw_path": "/", "method": "POST", "headers": {}, "body": "{}", "is_base64_encoded": False}),
    ("awslogs", {"awslogs": {"data": "H4sIAAAAAAAA"}}),
    ("Cognito", {"version": "1", "triggerSource": "PreSignUp_SignUp", "userPoolId": "p", "request": {}}),
    ("Lex", {"invocationSource": "FulfillmentCodeHook", "bot": {"name": "b"}, "sessionState": {}}),
    ("Amazon Connect", {"Name": "ContactFlowEvent", "Details": {"ContactData": {}, "Parameters": {}}}),
    ("Alexa", {"version": "1.0", "context": {"System": {}}, "request": {"type": "LaunchRequest"}}),
    ("authorizer", {"type": "TOKEN", "methodArn": "arn:x", "authorizationToken": "t"}),
    ("authorizer", {"type": "REQUEST", "routeArn": "arn:x", "requestContext": {"http": {}}, "rawPath": "/"}),
    ("AppSync", {"arguments": {}, "identity": None, "info": {"fieldName": "f"}}),
    ("CloudFormation", {"RequestType": "Create", "ResponseURL": "https://x", "StackId": "arn:x"}),
    ("AWS Config", {"invokingEvent": "{}", "resultToken": "t"}),
    ("Secrets Manager", {"Step": "createSecret", "SecretId": "s", "ClientRequestToken": "t"}),
]


@pytest.mark.parametrize(("source", "event"), FOREIGN, ids=[name for name, _ in FOREIGN])
class TestUnknownSources:
    def test_rejected(self, source: str, event: Any, gate: Gate, handler: Handler) -> None:
        """An invocation of an AWS service that no carrier reads is rejected with its name. Nothing runs and nothing is
        stored."""
        with pytest.raises(UnknownSource, match=source) as raised:
            gate.lambda_handler(handler)(event, Context())
        assert "allow_unknown_sources" in str(raised.value)
        assert (handler.seen, gate.store.browse()) == ([], [])

    def test_allowed(self, source: str, event: Any, gate: Gate) -> None:
        """With allow_unknown_sources the invocation is read as a plain event."""
        gate.lambda_handler(nothing, allow_unknown_sources=True)(event, Context())
        assert len(gate.store.browse()) == 1


@pytest.mark.parametrize(
    "event",
    [
        {"id": 1, "Records": [1, 2]},
        {"id": 1, "records": {"a": [1]}},
        {"eventSource": "crm", "type": "call.ended"},
        {"records": {"a": 1}},
        {"request": {"type": "x"}, "context": {"user": 1}},
        {"triggerSource": "me"},
        envelope(1, eventSource="aws:s3", awslogs={"data": "x"}),
        table_record(1),
    ],
)
def test_events_of_users(event: Any, gate: Gate, handler: Handler) -> None:
    """An event of a user is not mistaken for an invocation of an AWS service because of one or two names."""
    assert gate.lambda_handler(handler)(event, Context())["statusCode"] == 200
    assert len(handler.seen) == 1


@pytest.mark.parametrize("option", ["allow_unknown_sources", "report_failures"])
def test_boolean_options(gate: Gate, option: str) -> None:
    """Any other value is rejected when the handler is created."""
    with pytest.raises(SettingError, match=f"{option}='no' must be True(, False)? or (False|None)"):
        gate.lambda_handler(nothing, **{option: "no"})  # type: ignore[arg-type]


# ── Firehose ──────────────────────────────────────────────────────────────────────────────────────────────


def test_firehose_records_are_unchanged(gate: Gate, handler: Handler) -> None:
    """Each record has its result, in order and with its own data. Duplicates are not dropped."""
    event = firehose(envelope(1), envelope(2, fail=True), envelope(1), "no JSON")
    answer = gate.lambda_handler(handler)(event, Context())
    assert [record["result"] for record in answer["records"]] == ["Ok", "ProcessingFailed", "Ok", "ProcessingFailed"]
    for sent, returned in zip(event["records"], answer["records"], strict=True):
        assert (sent["recordId"], sent["data"]) == (returned["recordId"], returned["data"])


def test_a_firehose_record_without_an_id(gate: Gate, handler: Handler) -> None:
    """Firehose would reject the answer, so the invocation fails."""
    event = firehose(envelope(1), [])
    del event["records"][1]["recordId"]
    with pytest.raises(NotTaken, match="no id"):
        gate.lambda_handler(handler)(event, Context())


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrap", [gateway, function_url])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods(gate: Gate, wrap: Callable[[Any, str], Any], method: str) -> None:
    """Other methods than POST are answered with 405. Nothing runs and nothing is stored."""
    answer = gate.lambda_handler(boom)(wrap(None, method), Context())
    assert (answer["statusCode"], answer["headers"]["allow"]) == (405, "POST")
    assert gate.store.browse() == []


def test_a_health_check(gate: Gate) -> None:
    """The answer to the health check of a load balancer names it. Nothing runs and nothing is stored."""
    check = {**gateway(None, "GET"), "headers": {"user-agent": "ELB-HealthChecker/2.0"}}
    answer = gate.lambda_handler(boom)(check, Context())
    assert (answer["statusCode"], gate.store.browse()) == (405, [])
    assert "ELB-HealthChecker" in answer["body"]


@pytest.mark.parametrize("wrap", [gateway, function_url])
@pytest.mark.parametrize("document", [None, "", [], {}, [{}], {**envelope(), "detail": {}}])
def test_a_request_without_an_event(gate: Gate, wrap: Callable[[Any], Any], document: Any) -> None:
    """A request without a body or with an empty event is 400, in every format."""
    assert gate.lambda_handler(boom)(wrap(document), Context())["statusCode"] == 400


def test_answers_contain_no_exceptions(gate: Gate, handler: Handler) -> None:
    """The answer has neither the name of an exception nor its text. The record has both."""
    answer = gate.lambda_handler(handler)(function_url(envelope(1, fail=True)), Context())
    assert "The event could not be processed now; deliver it again." in answer["body"]
    assert "ValueError" not in answer["body"]
    assert "secret" not in answer["body"]
    assert "secret" in str(gate.store.browse()[0].record.error)


def test_a_request_with_several_events(gate: Gate, handler: Handler) -> None:
    """All events run, and the worst outcome decides the status."""
    answer = gate.lambda_handler(handler)(gateway([envelope(1), envelope(2, fail=True), envelope(3)]), Context())
    assert answer["statusCode"] == 503
    assert [each["status"] for each in json.loads(answer["body"])["outcomes"]] == ["processed", "failed", "processed"]


@pytest.mark.parametrize("kind", ["CONNECT", "DISCONNECT"])
def test_a_websocket_that_opens_or_ends(gate: Gate, kind: str) -> None:
    """It is answered with 200, so that the connection is made. Nothing runs and nothing is stored."""
    context = {"eventType": kind, "connectionId": "c="}
    answer = gate.lambda_handler(boom)({"requestContext": context, "isBase64Encoded": False}, Context())
    assert (answer["statusCode"], gate.store.browse()) == (200, [])


# ── several events directly ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrap",
    [list, lambda found: {"Records": [notification(each) for each in found]}, destination],
    ids=["an array of envelopes", "SNS", "a destination"],
)
class TestSeveral:
    def test_all_run_before_the_invocation_fails(self, wrap: Any, gate: Gate, handler: Handler) -> None:
        """A failure does not prevent the other events from running. The next time they are duplicates."""
        event = wrap([envelope(1, fail=True), envelope(2), envelope(3)])
        with pytest.raises(NotTaken, match="1 of 3 events not taken"):
            gate.lambda_handler(handler)(event, Context())
        with pytest.raises(NotTaken, match="1 of 3 events not taken"):
            gate.lambda_handler(handler)(event, Context())
        assert handler.seen == [1, 2, 3, 1]

    def test_each_is_reported(self, wrap: Any, gate: Gate, handler: Handler) -> None:
        """The result has the outcome of each event. A value that is not an event is stored as a dead letter, and the
        status is 400."""
        good = gate.lambda_handler(handler)(wrap([envelope(1), envelope(2)]), Context())
        assert good["statusCode"] == 200
        bad = gate.lambda_handler(handler)(wrap([envelope(1), "no JSON"]), Context())
        assert bad["statusCode"] == 400
        assert [each["status"] for each in json.loads(bad["body"])["outcomes"]] == ["duplicate", "invalid"]
        assert len(gate.store.dead_letters()) == 1


def test_no_event(gate: Gate) -> None:
    """An invocation without events succeeds."""
    empty: list[Any] = [[], {"Records": []}]
    for event in empty:
        assert gate.lambda_handler(boom)(event, Context())["statusCode"] == 200


@pytest.mark.parametrize(
    "event", [None, 7, True, "", "no JSON", [[1]], {1}, float("nan"), {}, [{}], envelope() | {"detail": {}}]
)
def test_not_an_event(store: MemoryStore, event: Any) -> None:
    """A value that is not an event is stored as a dead letter before the 400, once for all deliveries."""
    handle = Gate(store).lambda_handler(boom)
    assert [handle(event, Context())["statusCode"] for _ in range(2)] == [400, 400]
    assert len(store.dead_letters()) == 1


def test_not_an_event_while_the_store_is_away(stumbling: Stumbling) -> None:
    """If the dead letter cannot be stored, the invocation fails."""
    stumbling.failures = {"claim": 99}
    with pytest.raises(NotTaken, match="no copy could be stored"):
        Gate(stumbling).lambda_handler(boom)("no JSON", Context())

"""Carriers: one event in every carrier, the evidence of its arrival, and limits."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from oncegate import keys, read
from oncegate.carriers import deliveries
from oncegate.errors import TooManyEvents
from oncegate.events import Evidence

EVENT = {"id": "evt-1", "type": "call.ended", "n": 1}
TEXT = json.dumps(EVENT)
SENT = datetime(2026, 2, 3, 4, 5, 6, 123000, tzinfo=UTC)


def sqs(body: Any, **more: Any) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": "3", "SentTimestamp": "1770091506123", "MessageGroupId": "g"}
    return {
        "messageId": "m-1",
        "receiptHandle": "r",
        "body": body,
        "attributes": attributes,
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        **more,
    }


def sns(message: str) -> dict[str, Any]:
    return {
        "Type": "Notification",
        "MessageId": "n-1",
        "TopicArn": "arn:aws:sns:x:1:t",
        "Message": message,
        "Timestamp": "2026-02-03T04:05:06.123Z",
    }


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def kinesis(*texts: str) -> dict[str, Any]:
    data = encoded("".join(texts))
    record = {"data": data, "sequenceNumber": "s-1", "approximateArrivalTimestamp": 1770091506.123}
    return {"eventSource": "aws:kinesis", "eventID": "shard:s-1", "kinesis": record}


def firehose(*texts: str) -> dict[str, Any]:
    data = encoded("".join(texts))
    record = {"recordId": "f-1", "approximateArrivalTimestamp": 1770091506123, "data": data}
    return {"invocationId": "i", "deliveryStreamArn": "arn:d", "records": [record]}


def binary_kinesis(data: bytes) -> dict[str, Any]:
    return {"eventSource": "aws:kinesis", "kinesis": {"data": base64.b64encode(data).decode(), "sequenceNumber": "s"}}


def binary_firehose(data: bytes) -> dict[str, Any]:
    return {"invocationId": "i", "records": [{"recordId": "f-1", "data": base64.b64encode(data).decode()}]}


def gateway(body: str | None, **more: Any) -> dict[str, Any]:
    return {
        "httpMethod": "POST",
        "path": "/",
        "headers": {},
        "isBase64Encoded": False,
        "requestContext": {"requestId": "q-1"},
        "body": body,
        **more,
    }


def function_url(body: str, between: str = "") -> dict[str, Any]:
    context = {"http": {"method": "POST"}, "requestId": "q-1"}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "headers": {"content-type": "application/json"},
        "requestContext": context,
        "body": encoded(body)[:20] + between + encoded(body)[20:],
        "isBase64Encoded": True,
    }


def failed(payload: Any) -> dict[str, Any]:
    context = {"requestId": "q-1", "condition": "RetriesExhausted", "approximateInvokeCount": 3}
    return {
        "version": "1.0",
        "timestamp": "2026-02-03T04:05:06.123Z",
        "requestContext": context,
        "requestPayload": payload,
        "responsePayload": {"errorMessage": "boom"},
    }


def kafka(**more: Any) -> dict[str, Any]:
    record = {"topic": "calls", "partition": 0, "offset": 15, "timestamp": 1770091506123, "key": encoded("conv-1")}
    return {"eventSource": "aws:kafka", "records": {"calls-0": [{**record, "value": encoded(TEXT), **more}]}}


def active(**more: Any) -> dict[str, Any]:
    message = {"messageID": "ID:1", "redelivered": False, "timestamp": 1770091506123, "data": encoded(TEXT), **more}
    return {"eventSource": "aws:mq", "messages": [message]}


def rabbit(headers: Any = None, **more: Any) -> dict[str, Any]:
    properties = {"messageId": "r-1", "timestamp": "Feb 3, 2026, 4:05:06 AM", "headers": headers}
    message = {"basicProperties": properties, "redelivered": False, "data": encoded(TEXT), **more}
    return {"eventSource": "aws:rmq", "rmqMessagesByQueue": {"calls::/": [message]}}


NAMED = Evidence(message_id="m-1")
LOGGED = Evidence(message_id="calls-0-15", sent_at=SENT, group="conv-1")
ARRIVED = Evidence(message_id="m-1", receive_count=3, sent_at=SENT, group="g")
STREAMED = Evidence(message_id="s-1", sent_at=SENT)
NOTIFIED = Evidence(message_id="n-1", sent_at=SENT)
ASKED = Evidence(request_id="q-1")
FAILED = Evidence(receive_count=3, sent_at=SENT, request_id="q-1", failure="RetriesExhausted: boom")
FAILED_IN_QUEUE = Evidence("m-1", 3, SENT, "q-1", None, FAILED.failure, "g")
BOTO3 = {"MessageId": "m-1", "ReceiptHandle": "r", "Body": TEXT, "Attributes": sqs("")["attributes"]}

CARRIED: list[tuple[str, Any, Evidence]] = [
    ("bytes", TEXT.encode(), Evidence()),
    ("text in text", json.dumps(TEXT), Evidence()),
    ("an array", [EVENT], Evidence()),
    ("an array of texts", [TEXT], Evidence()),
    ("SQS by Lambda", {"Records": [sqs(TEXT)]}, ARRIVED),
    ("SQS by EventBridge Pipes", [sqs(TEXT)], ARRIVED),
    ("one SQS record alone", sqs(TEXT), ARRIVED),
    ("SQS with a parsed body", {"Records": [sqs(EVENT)]}, ARRIVED),
    ("SQS by boto3", {"Messages": [BOTO3], "ResponseMetadata": {}}, ARRIVED),
    ("SNS by Lambda", {"Records": [{"EventSource": "aws:sns", "Sns": sns(TEXT)}]}, NOTIFIED),
    ("SNS by HTTP", json.dumps(sns(TEXT)), NOTIFIED),
    ("SNS in SQS", {"Records": [sqs(json.dumps(sns(TEXT)))]}, ARRIVED),
    ("an array in SQS", {"Records": [sqs(json.dumps([EVENT]))]}, ARRIVED),
    ("text in text in SQS", {"Records": [sqs(json.dumps(TEXT))]}, ARRIVED),
    ("Kinesis by Lambda", {"Records": [kinesis(TEXT)]}, STREAMED),
    ("Kinesis by Pipes", [{**kinesis(TEXT)["kinesis"], "eventSource": "aws:kinesis"}], STREAMED),
    ("Kinesis by boto3", {"Records": [{"Data": TEXT.encode(), "SequenceNumber": "s-1"}]}, Evidence(message_id="s-1")),
    ("Firehose", firehose(TEXT), Evidence(message_id="f-1", sent_at=SENT)),
    ("SNS in Firehose", firehose(json.dumps(sns(TEXT))), Evidence(message_id="f-1", sent_at=SENT)),
    ("Kafka", kafka(), LOGGED),
    ("self-managed Kafka", {**kafka(), "eventSource": "SelfManagedKafka"}, LOGGED),
    ("Kafka by Pipes", [{"eventSource": "aws:kafka", **kafka()["records"]["calls-0"][0]}], LOGGED),
    ("ActiveMQ", active(), Evidence("ID:1", 1, SENT)),
    ("ActiveMQ, redelivered", active(redelivered=True), Evidence("ID:1", 2, SENT)),
    ("ActiveMQ by Pipes", [{"eventSource": "aws:amq", **active()["messages"][0]}], Evidence("ID:1", 1, SENT)),
    ("RabbitMQ", rabbit(), Evidence("r-1", 1)),
    ("RabbitMQ, fourth delivery", rabbit({"x-delivery-count": 3}, redelivered=True), Evidence("r-1", 4)),
    ("SNS in Kafka", kafka(value=encoded(json.dumps(sns(TEXT)))), LOGGED),
    ("API Gateway", gateway(TEXT), ASKED),
    ("a function URL, in base64", function_url(TEXT), ASKED),
    ("base64 in lines, by a template", {**function_url(TEXT, "\r\n"), "isBase64Encoded": "true"}, ASKED),
    ("SNS through API Gateway", gateway(json.dumps(sns(TEXT))), Evidence("n-1", None, SENT, "q-1")),
    ("a failure destination", failed(EVENT), FAILED),
    (
        "a failed SQS batch",
        failed({"Records": [sqs(TEXT)]}),
        FAILED_IN_QUEUE,
    ),
    ("a failure on a bus", {"detail-type": "Lambda", "source": "lambda", "detail": failed(EVENT)}, FAILED),
    ("a failure in SQS", [sqs(json.dumps(failed(EVENT)))], FAILED_IN_QUEUE),
    ("SQS by Lambda, minimal", {"Records": [{"messageId": "m-1", "body": TEXT}]}, NAMED),
    ("SQS by Pipes, minimal", [{"messageId": "m-1", "body": TEXT}], NAMED),
    ("SQS by boto3, minimal", {"Messages": [{"MessageId": "m-1", "Body": TEXT}]}, NAMED),
    ("SNS, minimal", {"Type": "Notification", "MessageId": "m-1", "Message": TEXT}, NAMED),
    ("Firehose, minimal", {"records": [{"recordId": "m-1", "data": encoded(TEXT)}]}, NAMED),
    (
        "a destination, minimal",
        {"version": "1.0", "requestPayload": EVENT, "responsePayload": {"errorMessage": "boom"}},
        Evidence(failure="boom"),
    ),
]


@pytest.mark.parametrize(("payload", "evidence"), [case[1:] for case in CARRIED], ids=[case[0] for case in CARRIED])
def test_one_event_in_every_carrier(payload: Any, evidence: Evidence) -> None:
    """The event has the same key and content in every carrier. Only the evidence differs."""
    (event,) = read(payload)
    (bare,) = read(EVENT)
    assert event.problem is None
    assert event.body == EVENT
    assert (keys.auto(event), keys.content_hash(event)) == (keys.auto(bare), keys.content_hash(bare))
    assert event.evidence == evidence
    assert json.loads(event.raw) == EVENT


@pytest.mark.parametrize("wrap", [kinesis, firehose])
@pytest.mark.parametrize("between", ["", "\n", " \r\n\t"])
def test_several_objects_in_a_stream_record(wrap: Callable[..., Any], between: str) -> None:
    """A stream record may contain several objects, with or without separators."""
    tricky = json.dumps({"id": "}{", "q": '\\"}'})
    events = read(wrap(between.join([TEXT, tricky, TEXT])))
    assert [event.id for event in events] == ["evt-1", "}{", "evt-1"]


def test_a_broken_object_in_a_stream_record() -> None:
    """A broken object in a record is an event with a problem, and the other objects are read."""
    events = read(kinesis(TEXT, "{oops}", TEXT, "}", TEXT, '{"cut": '))
    assert [event.problem is None for event in events] == [True, False, True, False, True, False]
    assert [event.raw for event in events if event.problem] == [b"{oops}", b"}", b'{"cut":']


@pytest.mark.parametrize("wrap", [binary_kinesis, binary_firehose])
@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x01}\n\x12]\n{}\n[]",
        b"{\x00}\n{\x01}",
        b"\xff{}\n{}",
        b'{"a": "\xff"}\n{"b": 1}',
        b"Obj\x01{}\n{}\n",
        b"log [INFO] one\nlog [WARN] two\n",
    ],
)
def test_a_record_that_is_not_json(wrap: Callable[[bytes], Any], data: bytes) -> None:
    """Binary data, and text that does not begin like JSON, is one event with a problem and all the bytes, even if the
    data contains brackets or newlines."""
    (event,) = read(wrap(data))
    assert event.problem is not None
    assert event.raw == data


def test_an_endless_string() -> None:
    """A string of a megabyte without an end takes linear time."""
    start = time.perf_counter()
    (event,) = read(kinesis('{"' + '\\"' * 500_000))
    assert event.problem is not None
    assert time.perf_counter() - start < 5


def test_an_empty_record() -> None:
    """A record without data does not affect the records next to it."""
    batch = {**firehose(TEXT), "records": [*firehose(TEXT)["records"], {"recordId": "f-2"}]}
    assert [found.problem is None for found in read(batch)] == [True, False]


def test_broken_records() -> None:
    """In a batch each broken record is one event with a problem, its evidence and its bytes. The others are read."""
    broken = [sqs("{"), sqs(None), sqs("5"), 7, kinesis(), {"eventSource": "aws:kinesis", "data": "*"}, sqs("[[1]]")]
    events = read({"Records": [sqs(TEXT), *broken, sqs(TEXT)]})
    assert [event.problem is None for event in events] == [True, *[False] * len(broken), True]
    assert all(event.raw for event in events if event is not events[5])
    assert [event.evidence.message_id for event in events[:4]] == ["m-1"] * 4


def test_dead_letter_of_a_rule() -> None:
    """The evidence of a message in the dead-letter queue of a rule has the reason."""
    reasons = {"ERROR_CODE": {"stringValue": "SDK_CLIENT_ERROR"}, "ERROR_MESSAGE": {"stringValue": "timeout"}}
    (event,) = read([sqs(TEXT, messageAttributes=reasons)])
    assert event.evidence.failure == "SDK_CLIENT_ERROR: timeout"


REASON = list(b"\xc3\xbcber")


@pytest.mark.parametrize(
    "payload",
    [
        kafka(headers=[{"trace": [1]}, {"kafka_dlt-exception-message": REASON}]),
        kafka(
            headers=[{"__connect.errors.exception.message": [byte - 256 if byte > 127 else byte for byte in REASON]}]
        ),
        rabbit({"x-first-death-reason": {"bytes": REASON}}),
        rabbit({"x-first-death-reason": "über"}),
        active(properties={"dlqDeliveryFailureCause": "über"}),
    ],
)
def test_dead_letters_of_a_broker(payload: Any) -> None:
    """The evidence of a record in a dead-letter topic or queue has the reason. Headers are not part of a key."""
    (event,), (bare,) = read(payload), read(EVENT)
    assert event.evidence.failure == "über"
    assert keys.auto(event) == keys.auto(bare)


def test_broken_records_of_a_broker() -> None:
    """Each broken record is an event with a problem. A Kafka record that deletes its key is not an event."""
    batch = kafka()
    batch["records"] = {"calls-0": [{"value": "*"}, 7, *batch["records"]["calls-0"]], "calls-1": "nothing"}
    assert [event.problem is None for event in read(batch)] == [False, False, True, False]
    (deleted,) = read(kafka(value=None))
    assert "without a value" in str(deleted.frame)
    assert "is missing or not a string" in str(read(active(data=None))[0].problem)


@pytest.mark.parametrize("key", ["*", encoded("k")[:3], base64.b64encode(b"\xff").decode(), None, 5, ""])
def test_kafka_keys_that_are_not_text(key: Any) -> None:
    """A key that is not text stays base64 or is left out, and the event is the same."""
    (event,) = read(kafka(key=key))
    assert (event.body, event.evidence.group) == (EVENT, key if isinstance(key, str) and key else None)


def test_dynamodb_streams() -> None:
    """Each record of a DynamoDB stream is an event, in a batch or alone."""
    records = [
        {"eventID": name, "eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": name}}
        for name in ("1", "2", "3")
    ]
    events = read({"Records": records})
    assert [event.body for event in events] == records
    assert len({str(keys.auto(event)) for event in events}) == 3
    assert [keys.auto(event) for event in events] == [keys.auto(read(record)[0]) for record in records]


@pytest.mark.parametrize("kind", ["CONNECT", "DISCONNECT"])
@pytest.mark.parametrize("body", [{}, {"body": None}, {"body": ""}])
def test_websocket_connections(kind: str, body: dict[str, Any]) -> None:
    """The opening or end of a connection is not an event. A message over the connection is."""
    context = {"routeKey": "$connect", "eventType": kind, "connectionId": "c=", "requestId": "q-1"}
    event = {"headers": {}, "requestContext": context, "isBase64Encoded": False, **body}
    (frame,) = read(event)
    assert (frame.problem, frame.evidence) == (None, ASKED)
    assert kind in str(frame.frame)
    (message,) = read({**event, "requestContext": {**context, "eventType": "MESSAGE"}, "body": TEXT})
    assert (message.frame, message.body) == (None, EVENT)


def test_replays() -> None:
    """The evidence of a replayed event has the name of the replay. The key is the same."""
    envelope = {"id": "e", "source": "shop", "detail-type": "Sold", "detail": {"a": 1}}
    (first,), (again,) = read(envelope), read({**envelope, "replay-name": "backfill"})
    assert (first.evidence.replay, again.evidence.replay) == (None, "backfill")
    assert keys.auto(first) == keys.auto(again)


def test_an_array_of_envelopes() -> None:
    """A bus that delivers batches sends an array of envelopes, directly or through a queue."""
    envelopes = [{"id": str(n), "source": "shop", "detail-type": "Sold", "detail": {"n": n}} for n in range(3)]
    assert [event.id for event in read(envelopes)] == ["0", "1", "2"]
    assert [event.id for event in read([sqs(json.dumps(envelopes))])] == ["0", "1", "2"]


def test_headers_in_any_case() -> None:
    """The attributes of a CloudEvent through API Gateway are headers, whose case differs between its versions."""
    headers = {"CE-Id": "c", "ce-source": "s"}
    several = {"ce-specversion": ["1.0"], "ce-type": ["t"]}
    (event,) = read(gateway('{"a":1}', headers=headers, multiValueHeaders=several))
    assert (event.source, event.id, event.type, event.body) == ("cloudevents", "c", "t", {"a": 1})


BODILESS = {"version": "2.0", "routeKey": "POST /x", "rawPath": "/x", "requestContext": {"requestId": "r"}}


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (gateway(None), "the request has no body"),
        (BODILESS, "the request has no body"),
        ([{"messageId": "m", "receiptHandle": "r", "body": json.dumps(BODILESS)}], "the request has no body"),
        (gateway("*", isBase64Encoded=True), "not base64"),
        (gateway("hello"), "not JSON"),
        ({"Records": [{"Sns": {"Type": "Notification"}}]}, "has no message"),
        ([["nested"]], "a JSON object, not an array"),
        ('"just text"', "a JSON object, not a string"),
    ],
)
def test_problems(payload: Any, problem: str) -> None:
    """The problem of an unreadable payload is a sentence."""
    (event,) = read(payload)
    assert event.problem is not None
    assert problem in event.problem


@pytest.mark.parametrize(
    "payload",
    [
        *({"Records": []}, {"Messages": [], "ResponseMetadata": {}}, {"ResponseMetadata": {}}, []),
        *({"events": [], "sessionId": "s"}, {"events": []}, {"records": [], "requestId": "r"}),
        {"events": [], "sessionId": None, "resultSet": {}},
    ],
)
def test_no_events(payload: Any) -> None:
    """A poll or a batch without records contains no event."""
    assert read(payload) == []


@pytest.mark.parametrize(
    "body",
    [
        {"body": "hello", "messageId": "chat-1"},
        {"body": "[smiles]", "messageId": "chat-1"},
        {"body": TEXT, "messageId": "chat-1", "sender": "s"},
        {"Body": TEXT, "MessageId": "chat-1", "id": 1},
        {"Records": [{"messageId": "chat-1", "body": "{hello}"}]},
        {"Subject": "note", "MessageId": "n", "Message": TEXT},
        {"Message": TEXT, "MessageId": "n", "Type": "Notification", "id": 1},
        {"Message": "hello", "MessageId": "n", "Type": "Notification"},
        {"requestPayload": EVENT, "responsePayload": {}, "id": 1},
        {"requestPayload": EVENT},
        {"records": [{"recordId": "1", "data": "hello"}]},
        {"records": [{"recordId": "1", "data": encoded(TEXT), "id": 1}]},
        {"records": [{"recordId": "1", "data": encoded(TEXT)}], "id": 1},
        {"Records": [{"eventSource": "aws:s3"}]},
        {"eventSource": "aws:kafka", "a": 1},
        {"eventSource": ["aws:kafka"], "records": {}},
        {"records": {"calls-0": [{"topic": "calls", "value": encoded(TEXT)}]}},
        {"events": [{"eventType": "x"}]},
        {"events": [{"Type": "x"}], "id": 1},
        {"detail": "short", "id": 1},
        {"detail": {"a": 1}, "id": 1},
        {"headers": {}, "body": "letter"},
        {"data": "x", "records": [1]},
        {"requestId": "r", "records": [], "id": 1},
        {"requestId": "r", "records": [], "eventId": 1},
        {"invocationId": "r", "records": [{"a": 1}]},
        {"requestId": "r", "records": [{"data": encoded(TEXT)}, {"a": 1}], "id": 1},
        {"kinesis": {"stream": "s"}, "id": 1},
        {"Data": "hello", "SequenceNumber": 5, "id": 1},
        {"Sns": {"topic": "x"}, "id": 1},
        {"receiptHandle": "r", "id": 1},
        {"ReceiptHandle": "r", "id": 1},
        {"requestContext": {"requestId": "r"}, "httpMethod": "POST", "id": 1},
        {"requestContext": {"requestId": "r"}, "isBase64Encoded": False},
    ],
)
def test_events_that_look_like_a_carrier(body: dict[str, Any]) -> None:
    """An event of a user with a member of a carrier is not unwrapped."""
    (event,) = read(body)
    assert (event.source, event.body, event.problem) == ("plain", body, None)


def test_polled_events() -> None:
    """Events polled from the ACD arrive as a list."""
    events = read({"sessionId": "s", "events": [{"Type": "AgentState", "AgentId": 1}, {"Type": "X", "ContactID": 2}]})
    assert [(event.source, event.entity) for event in events] == [("cxone", "1"), ("cxone", "2")]


@pytest.mark.parametrize(
    "item", [{"Type": "AgentLeg", "AgentLegID": "3"}, {"Type": "Mute", "FinalState": "False"}, {"Type": "X", "Id": "1"}]
)
def test_minimal_polled_events(item: dict[str, Any]) -> None:
    """A minimal ACD event is recognised by the list of the poll, and its raw bytes are recognised again."""
    (event,) = read({"sessionId": "s", "events": [item]})
    assert (event.source, event.type, event.body) == ("cxone", item["Type"], item)
    (again,) = read(event.raw)
    assert (again.source, again.type, keys.auto(again)) == (event.source, event.type, keys.auto(event))


def test_a_list_of_events_with_ids() -> None:
    """Items with ids are identified by these ids, although they have a `Type` and are in a list `events`."""
    assert [event.id for event in read({"events": [{"Type": "x", "id": 1}, {"Type": "x", "id": 2}]})] == ["1", "2"]


def test_depth_limit() -> None:
    """Eight nested carriers are unwrapped. One more is a problem."""
    payload: Any = EVENT
    for _ in range(8):
        payload = failed(payload)
    assert [event.id for event in read(payload)] == ["evt-1"]
    (event,) = read(failed(payload))
    assert event.problem == "the event is nested in more than 8 carriers"


def test_depth_limit_of_text() -> None:
    """Nested JSON strings have the same limit."""
    payload = TEXT
    for _ in range(12):
        payload = json.dumps(payload)
    (event,) = read(payload)
    assert event.problem == "the event is nested in more than 8 carriers"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda texts: [json.loads(text) for text in texts],
        lambda texts: texts,
        lambda texts: {"Records": [sqs(text) for text in texts]},
        lambda texts: sqs(sns("[" + ",".join(texts) + "]")),
        lambda texts: kinesis(*texts),
        lambda texts: {**firehose(), "records": [firehose(text)["records"][0] for text in texts]},
        lambda texts: {"Records": [sqs(json.dumps(texts[:2])), sqs(json.dumps(texts[2:]))]},
    ],
    ids=["objects", "texts", "messages", "array in a message", "stream record", "records", "arrays in messages"],
)
def test_event_limit(wrap: Callable[[list[str]], Any]) -> None:
    """In every carrier as many events as the limit are read, and one more is rejected."""
    texts = [json.dumps({**EVENT, "id": number}) for number in range(5)]
    assert [event.id for event in read(wrap(texts), most=5)] == ["0", "1", "2", "3", "4"]
    with pytest.raises(TooManyEvents, match="more events than the limit of 4; send fewer events in one payload"):
        read(wrap(texts), most=4)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * 400_000 + b"1]",
        b'{"requestId": 1, "records": [' + b'{"data":1},' * 250_000 + b'{"data":1}]}',
        b'{"Records": [' + b"{}," * 250_000 + b'{"receiptHandle": 1}]}',
        json.dumps(kinesis("{}" * 300_000)).encode(),
        json.dumps([json.dumps(["[]"] * 100)] * 900).encode(),
    ],
    ids=["array", "firehose", "messages", "stream record", "arrays of nothing"],
)
def test_far_too_many_events(body: bytes) -> None:
    """A payload far above the limit is rejected without unwrapping each piece, even if the pieces are empty."""
    began = time.process_time()
    with pytest.raises(TooManyEvents):
        read(body, most=1_000)
    assert time.process_time() - began < 0.5


HANDED = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (sqs(TEXT) | {"messageAttributes": {"oncegate-key": {"stringValue": HANDED}}}, HANDED),
        (BOTO3 | {"MessageAttributes": {"oncegate-key": {"StringValue": HANDED}}}, HANDED),
        (EVENT | {"oncegate-key": HANDED}, HANDED),
        (sqs(json.dumps(EVENT | {"oncegate-key": HANDED})), HANDED),
        ({"detail-type": "x", "source": "y", "resources": ["arn:z", f"oncegate:{HANDED}"], "detail": EVENT}, HANDED),
        ({"detail-type": "x", "source": "y", "detail": EVENT | {"oncegate-key": HANDED}}, HANDED),
        (sqs(TEXT) | {"messageAttributes": {"oncegate-key": {"stringValue": "none"}}}, None),
        (sqs(TEXT) | {"messageAttributes": {"oncegate-key": 5}}, None),
        ({"detail-type": "x", "source": "y", "resources": [f"oncegate:{HANDED}0", 5], "detail": EVENT}, None),
        ({"detail-type": "x", "source": "y", "resources": HANDED, "detail": EVENT}, None),
    ],
)
def test_the_key_of_a_publisher(payload: Any, key: str | None) -> None:
    """The key of a publisher is evidence wherever it is found, and not part of the body."""
    (found,) = deliveries(payload)
    assert (found.evidence.handed_key, found.body) == (key, EVENT)


def test_a_member_that_is_not_the_key_of_a_publisher() -> None:
    """A member of that name without a valid key is an ordinary member."""
    (found,) = deliveries(EVENT | {"oncegate-key": "mine"})
    assert (found.evidence.handed_key, found.body) == (None, EVENT | {"oncegate-key": "mine"})

"""Events with which Lambda functions are invoked, a context, and handlers."""

import base64
import json
from typing import Any

from oncegate import Event
from oncegate.testing import ManualClock

_QUEUE = "arn:aws:sqs:us-east-1:123456789012:events"


class Context:
    """Lambda's context. With a clock, the time left decreases as that clock advances."""

    def __init__(self, milliseconds: int = 60_000, clock: ManualClock | None = None, request_id: str = "req-1") -> None:
        self.aws_request_id = request_id
        self._clock = clock or ManualClock()
        self._end = self._clock() + milliseconds * 1_000

    def get_remaining_time_in_millis(self) -> int:
        return (self._end - self._clock()) // 1_000


def envelope(number: int = 1, detail_type: str = "Order Placed", **detail: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "detail-type": detail_type,
        "source": "com.example.shop",
        "account": "123456789012",
        "time": "2026-02-03T04:05:06Z",
        "region": "us-east-1",
        "resources": [],
        "detail": {"number": number, **detail},
    }


def _text(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document)


def _base64(document: Any) -> str:
    return base64.b64encode(_text(document).encode()).decode()


def message(document: Any, name: str = "m-1", group: str | None = None, **more: Any) -> dict[str, Any]:
    """An SQS record; with a group, of a FIFO queue."""
    attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": "1770091506123", "SenderId": "AIDA"}
    if group is not None:
        attributes |= {"MessageGroupId": group, "SequenceNumber": "18849496460467696128"}
    return {
        "messageId": name,
        "receiptHandle": "AQEB",
        "body": _text(document),
        "attributes": attributes,
        "messageAttributes": {},
        "md5OfBody": "0",
        "eventSource": "aws:sqs",
        "eventSourceARN": _QUEUE if group is None else f"{_QUEUE}.fifo",
        "awsRegion": "us-east-1",
        **more,
    }


def shard_record(document: Any, name: str = "s-1") -> dict[str, Any]:
    data = {"sequenceNumber": name, "data": _base64(document), "approximateArrivalTimestamp": 1770091506.123}
    return {
        "kinesis": {"kinesisSchemaVersion": "1.0", "partitionKey": "p", **data},
        "eventSource": "aws:kinesis",
        "eventID": f"shardId-000000000000:{name}",
        "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/events",
    }


def piped_shard_record(document: Any, name: str = "s-1") -> dict[str, Any]:
    """The same record in the flat format of a pipe."""
    record = shard_record(document, name)
    return {**record.pop("kinesis"), **record}


def table_record(number: int, name: str = "t-1") -> dict[str, Any]:
    change = {"Keys": {"id": {"N": str(number)}}, "SequenceNumber": name, "StreamViewType": "KEYS_ONLY"}
    return {"eventID": f"change-{number}", "eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": change}


def notification(document: Any, name: str = "n-1") -> dict[str, Any]:
    sns = {
        "Type": "Notification",
        "MessageId": name,
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:events",
        "Message": _text(document),
        "Timestamp": "2026-02-03T04:05:06.123Z",
    }
    return {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": sns}


def firehose(*documents: Any) -> dict[str, Any]:
    records = [{"recordId": f"f-{at}", "data": _base64(document)} for at, document in enumerate(documents, 1)]
    return {"invocationId": "i-1", "deliveryStreamArn": "arn:aws:firehose:x", "region": "us-east-1", "records": records}


def kafka_record(document: Any, offset: int = 15, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "topic": "calls",
        "partition": partition,
        "offset": offset,
        "timestamp": 1770091506123,
        "timestampType": "CREATE_TIME",
        "key": _base64("c-1"),
        "value": _base64(document),
        "headers": [],
        **more,
    }


def kafka(*records: dict[str, Any], source: str = "aws:kafka") -> dict[str, Any]:
    """A batch of a Kafka event source mapping: the records by topic and partition."""
    places: dict[str, list[Any]] = {}
    for record in records:
        places.setdefault(f"{record['topic']}-{record['partition']}", []).append(record)
    return {"eventSource": source, "bootstrapServers": "b-1.example.com:9092", "records": places}


def active(*documents: Any) -> dict[str, Any]:
    """A batch of an ActiveMQ broker."""
    messages = [
        {"messageID": f"ID:b-1-{at}", "messageType": "jms/text-message", "redelivered": False, "data": _base64(each)}
        for at, each in enumerate(documents, 1)
    ]
    return {"eventSource": "aws:mq", "eventSourceArn": "arn:aws:mq:x:1:broker:b:b-1", "messages": messages}


def rabbit(*documents: Any) -> dict[str, Any]:
    """A batch of a RabbitMQ broker."""
    messages = [{"basicProperties": {"headers": {}}, "redelivered": False, "data": _base64(each)} for each in documents]
    return {"eventSource": "aws:rmq", "eventSourceArn": "arn:x", "rmqMessagesByQueue": {"calls::/": messages}}


def destination(document: Any) -> dict[str, Any]:
    context = {"requestId": "req-0", "condition": "RetriesExhausted", "approximateInvokeCount": 3}
    return {
        "version": "1.0",
        "timestamp": "2026-02-03T04:05:06.123Z",
        "requestContext": context,
        "requestPayload": document,
        "responsePayload": {"errorMessage": "boom"},
    }


def gateway(document: Any, method: str = "POST") -> dict[str, Any]:
    """API Gateway's REST format."""
    return {
        "resource": "/events",
        "path": "/events",
        "httpMethod": method,
        "headers": {"Content-Type": "application/json"},
        "requestContext": {"requestId": "q-1", "httpMethod": method},
        "body": None if document is None else _text(document),
        "isBase64Encoded": False,
    }


def function_url(document: Any, method: str = "POST") -> dict[str, Any]:
    """The format of function URLs and HTTP APIs, which omits a missing body."""
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "headers": {"content-type": "application/json"},
        "requestContext": {"requestId": "q-1", "http": {"method": method, "path": "/"}},
        "isBase64Encoded": document is not None,
    }
    return event if document is None else {**event, "body": _base64(document)}


def fifo(*records: tuple[int, str, bool]) -> dict[str, Any]:
    """Records of a FIFO queue: the number, the group, and whether the event fails."""
    return {"Records": [message(envelope(n, fail=bad), f"m-{n}", group) for n, group, bad in records]}


def missed(answer: dict[str, Any]) -> list[Any]:
    """The names of the records that an answer reports as failed."""
    assert list(answer) == ["batchItemFailures"]
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


class Handler:
    """Records the numbers of its events, and fails for events that say so."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, event: Event) -> None:
        body = event.body if isinstance(event.body, dict) else {}
        self.seen.append(body.get("number"))
        if body.get("fail"):
            raise ValueError("a secret of the payload")


def nothing(event: Event) -> None:
    """A handler that succeeds."""

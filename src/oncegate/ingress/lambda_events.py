"""This module reads the events of a Lambda invocation, and builds the answer for each kind of invocation.

BatchInvocation      SQS, Kinesis and DynamoDB streams, by an event         the records to deliver again
                     source mapping or a pipe
                     Kafka, by an event source mapping                      the offset at which each partition restarts
FirehoseInvocation   a Firehose transformation                              a result for each record
HttpInvocation       API Gateway, a function URL, a load balancer           an HTTP response
DirectInvocation     everything else: EventBridge, SNS, Amazon MQ,          a result, or the invocation fails
                     arrays of events, destinations, Kafka by a pipe

`unknown_source` recognises invocations of AWS services that are of none of these kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.carriers import brokers, queues, streams, topics
from oncegate.carriers.pieces import from_base64, is_base64, text, within
from oncegate.carriers.web import is_invocation
from oncegate.errors import NotTaken
from oncegate.events import Event
from oncegate.gate.outcome import Outcome
from oncegate.ingress.http_answers import HttpAnswer, answer_of, problem

if TYPE_CHECKING:
    from oncegate.signatures import Verifier

Read: TypeAlias = Callable[[Any], list[Event]]

_STREAM_LANE: Final = "stream"
_UNNAMED: Final = "A record has no id, so it cannot be reported as failed: the whole batch has to be delivered again."
_HEALTH_CHECK: Final = "a health check of a load balancer (ELB-HealthChecker) is not an event; send events with POST"
_LONGEST_SOURCE: Final = 100
# AWS services whose invocations are not events, and the members by which each service is recognised.
_FOREIGN: Final[tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]] = (
    ("VPC Lattice", (("requestContext", "serviceNetworkArn"),)),
    ("VPC Lattice", (("requestContext", "targetGroupArn"),)),
    ("VPC Lattice", (("raw_path",), ("is_base64_encoded",))),
    ("CloudWatch Logs (awslogs)", (("awslogs",),)),
    ("Cognito (triggerSource)", (("triggerSource",), ("userPoolId",))),
    ("Lex (invocationSource)", (("invocationSource",), ("bot",))),
    ("Amazon Connect (ContactData)", (("Details", "ContactData"),)),
    ("Alexa", (("context", "System"), ("request", "type"))),
    ("a Bedrock agent (actionGroup)", (("agent",), ("actionGroup",))),
    ("an API Gateway authorizer (methodArn)", (("methodArn",), ("type",))),
    ("an API Gateway authorizer (routeArn)", (("routeArn",), ("type",))),
    ("AppSync", (("arguments",), ("info", "fieldName"))),
    ("CloudFormation (ResponseURL)", (("RequestType",), ("ResponseURL",), ("StackId",))),
    ("CodePipeline", (("CodePipeline.job",),)),
    ("AWS Config (invokingEvent)", (("invokingEvent",), ("resultToken",))),
    ("Secrets Manager (rotation)", (("Step",), ("SecretId",), ("ClientRequestToken",))),
    ("S3 Batch Operations", (("invocationSchemaVersion",), ("tasks",))),
    ("S3 Object Lambda", (("xAmzRequestId",), ("getObjectContext",))),
)


class LambdaRecord(Struct, frozen=True):
    """One record of an invocation: its events, and the `name` that identifies the record in the answer to AWS.

    Events of the same `lane` run one after the other. If an event is not acknowledged, the later events of its lane do
    not run. Events without a lane run independently.
    """

    events: list[Event]
    name: str | dict[str, Any] | None = None
    lane: str | None = None


class Invocation(ABC):
    """One kind of invocation.

    `keeps` means that an event that is rejected permanently is stored as a dead letter before the answer, because the
    platform would drop the event. `ours` means that the platform does not count attempts, so `max_attempts` applies.
    `trusted` means that the events come from inside AWS, from a queue or a bus, and not from an HTTP client."""

    keeps = True
    ours = False
    trusted = True

    def __init__(self, records: list[LambdaRecord]) -> None:
        self.records = records

    @abstractmethod
    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """Returns the return value of the Lambda function. `outcomes` has the outcomes of each record. Raises NotTaken
        if the invocation has to fail."""


def invocation_of(event: Any, read: Read, *, kafka_reports: bool = False) -> Invocation:
    """Returns the invocation for this event. Never raises: an event that is not recognised is a direct invocation, even
    if the event is unreadable. A Kafka batch is a direct invocation if `kafka_reports` is False. In this case a batch
    with a failed record must fail as a whole, because a mapping that does not read reports would lose the record."""
    if isinstance(event, list) and event and all(map(_is_record, event)):
        return BatchInvocation([_record_of_pipe(record, read) for record in event])
    if isinstance(event, dict) and "detail-type" not in event:
        if is_invocation(event):
            return HttpInvocation(event, read)
        records = event.get("Records")
        if isinstance(records, list) and any(map(_is_record, records)):
            from_stream = _is_stream_record(records[0])
            return BatchInvocation([_record_of_mapping(record, read) for record in records], from_stream=from_stream)
        if isinstance(event.get("records"), list) and streams.pieces(event) is not None:
            return FirehoseInvocation(event, read)
        if event.get("eventSource") in brokers.KAFKA and isinstance(event.get("records"), dict):
            kafka_records = _records_of_kafka(event, read)
            if kafka_reports:
                return BatchInvocation(kafka_records, from_stream=True)
            return DirectInvocation(kafka_records)
    if isinstance(event, list) and any(map(_is_kafka_record, event)):
        return DirectInvocation([LambdaRecord(read([record]), lane=brokers.partition(record)) for record in event])
    return DirectInvocation([LambdaRecord(read(event))])


# ── unknown sources ───────────────────────────────────────────────────────────────────────────────────────


def unknown_source(event: Any) -> str | None:
    """Returns the AWS service that sent this invocation, if no carrier can read the invocation. Returns None for all
    other invocations, such as an event of the user. If such an invocation were read as a plain event, it would be
    acknowledged regardless of its content."""
    if isinstance(event, list):
        return next((source for record in event if (source := _unread_source(record)) is not None), None)
    if not isinstance(event, dict) or "detail-type" in event:
        return None
    for source, paths in _FOREIGN:
        if all(within(event, *path) is not None for path in paths):
            return source
    return _unread_source(event) or _unread_container(event)


def _unread_source(record: Any) -> str | None:
    """Returns the `eventSource` of a record or batch that AWS sent and that no carrier can read; None for other
    records."""
    if not isinstance(record, dict):
        return None
    source = text(record.get("eventSource")) or text(record.get("EventSource"))
    if source is None or not (source.startswith("aws:") or source in brokers.KAFKA or _names_arn(record)):
        return None
    return None if _is_readable(record) else source[:_LONGEST_SOURCE]


def _unread_container(event: dict[str, Any]) -> str | None:
    """Returns the source of `Records`, or of `records` by partition, if none of the records can be read; otherwise
    None. A document with an id is an event of the user, so the result is None."""
    if "id" in event or "eventId" in event:
        return None
    records = event.get("Records")
    if isinstance(records, list) and records and not any(map(_is_readable, records)):
        if any(isinstance(record, dict) and "cf" in record for record in records):
            return "CloudFront (cf)"
        return next((source for record in records if (source := _unread_source(record))), "unknown Records")
    parts = event.get("records")
    if isinstance(parts, dict) and parts and all(isinstance(part, list) for part in parts.values()):
        return None if brokers.pieces(event) is not None else "unknown records"
    return None


def _names_arn(record: dict[str, Any]) -> bool:
    return any(isinstance(record.get(name), str) for name in ("eventSourceARN", "eventSourceArn"))


def _is_readable(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    return _is_record(record) or any(family.pieces(record) is not None for family in (topics, brokers))


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


class BatchInvocation(Invocation):
    """A batch of records. The platform has its own dead-letter queue, so no dead letters are stored here."""

    keeps = False

    def __init__(self, records: list[LambdaRecord], *, from_stream: bool = False) -> None:
        super().__init__(records)
        self._from_stream = from_stream

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """Returns the names of the records that were not acknowledged. For each lane of a stream, only the first of
        these records is returned: the stream restarts at this record. Raises NotTaken if a record without a name was
        not acknowledged. AWS would treat an empty name as success, and a wrong name as a failure of the whole batch."""
        failed = [record for record, found in zip(self.records, outcomes, strict=True) if not _all_acked(found)]
        if self._from_stream:
            failed = list({record.lane: record for record in reversed(failed)}.values())[::-1]
        names = [record.name for record in failed]
        if not all(names):
            raise NotTaken(_not_taken(outcomes), _UNNAMED)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and (queues.pieces(record) is not None or _is_stream_record(record))


def _is_stream_record(record: Any) -> bool:
    if not isinstance(record, dict) or "records" in record:
        return False
    return streams.is_change(record) or streams.pieces(record) is not None


def _record_of_mapping(record: Any, read: Read) -> LambdaRecord:
    if not isinstance(record, dict):
        return LambdaRecord(read(record))
    if streams.is_change(record):
        return LambdaRecord(read(record), text(within(record, "dynamodb", "SequenceNumber")), _STREAM_LANE)
    if pieces := queues.pieces(record):
        evidence = pieces[0].evidence
        return LambdaRecord(read(record), evidence.message_id, evidence.group if _is_fifo(record) else None)
    piece = next(iter(streams.pieces(record) or ()), None)
    return LambdaRecord(read(record), None if piece is None else piece.evidence.message_id, _STREAM_LANE)


def _record_of_pipe(record: Any, read: Read) -> LambdaRecord:
    """Returns the record of a pipe. A pipe identifies stream records by their event id. An event source mapping
    identifies them by their sequence number."""
    mapped = _record_of_mapping(record, read)
    return replace(mapped, name=text(record.get("eventID"))) if _is_stream_record(record) else mapped


def _is_kafka_record(record: Any) -> bool:
    return isinstance(record, dict) and record.get("eventSource") in brokers.KAFKA and "topic" in record


def _records_of_kafka(event: dict[str, Any], read: Read) -> list[LambdaRecord]:
    """Returns the records of a Kafka batch. Each partition has one lane, because a partition restarts at the reported
    offset."""
    return [
        LambdaRecord(read({**event, "records": {partition: [record]}}), _offset(partition, record), partition)
        for partition, records in event["records"].items()
        for record in brokers.listed(records)
    ]


def _offset(partition: str, record: Any) -> dict[str, Any] | None:
    offset = within(record, "offset")
    return {"partition": partition, "offset": offset} if type(offset) is int else None


def _is_fifo(record: dict[str, Any]) -> bool:
    """Whether the record comes from a FIFO queue. Messages of a standard queue may have groups too, but these groups do
    not define an order."""
    arn = text(record.get("eventSourceARN"))
    return arn is None or arn.endswith(".fifo")


# ── Firehose ──────────────────────────────────────────────────────────────────────────────────────────────


class FirehoseInvocation(Invocation):
    """A Firehose transformation. Each acknowledged record is passed to its destination unchanged. Failed records go to
    the error output of the stream. Duplicates are passed to the destination, too. If the answer to the first delivery
    was lost and the duplicate were dropped, the destination would never get the record."""

    keeps = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        records = event["records"]
        super().__init__(
            [LambdaRecord(read({**event, "records": [record]}), text(within(record, "recordId"))) for record in records]
        )
        self._data = [within(record, "data") for record in records]

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        if not all(record.name for record in self.records):
            raise NotTaken(_not_taken(outcomes), _UNNAMED)
        return {
            "records": [
                {"recordId": record.name, "result": "Ok" if _all_acked(found) else "ProcessingFailed", "data": data}
                for record, found, data in zip(self.records, outcomes, self._data, strict=True)
            ]
        }


# ── HTTP requests ─────────────────────────────────────────────────────────────────────────────────────────


class HttpInvocation(Invocation):
    """An HTTP request. Any client may call the URL of a function, so answers contain no text of exceptions."""

    ours = True
    trusted = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        method = event.get("httpMethod") or within(event, "requestContext", "http", "method") or "POST"
        self._is_post = method == "POST"
        self._is_health_check = str(within(event, "headers", "user-agent")).startswith("ELB-HealthChecker")
        # A request without a body has `"body": null`, or no member `body`.
        super().__init__([LambdaRecord(read({"body": None, **event}))] if self._is_post else [])

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        if self._is_post:
            return http_response(answer_of(outcomes[0], discreet=True))
        detail = _HEALTH_CHECK if self._is_health_check else "send events with POST"
        return http_response(problem(405, detail, headers=[(b"allow", b"POST")]))


def http_response(answer: HttpAnswer) -> dict[str, Any]:
    """Returns an answer in the format of API Gateway, function URLs and load balancers."""
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return {"statusCode": answer.code, "headers": headers, "body": answer.body.decode(), "isBase64Encoded": False}


class SignedRequest(Struct, frozen=True):
    """A request whose signature is valid. `event` is the invocation without its headers, because the headers are not
    signed. `id` is the id that was signed together with the body; None if there is no such id."""

    event: Any
    id: str | None = None


def verify_request(event: Any, verifier: "Verifier", now: int) -> SignedRequest | tuple[int, str]:
    """Returns the request if its signature is valid; otherwise the HTTP status and the reason. A WebSocket message has
    no headers, so it never has a valid signature. An invocation that is not an HTTP request is returned unchanged,
    because AWS controls who may send it."""
    if not is_invocation(event):
        return SignedRequest(event)
    try:
        body = _signed_body(event)
    except ValueError as error:
        return 400, str(error)
    headers = event.get("multiValueHeaders") or event.get("headers")
    verdict = verifier.check(headers, body, now)
    if not verdict:
        return verdict.code, verdict.reason
    return SignedRequest({**event, "headers": None, "multiValueHeaders": None}, verifier.signed_id(headers))


def _signed_body(event: dict[str, Any]) -> bytes:
    content = event.get("body") or ""
    if is_base64(event):
        return from_base64(content, "body")
    if not isinstance(content, str):
        raise ValueError("the body is not a string, so its signature cannot be checked")
    return content.encode("utf-8", "surrogatepass")


# ── direct invocations ────────────────────────────────────────────────────────────────────────────────────


class DirectInvocation(Invocation):
    """All other invocations. AWS ignores the result of an asynchronous invocation, and delivers the event again only if
    the invocation fails."""

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        found = [outcome for record in outcomes for outcome in record]
        if failed := _not_taken(outcomes):
            count = f"{len(failed)} of {len(found)} events not taken, the first: " if len(found) > 1 else ""
            raise NotTaken(failed, count + failed[0].discreet)
        fields = [_fields(outcome) for outcome in found]
        body = (
            fields[0]
            if len(fields) == 1
            else {"message": f"The payload contains {len(fields)} events.", "outcomes": fields}
        )
        code = 200 if _all_acked(found) else 400
        return {"statusCode": code, "body": msgspec.json.encode(body).decode()}


def _fields(outcome: Outcome) -> dict[str, Any]:
    key = outcome.key or outcome.kept
    return {
        "message": outcome.discreet,
        "status": outcome.status,
        "kind": outcome.kind,
        "key": None if key is None else str(key),
    }


def _all_acked(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.acked for outcome in outcomes)


def _not_taken(outcomes: list[list[Outcome]]) -> list[Outcome]:
    """Returns the outcomes of events that are neither acknowledged nor stored as dead letters."""
    return [outcome for found in outcomes for outcome in found if not outcome.acked and outcome.kept is None]

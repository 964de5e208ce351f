"""Signed requests: whether one that invokes a Lambda function is genuine, asked before any of it is read."""

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


class SignedRequest(Struct, frozen=True):
    """What may be read of a request: what invoked the function, without the headers, which are not signed, and the id
    that was signed with the body, if the sender does so."""

    event: Any
    id: str | None = None


def checked(event: Any, verifier: "Verifier", now: int) -> SignedRequest | tuple[int, str]:
    """The request if it is genuine, else the code and the sentence for one that is not, as none is that comes over a
    WebSocket: it has no headers, and so no signature. What did not come by HTTP is left as it is: who else may invoke
    the function is for AWS to know."""
    if not is_invocation(event):
        return SignedRequest(event)
    try:
        body = _body(event)
    except ValueError as error:
        return 400, str(error)
    headers = event.get("multiValueHeaders") or event.get("headers")
    verdict = verifier.check(headers, body, now)
    if not verdict:
        return verdict.code, verdict.reason
    return SignedRequest({**event, "headers": None, "multiValueHeaders": None}, verifier.signed_id(headers))


def _body(event: dict[str, Any]) -> bytes:
    content = event.get("body") or ""
    if is_base64(event):
        return from_base64(content, "body")
    if not isinstance(content, str):
        raise ValueError("the body is not the text that was sent")
    return content.encode("utf-8", "surrogatepass")


# Arrivals: what an AWS Lambda function is invoked with, and what each kind of invocation is answered.
#
# Batch      SQS, Kinesis and DynamoDB streams, by a mapping or a pipe      the records that have to come again
#            Kafka, by a mapping                                            where each partition has to start again
# Firehose   a transformation of a stream                                   a result for each record
# Request    API Gateway, a function URL, a load balancer                   an HTTP response
# Direct     all else: EventBridge, SNS, Amazon MQ, arrays of events,       a result, or the invocation fails
#            destinations, Kafka by a pipe
#
# What AWS invokes a function with that is none of these has an `unknown_source`.


Read: TypeAlias = Callable[[Any], list[Event]]

_STREAM: Final = "stream"
_UNNAMED: Final = "A record has no id to report it by, so that all of them have to be delivered again."
_HEALTH_CHECK: Final = "a health check of a load balancer (ELB-HealthChecker) is no event"
_LONGEST_SOURCE: Final = 100
# What invokes a function with something that is no event, and the members by which that is known.
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
    """One thing that is answered for: what the platform knows it by, and the events in it.

    Events of one `lane` run one after the other, and none after one that was not taken; those in none, as they come.
    """

    events: list[Event]
    name: str | dict[str, Any] | None = None
    lane: str | None = None


class Invocation(ABC):
    """`keeps`: what is refused for good is kept as a dead letter before it is answered, since nobody else would keep
    it. `ours`: nobody else counts how often an event was tried. `trusted`: it comes from within AWS, from a queue or a
    bus, and not from anyone who can send a request."""

    keeps = True
    ours = False
    trusted = True

    def __init__(self, records: list[LambdaRecord]) -> None:
        self.records = records

    @abstractmethod
    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """What the function returns, given the outcomes of each record; NotTaken if it is to fail."""


def invocation_of(event: Any, read: Read, *, kafka_reports: bool = False) -> Invocation:
    """What this invocation is. Never raises: what is nothing else is a direct event, readable or not. A batch of Kafka
    whose mapping does not read reports is direct, too: a failed record must fail the invocation, or is lost."""
    if isinstance(event, list) and event and all(map(_is_record, event)):
        return BatchInvocation([_piped(record, read) for record in event])
    if isinstance(event, dict) and "detail-type" not in event:
        if is_invocation(event):
            return HttpInvocation(event, read)
        records = event.get("Records")
        if isinstance(records, list) and any(map(_is_record, records)):
            return BatchInvocation([_mapped(record, read) for record in records], from_stream=_is_streamed(records[0]))
        if isinstance(event.get("records"), list) and streams.pieces(event) is not None:
            return FirehoseInvocation(event, read)
        if event.get("eventSource") in brokers.KAFKA and isinstance(event.get("records"), dict):
            partitions = _partitions(event, read)
            return BatchInvocation(partitions, from_stream=True) if kafka_reports else DirectInvocation(partitions)
    if isinstance(event, list) and any(map(_is_kafka, event)):
        return DirectInvocation([LambdaRecord(read([record]), lane=brokers.partition(record)) for record in event])
    return DirectInvocation([LambdaRecord(read(event))])


# ── what is not for us ────────────────────────────────────────────────────────────────────────────────────


def unknown_source(event: Any) -> str | None:
    """What this invocation comes from, if AWS sent it and no carrier reads it; None for all else, such as an event of
    the user's own. Read as one plain event it would be acknowledged, whatever it holds."""
    if isinstance(event, list):
        return next((source for record in event if (source := _unread_source(record)) is not None), None)
    if not isinstance(event, dict) or "detail-type" in event:
        return None
    for source, paths in _FOREIGN:
        if all(within(event, *path) is not None for path in paths):
            return source
    return _unread_source(event) or _unread_container(event)


def _unread_source(record: Any) -> str | None:
    """The `eventSource` of a record or batch that AWS sent and that cannot be opened."""
    if not isinstance(record, dict):
        return None
    source = text(record.get("eventSource")) or text(record.get("EventSource"))
    if source is None or not (source.startswith("aws:") or source in brokers.KAFKA or _names_arn(record)):
        return None
    return None if _is_known(record) else source[:_LONGEST_SOURCE]


def _unread_container(event: dict[str, Any]) -> str | None:
    """`Records`, or `records` by partition, of which none can be opened. What has an id of its own is an event."""
    if "id" in event or "eventId" in event:
        return None
    records = event.get("Records")
    if isinstance(records, list) and records and not any(map(_is_known, records)):
        if any(isinstance(record, dict) and "cf" in record for record in records):
            return "CloudFront (cf)"
        return next((source for record in records if (source := _unread_source(record))), "unknown Records")
    parts = event.get("records")
    if isinstance(parts, dict) and parts and all(isinstance(part, list) for part in parts.values()):
        return None if brokers.pieces(event) is not None else "unknown records"
    return None


def _names_arn(record: dict[str, Any]) -> bool:
    return any(isinstance(record.get(name), str) for name in ("eventSourceARN", "eventSourceArn"))


def _is_known(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    return _is_record(record) or any(family.pieces(record) is not None for family in (topics, brokers))


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


class BatchInvocation(Invocation):
    """The platform has a dead-letter queue of its own. Of a stream it wants to know where to start again."""

    keeps = False

    def __init__(self, records: list[LambdaRecord], *, from_stream: bool = False) -> None:
        super().__init__(records)
        self._from_stream = from_stream

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """Exactly those that were not taken; of each lane of a stream, the first. An empty name would pass for success,
        and a wrong one fails them all."""
        missed = [record for record, found in zip(self.records, outcomes, strict=True) if not _acked(found)]
        if self._from_stream:
            missed = list({record.lane: record for record in reversed(missed)}.values())[::-1]
        names = [record.name for record in missed]
        if not all(names):
            raise NotTaken(_missed(outcomes), _UNNAMED)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and (queues.pieces(record) is not None or _is_streamed(record))


def _is_streamed(record: Any) -> bool:
    if not isinstance(record, dict) or "records" in record:
        return False
    return streams.is_change(record) or streams.pieces(record) is not None


def _mapped(record: Any, read: Read) -> LambdaRecord:
    """A record as Lambda's own mapping hands it over."""
    if not isinstance(record, dict):
        return LambdaRecord(read(record))
    if streams.is_change(record):
        return LambdaRecord(read(record), text(within(record, "dynamodb", "SequenceNumber")), _STREAM)
    if pieces := queues.pieces(record):
        evidence = pieces[0].evidence
        return LambdaRecord(read(record), evidence.message_id, evidence.group if _is_fifo(record) else None)
    piece = next(iter(streams.pieces(record) or ()), None)
    return LambdaRecord(read(record), None if piece is None else piece.evidence.message_id, _STREAM)


def _piped(record: Any, read: Read) -> LambdaRecord:
    """A record as a pipe hands it over, which knows those of streams by another name."""
    mapped = _mapped(record, read)
    return replace(mapped, name=text(record.get("eventID"))) if _is_streamed(record) else mapped


def _is_kafka(record: Any) -> bool:
    return isinstance(record, dict) and record.get("eventSource") in brokers.KAFKA and "topic" in record


def _partitions(event: dict[str, Any], read: Read) -> list[LambdaRecord]:
    """The records of a Kafka batch. A partition is a lane: it starts again from the offset that is reported for it."""
    return [
        LambdaRecord(read({**event, "records": {place: [record]}}), _offset(place, record), place)
        for place, records in event["records"].items()
        for record in brokers.listed(records)
    ]


def _offset(place: str, record: Any) -> dict[str, Any] | None:
    offset = within(record, "offset")
    return {"partition": place, "offset": offset} if type(offset) is int else None


def _is_fifo(record: dict[str, Any]) -> bool:
    """Standard queues can have groups too, which say nothing about order."""
    arn = text(record.get("eventSourceARN"))
    return arn is None or arn.endswith(".fifo")


# ── Firehose ──────────────────────────────────────────────────────────────────────────────────────────────


class FirehoseInvocation(Invocation):
    """Records go on to their destination as they are; what was not taken goes where the stream puts failures.
    Duplicates go on too: dropped, they would be missing if the answer to the first was lost on its way."""

    keeps = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        records = event["records"]
        super().__init__(
            [LambdaRecord(read({**event, "records": [record]}), text(within(record, "recordId"))) for record in records]
        )
        self._data = [within(record, "data") for record in records]

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        if not all(record.name for record in self.records):
            raise NotTaken(_missed(outcomes), _UNNAMED)
        return {
            "records": [
                {"recordId": record.name, "result": "Ok" if _acked(found) else "ProcessingFailed", "data": data}
                for record, found, data in zip(self.records, outcomes, self._data, strict=True)
            ]
        }


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────


class HttpInvocation(Invocation):
    """A function's address is open to whoever finds it, so that its answers say nothing that an exception said."""

    ours = True
    trusted = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        method = event.get("httpMethod") or within(event, "requestContext", "http", "method") or "POST"
        self._posted = method == "POST"
        self._checked = str(within(event, "headers", "user-agent")).startswith("ELB-HealthChecker")
        # A request without a body has a null there, or nothing at all.
        super().__init__([LambdaRecord(read({"body": None, **event}))] if self._posted else [])

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        if self._posted:
            return response(answer_of(outcomes[0], discreet=True))
        why = f"{_HEALTH_CHECK}; events are posted" if self._checked else "events are posted"
        return response(problem(405, why, headers=[(b"allow", b"POST")]))


def response(answer: HttpAnswer) -> dict[str, Any]:
    """An answer as all that put HTTP before a function take it."""
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return {"statusCode": answer.code, "headers": headers, "body": answer.body.decode(), "isBase64Encoded": False}


# ── all else ──────────────────────────────────────────────────────────────────────────────────────────────


class DirectInvocation(Invocation):
    """Nobody reads the result of an asynchronous invocation; that it failed is what has it delivered again."""

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        found = [outcome for record in outcomes for outcome in record]
        if missed := _missed(outcomes):
            count = f"{len(missed)} of {len(found)} events not taken, the first: " if len(found) > 1 else ""
            raise NotTaken(missed, count + missed[0].discreet)
        said = [_fields(outcome) for outcome in found]
        body = said[0] if len(said) == 1 else {"message": f"It holds {len(said)} events.", "outcomes": said}
        code = 200 if _acked(found) else 400
        return {"statusCode": code, "body": msgspec.json.encode(body).decode()}


def _fields(outcome: Outcome) -> dict[str, Any]:
    key = outcome.key or outcome.kept
    return {
        "message": outcome.discreet,
        "status": outcome.status,
        "kind": outcome.kind,
        "key": None if key is None else str(key),
    }


def _acked(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.acked for outcome in outcomes)


def _missed(outcomes: list[list[Outcome]]) -> list[Outcome]:
    """What was neither taken nor kept."""
    return [outcome for found in outcomes for outcome in found if not outcome.acked and outcome.kept is None]

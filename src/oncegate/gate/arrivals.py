"""Arrivals: what an AWS Lambda function is invoked with, and what each kind of invocation is answered.

Batch      SQS, Kinesis and DynamoDB streams, by a mapping or a pipe      the records that have to come again
Firehose   a transformation of a stream                                   a result for each record
Request    API Gateway, a function URL, a load balancer                   an HTTP response
Direct     all else: EventBridge, SNS, arrays of events, destinations     a result, or the invocation fails
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.carriers import queues, streams
from oncegate.carriers.pieces import text, within
from oncegate.carriers.web import is_invocation
from oncegate.errors import NotTaken
from oncegate.events import Event
from oncegate.gate.answers import Answer, answer_of, problem
from oncegate.gate.outcome import Outcome

Read: TypeAlias = Callable[[Any], list[Event]]

_STREAM: Final = "stream"
_UNNAMED: Final = "A record has no id to report it by, so that all of them have to be delivered again."


class Record(Struct, frozen=True):
    """One thing that is answered for: what the platform knows it by, and the events in it.

    Events of one `lane` run one after the other, and none after one that was not taken; those in none, as they come.
    """

    events: list[Event]
    name: str | None = None
    lane: str | None = None


class Arrival(ABC):
    """`keeps`: what is refused for good is kept as a dead letter before it is answered, since nobody else would keep
    it. `ours`: nobody else counts how often an event was tried. `trusted`: it comes from within AWS, from a queue or a
    bus, and not from whoever can send a request."""

    keeps = True
    ours = False
    trusted = True

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    @abstractmethod
    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """What the function returns, given the outcomes of each record; NotTaken if it is to fail."""


def arrival(event: Any, read: Read) -> Arrival:
    """What this invocation is. Never raises: what is nothing else is a direct event, readable or not."""
    if isinstance(event, list) and event and all(map(_is_record, event)):
        return Batch([_piped(record, read) for record in event])
    if isinstance(event, dict) and "detail-type" not in event:
        if is_invocation(event):
            return Request(event, read)
        records = event.get("Records")
        if isinstance(records, list) and any(map(_is_record, records)):
            return Batch([_mapped(record, read) for record in records], from_stream=_is_streamed(records[0]))
        if isinstance(event.get("records"), list) and streams.pieces(event) is not None:
            return Firehose(event, read)
    return Direct([Record(read(event))])


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


class Batch(Arrival):
    """The platform has a dead-letter queue of its own. Of a stream it wants to know where to start again."""

    keeps = False

    def __init__(self, records: list[Record], *, from_stream: bool = False) -> None:
        super().__init__(records)
        self._from_stream = from_stream

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        """Exactly those that were not taken. An empty name would pass for success, and a wrong one fails them all."""
        missed = [record for record, found in zip(self.records, outcomes, strict=True) if not _acked(found)]
        names = [record.name for record in (missed[:1] if self._from_stream else missed)]
        if not all(names):
            raise NotTaken(_missed(outcomes), _UNNAMED)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and (queues.pieces(record) is not None or _is_streamed(record))


def _is_streamed(record: Any) -> bool:
    if not isinstance(record, dict) or "records" in record:
        return False
    return _is_change(record) or streams.pieces(record) is not None


def _is_change(record: dict[str, Any]) -> bool:
    return record.get("eventSource") == "aws:dynamodb"


def _mapped(record: Any, read: Read) -> Record:
    """A record as Lambda's own mapping hands it over."""
    if not isinstance(record, dict):
        return Record(read(record))
    if _is_change(record):
        return Record(read(record), text(within(record, "dynamodb", "SequenceNumber")), _STREAM)
    if pieces := queues.pieces(record):
        evidence = pieces[0].evidence
        return Record(read(record), evidence.message_id, evidence.group if _is_fifo(record) else None)
    piece = next(iter(streams.pieces(record) or ()), None)
    return Record(read(record), None if piece is None else piece.evidence.message_id, _STREAM)


def _piped(record: Any, read: Read) -> Record:
    """A record as a pipe hands it over, which knows those of streams by another name."""
    mapped = _mapped(record, read)
    return replace(mapped, name=text(record.get("eventID"))) if _is_streamed(record) else mapped


def _is_fifo(record: dict[str, Any]) -> bool:
    """Standard queues can have groups too, which say nothing about order."""
    arn = text(record.get("eventSourceARN"))
    return arn is None or arn.endswith(".fifo")


# ── Firehose ──────────────────────────────────────────────────────────────────────────────────────────────


class Firehose(Arrival):
    """Records go on to their destination as they are; what was not taken goes where the stream puts failures.
    Duplicates go on too: dropped, they would be missing if the answer to the first was lost on its way."""

    keeps = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        records = event["records"]
        super().__init__(
            [Record(read({**event, "records": [record]}), text(within(record, "recordId"))) for record in records]
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


class Request(Arrival):
    """A function's address is open to whoever finds it, so that its answers say nothing that an exception said."""

    ours = True
    trusted = False

    def __init__(self, event: dict[str, Any], read: Read) -> None:
        method = event.get("httpMethod") or within(event, "requestContext", "http", "method") or "POST"
        self._posted = method == "POST"
        # A request without a body has a null there, or nothing at all.
        super().__init__([Record(read({"body": None, **event}))] if self._posted else [])

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        if self._posted:
            return response(answer_of(outcomes[0], discreet=True))
        return response(problem(405, "events are posted", headers=[(b"allow", b"POST")]))


def response(answer: Answer) -> dict[str, Any]:
    """An answer as all that put HTTP before a function take it."""
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return {"statusCode": answer.code, "headers": headers, "body": answer.body.decode(), "isBase64Encoded": False}


# ── all else ──────────────────────────────────────────────────────────────────────────────────────────────


class Direct(Arrival):
    """Nobody reads the result of an asynchronous invocation; that it failed is what has it delivered again."""

    def answer(self, outcomes: list[list[Outcome]]) -> dict[str, Any]:
        (found,) = outcomes
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

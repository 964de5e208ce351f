"""Unwrap Kinesis and Firehose records. Their data is base64, and one record may contain several JSON objects."""

from collections.abc import Iterable
from typing import Any

from oncegate.carriers.pieces import Piece, from_base64, text, within
from oncegate.events import Evidence
from oncegate.times import moment

_FIREHOSE = ("deliveryStreamArn", "invocationId", "requestId")
# All members of a Firehose record. If nothing around a record identifies Firehose, the record must not have others.
_RECORD = {"recordId", "data", "approximateArrivalTimestamp", "kinesisRecordMetadata"}
MARKERS = {"kinesis", "eventSource", "Data", "records"}


def pieces(body: dict[str, Any]) -> Iterable[Piece] | None:
    kinesis = body.get("kinesis")
    if isinstance(kinesis, dict) and ("data" in kinesis or "id" not in body):
        return [_record(kinesis)]
    if body.get("eventSource") == "aws:kinesis" or ("Data" in body and "SequenceNumber" in body and "id" not in body):
        return [_record(body)]
    records = body.get("records")
    if isinstance(records, list) and (_is_transformed(body, records) or _is_bare(body, records)):
        return map(_record, records)
    return None


def is_change(record: Any) -> bool:
    """Whether this is a record of a DynamoDB stream. Such a record describes a change of a table. The record itself is
    an event, not a carrier."""
    return isinstance(record, dict) and record.get("eventSource") == "aws:dynamodb"


def _is_transformed(body: dict[str, Any], records: list[Any]) -> bool:
    """Whether this is a batch from Firehose, by invocation or by HTTP. An event may also have `records` and
    `requestId`. So a document with an `id` or `eventId` is a batch only if all its records have data. A document
    without an id is a batch if it has no records or if at least one record has data; the others are unreadable."""
    if not any(name in body for name in _FIREHOSE):
        return False
    has_data = [isinstance(record, dict) and "data" in record for record in records]
    if "id" in body or "eventId" in body:
        return bool(records) and all(has_data)
    return not records or any(has_data)


def _is_bare(body: dict[str, Any], records: list[Any]) -> bool:
    return body.keys() <= {"records", "region"} and bool(records) and all(map(_is_firehose, records))


def _is_firehose(record: Any) -> bool:
    if not isinstance(record, dict) or not {"recordId", "data"} <= record.keys() <= _RECORD:
        return False
    try:
        return from_base64(record["data"], "data").lstrip()[:1] in (b"{", b"[")
    except ValueError:
        return False


def _record(record: Any) -> Piece:
    evidence = Evidence(
        message_id=_first(record, "sequenceNumber", "SequenceNumber", "recordId"),
        sent_at=moment(within(record, "approximateArrivalTimestamp") or within(record, "ApproximateArrivalTimestamp")),
    )
    try:
        content = within(record, "data")
        data = from_base64(within(record, "Data") if content is None else content, "data of a stream record")
    except ValueError as error:
        return Piece(record, evidence, str(error))
    return Piece(data, evidence, several=True)


def _first(record: Any, *names: str) -> str | None:
    return next((found for name in names if (found := text(within(record, name)))), None)

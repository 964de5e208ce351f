"""Kinesis and Firehose: base64 records, each of which may hold several objects."""

from collections.abc import Iterable
from typing import Any

from oncegate.carriers.pieces import Piece, from_base64, text, within
from oncegate.events import Evidence
from oncegate.times import moment

_FIREHOSE = ("deliveryStreamArn", "invocationId", "requestId")
# All that a record for Firehose has; one of which nothing around it says so has nothing else.
_RECORD = {"recordId", "data", "approximateArrivalTimestamp", "kinesisRecordMetadata"}
TELLING = {"kinesis", "eventSource", "Data", "records"}


def pieces(body: dict[str, Any]) -> Iterable[Piece] | None:
    if isinstance(body.get("kinesis"), dict):
        return [_record(body["kinesis"])]
    if body.get("eventSource") == "aws:kinesis" or ("Data" in body and "SequenceNumber" in body):
        return [_record(body)]
    records = body.get("records")
    if isinstance(records, list) and (any(name in body for name in _FIREHOSE) or _is_bare(body, records)):
        return map(_record, records)
    return None


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

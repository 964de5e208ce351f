"""Unwrap lists of records: `Records` of Lambda, `Messages` of boto3, `events` of a NICE CXone poll."""

from collections.abc import Iterable
from typing import Any

from oncegate.carriers import queues, streams, topics
from oncegate.carriers.pieces import Piece

# Members that an answer without records may have, besides its empty list of records or events.
_AROUND = {"ResponseMetadata", "NextShardIterator", "MillisBehindLatest", "ChildShards"}
_AROUND_EVENTS = {"sessionId", "resultSet"}
MARKERS = {"Records", "Messages", "events", "ResponseMetadata"}
_RECORD_MARKERS = queues.MARKERS | topics.MARKERS | streams.MARKERS


def pieces(body: dict[str, Any]) -> Iterable[Piece] | None:
    for name in ("Records", "Messages"):
        records = body.get(name)
        if isinstance(records, list) and any(map(_is_record, records)):
            return map(Piece, records)
    events = body.get("events")
    if isinstance(events, list) and any(map(_is_polled, events)) and "id" not in body:
        return (Piece(event, polled=True) for event in events)
    return [] if _is_empty(body) else None


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or _RECORD_MARKERS.isdisjoint(record):
        return False
    return streams.is_change(record) or any(family.pieces(record) is not None for family in (queues, topics, streams))


def _is_polled(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("Type"), str)


def _is_empty(body: dict[str, Any]) -> bool:
    """Whether this is the answer of a poll that found nothing. Such an answer has no list or an empty list, and no
    members of an event."""
    rest = body.keys() - _AROUND
    if not rest:
        return "ResponseMetadata" in body
    lists = rest & {"Records", "Messages", "events"}
    return len(lists) == 1 and rest - lists <= _AROUND_EVENTS and body[lists.pop()] == []

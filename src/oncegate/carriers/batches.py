"""Lists of records: Lambda's `Records`, boto3's `Messages`, the `events` of a NICE CXone poll."""

from collections.abc import Iterable
from typing import Any

from oncegate.carriers import queues, streams, topics
from oncegate.carriers.pieces import Piece

# What an answer without records has besides its empty list.
_AROUND = {"ResponseMetadata", "NextShardIterator", "MillisBehindLatest", "ChildShards"}
_AROUND_EVENTS = {"sessionId", "resultSet"}
TELLING = {"Records", "Messages", "events", "ResponseMetadata"}
_TELLING_RECORDS = queues.TELLING | topics.TELLING | streams.TELLING


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
    if not isinstance(record, dict) or _TELLING_RECORDS.isdisjoint(record):
        return False
    return streams.is_change(record) or any(family.pieces(record) is not None for family in (queues, topics, streams))


def _is_polled(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("Type"), str)


def _is_empty(body: dict[str, Any]) -> bool:
    """A poll that found nothing: no list, or an empty one, and nothing that would make it an event."""
    rest = body.keys() - _AROUND
    if not rest:
        return "ResponseMetadata" in body
    asked = rest & {"Records", "Messages", "events"}
    return len(asked) == 1 and rest - asked <= _AROUND_EVENTS and body[asked.pop()] == []

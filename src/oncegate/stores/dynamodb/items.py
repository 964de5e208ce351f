"""Records and documents as items of one table.

    attribute        of            what it is
    ───────────────  ────────────  ──────────────────────────────────────────────────────────────────────────────
    id               both          the partition key: a hash of kind, namespace and key, so that no partition runs hot
    namespace, key   both          the address; the key in hexadecimal, as people see it elsewhere
    stamp            both          random, new with every write: what a conditional write compares
    expires          both          when it is absent, in microseconds; what the conditions compare
    expiresAt        both          the same in seconds, rounded up: DynamoDB's own sweep (TTL) looks at it
    status           records       in progress, released, completed or dead letter
    owner, fence     records       the proof of a claim
    leaseUntil       records       in microseconds
    attempts, payloadHash, firstSeen, processedAt, result, error, payload
    lost, unavailableSince, handedTo: only where there is something to tell
    source, type, conversationId (the entity), timestamp (when it happened), deliveryId: what explains a record
    shelf, place     some records  the keys of the sparse index: `dead` in the order of addresses, `waiting` in the
                                   order in which they were let go
    version, body    documents

Bytes are kept as text if they are short and readable, else compressed: cost goes by size, and 400 kB is the most.
"""

import hashlib
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, EventSummary, Record, State
from oncegate.errors import StoreRefused
from oncegate.stores.base import Change, Document

Item = Mapping[str, Mapping[str, Any]]
Where = tuple[str, bytes]

DEAD_SHELF: Final = "dead"
WAITING_SHELF: Final = "waiting"

_STATUS: Final[dict[State, str]] = {
    IN_PROGRESS: "in progress",
    RELEASED: "released",
    COMPLETED: "completed",
    DEAD: "dead letter",
}
_STATE: Final[dict[str, State]] = {status: state for state, status in _STATUS.items()}
_READABLE: Final = 1_024
_LONGEST_PLACE: Final = 1_024
_TIME_SIZE: Final = 8
_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


def record_id(where: Where) -> str:
    return _hashed(b"record", where)


def document_id(where: Where) -> str:
    return _hashed(b"document", where)


def _hashed(kind: bytes, where: Where) -> str:
    namespace = where[0].encode()
    joined = b"%s %d %s" % (kind, len(namespace), namespace) + where[1]
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


def where_of(item: Item) -> Where:
    return item["namespace"]["S"], bytes.fromhex(item["key"]["S"])


def place_of(namespace: str, rest: bytes = b"") -> bytes:
    """A namespace and what follows it, so that places sort as pairs of the two do and no two pairs are one."""
    place = namespace.encode().replace(b"\0", b"\0\1") + b"\0\0" + rest
    if len(place) > _LONGEST_PLACE:
        raise StoreRefused("a namespace and a key together are longer than DynamoDB can sort; shorten the namespace")
    return place


def past_namespace(namespace: str) -> bytes:
    """The first place that comes after all of a namespace."""
    return place_of(namespace)[:-1] + b"\1"


def waiting_place(namespace: str, lease_until: int, key: bytes = b"") -> bytes:
    return place_of(namespace, lease_until.to_bytes(_TIME_SIZE) + key)


def waiting_key(namespace: str, place: bytes) -> bytes:
    return place[len(place_of(namespace)) + _TIME_SIZE :]


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────


def item_of(where: Where, record: Record, stamp: bytes, margin: int) -> dict[str, dict[str, Any]]:
    about = record.about
    item: dict[str, dict[str, Any]] = {
        "id": {"S": record_id(where)},
        "namespace": {"S": where[0]},
        "key": {"S": where[1].hex()},
        "stamp": {"B": stamp},
        "status": {"S": _STATUS[record.state]},
        "owner": {"B": record.owner},
        "fence": _number(record.fence),
        "leaseUntil": _number(record.lease_until),
        "attempts": _number(record.attempts),
        "payloadHash": {"B": record.payload_hash},
        "firstSeen": {"S": _spoken(record.first_seen)},
        "source": {"S": about.source},
    }
    texts = {"type": about.type, "conversationId": about.entity, "deliveryId": about.delivery_id}
    texts |= {"error": record.error, "handedTo": record.handed_to}
    times = {"timestamp": about.occurred_at, "processedAt": record.completed_at}
    times["unavailableSince"] = record.unavailable_since
    blobs = {"result": record.result, "payload": record.payload}
    item.update((name, {"S": text}) for name, text in texts.items() if text is not None)
    item.update((name, {"S": _spoken(time)}) for name, time in times.items() if time is not None)
    item.update((name, _packed(blob)) for name, blob in blobs.items() if blob is not None)
    if record.lost:
        item["lost"] = _number(record.lost)
    if record.expires_at is not None:
        item.update(_expiry(record.expires_at, margin))
    item.update(_shelved(where, record))
    return item


def record_of(item: Item) -> Record:
    return Record(
        _STATE[item["status"]["S"]],
        item["owner"]["B"],
        int(item["fence"]["N"]),
        int(item["leaseUntil"]["N"]),
        int(item["attempts"]["N"]),
        item["payloadHash"]["B"],
        int(item["expires"]["N"]) if "expires" in item else None,
        EventSummary(
            item["source"]["S"],
            _text(item, "type"),
            _text(item, "conversationId"),
            _time(item, "timestamp"),
            _text(item, "deliveryId"),
        ),
        _told(item["firstSeen"]["S"]),
        _time(item, "processedAt"),
        _blob(item, "result"),
        _text(item, "error"),
        _blob(item, "payload"),
        int(item["lost"]["N"]) if "lost" in item else 0,
        _time(item, "unavailableSince"),
        _text(item, "handedTo"),
    )


def _shelved(where: Where, record: Record) -> dict[str, dict[str, Any]]:
    """The keys of the index, for the few records that are in it."""
    if record.state == DEAD:
        return {"shelf": {"S": DEAD_SHELF}, "place": {"B": place_of(*where)}}
    if record.payload is not None and record.state in (IN_PROGRESS, RELEASED):
        place = waiting_place(where[0], record.lease_until, where[1])
        return {"shelf": {"S": WAITING_SHELF}, "place": {"B": place}}
    return {}


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────────


def document_item(change: Change, stamp: bytes, now: int, margin: int) -> dict[str, dict[str, Any]]:
    where = (change.namespace, change.key)
    return {
        "id": {"S": document_id(where)},
        "namespace": {"S": where[0]},
        "key": {"S": where[1].hex()},
        "stamp": {"B": stamp},
        "version": _number(change.version + 1 if change.version else now),
        "body": _packed(change.body),
        **_expiry(now + change.retention, margin),
    }


def document_of(item: Item | None, past: int) -> Document:
    """The document in an item; none if it had expired at a time."""
    if item is None or int(item["expires"]["N"]) <= past:
        return Document()
    return Document(int(item["version"]["N"]), _blob(item, "body"))


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: int) -> dict[str, Any]:
    return {"N": str(value)}


def _expiry(expires_at: int, margin: int) -> dict[str, dict[str, Any]]:
    """The sweep must not come before the slowest clock has seen the end."""
    return {"expires": _number(expires_at), "expiresAt": _number(-(-(expires_at + margin) // _SECOND))}


def _packed(blob: bytes) -> dict[str, Any]:
    if len(blob) <= _READABLE:
        try:
            return {"S": blob.decode()}
        except UnicodeDecodeError:
            pass
    return {"B": zlib.compress(blob)}


def _blob(item: Item, name: str) -> bytes | None:
    value = item.get(name)
    if value is None:
        return None
    return value["S"].encode() if "S" in value else zlib.decompress(value["B"])


def _text(item: Item, name: str) -> str | None:
    return item[name]["S"] if name in item else None


def _time(item: Item, name: str) -> int | None:
    return _told(item[name]["S"]) if name in item else None


def _spoken(time: int) -> str:
    """A time as people read it, to the microsecond; one that no calendar has stays a number."""
    try:
        return (_EPOCH + time * _MICROSECOND).isoformat(timespec="microseconds")
    except OverflowError:
        return str(time)


def _told(spoken: str) -> int:
    if spoken.removeprefix("-").isdecimal():
        return int(spoken)
    return (datetime.fromisoformat(spoken) - _EPOCH) // _MICROSECOND

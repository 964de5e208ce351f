"""Encode records and documents as items of one table, and decode them.

    attribute        in            meaning
    ───────────────  ────────────  ──────────────────────────────────────────────────────────────────────────────
    id               both          the partition key: a hash of kind, namespace and key, which spreads the load
    namespace, key   both          the address; the key in hexadecimal, as other tools show it
    stamp            both          a random value, new with every write; conditional writes compare the stamp
    expires          both          the time at which the item expires, in microseconds; conditional writes compare it
    expiresAt        both          the expiry plus the clock margin in seconds, rounded up, for the TTL of DynamoDB
    status           records       in progress, released, completed or dead letter
    owner, fence     records       the proof of a claim
    leaseUntil       records       the end of the lease, in microseconds
    attempts, payloadHash, firstSeen, processedAt, result, error, payload
    lost, unavailableSince, handedTo: present only if they have a value
    source, type, conversationId (the entity), timestamp (when the event happened), deliveryId: description for people
    shelf, place     some records  the keys of the sparse index: the shelf `dead` is in the order of addresses, the
                                   shelf `waiting` in the order of leaseUntil
    version, body    documents

Bytes are stored as text if they are short and valid UTF-8. Other bytes are compressed, because DynamoDB charges by size
and limits an item to 400 kB.
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
AddressPair = tuple[str, bytes]

DEAD_SHELF: Final = "dead"
WAITING_SHELF: Final = "waiting"

_STATUS: Final[dict[State, str]] = {
    IN_PROGRESS: "in progress",
    RELEASED: "released",
    COMPLETED: "completed",
    DEAD: "dead letter",
}
_STATE: Final[dict[str, State]] = {status: state for state, status in _STATUS.items()}
_MAX_PLAIN_TEXT: Final = 1_024  # bytes; longer values are compressed
_MAX_PLACE: Final = 1_024  # bytes of a sort key in DynamoDB
_TIME_SIZE: Final = 8
_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


def record_id(address: AddressPair) -> str:
    return _hashed(b"record", address)


def document_id(address: AddressPair) -> str:
    return _hashed(b"document", address)


def _hashed(kind: bytes, address: AddressPair) -> str:
    namespace = address[0].encode()
    joined = b"%s %d %s" % (kind, len(namespace), namespace) + address[1]
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


def address_of(item: Item) -> AddressPair:
    return item["namespace"]["S"], bytes.fromhex(item["key"]["S"])


def place_of(namespace: str, rest: bytes = b"") -> bytes:
    """Return the sort key (place) of a namespace and bytes. Places sort like the pairs of namespace and bytes, and no
    two pairs have the same place. Raises StoreRefused if the place is too long for DynamoDB."""
    place = namespace.encode().replace(b"\0", b"\0\1") + b"\0\0" + rest
    if len(place) > _MAX_PLACE:
        raise StoreRefused(
            f"a namespace and a key need {len(place)} bytes in the index, but DynamoDB allows {_MAX_PLACE};"
            " shorten the namespace"
        )
    return place


def namespace_end(namespace: str) -> bytes:
    """Return a place that sorts after all places of a namespace and before those of the next namespace."""
    return place_of(namespace)[:-1] + b"\1"


def waiting_place(namespace: str, lease_until: int, key: bytes = b"") -> bytes:
    return place_of(namespace, lease_until.to_bytes(_TIME_SIZE) + key)


def waiting_key(namespace: str, place: bytes) -> bytes:
    return place[len(place_of(namespace)) + _TIME_SIZE :]


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────


def item_of(address: AddressPair, record: Record, stamp: bytes, margin: int) -> dict[str, dict[str, Any]]:
    about = record.about
    item: dict[str, dict[str, Any]] = {
        "id": {"S": record_id(address)},
        "namespace": {"S": address[0]},
        "key": {"S": address[1].hex()},
        "stamp": {"B": stamp},
        "status": {"S": _STATUS[record.state]},
        "owner": {"B": record.owner},
        "fence": _number(record.fence),
        "leaseUntil": _number(record.lease_until),
        "attempts": _number(record.attempts),
        "payloadHash": {"B": record.payload_hash},
        "firstSeen": {"S": _format_time(record.first_seen)},
        "source": {"S": about.source},
    }
    texts = {"type": about.type, "conversationId": about.entity, "deliveryId": about.delivery_id}
    texts |= {"error": record.error, "handedTo": record.handed_to}
    times = {"timestamp": about.occurred_at, "processedAt": record.completed_at}
    times["unavailableSince"] = record.unavailable_since
    blobs = {"result": record.result, "payload": record.payload}
    item.update((name, {"S": text}) for name, text in texts.items() if text is not None)
    item.update((name, {"S": _format_time(time)}) for name, time in times.items() if time is not None)
    item.update((name, _encode_blob(blob)) for name, blob in blobs.items() if blob is not None)
    if record.lost:
        item["lost"] = _number(record.lost)
    if record.expires_at is not None:
        item.update(_expiry(record.expires_at, margin))
    item.update(_index_keys(address, record))
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
        _parse_time(item["firstSeen"]["S"]),
        _time(item, "processedAt"),
        _decode_blob(item, "result"),
        _text(item, "error"),
        _decode_blob(item, "payload"),
        int(item["lost"]["N"]) if "lost" in item else 0,
        _time(item, "unavailableSince"),
        _text(item, "handedTo"),
    )


def _index_keys(address: AddressPair, record: Record) -> dict[str, dict[str, Any]]:
    """Return the index keys of a record. Only dead letters and waiting records are in the sparse index, so other
    records have no index keys."""
    if record.state == DEAD:
        return {"shelf": {"S": DEAD_SHELF}, "place": {"B": place_of(*address)}}
    if record.payload is not None and record.state in (IN_PROGRESS, RELEASED):
        place = waiting_place(address[0], record.lease_until, address[1])
        return {"shelf": {"S": WAITING_SHELF}, "place": {"B": place}}
    return {}


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────────


def document_item(change: Change, stamp: bytes, now: int, margin: int) -> dict[str, dict[str, Any]]:
    return {
        "id": {"S": document_id((change.namespace, change.key))},
        "namespace": {"S": change.namespace},
        "key": {"S": change.key.hex()},
        "stamp": {"B": stamp},
        "version": _number(change.version + 1 if change.version else now),
        "body": _encode_blob(change.body),
        **_expiry(now + change.retention, margin),
    }


def document_of(item: Item | None, past: int) -> Document:
    """Return the document in an item. The document is empty if `item` is None or if the item expired at or before the
    time `past`."""
    if item is None or int(item["expires"]["N"]) <= past:
        return Document()
    return Document(int(item["version"]["N"]), _decode_blob(item, "body"))


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: int) -> dict[str, Any]:
    return {"N": str(value)}


def _expiry(expires_at: int, margin: int) -> dict[str, dict[str, Any]]:
    """Return the two expiry attributes. `expiresAt` includes the margin: the TTL of DynamoDB must not delete an item
    before the item has expired on the slowest clock."""
    return {"expires": _number(expires_at), "expiresAt": _number(-(-(expires_at + margin) // _SECOND))}


def _encode_blob(blob: bytes) -> dict[str, Any]:
    if len(blob) <= _MAX_PLAIN_TEXT:
        try:
            return {"S": blob.decode()}
        except UnicodeDecodeError:
            pass
    return {"B": zlib.compress(blob)}


def _decode_blob(item: Item, name: str) -> bytes | None:
    value = item.get(name)
    if value is None:
        return None
    return value["S"].encode() if "S" in value else zlib.decompress(value["B"])


def _text(item: Item, name: str) -> str | None:
    return item[name]["S"] if name in item else None


def _time(item: Item, name: str) -> int | None:
    return _parse_time(item[name]["S"]) if name in item else None


def _format_time(time: int) -> str:
    """Format a time in microseconds as an ISO time. If `datetime` cannot represent the year, return the number as
    text."""
    try:
        return (_EPOCH + time * _MICROSECOND).isoformat(timespec="microseconds")
    except OverflowError:
        return str(time)


def _parse_time(text: str) -> int:
    if text.removeprefix("-").isdecimal():
        return int(text)
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND

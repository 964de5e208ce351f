"""Encode requests for the Lua scripts. Decode the answers of the scripts, and records.

`lua/record.lua` documents the layout of a record. A request begins with a head of fixed layout. The head has numbers
and lengths. Byte strings of these lengths follow the head.
"""

import struct
from binascii import unhexlify
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct, msgpack

from oncegate.claims import (
    COMPLETED,
    Address,
    Claim,
    ClaimProof,
    Complete,
    EventSummary,
    Forget,
    Record,
    Redrive,
    Release,
    Renew,
    Reset,
    Settlement,
    State,
    Take,
)
from oncegate.stores.base import Change

_NULL: Final = b"null"
_BYTE: Final = [bytes((number,)) for number in range(256)]

# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1024)
def encode_namespace(namespace: str) -> bytes:
    """Return the namespace in UTF-8 with escaped zero bytes, followed by a zero byte. Encoded namespaces sort like the
    namespaces, and no encoded namespace is a prefix of another encoded namespace."""
    return namespace.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0"


@lru_cache(maxsize=1024)
def decode_namespace(encoded: bytes) -> str:
    return encoded[:-1].replace(b"\1\1", b"\0").replace(b"\1\2", b"\1").decode()


def encode_address(address: Address) -> bytes:
    return encode_namespace(address.namespace) + address.key


def decode_address(encoded: bytes) -> tuple[str, bytes]:
    """Return the namespace and the key."""
    stop = encoded.index(0) + 1
    return decode_namespace(encoded[:stop]), encoded[stop:]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────

_NO_TEXT: Final = 0xFFFFFFFF
_UNSTARTED: Final = 2**53
_CLAIM: Final = struct.Struct(">IBBIQQQB")
_SUMMARY_LENGTH: Final = slice(6, 10)
_SETTLE: Final = struct.Struct(">cIIQII")
_TAKE: Final = struct.Struct(">IIQ")
_OPERATE: Final = struct.Struct(">cI")
_SWAP: Final = struct.Struct(">IIqQ")
_LENGTH: Final = struct.Struct(">I")


def encode_claim(claim: Claim) -> bytes:
    address = encode_namespace(claim.namespace) + claim.key  # `encode_address`, inlined for speed
    owner, content, summary = claim.owner, claim.payload_hash, encode_summary(claim.about)
    flags = claim.binds + 2 * claim.marks
    head = _CLAIM.pack(
        len(address),
        len(owner),
        len(content),
        len(summary),
        claim.lease,
        claim.retention,
        claim.slides,
        flags,
    )
    return head + address + owner + content + summary


def claimed_summary(encoded_claim: bytes) -> bytes:
    """Return the event summary in an encoded claim. It has the encoding of `encode_summary`."""
    return encoded_claim[-int.from_bytes(encoded_claim[_SUMMARY_LENGTH]) :]


def encode_settlement(settlement: Settlement) -> bytes:
    if isinstance(settlement, Complete):
        if settlement.result == _NULL and settlement.error is None and settlement.handed_to is None:
            # Nearly every settlement is encoded here. This branch does not call `_encode_settle`, because every
            # function call adds measurable time to a batch.
            address, proof = encode_address(settlement), _encode_proof(settlement.owner, settlement.fence)
            head = _SETTLE.pack(b"c", len(address), len(proof), settlement.retention, _NO_TEXT, _NO_TEXT)
            return head + address + proof
        return _encode_complete(settlement)
    error = _utf8(settlement.error)
    if isinstance(settlement, Release):
        verb = b"U" if settlement.unavailable else b"R"
        return _encode_settle(verb, settlement, _UNSTARTED if settlement.unstarted else settlement.delay, None, error)
    return _encode_settle(b"D", settlement, settlement.retention, settlement.payload, error)


def _encode_complete(complete: Complete) -> bytes:
    error = _utf8(complete.error)
    if complete.handed_to is not None:
        texts = _encode_tail_text(error) + _encode_tail_text(_utf8(complete.handed_to))
        return _encode_settle(b"H", complete, complete.retention, complete.result, texts)
    return _encode_settle(b"C", complete, complete.retention, complete.result, error)


def encode_renewal(renewal: Renew) -> bytes:
    return _encode_settle(b"N", renewal, renewal.lease, None, None)


def _encode_settle(verb: bytes, claim: ClaimProof, number: int, first: bytes | None, second: bytes | None) -> bytes:
    address = encode_address(claim)
    proof = _encode_proof(claim.owner, claim.fence)
    first_length = _NO_TEXT if first is None else len(first)
    second_length = _NO_TEXT if second is None else len(second)
    head = _SETTLE.pack(verb, len(address), len(proof), number, first_length, second_length)
    return head + address + proof + (first or b"") + (second or b"")


def _utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def encode_take(take: Take) -> bytes:
    address = encode_address(take)
    return _TAKE.pack(len(address), len(take.owner), take.lease) + address + take.owner


def encode_redrive(redrive: Redrive) -> bytes:
    address = encode_address(redrive)
    return _OPERATE.pack(b"V", len(address)) + address


def encode_reset(reset: Reset) -> bytes:
    address = encode_address(reset)
    return _OPERATE.pack(b"d" if reset.only_dead else b"X", len(address)) + address


def encode_forget(forget: Forget) -> bytes:
    address = encode_address(forget)
    head = _OPERATE.pack(b"W" if forget.waiting else b"F", len(address))
    return head + address + forget.retention.to_bytes(8)


def encode_change(change: Change) -> bytes:
    address = encode_address(change)
    return _SWAP.pack(len(address), len(change.body), change.version, change.retention) + address + change.body


def encode_lookup(address: Address) -> bytes:
    return encode_text(encode_address(address))


def encode_text(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


def encode_texts(texts: Iterable[bytes]) -> bytes:
    return b"".join(map(encode_text, texts))


# ── parts of a record ─────────────────────────────────────────────────────────────────────────────────────

_LOW_7_BYTES: Final = (1 << 56) - 1
_TAIL_TEXTS: Final = 8
_LONG_TEXT: Final = 254
_ABSENT_TEXT: Final = 255
_MSGPACK_ARRAY: Final = 0x90
_WITH_UUID: Final = 0x10


class _StoredSummary(Struct, array_like=True, gc=False):
    """EventSummary as a MessagePack array. Fields that are often None come last: None values at the end of the array
    are not stored."""

    source: str
    type: str | None = None
    delivery_id: str | None = None
    entity: str | None = None
    occurred_at: int | None = None


_encode_msgpack: Final = msgpack.Encoder().encode
_decode_msgpack: Final = msgpack.Decoder(_StoredSummary).decode


def _encode_proof(owner: bytes, fence: int) -> bytes:
    return (fence & _LOW_7_BYTES).to_bytes(7) + _BYTE[len(owner)] + owner


def encode_summary(summary: EventSummary) -> bytes:
    """Return the first text of a record's tail. The text is a MessagePack array without the None values at its end.

    Most delivery ids are UUIDs. A UUID is not stored as an element of the array: its 16 bytes follow the first byte of
    the array. To mark this, 0x10 is added to the first byte."""
    delivery_id = summary.delivery_id
    uuid = _uuid_bytes(delivery_id)
    parts = [summary.source, summary.type, delivery_id if uuid is None else None, summary.entity, summary.occurred_at]
    while parts[-1] is None:
        parts.pop()
    packed = _encode_msgpack(parts)
    if uuid is not None:
        packed = _BYTE[packed[0] + _WITH_UUID] + uuid + packed[1:]
    return _encode_tail_text(packed)


def _encode_tail_text(text: bytes | None) -> bytes:
    if text is None:
        return _BYTE[_ABSENT_TEXT]
    return (_BYTE[len(text)] if len(text) < _LONG_TEXT else _BYTE[_LONG_TEXT] + len(text).to_bytes(4)) + text


def _decode_summary(packed: bytes) -> EventSummary:
    uuid = b""
    if packed[0] >= _MSGPACK_ARRAY + _WITH_UUID:
        uuid, packed = packed[1:17], _BYTE[packed[0] - _WITH_UUID] + packed[17:]
    stored = _decode_msgpack(packed)
    delivery_id = _format_uuid(uuid) if uuid else stored.delivery_id
    return EventSummary(stored.source, stored.type, stored.entity, stored.occurred_at, delivery_id)


def _uuid_bytes(delivery_id: str | None) -> bytes | None:
    """Return the 16 bytes of a UUID that is written in lower case with hyphens. Return None for any other text."""
    if delivery_id is None or len(delivery_id) != 36 or delivery_id[8:24:5] != "----":
        return None
    digits = delivery_id.replace("-", "")
    try:
        uuid = unhexlify(digits)
    except ValueError:
        return None
    return uuid if len(uuid) == 16 and uuid.hex() == digits else None


def _format_uuid(uuid: bytes) -> str:
    return f"{uuid[:4].hex()}-{uuid[4:10].hex('-', 2)}-{uuid[10:].hex()}"


def _decode_tail(tail: bytes) -> list[bytes | None]:
    """Return all texts of a tail. An absent text is None. If the tail has only one text, return a list of this text
    alone."""
    found: list[bytes | None] = []
    at = 0
    while at < len(tail):
        length = tail[at]
        at += 1
        if length == _ABSENT_TEXT:
            found.append(None)
            continue
        if length == _LONG_TEXT:
            length = int.from_bytes(tail[at : at + 4])
            at += 4
        found.append(tail[at : at + length])
        at += length
    return found + [None] * (_TAIL_TEXTS - len(found)) if len(found) > 1 else found


# ── records and answers ───────────────────────────────────────────────────────────────────────────────────

_HEAD: Final = struct.Struct(">QQQQB")
_OWNER_AT: Final = _HEAD.size
_TIME_SIZE: Final = 7
_STATE_LETTERS: Final[dict[str, State]] = {"P": "P", "p": "P", "R": "R", "r": "R", "C": "C", "c": "C", "D": "D"}
_STATES: Final = {ord(letter): state for letter, state in _STATE_LETTERS.items()}


def decode_record(value: bytes, about: EventSummary | None = None, encoded_about: bytes = b"") -> Record:
    """Return the record in this value.

    To save time, a caller can pass the summary `about` that it expects, and the same summary in its encoding as
    `encoded_about`. If the tail of the value equals `encoded_about`, the tail is not decoded and the record gets
    `about`. For a duplicate, this is the usual case."""
    first, second, third, fourth, owner_length = _HEAD.unpack_from(value)
    state, moment = _STATES[first >> 56], first & _LOW_7_BYTES
    hash_at = _OWNER_AT + owner_length
    tail_at = hash_at + (fourth >> 56)
    completed = state == COMPLETED
    result: bytes | None = _NULL if completed else None
    error = payload = lost = since = handed_to = None
    lease_until = 0 if completed else moment
    tail = value[tail_at:]
    if about is None or tail != encoded_about:
        if 1 + tail[0] == len(tail):  # nearly always true: the summary is the only text
            about = _decode_summary(tail[1:])
        else:
            summary, *rest = _decode_tail(tail)
            about = _decode_summary(summary or b"")
            if rest:
                result, error_text, payload, lease, lost, since, handed_to = rest
                error = None if error_text is None else error_text.decode()
                lease_until = lease_until if lease is None else int.from_bytes(lease)
    return Record(
        state,
        value[_OWNER_AT:hash_at],
        fourth & _LOW_7_BYTES,
        lease_until,
        second >> 48 & 0xFF00 | third >> 56,
        value[hash_at:tail_at],
        second & _LOW_7_BYTES or None,
        about,
        third & _LOW_7_BYTES,
        moment if completed else None,
        result,
        error,
        payload,
        0 if lost is None else int.from_bytes(lost),
        None if since is None else int.from_bytes(since),
        None if handed_to is None else handed_to.decode(),
    )


def decode_single_answer(reply: bytes) -> tuple[int, int, bytes]:
    """Decode the answer of claim.lua to one request. Return the time, the letter and the record (empty for no
    record)."""
    return int.from_bytes(reply[:_TIME_SIZE]), reply[_TIME_SIZE], reply[_TIME_SIZE + 1 :]


def decode_answer(reply: bytes | list[bytes], count: int) -> tuple[int, bytes, Iterator[bytes]]:
    """Decode the answer of claim.lua to `count` requests. Return the time, one letter for each request, and the
    records. Some letters have no record; the records are in the order of the requests whose letter has a record."""
    if isinstance(reply, bytes):
        stop = _TIME_SIZE + count
        return int.from_bytes(reply[:_TIME_SIZE]), reply[_TIME_SIZE:stop], iter((reply[stop:],))
    head, *records = reply
    return int.from_bytes(head[:_TIME_SIZE]), head[_TIME_SIZE:], iter(records)


def decode_document(value: bytes) -> tuple[int, int, bytes]:
    """Return the version, the expiry and the body of a document."""
    return int.from_bytes(value[:7]), int.from_bytes(value[7:14]), value[14:]

"""Records and addresses as the bytes that record.lua draws."""

from binascii import unhexlify
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct as Layout
from typing import Final

from msgspec import Struct, msgpack

from oncegate.claims import COMPLETED, Address, EventSummary, Record, State

_MASK: Final = (1 << 56) - 1
_HEAD: Final = Layout(">QQQQB")
_OWNER_AT: Final = _HEAD.size
_TIME: Final = 7
_LETTERS: Final[dict[str, State]] = {"P": "P", "p": "P", "R": "R", "r": "R", "C": "C", "c": "C", "D": "D"}
_STATES: Final = {ord(letter): state for letter, state in _LETTERS.items()}

_encode: Final = msgpack.Encoder().encode
_TEXTS: Final = 8
_LONG: Final = 254
_NONE: Final = 255
_NULL: Final = b"null"
_ONE: Final = [bytes((number,)) for number in range(256)]
_ARRAY: Final = 0x90
_WITH_UUID: Final = 0x10


class _Kept(Struct, array_like=True, gc=False):
    """About as it is kept, what is rare at the end."""

    source: str
    type: str | None = None
    delivery: str | None = None
    entity: str | None = None
    occurred_at: int | None = None


_decode: Final = msgpack.Decoder(_Kept).decode


def pack_proof(owner: bytes, fence: int) -> bytes:
    return (fence & _MASK).to_bytes(7) + _ONE[len(owner)] + owner


def pack_about(about: EventSummary) -> bytes:
    """As the first text of a tail: a MessagePack array without what is missing at its end. Most delivery ids are UUIDs:
    such a one is left out of the array and put behind its first byte, which is changed to tell so."""
    short = _shortened(about.delivery_id)
    parts = [about.source, about.type, about.delivery_id if short is None else None, about.entity, about.occurred_at]
    while parts[-1] is None:
        parts.pop()
    packed = _encode(parts)
    if short is not None:
        packed = _ONE[packed[0] + _WITH_UUID] + short + packed[1:]
    return pack_text(packed)


def pack_text(text: bytes | None) -> bytes:
    """As it stands in a tail."""
    if text is None:
        return _ONE[_NONE]
    return (_ONE[len(text)] if len(text) < _LONG else _ONE[_LONG] + len(text).to_bytes(4)) + text


def _unpack_about(packed: bytes) -> EventSummary:
    short = b""
    if packed[0] >= _ARRAY + _WITH_UUID:
        short, packed = packed[1:17], _ONE[packed[0] - _WITH_UUID] + packed[17:]
    kept = _decode(packed)
    return EventSummary(
        kept.source, kept.type, kept.entity, kept.occurred_at, _spelled(short) if short else kept.delivery
    )


def _shortened(delivery: str | None) -> bytes | None:
    """The 16 bytes of a UUID, if it is spelled the usual way."""
    if delivery is None or len(delivery) != 36 or delivery[8:24:5] != "----":
        return None
    digits = delivery.replace("-", "")
    try:
        short = unhexlify(digits)
    except ValueError:
        return None
    return short if len(short) == 16 and short.hex() == digits else None


def _spelled(short: bytes) -> str:
    return f"{short[:4].hex()}-{short[4:10].hex('-', 2)}-{short[10:].hex()}"


def unpack(value: bytes, about: EventSummary | None = None, packed: bytes = b"") -> Record:
    """The record of this value. What it is about need not be read if it is this, packed like this, as it mostly is
    where a copy has come."""
    first, second, third, fourth, owner_length = _HEAD.unpack_from(value)
    state, moment = _STATES[first >> 56], first & _MASK
    hash_at = _OWNER_AT + owner_length
    tail_at = hash_at + (fourth >> 56)
    completed = state == COMPLETED
    result: bytes | None = _NULL if completed else None
    error = payload = lost = since = handed = None
    lease_until = 0 if completed else moment
    tail = value[tail_at:]
    if about is None or tail != packed:
        if 1 + tail[0] == len(tail):  # nearly always
            about = _unpack_about(tail[1:])
        else:
            kept, *rest = _texts(tail)
            about = _unpack_about(kept or b"")
            if rest:
                result, said, payload, lease, lost, since, handed = rest
                error = None if said is None else said.decode()
                lease_until = lease_until if lease is None else int.from_bytes(lease)
    return Record(
        state,
        value[_OWNER_AT:hash_at],
        fourth & _MASK,
        lease_until,
        second >> 48 & 0xFF00 | third >> 56,
        value[hash_at:tail_at],
        second & _MASK or None,
        about,
        third & _MASK,
        moment if completed else None,
        result,
        error,
        payload,
        0 if lost is None else int.from_bytes(lost),
        None if since is None else int.from_bytes(since),
        None if handed is None else handed.decode(),
    )


def unpack_only(reply: bytes) -> tuple[int, int, bytes]:
    """What claim.lua answers to one request: the time, a letter, and the record if one goes with it."""
    return int.from_bytes(reply[:_TIME]), reply[_TIME], reply[_TIME + 1 :]


def unpack_answer(reply: bytes | list[bytes], count: int) -> tuple[int, bytes, Iterator[bytes]]:
    """What claim.lua answers: the time, a letter for each of so many requests, and the records that go with some."""
    if isinstance(reply, bytes):
        stop = _TIME + count
        return int.from_bytes(reply[:_TIME]), reply[_TIME:stop], iter((reply[stop:],))
    head, *records = reply
    return int.from_bytes(head[:_TIME]), head[_TIME:], iter(records)


def _texts(tail: bytes) -> list[bytes | None]:
    """All texts of a tail, or the first alone."""
    found: list[bytes | None] = []
    at = 0
    while at < len(tail):
        length = tail[at]
        at += 1
        if length == _NONE:
            found.append(None)
            continue
        if length == _LONG:
            length = int.from_bytes(tail[at : at + 4])
            at += 4
        found.append(tail[at : at + length])
        at += length
    return found + [None] * (_TEXTS - len(found)) if len(found) > 1 else found


@lru_cache(maxsize=1024)
def place_of(namespace: str) -> bytes:
    """The namespace as bytes without a zero, and a zero: no other place is the beginning of it, and order is kept."""
    return namespace.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0"


@lru_cache(maxsize=1024)
def namespace_of(place: bytes) -> str:
    return place[:-1].replace(b"\1\1", b"\0").replace(b"\1\2", b"\1").decode()


def where_of(address: Address) -> bytes:
    return place_of(address.namespace) + address.key


def address_of(where: bytes) -> tuple[str, bytes]:
    stop = where.index(0) + 1
    return namespace_of(where[:stop]), where[stop:]

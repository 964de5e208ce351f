"""Records and addresses as the bytes that record.lua draws."""

from functools import lru_cache
from typing import Any, Final

from msgspec import msgpack

from oncegate.claims import COMPLETED, About, Address, Record, State

_MASK: Final = (1 << 56) - 1
_HEAD: Final = 31
_STATES: Final[dict[int, State]] = {ord(letter): letter.upper() for letter in "PRCDprc"}  # type: ignore[misc]  # upper() of a Literal
_MARKED: Final = ord("c")

_encode: Final = msgpack.Encoder().encode
_LONG: Final = 254
_NONE: Final = 255
_tail: Final = msgpack.Decoder(list[bytes | int | None]).decode
_about: Final = msgpack.Decoder(list[Any]).decode


def pack_about(about: About) -> bytes:
    """What is mostly missing comes last and is left out."""
    parts = [about.source, about.type, _shortened(about.delivery_id), about.entity, about.occurred_at]
    while parts[-1] is None:
        parts.pop()
    return _encode(parts)


def _unpack_about(packed: bytes) -> About:
    source, type_, delivery, entity, occurred_at = (_about(packed) + [None] * 4)[:5]
    return About(source, type_, entity, occurred_at, _spelled(delivery) if type(delivery) is bytes else delivery)


def _shortened(delivery: str | None) -> str | bytes | None:
    """Most delivery ids are UUIDs, which are less than half as long when they are not spelled out."""
    if delivery is None or len(delivery) != 36:
        return delivery
    try:
        short = bytes.fromhex(delivery.replace("-", ""))
    except ValueError:
        return delivery
    return short if len(short) == 16 and _spelled(short) == delivery else delivery


def _spelled(short: bytes) -> str:
    digits = short.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def unpack(value: bytes) -> Record:
    state, numbers = _STATES[value[0]], int.from_bytes(value[1:_HEAD])
    owner_at = _HEAD + 1
    hash_at = owner_at + value[_HEAD] + 1
    tail_at = hash_at + value[hash_at - 1]
    about, result, error, payload, lease = _texts(value, tail_at)
    moment = numbers >> 56 & _MASK
    completed = state == COMPLETED
    return Record(
        state,
        value[owner_at : hash_at - 1],
        numbers >> 112 & _MASK,
        int.from_bytes(lease or b"") if completed else moment,
        numbers >> 168 & 0xFFFF,
        value[hash_at:tail_at],
        numbers & _MASK or None,
        _unpack_about(about or b""),
        numbers >> 184,
        moment if completed else None,
        result,
        None if error is None else error.decode(),
        payload,
    )


def _texts(value: bytes, at: int) -> list[bytes | None]:
    """The five texts of a tail."""
    found: list[bytes | None] = []
    while at < len(value):
        length = value[at]
        at += 1
        if length == _NONE:
            found.append(None)
            continue
        if length == _LONG:
            length = int.from_bytes(value[at : at + 4])
            at += 4
        found.append(value[at : at + length])
        at += length
    return found + [None] * (5 - len(found))


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

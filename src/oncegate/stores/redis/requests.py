"""Requests as the bytes that the scripts take: numbers and lengths, then the texts of these lengths."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from oncegate.claims import Address, Claim, ClaimProof, Complete, Redrive, Release, Renew, Reset, Settlement, Take
from oncegate.stores.base import Change
from oncegate.stores.redis.codec import pack_about, pack_proof, pack_text, where_of

_NONE: Final = 0xFFFFFFFF
_UNSTARTED: Final = 2**53
_NULL: Final = b"null"
_CLAIM: Final = Struct(">IBBIQQQB")
_ABOUT_LENGTH: Final = slice(6, 10)
_SETTLE: Final = Struct(">cIIQII")
_TAKE: Final = Struct(">IIQ")
_OPERATE: Final = Struct(">cI")
_SWAP: Final = Struct(">IIqQ")
_TEXT: Final = Struct(">I")


def claiming(claim: Claim) -> bytes:
    where, owner, content, about = where_of(claim), claim.owner, claim.payload_hash, pack_about(claim.about)
    lengths = len(where), len(owner), len(content), len(about)
    flags = claim.binds + 2 * claim.marks
    return _CLAIM.pack(*lengths, claim.lease, claim.retention, claim.slides, flags) + where + owner + content + about


def packed_about(claimed: bytes) -> bytes:
    """What the request of a claim ends with."""
    return claimed[-int.from_bytes(claimed[_ABOUT_LENGTH]) :]


def settling(ended: Settlement) -> bytes:
    if isinstance(ended, Complete):
        if ended.handed_to is not None:
            both = pack_text(_bytes(ended.error)) + pack_text(_bytes(ended.handed_to))
            return _settling(b"H", ended, ended.retention, ended.result, both)
        if ended.result == _NULL and ended.error is None:  # nearly always
            where, proof = where_of(ended), pack_proof(ended.owner, ended.fence)
            return _SETTLE.pack(b"c", len(where), len(proof), ended.retention, _NONE, _NONE) + where + proof
        return _settling(b"C", ended, ended.retention, ended.result, _bytes(ended.error))
    if isinstance(ended, Release):
        verb, delay = b"U" if ended.unavailable else b"R", _UNSTARTED if ended.unstarted else ended.delay
        return _settling(verb, ended, delay, None, _bytes(ended.error))
    return _settling(b"D", ended, ended.retention, ended.payload, _bytes(ended.error))


def renewing(renew: Renew) -> bytes:
    return _settling(b"N", renew, renew.lease, None, None)


def _settling(verb: bytes, held: ClaimProof, number: int, one: bytes | None, two: bytes | None) -> bytes:
    where = where_of(held)
    proof = pack_proof(held.owner, held.fence)
    head = _SETTLE.pack(verb, len(where), len(proof), number, _length(one), _length(two))
    return head + where + proof + (one or b"") + (two or b"")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _length(text: bytes | None) -> int:
    return _NONE if text is None else len(text)


def taking(take: Take) -> bytes:
    where = where_of(take)
    return _TAKE.pack(len(where), len(take.owner), take.lease) + where + take.owner


def redriving(redrive: Redrive) -> bytes:
    where = where_of(redrive)
    return _OPERATE.pack(b"V", len(where)) + where


def resetting(reset: Reset) -> bytes:
    where = where_of(reset)
    return _OPERATE.pack(b"d" if reset.only_dead else b"X", len(where)) + where


def swapping(change: Change) -> bytes:
    where = where_of(change)
    return _SWAP.pack(len(where), len(change.body), change.version, change.retention) + where + change.body


def reading(address: Address) -> bytes:
    return text(where_of(address))


def text(bytes_: bytes) -> bytes:
    return _TEXT.pack(len(bytes_)) + bytes_


def texts(each: Iterable[bytes]) -> bytes:
    return b"".join(map(text, each))

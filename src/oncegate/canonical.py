"""Canonical JSON: one encoding for each JSON value, and the hash of this encoding.

The order of members, white space, escapes and number forms (`1`, `1.0`, `1e0`) do not change the meaning of a document,
so they do not change its hash.
"""

import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

import msgspec

HASH_SIZE = 16
DEEPEST = 64
MOST_DIGITS = 1_000

# The messages do not quote the number, because messages about payloads are logged.
_OUT_OF_RANGE = "a number in it is out of range"
_TOO_LONG = f"a number in it has more than {MOST_DIGITS} digits; the maximum is {MOST_DIGITS}"
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
_BRACKETS_TO_ROUND = bytes.maketrans(b"[{]}", b"(())")
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_SAMPLE_STEP = 100
_SAMPLED_RUN = b"0" * (MOST_DIGITS // _SAMPLE_STEP)
_LONG_RUN = b"0" * (MOST_DIGITS + 1)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _number(literal: str) -> int | float:
    value = float(literal)
    if value - value != 0:
        raise ValueError(_OUT_OF_RANGE)
    if not value.is_integer():
        return value
    return int(value) if abs(value) < 2**53 else _large(literal, value)


def _large(literal: str, value: float) -> int | float:
    """Return a whole number of 2**53 or more as an exact integer, made from its digits. If the number is not whole or
    is too large, return the double."""
    if abs(value) >= 2**63 or len(literal) > 40:
        return value
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    zeros = len(whole) - len(digits) + int(exponent or 0)
    return int(digits + "0" * zeros) if zeros >= 0 else value


# To copy an empty hash object is faster than to create a new one: the creation looks up the algorithm or parses the
# size each time.
_new_sha256 = sha256().copy
_new_blake2b = blake2b(digest_size=HASH_SIZE).copy
_decode = msgspec.json.Decoder(float_hook=_number).decode
# The canonical bytes of a value that `decode` returned.
encode: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode


def decode(raw: bytes) -> Any:
    """Decode strict JSON in strict UTF-8. Raises ValueError with a message for people."""
    # The brackets are counted by removing them and comparing the lengths. This takes a third of the time of
    # bytes.count.
    if 2 * len(raw) - len(raw.replace(b"[", b"")) - len(raw.replace(b"{", b"")) > DEEPEST and _depth(raw) > DEEPEST:
        raise ValueError(f"the JSON is nested deeper than {DEEPEST} levels")
    if has_long_number(raw):
        raise ValueError(_TOO_LONG)
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8: {error.reason} at byte {error.start} of a string") from error
    except msgspec.ValidationError as error:  # from _number, or from msgspec for thousands of digits
        raise ValueError(_OUT_OF_RANGE) from error
    except msgspec.MsgspecError as error:
        if raw[:3] == b"\xef\xbb\xbf":
            raise ValueError("the text starts with a byte order mark; send plain UTF-8") from error
        if not raw.strip():
            raise ValueError("the text is empty") from error
        if "surrogate" in str(error) or _LONE_SURROGATE.search(raw):
            raise ValueError(r"an escape from \ud800 to \udfff stands alone; send both halves of the pair") from error
        reason = str(error).removeprefix("JSON is malformed: ")  # of msgspec
        raise ValueError(f"the text is not JSON: {reason}") from error


def has_long_number(raw: bytes) -> bool:
    """Whether a number has more than MOST_DIGITS digits. Arithmetic and printing take quadratic time for such a number.

    A sample of every hundredth byte rules out nearly all documents. Only the remaining documents are searched in
    full."""
    if len(raw) <= MOST_DIGITS or _SAMPLED_RUN not in raw[::_SAMPLE_STEP].translate(_DIGITS_TO_ZERO):
        return False
    return _LONG_RUN in _outside_strings(raw).translate(_DIGITS_TO_ZERO)


def _outside_strings(raw: bytes) -> bytes:
    return b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _depth(raw: bytes) -> int:
    """The nesting depth of the brackets outside strings. The limit of Python itself differs between versions.

    Keeps only the brackets and then removes the innermost pairs, level by level. A Python loop over the bytes was
    rejected: it took longer than all other work on a batch of a few events.
    """
    brackets = _outside_strings(raw).translate(_BRACKETS_TO_ROUND, _NOT_BRACKETS)
    for depth in range(DEEPEST + 1):
        fewer = brackets.replace(b"()", b"")
        if len(fewer) == len(brackets):
            return depth + fewer.count(b"(")
        brackets = fewer
    return DEEPEST + 1


def written(value: Any) -> bytes:
    """The canonical JSON of a Python value. Raises ValueError if the value is not a JSON value."""
    try:
        return encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"the value cannot be written as JSON: {error}") from error


def is_lossless(value: Any, raw: bytes) -> bool:
    """Whether `raw`, the JSON of a Python value, holds the whole value. It does not if the value contains nan or
    infinities, because JSON writes these as null."""
    return b"null" not in raw or _finite(msgspec.to_builtins(value, str_keys=True))


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or value - value == 0


def normal(value: Any) -> Any:
    """A Python value after a round trip through JSON. Raises ValueError if the value is not a JSON value."""
    return decode(written(value))


def content_digest(body: Any) -> bytes:
    """The hash of a body. It uses SHA-256, because processors accelerate SHA-256 and a whole body is hashed."""
    hashed = _new_sha256()
    hashed.update(encode(body))
    return hashed.digest()[:HASH_SIZE]


def digest_of(value: Any) -> bytes:
    """The hash of a value in its canonical encoding."""
    return digest(encode(value))


def digest(canonical: bytes) -> bytes:
    hashed = _new_blake2b()
    hashed.update(canonical)
    return hashed.digest()

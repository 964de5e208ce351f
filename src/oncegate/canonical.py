"""One spelling for each JSON value, and the hash of it.

Member order, white space, escapes and number forms (`1`, `1.0`, `1e0`) do not matter to what a document says,
so they must not matter to its identity.
"""

import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

import msgspec

HASH_SIZE = 16
DEEPEST = 64
MOST_DIGITS = 1_000

_OUT_OF_RANGE = "a number in it is out of range"  # which one is not said: sentences about payloads stand in logs
_TOO_LONG = f"a number in it has more than {MOST_DIGITS} digits; the maximum is {MOST_DIGITS}"
_LONE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")  # the first half of a pair, without the second
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_SAMPLED = 100
_SAMPLE = b"0" * (MOST_DIGITS // _SAMPLED)
_RUN = b"0" * (MOST_DIGITS + 1)
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))


def _number(literal: str) -> int | float:
    value = float(literal)
    if value - value != 0:
        raise ValueError(_OUT_OF_RANGE)
    if not value.is_integer():
        return value
    return int(value) if abs(value) < 2**53 else _large(literal, value)


def _large(literal: str, value: float) -> int | float:
    """A whole number too large for a double to tell it from the next, by its digits; the double if that cannot be."""
    if abs(value) >= 2**63 or len(literal) > 40:
        return value
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    zeros = len(whole) - len(digits) + int(exponent or 0)
    return int(digits + "0" * zeros) if zeros >= 0 else value


# To copy a hash takes less than to ask for one, which looks for the algorithm or parses the size anew.
_no_content = sha256().copy
_nothing = blake2b(digest_size=HASH_SIZE).copy
_decode = msgspec.json.Decoder(float_hook=_number).decode
# The canonical bytes of a value that `decode` gave.
encode: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode


def decode(raw: bytes) -> Any:
    """Strict JSON from strict UTF-8; ValueError with a plain sentence for anything else."""
    # What is left when brackets are taken out tells their number in a third of the time that bytes.count takes.
    if 2 * len(raw) - len(raw.replace(b"[", b"")) - len(raw.replace(b"{", b"")) > DEEPEST and _depth(raw) > DEEPEST:
        raise ValueError(f"the JSON is nested deeper than {DEEPEST} levels")
    if has_long_number(raw):
        raise ValueError(_TOO_LONG)
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8: {error.reason} at byte {error.start} of a string") from error
    except msgspec.ValidationError as error:  # raised above, or by msgspec for thousands of digits
        raise ValueError(_OUT_OF_RANGE) from error
    except msgspec.MsgspecError as error:
        if raw[:3] == b"\xef\xbb\xbf":
            raise ValueError("the text starts with a byte order mark; send plain UTF-8") from error
        if not raw.strip():
            raise ValueError("the text is empty") from error
        if "surrogate" in str(error) or _LONE.search(raw):
            raise ValueError(r"an escape from \ud800 to \udfff stands alone, and is no character by itself") from error
        raise ValueError(f"the text is not JSON: {error}") from error


def has_long_number(raw: bytes) -> bool:
    """Whether a number has too many digits in a row: arithmetic and printing take quadratic time with it. Such a run
    shows in every hundredth byte; only then are all bytes outside of strings looked at."""
    if len(raw) <= MOST_DIGITS or _SAMPLE not in raw[::_SAMPLED].translate(_ALIKE):
        return False
    return _RUN in _outside_strings(raw).translate(_ALIKE)


def _outside_strings(raw: bytes) -> bytes:
    return b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _depth(raw: bytes) -> int:
    """How deep brackets outside strings are nested. Python's own limit differs from version to version.

    What is escaped is taken away, then strings, then all but the brackets, and then the innermost pairs, level by
    level: a loop over the bytes in Python took longer than all the rest for a batch of a few events.
    """
    brackets = _outside_strings(raw).translate(_ROUND, _OTHERS)
    for depth in range(DEEPEST + 1):
        fewer = brackets.replace(b"()", b"")
        if len(fewer) == len(brackets):
            return depth + fewer.count(b"(")
        brackets = fewer
    return DEEPEST + 1


def written(value: Any) -> bytes:
    """A Python value as the bytes a sender would have sent; ValueError if it is no JSON value."""
    try:
        return encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"the value cannot be written as JSON: {error}") from error


def told_apart(value: Any, raw: bytes) -> bool:
    """Whether the JSON of a Python value says all of it: nan and the infinities are written as null, like None."""
    return b"null" not in raw or _finite(msgspec.to_builtins(value, str_keys=True))


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or value - value == 0


def normal(value: Any) -> Any:
    """A Python value as it would be read back; ValueError if it is no JSON value."""
    return decode(written(value))


def content_digest(body: Any) -> bytes:
    """The hash of all that a body says. SHA-256, which processors have built in: a body is hashed as a whole."""
    hashed = _no_content()
    hashed.update(encode(body))
    return hashed.digest()[:HASH_SIZE]


def digest_of(value: Any) -> bytes:
    """The hash of what a value says, however it was spelt."""
    return digest(encode(value))


def digest(canonical: bytes) -> bytes:
    hashed = _nothing()
    hashed.update(canonical)
    return hashed.digest()

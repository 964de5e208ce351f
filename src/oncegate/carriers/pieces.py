"""What a carrier carries: its pieces, each with what the transport says of it."""

import binascii
import re
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from oncegate.canonical import decode
from oncegate.events import NO_EVIDENCE, Evidence

# By this name a gate that publishes an event tells its key: as an attribute of a message, or in a detail.
HANDED_KEY: Final = "oncegate-key"
_KEY: Final = re.compile("[0-9a-f]{32}")


class Piece(Struct, frozen=True):
    """One thing carried: bytes or text to be read as JSON, or a value that is read already.

    `several`: the bytes may hold more than one JSON value, with or without something between them. `polled`: it is one
    of the events that NICE CXone was asked for.
    """

    content: Any
    evidence: Evidence = NO_EVIDENCE
    problem: str | None = None
    frame: str | None = None
    several: bool = False
    polled: bool = False


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def whole(value: Any) -> int | None:
    """A count, which transports write as digits or as a number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int else None


def handed_key(value: Any) -> str | None:
    """The key that a gate has published something under, if this is one."""
    return value if isinstance(value, str) and _KEY.fullmatch(value) else None


def without_key(body: dict[str, Any], evidence: Evidence) -> tuple[dict[str, Any], Evidence]:
    """A document without the key that a gate has put into it, which is no part of what it says."""
    key = handed_key(body.get(HANDED_KEY))
    if key is None:
        return body, evidence
    rest = {name: value for name, value in body.items() if name != HANDED_KEY}
    return rest, merged(evidence, Evidence(handed_key=key))


def within(value: Any, *names: str) -> Any:
    """The member of a member, None where there is none or something else in its place."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def parsed(text: str) -> Any:
    """What a JSON text says; the text itself if it is none."""
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return text


def is_json(content: Any) -> bool:
    """Whether this is the JSON text of an object or an array: what a carrier holds, and hardly a member of an event."""
    return isinstance(content, str) and content.lstrip()[:1] in ("{", "[") and parsed(content) is not content


def merged(outer: Evidence, inner: Evidence) -> Evidence:
    """What is nearer to us is what we answer to, so the outer says it where both do."""
    if inner is NO_EVIDENCE:
        return outer
    if outer is NO_EVIDENCE:
        return inner
    said = {name: value for name, value in asdict(outer).items() if value is not None}
    return Evidence(**{**asdict(inner), **said})


def is_base64(request: dict[str, Any]) -> bool:
    """Whether the body of an HTTP request is base64; AWS writes a truth, a mapping template may write text."""
    return request.get("isBase64Encoded") in (True, "true", "True")


def from_base64(content: Any, what: str) -> bytes:
    """Bytes from base64, in lines or in one piece; ValueError with a plain sentence."""
    if not isinstance(content, str):
        raise ValueError(f"the {what} has no base64 text")
    try:
        return binascii.a2b_base64(b"".join(content.encode().split()), strict_mode=True)
    except ValueError as error:
        raise ValueError(f"the {what} is not base64: {error}") from error


def to_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()

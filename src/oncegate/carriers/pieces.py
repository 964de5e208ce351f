"""The pieces of content in a carrier, with the evidence of the transport, and helpers to read carriers."""

import binascii
import re
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from oncegate.canonical import decode
from oncegate.events import NO_EVIDENCE, Evidence

# When a gate publishes an event, it adds the key of the event under this name: as a message attribute in SQS, or as a
# member of the detail in EventBridge.
HANDED_KEY: Final = "oncegate-key"
_KEY: Final = re.compile("[0-9a-f]{32}")


class Piece(Struct, frozen=True):
    """One piece of content: bytes or text of JSON, or a parsed value.

    - `problem` says why the content cannot be read.
    - `frame` describes content that is not an event.
    - `several` says that the bytes may contain more than one JSON value, with or without separators.
    - `polled` says that the content is an event of a NICE CXone poll.
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
    """Return a count as an int. Transports send a count as a number or as a string of digits."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int else None


def handed_key(value: Any) -> str | None:
    """Return the value if it has the form of a gate's key, otherwise None."""
    return value if isinstance(value, str) and _KEY.fullmatch(value) else None


def without_key(body: dict[str, Any], evidence: Evidence) -> tuple[dict[str, Any], Evidence]:
    """Move the key that a gate has added to a document into the evidence. Returns the document without the key, and the
    evidence with the key."""
    key = handed_key(body.get(HANDED_KEY))
    if key is None:
        return body, evidence
    rest = {name: value for name, value in body.items() if name != HANDED_KEY}
    return rest, merged(evidence, Evidence(handed_key=key))


def within(value: Any, *names: str) -> Any:
    """Return a nested member, or None if the member is missing or if a value around it is not an object."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def parsed(text: str) -> Any:
    """Decode a JSON text. Returns the text itself if it is not JSON."""
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return text


def is_json(content: Any) -> bool:
    """Whether the content is the JSON text of an object or an array. Carriers contain such text; events rarely do."""
    return isinstance(content, str) and content.lstrip()[:1] in ("{", "[") and parsed(content) is not content


def merged(outer: Evidence, inner: Evidence) -> Evidence:
    """Combine the evidence of two nested carriers. If both have a value for a field, the value of the outer carrier is
    used, because the acknowledgement goes to the outer transport."""
    if inner is NO_EVIDENCE:
        return outer
    if outer is NO_EVIDENCE:
        return inner
    values = {name: value for name, value in asdict(outer).items() if value is not None}
    return Evidence(**{**asdict(inner), **values})


def is_base64(request: dict[str, Any]) -> bool:
    """Whether the body of an HTTP request is base64. AWS sends a boolean; a mapping template may send a string."""
    return request.get("isBase64Encoded") in (True, "true", "True")


def from_base64(content: Any, what: str) -> bytes:
    """Decode base64, with or without line breaks. Raises ValueError with a message that names `what`."""
    if not isinstance(content, str):
        raise ValueError(f"the {what} is missing or not a string of base64")
    try:
        return binascii.a2b_base64(b"".join(content.encode().split()), strict_mode=True)
    except ValueError as error:
        raise ValueError(f"the {what} is not base64: {error}") from error


def to_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()

"""Signed requests: whether one that invokes a Lambda function is genuine, asked before any of it is read."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from oncegate.carriers.pieces import from_base64, is_base64
from oncegate.carriers.web import is_invocation

if TYPE_CHECKING:
    from oncegate.signatures import Verifier


class Request(Struct, frozen=True):
    """What may be read of a request: what invoked the function, without the headers, which are not signed, and the id
    that was signed with the body, if the sender does so."""

    event: Any
    id: str | None = None


def checked(event: Any, verifier: "Verifier", now: int) -> Request | tuple[int, str]:
    """The request if it is genuine, else the code and the sentence for one that is not, as none is that comes over a
    WebSocket: it has no headers, and so no signature. What did not come by HTTP is left as it is: who else may invoke
    the function is for AWS to know."""
    if not is_invocation(event):
        return Request(event)
    try:
        body = _body(event)
    except ValueError as error:
        return 400, str(error)
    headers = event.get("multiValueHeaders") or event.get("headers")
    verdict = verifier.check(headers, body, now)
    if not verdict:
        return verdict.code, verdict.reason
    return Request({**event, "headers": None, "multiValueHeaders": None}, verifier.signed_id(headers))


def _body(event: dict[str, Any]) -> bytes:
    content = event.get("body") or ""
    if is_base64(event):
        return from_base64(content, "body")
    if not isinstance(content, str):
        raise ValueError("the body is not the text that was sent")
    return content.encode("utf-8", "surrogatepass")

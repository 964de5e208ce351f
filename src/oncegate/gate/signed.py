"""Signed requests: whether one that invokes a Lambda function is genuine, asked before any of it is read."""

from typing import TYPE_CHECKING, Any

from oncegate.carriers.pieces import from_base64, is_base64
from oncegate.carriers.web import is_invocation

if TYPE_CHECKING:
    from oncegate.signatures import Verifier


def refusal(event: Any, verifier: "Verifier", now: int) -> tuple[int, str] | None:
    """The code and the sentence for a request that is not genuine, as none is that comes over a WebSocket: it has no
    headers, and so no signature. None for one that is, and for all that did not come by HTTP: who else may invoke the
    function is for AWS to know."""
    if not is_invocation(event):
        return None
    try:
        body = _body(event)
    except ValueError as error:
        return 400, str(error)
    verdict = verifier.check(event.get("multiValueHeaders") or event.get("headers"), body, now)
    return None if verdict else (verdict.code, verdict.reason)


def _body(event: dict[str, Any]) -> bytes:
    content = event.get("body") or ""
    if is_base64(event):
        return from_base64(content, "body")
    if not isinstance(content, str):
        raise ValueError("the body is not the text that was sent")
    return content.encode("utf-8", "surrogatepass")

"""Unwrap HTTP requests of API Gateway, function URLs and load balancers, and CloudEvents in binary mode."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from oncegate.canonical import decode
from oncegate.carriers.pieces import Piece, from_base64, is_base64, text, to_base64, within
from oncegate.events import NO_EVIDENCE, Evidence

_PROXIES = ("httpMethod", "routeKey", "rawPath")
# A request to a function has requestContext and at least one of these members. A WebSocket message has only the last
# of these members.
_REQUEST_MEMBERS = (*_PROXIES, "isBase64Encoded")
MARKERS = {"requestContext"}
_CONNECTIONS = {
    "CONNECT": "the opening of a WebSocket connection (CONNECT)",
    "DISCONNECT": "the end of a WebSocket connection (DISCONNECT)",
}
_CE = "ce-"
_LONGEST_NAME = 100
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")


def pieces(body: dict[str, Any]) -> list[Piece] | None:
    if "requestContext" not in body:
        return None
    request_id = text(within(body, "requestContext", "requestId"))
    evidence = Evidence(request_id=request_id) if request_id else NO_EVIDENCE
    if (frame := _connection(body)) is not None:
        return [Piece(body, evidence, frame=frame)]
    if not _is_request(body):
        return None
    content = "" if body.get("body") is None else body["body"]
    if is_base64(body):
        try:
            content = from_base64(content, "request's body")
        except ValueError as error:
            return [Piece(body, evidence, str(error))]
    return [request(content, _headers(body), evidence)]


def _connection(body: dict[str, Any]) -> str | None:
    """Describe a message about the opening or the end of a WebSocket connection. Returns None for other documents."""
    kind = within(body, "requestContext", "eventType")
    if not isinstance(kind, str) or within(body, "requestContext", "connectionId") is None:
        return None
    return _CONNECTIONS.get(kind)


def _is_request(body: dict[str, Any]) -> bool:
    """Whether this is a request. A request without content may lack the member `body`. A request never has an `id`, but
    an event that describes a request may have an `id`."""
    if "body" in body:
        return any(name in body for name in _REQUEST_MEMBERS)
    has_proxy_member = any(name in body for name in _PROXIES)
    return has_proxy_member and isinstance(body["requestContext"], dict) and "id" not in body


def is_invocation(event: Any) -> bool:
    """Whether an HTTP request invoked the function. The content of the request does not matter."""
    has_context = isinstance(event, dict) and isinstance(event.get("requestContext"), dict)
    return has_context and any(name in event for name in _REQUEST_MEMBERS)


def request(content: Any, headers: Mapping[str, Any], evidence: Evidence) -> Piece:
    """Return the content of a request as a piece. A CloudEvent in binary mode is assembled from headers and body."""
    lowered = {str(name).lower(): value for name, value in headers.items()}
    if evidence.request_id is None and (request_id := text(lowered.get("x-request-id"))):
        evidence = replace(evidence, request_id=request_id)
    if f"{_CE}specversion" not in lowered or not isinstance(content, bytes | str):
        return Piece(content, evidence) if content else Piece(b"", evidence, "the request has no body")
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    kind = str(lowered.get("content-type", "application/json"))
    try:
        attributes = {name[len(_CE) :]: _unescaped(name, value) for name, value in lowered.items() if name[:3] == _CE}
    except ValueError as error:
        return Piece(raw, evidence, str(error))
    try:
        return Piece({**attributes, "datacontenttype": kind, **_data(raw, kind)}, evidence)
    except ValueError as error:
        return Piece(raw, evidence, f"the data of the CloudEvent cannot be read: {error}")


def _data(raw: bytes, kind: str) -> dict[str, Any]:
    """Return the member of the CloudEvents JSON format that contains the data: `data` or `data_base64`."""
    if not raw:
        return {}
    if "json" in kind.lower():
        return {"data": decode(raw)}
    try:
        return {"data": raw.decode()}
    except UnicodeDecodeError:
        return {"data_base64": to_base64(raw)}


def _unescaped(name: str, value: Any) -> str:
    """Decode the percent escapes of a header. Raises ValueError for a value that is not UTF-8, because different ids
    could become equal with replacement characters. urllib.parse was rejected because its import is slow."""
    try:
        raw = str(value).encode("utf-8", "surrogateescape")
        return _ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), raw).decode()
    except UnicodeError as error:
        raise ValueError(f"the header {name[:_LONGEST_NAME]} is not UTF-8; send UTF-8 with % escapes") from error


def _headers(body: dict[str, Any]) -> dict[str, Any]:
    """Return the headers of the request. In the REST format, some headers are only in multiValueHeaders."""
    several, single = body.get("multiValueHeaders"), body.get("headers")
    found: dict[str, Any] = {}
    if isinstance(several, dict):
        found = {name: values[-1] for name, values in several.items() if isinstance(values, list) and values}
    return {**found, **single} if isinstance(single, dict) else found

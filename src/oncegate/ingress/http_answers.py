"""This module builds HTTP responses for outcomes and errors. The service and Lambda functions behind HTTP use it."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from oncegate.gate.observers import ascii_only
from oncegate.gate.outcome import STATUSES, Outcome

# `http.HTTPStatus(code).phrase` is not used: before Python 3.13 its phrase for 413 is "Request Entity Too Large".
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
CLOSE = (b"connection", b"close")
_RETRY_AFTER = 5  # seconds
_NOT_TAKEN = "The event could not be processed now; deliver it again."


class HttpAnswer(Struct, frozen=True):
    code: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


def keep_refused(outcomes: list[Outcome], keep: Callable[[Sequence[Outcome]], list[Outcome]]) -> list[Outcome]:
    """Store each invalid event as a dead letter with `keep`. Returns all outcomes, in order."""
    kept = iter(keep([outcome for outcome in outcomes if outcome.status == "invalid"]))
    return [next(kept) if outcome.status == "invalid" else outcome for outcome in outcomes]


def answer_of(outcomes: list[Outcome], *, discreet: bool = False) -> HttpAnswer:
    """Returns the response to a request. If the request has several events, the response has the highest code of their
    outcomes. With `discreet`, the response contains no text of exceptions and no details of failures."""
    if not outcomes:
        return problem(400, "the body contains no event: it is an empty array or batch")
    code = max(_code(outcome) for outcome in outcomes)
    results = [_fields(outcome, discreet=discreet) for outcome in outcomes]
    body = results[0] if len(results) == 1 else {"outcomes": results}
    if code == 200:
        return HttpAnswer(200, _json(body), [(b"content-type", b"application/json")])
    worst = next(outcome for outcome in outcomes if _code(outcome) == code)
    return problem(code, _sentence(worst, discreet=discreet), body, due_in(worst) or _RETRY_AFTER)


def _code(outcome: Outcome) -> int:
    return 413 if outcome.cut else STATUSES[outcome.status].http


def problem(
    code: int,
    detail: str,
    more: dict[str, Any] | None = None,
    retry_after: int = _RETRY_AFTER,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> HttpAnswer:
    """Returns an error response as problem+json (RFC 9457). Its member `status` is the HTTP code. Its member `outcome`
    is the status of the outcome."""
    body = {**(more or {}), "type": "about:blank", "title": _TITLES[code], "detail": detail}
    if "status" in body:
        body["outcome"] = body.pop("status")
    body["status"] = code
    all_headers = [(b"content-type", b"application/problem+json"), *(headers or [])]
    if code in (429, 503):
        all_headers.append((b"retry-after", str(retry_after).encode()))
    return HttpAnswer(code, _json(body), all_headers)


def _json(body: dict[str, Any]) -> bytes:
    """Returns JSON in printable ASCII, because an event's id may contain characters that control a terminal or end a
    line."""
    return ascii_only(msgspec.json.encode(body).decode()).encode()


def _fields(outcome: Outcome, *, discreet: bool) -> dict[str, Any]:
    return {
        "status": outcome.status,
        "event_id": outcome.event.id,
        "key": None if outcome.key is None else str(outcome.key),
        "kind": outcome.kind,
        "reason": _sentence(outcome, discreet=discreet),
    }


def _sentence(outcome: Outcome, *, discreet: bool) -> str:
    """Returns the reason of an outcome. With `discreet`, the reason hides errors on the side of the service, because
    they would help an attacker. The log contains these errors."""
    if not discreet:
        return outcome.reason
    return _NOT_TAKEN if outcome.error and STATUSES[outcome.status].http == 503 else outcome.discreet


def due_in(outcome: Outcome) -> int | None:
    """Returns the number of seconds after which the event should be delivered again. This is the delay of the handler's
    `RetryLater`, or the time until the lease of the current claim ends. Returns None if neither is known."""
    if outcome.retry_after is not None:
        return max(1, -(-outcome.retry_after // 1_000_000))
    if outcome.status != "in_flight" or outcome.original is None or outcome.at is None:
        return None
    return max(1, -(-(outcome.original.lease_until - outcome.at) // 1_000_000))

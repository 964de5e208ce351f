"""Answers: from outcomes to HTTP, by one table."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from oncegate.gate.observers import ascii_only
from oncegate.gate.outcome import STATUSES, Outcome

_TITLES = {
    400: "Not a readable event",
    401: "Not signed",
    403: "Not from here",
    404: "No such place",
    405: "Not that way",
    408: "Too slow",
    413: "Too large",
    415: "Encoded",
    429: "Too much",
    431: "Too many headers",
    503: "Not taken",
}
CLOSE = (b"connection", b"close")
_RETRY_AFTER = 5
_NOT_TAKEN = "It could not be taken now; deliver it again."


class HttpAnswer(Struct, frozen=True):
    code: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


def keep_refused(outcomes: list[Outcome], keep: Callable[[Sequence[Outcome]], list[Outcome]]) -> list[Outcome]:
    """What is refused for good is kept as a dead letter before its sender is told."""
    kept = iter(keep([outcome for outcome in outcomes if outcome.status == "invalid"]))
    return [next(kept) if outcome.status == "invalid" else outcome for outcome in outcomes]


def answer_of(outcomes: list[Outcome], *, discreet: bool = False) -> HttpAnswer:
    """One answer for a request: of several events the one that fared worst decides the code. A discreet one does not
    repeat what exceptions said, and says nothing at all of failures."""
    if not outcomes:
        return problem(400, "the body holds no event: it is an array or a batch with nothing in it")
    code = max(_code(outcome) for outcome in outcomes)
    said = [_fields(outcome, discreet=discreet) for outcome in outcomes]
    body = said[0] if len(said) == 1 else {"outcomes": said}
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
    """A refusal as problem+json (RFC 9457). Its member `status` is the HTTP code; an outcome's is `outcome`."""
    body = {**(more or {}), "type": "about:blank", "title": _TITLES[code], "detail": detail}
    if "status" in body:
        body["outcome"] = body.pop("status")
    body["status"] = code
    sent = [(b"content-type", b"application/problem+json"), *(headers or [])]
    if code in (429, 503):
        sent.append((b"retry-after", str(retry_after).encode()))
    return HttpAnswer(code, _json(body), sent)


def _json(body: dict[str, Any]) -> bytes:
    """Printable ASCII only: an event's id may hold characters that control a terminal or end a line."""
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
    """What went wrong on our side is for the log: to a sender it says where to push."""
    if not discreet:
        return outcome.reason
    return _NOT_TAKEN if outcome.error and STATUSES[outcome.status].http == 503 else outcome.discreet


def due_in(outcome: Outcome) -> int | None:
    """In how many seconds to deliver it again: when its handler says, or the lease of whoever is at it ends; None if
    nobody knows."""
    if outcome.retry_after is not None:
        return max(1, -(-outcome.retry_after // 1_000_000))
    if outcome.status != "in_flight" or outcome.original is None or outcome.at is None:
        return None
    return max(1, -(-(outcome.original.lease_until - outcome.at) // 1_000_000))

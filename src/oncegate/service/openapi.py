"""The description of the service as OpenAPI, written by hand: nothing here is worth a framework."""

from typing import Any, Final, get_args

from oncegate import __version__
from oncegate.gate.outcome import STATUSES, Kind

_OUTCOME: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status", "event_id", "key", "kind", "reason"],
    "properties": {
        "status": {
            "enum": [status for status, rule in STATUSES.items() if rule.http == 200],
            "description": "What became of the event.",
        },
        "event_id": {"type": ["string", "null"], "description": "The id that the event came with."},
        "key": {"type": ["string", "null"], "description": "Its identity: 32 hexadecimal digits."},
        "kind": {
            "enum": [*get_args(Kind), None],
            "description": "Why a duplicate exists.",
        },
        "reason": {"type": "string", "description": "One sentence for a person."},
    },
}
_OUTCOMES: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["outcomes"],
    "properties": {"outcomes": {"type": "array", "items": {"$ref": "#/components/schemas/Outcome"}}},
}
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "The HTTP code."},
        "detail": {"type": "string", "description": "What was wrong, in one sentence."},
        "outcome": {"type": "string", "description": "What became of the event, where there was one."},
    },
}


def _refusal(description: str, *, again: bool = False) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer: dict[str, Any] = {"description": description, "content": content}
    if again:
        wait = {"schema": {"type": "integer", "minimum": 1}, "description": "After how many seconds to send it again."}
        answer["headers"] = {"Retry-After": wait}
    return answer


_TAKEN: Final[dict[str, Any]] = {
    "description": "Every event is taken: its effect is done, or a durable copy is kept.",
    "content": {
        "application/json": {
            "schema": {"oneOf": [{"$ref": "#/components/schemas/Outcome"}, {"$ref": "#/components/schemas/Outcomes"}]}
        }
    },
}
_REFUSALS: Final[dict[str, Any]] = {
    "400": _refusal("It cannot be read or has no key; where it came from a known sender, a dead letter holds it."),
    "401": _refusal("It is not signed as it should be; nothing of it was read."),
    "403": _refusal("It comes from a page in a browser."),
    "405": _refusal("Events are posted."),
    "408": _refusal("The request did not arrive in time."),
    "413": _refusal("The body is too large, also for the store to keep it as a dead letter, or holds too many events."),
    "415": _refusal("The body has a content encoding."),
    "429": _refusal("The route has sent too much.", again=True),
    "431": _refusal("There are too many headers, or they are too large."),
    "503": _refusal("It was not taken; send it again.", again=True),
}
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}],
            },
            "example": {"id": "evt-1", "type": "call.ended"},
        }
    },
}


def _read_only(summary: str, content_type: str, **more: Any) -> dict[str, Any]:
    taken = {"description": summary, "content": {content_type: {"schema": {"type": ["object", "string"]}}}}
    return {"get": {"summary": summary, "responses": {"200": taken, **more}}}


DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Oncegate",
        "version": __version__,
        "description": "Takes webhooks and makes every event take effect once.",
    },
    "paths": {
        "/events": {
            "post": {
                "operationId": "take",
                "summary": "Take the events of one delivery.",
                "requestBody": _BODY,
                "responses": {"200": _TAKEN, **_REFUSALS, "404": _refusal("This route is not served.")},
            }
        },
        "/events/{route}": {
            "post": {
                "operationId": "take_by_route",
                "summary": "The same by a route with a secret, a key and a handler of its own.",
                "parameters": [
                    {
                        "name": "route",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
                    }
                ],
                "requestBody": _BODY,
                "responses": {"200": _TAKEN, **_REFUSALS, "404": _refusal("There is no such route.")},
            }
        },
        "/healthz": _read_only("The process is alive.", "application/json"),
        "/readyz": _read_only(
            "The store can be used, and the service is not about to stop.",
            "application/json",
            **{"503": _refusal("Not ready.", again=True)},
        ),
        "/metrics": _read_only(
            "What was counted, for Prometheus.",
            "text/plain",
            **{
                "401": _refusal("It needs a token, which is not there or not right."),
                "404": _refusal("Metrics are at another address."),
            },
        ),
        "/openapi.json": _read_only("This description.", "application/json"),
    },
    "components": {"schemas": {"Outcome": _OUTCOME, "Outcomes": _OUTCOMES, "Problem": _PROBLEM}},
}

"""The OpenAPI document of the service. It is not generated, because the service uses no framework."""

from typing import Any, Final, get_args

from oncegate import __version__
from oncegate.gate.outcome import STATUSES, Kind

_OUTCOME: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status", "event_id", "key", "kind", "reason"],
    "properties": {
        "status": {
            "enum": [status for status, rule in STATUSES.items() if rule.http == 200],
            "description": "The outcome of the event.",
        },
        "event_id": {"type": ["string", "null"], "description": "The id in the event."},
        "key": {"type": ["string", "null"], "description": "The key of the event: 32 hexadecimal digits."},
        "kind": {
            "enum": [*get_args(Kind), None],
            "description": "Why the duplicate exists.",
        },
        "reason": {"type": "string", "description": "One sentence that explains the outcome."},
    },
}
_OUTCOMES: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["outcomes"],
    "properties": {"outcomes": {"type": "array", "items": {"$ref": "#/components/schemas/Outcome"}}},
}
_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "The HTTP code."},
        "detail": {"type": "string", "description": "What failed, in one sentence."},
        "outcome": {"type": "string", "description": "The outcome of the event, if the request had one."},
    },
}


def _problem(description: str, *, retry: bool = False) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer: dict[str, Any] = {"description": description, "content": content}
    if retry:
        seconds = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds to wait before a retry."}
        answer["headers"] = {"Retry-After": seconds}
    return answer


_ACKNOWLEDGED: Final[dict[str, Any]] = {
    "description": "Every event is acknowledged: its handler has run, or the event is stored.",
    "content": {
        "application/json": {
            "schema": {"oneOf": [{"$ref": "#/components/schemas/Outcome"}, {"$ref": "#/components/schemas/Outcomes"}]}
        }
    },
}
_PROBLEMS: Final[dict[str, Any]] = {
    "400": _problem(
        "The event is unreadable or has no key, and is stored as a dead letter; or the request is invalid."
    ),
    "401": _problem("The signature is missing or invalid. The body was not parsed."),
    "403": _problem("The request comes from a web page (it has an Origin header)."),
    "405": _problem("The method is not POST."),
    "408": _problem("The request did not arrive in time."),
    "413": _problem("The body is too large, has too many events, or does not fit into a dead letter of the store."),
    "415": _problem("The body has a content encoding."),
    "429": _problem("A limit of the route is reached.", retry=True),
    "431": _problem("There are too many headers, or they are too large."),
    "503": _problem("The events were not acknowledged; send the request again.", retry=True),
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
    success = {"description": summary, "content": {content_type: {"schema": {"type": ["object", "string"]}}}}
    return {"get": {"summary": summary, "responses": {"200": success, **more}}}


DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Oncegate",
        "version": __version__,
        "description": "Receives webhooks and makes every event take effect once.",
    },
    "paths": {
        "/events": {
            "post": {
                "operationId": "take",
                "summary": "Send the events of one delivery.",
                "requestBody": _BODY,
                "responses": {"200": _ACKNOWLEDGED, **_PROBLEMS, "404": _problem("There is no route at /events.")},
            }
        },
        "/events/{route}": {
            "post": {
                "operationId": "take_by_route",
                "summary": "Send events to a named route, with its own secret, key and handler.",
                "parameters": [
                    {
                        "name": "route",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
                    }
                ],
                "requestBody": _BODY,
                "responses": {"200": _ACKNOWLEDGED, **_PROBLEMS, "404": _problem("There is no route with this name.")},
            }
        },
        "/healthz": _read_only("The process is alive.", "application/json"),
        "/readyz": _read_only(
            "The store can be used, and the service is not shutting down.",
            "application/json",
            **{"503": _problem("The service is not ready.", retry=True)},
        ),
        "/metrics": _read_only(
            "Metrics for Prometheus.",
            "text/plain",
            **{
                "401": _problem("The bearer token is missing or invalid."),
                "404": _problem("Metrics are served at another address."),
            },
        ),
        "/openapi.json": _read_only("This document.", "application/json"),
    },
    "components": {"schemas": {"Outcome": _OUTCOME, "Outcomes": _OUTCOMES, "Problem": _PROBLEM_SCHEMA}},
}

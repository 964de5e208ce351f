"""Unwrap records of Lambda destinations. Such a record contains the payload and the result of an invocation."""

from typing import Any

from oncegate.carriers.pieces import Piece, text, whole, within
from oncegate.events import Evidence
from oncegate.times import moment

# A record without a requestContext must not have other members.
_MEMBERS = {"version", "timestamp", "requestPayload", "responseContext", "responsePayload"}
MARKERS = {"requestPayload", "detail"}


def is_in_detail(body: dict[str, Any]) -> bool:
    """Whether the detail of an EventBridge event is a record of a Lambda destination."""
    detail = body.get("detail")
    return type(detail) is dict and "requestPayload" in detail


def pieces(body: dict[str, Any]) -> list[Piece] | None:
    record = body if "requestPayload" in body else body.get("detail")
    if not isinstance(record, dict) or "requestPayload" not in record or not _is_invocation(record):
        return None
    context = record.get("requestContext")
    evidence = Evidence(
        receive_count=whole(within(context, "approximateInvokeCount")),
        sent_at=moment(record.get("timestamp")),
        request_id=text(within(context, "requestId")),
        failure=_failure(record),
    )
    return [Piece(record["requestPayload"], evidence)]


def _is_invocation(record: dict[str, Any]) -> bool:
    return "requestContext" in record or ("responsePayload" in record and record.keys() <= _MEMBERS)


def _failure(record: dict[str, Any]) -> str | None:
    condition = text(within(record, "requestContext", "condition"))
    if condition == "Success":
        return None
    reasons = [condition, text(within(record, "responsePayload", "errorMessage"))]
    return ": ".join(reason for reason in reasons if reason) or None

"""Read CloudEvents 1.0. The carriers have already split batches, and have assembled the events in binary mode."""

from typing import Any

from oncegate.canonical import content_digest, decode
from oncegate.carriers.pieces import from_base64, to_base64
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, identifier, name, text
from oncegate.times import moment

MARKERS = {"specversion"}


def read(delivery: Delivery) -> Event | None:
    body = delivery.body
    # Some senders write the version as a number.
    if type(body.get("specversion")) not in (str, int, float) or not ("source" in body or "type" in body):
        return None
    event_id, source, kind = identifier(body.get("id")), text(body.get("source")), text(body.get("type"))
    subject, occurred_at, data = name(body.get("subject")), moment(body.get("time")), _data(body)
    own_id = () if event_id is None or source is None else (source, event_id)
    return Event(
        source="cloudevents",
        id=event_id,
        type=kind,
        entity=subject,
        occurred_at=occurred_at,
        own_id=own_id,
        identity=(source, kind, subject, apart(delivery, occurred_at)) if event_id is None else own_id,
        content_hash=content_digest(data) if event_id is None else None,
        body=data,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _data(body: dict[str, Any]) -> Any:
    """Return the data of the event. JSON data may be a JSON value, text or base64. Text and base64 are decoded, so that
    the same data is equal in all three forms."""
    data = body.get("data")
    if data is None and (encoded := body.get("data_base64")) is not None:
        return _decoded(from_base64(encoded, "data_base64 of the CloudEvent"), text(body.get("datacontenttype")))
    if isinstance(data, str) and data[:1] in ("{", "[") and "json" in str(body.get("datacontenttype", "json")):
        try:
            return decode(data.encode("utf-8", "surrogatepass"))
        except ValueError:
            return data
    return {} if data is None else data


def _decoded(raw: bytes, kind: str | None) -> Any:
    """Decode bytes in the same way as the carriers decode the body of a request in binary mode: as JSON, otherwise as
    text, otherwise as base64. Raises ValueError if `kind` names JSON and the bytes are not JSON."""
    if kind is None or "json" in kind.lower():
        try:
            return decode(raw) if raw else {}
        except ValueError as error:
            if kind is not None:
                raise ValueError(f"the data of the CloudEvent cannot be read: {error}") from error
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return to_base64(raw)

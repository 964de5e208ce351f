"""Carriers: from what arrived to deliveries, one for each thing that it carries."""

from typing import Any

from oncegate.canonical import decode, encode, normal
from oncegate.events import Delivery


def deliveries(payload: Any) -> list[Delivery]:
    """Unwrap bytes, text or parsed JSON. What cannot be read is a delivery too, with its problem."""
    raw, problem = None, None
    try:
        if isinstance(payload, bytes | bytearray | memoryview):
            raw = bytes(payload)
            body = decode(raw)
        elif isinstance(payload, str):
            raw = payload.encode("utf-8", "surrogatepass")
            body = decode(raw)
        else:
            body = normal(payload)
    except ValueError as error:
        body, problem = None, str(error)
    if isinstance(body, list):
        return [Delivery(item, encode(item)) for item in body]
    return [Delivery(body, raw, problem)]

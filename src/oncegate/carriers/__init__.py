"""Carriers: from what arrived to deliveries, one for each thing that it carries."""

from typing import Any

from oncegate.canonical import decode, encode, written
from oncegate.events import Delivery


def deliveries(payload: Any) -> list[Delivery]:
    """Unwrap bytes, text or parsed JSON. What cannot be read is a delivery too, with its problem."""
    whole = delivery(payload)
    if isinstance(whole.body, list):
        return [Delivery(item, encode(item)) for item in whole.body]
    return [whole]


def delivery(payload: Any) -> Delivery:
    """The payload as one delivery, whatever it holds."""
    try:
        raw = _bytes(payload)
    except ValueError as error:
        return Delivery(None, repr(payload).encode("utf-8", "backslashreplace"), str(error))
    try:
        return Delivery(decode(raw), raw)
    except ValueError as error:
        return Delivery(None, raw, str(error))


def _bytes(payload: Any) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    return payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else written(payload)

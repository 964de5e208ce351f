"""The normal form of an event, and the key, the delivery and the evidence that belong to it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class StateChange(Struct, frozen=True, gc=False):
    """An entity entered a state at a time. `at` and `window` are in microseconds.

    `timeline` is the key of the document with the state changes of the entity. `rank` orders states with equal times.
    """

    timeline: bytes
    state: str
    at: int
    rank: int
    window: int


class Key(Struct, frozen=True, gc=False):
    """The identity of an event. `str(key)` is 32 hexadecimal digits and does not change between versions.

    With `binds`, the key stands for one content: the same key with other content is a conflict. A key with a `change`
    belongs to one emission of a state change; the timeline decides which emissions are the same event.
    """

    digest: bytes
    strategy: str
    parts: tuple[Any, ...]
    binds: bool = True
    change: StateChange | None = None

    def __str__(self) -> str:
        return self.digest.hex()


class Evidence(Struct, frozen=True, gc=False):
    """Information from the transport about one delivery. It shows the kind of a duplicate. It is never part of a key.

    If a gate published the event to a queue or a bus, the message may carry the key that this gate used. `handed_key`
    is that key. Each ingress decides whether to trust `handed_key`, because over HTTP any sender could set it."""

    message_id: str | None = None
    receive_count: int | None = None
    sent_at: datetime | None = None
    request_id: str | None = None
    replay: str | None = None
    failure: str | None = None
    group: str | None = None
    handed_key: str | None = None


NO_EVIDENCE = Evidence()


class Delivery(Struct, frozen=True):
    """One delivery without its transport wrapping: a JSON value, and the bytes of its document.

    For a value that did not arrive as bytes, `raw` is the value encoded as JSON. `envelope` is the EventBridge envelope
    whose detail is the body. A delivery with a `frame` is a message of the transport itself, not an event. `polled`
    means that the delivery is an item of the list that a NICE CXone poll returned.
    """

    body: Any
    raw: bytes
    problem: str | None = None
    evidence: Evidence = NO_EVIDENCE
    envelope: dict[str, Any] | None = None
    frame: str | None = None
    polled: bool = False


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """What happened.

    - `key`, `attempt`, `fence` and `stale` are set when the event is claimed, for the handler. `stale` means that a
      newer state of the entity is known; only an event whose key has a timeline of states can be stale.
    - `id` is the id of the envelope; without an envelope, the id in the body. `own_id` is the id in the body, for the
      sources that define such an id. It is empty for plain events.
    - `identity` is what the source uses to identify the event. If the content is part of the identity, the source also
      sets `content_hash`.
    - `webhook_id` is the id of the Standard Webhook that carried the event, if its signature is valid.
    - An event with a `problem` could not be read. It keeps its raw bytes and no handler gets it.
    - An event with a `frame` is a message of the transport, such as a heartbeat or a confirmation.
    - An event that a program made may have no raw bytes. Its dead letter then holds the body as JSON.

    gc=False is safe: a body from JSON cannot refer to its event. An event that is put into its own body is never freed.
    """

    source: str
    body: Any
    raw: bytes = b""
    id: str | None = None
    type: str | None = None
    entity: str | None = None
    part: str | None = None
    state: str | None = None
    occurred_at: datetime | None = None
    own_id: tuple[Any, ...] = ()
    identity: tuple[Any, ...] = ()
    content_hash: bytes | None = None
    problem: str | None = None
    frame: str | None = None
    evidence: Evidence = NO_EVIDENCE
    webhook_id: str | None = None
    stale: bool = False
    key: Key | None = None
    attempt: int = 0
    fence: int = 0


def with_webhook_id(events: Sequence[Event], signed_id: str | None) -> list[Event]:
    """Return the events of one request with the signed id of the request (`Verifier.signed_id`) as their `webhook_id`.
    If the request holds several events, each id gets a dot and the position of the event at its end, because they are
    different events. A retry holds the events in the same order. A signed id itself contains no dot."""
    if signed_id is None:
        return list(events)
    if len(events) == 1:
        return [replace(events[0], webhook_id=signed_id)]
    return [replace(event, webhook_id=f"{signed_id}.{position}") for position, event in enumerate(events)]

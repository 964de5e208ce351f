"""An event: what a delivery says happened, in one normal form whatever the wrapping."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class StateChange(Struct, frozen=True, gc=False):
    """What an emission says: that an entity came into a state at a time (in microseconds).

    `timeline` is where the changes of that entity are kept. States at the same time are in the order of their rank.
    """

    timeline: bytes
    state: str
    at: int
    rank: int
    window: int


class Key(Struct, frozen=True, gc=False):
    """The identity of an event. `str(key)` is 32 hexadecimal digits, stable from version to version.

    `binds`: one key, one content. An event whose key is known with other content is then a conflict. A key with a
    `change` is that of one emission; which other emissions are the same event, its timeline knows.
    """

    digest: bytes
    strategy: str
    parts: tuple[Any, ...]
    binds: bool = True
    change: StateChange | None = None

    def __str__(self) -> str:
        return self.digest.hex()


class Evidence(Struct, frozen=True, gc=False):
    """What the transport says of one arrival. It tells duplicates apart; it is never part of a key.

    `handed_key` is the key under which a gate has published the event to a queue or a bus, if the message says so. It
    is for ingresses to decide whether to believe it; over HTTP anyone could say so."""

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
    """One arrival, unwrapped: a JSON value, and the bytes of the document it came as or would have come as.

    `envelope` is the EventBridge envelope that the body was the detail of. A delivery with a `frame` is no event
    but something that its transport says for itself. One that is `polled` came in the list of a NICE CXone poll.
    """

    body: Any
    raw: bytes
    problem: str | None = None
    evidence: Evidence = NO_EVIDENCE
    envelope: dict[str, Any] | None = None
    frame: str | None = None
    polled: bool = False


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """What happened. `key`, `attempt` and `fence` are set once the event is claimed, for the handler to use, and so is
    `stale`: that a newer state of its entity is known, where the key keeps a timeline of states.

    `id` is the envelope's, `own_id` what the body itself names this event by; where there is no envelope they agree.
    `identity` is what the source says makes it this event and no other; where that takes its content too, the source
    gives the `content_hash`.
    It is nothing to the garbage collector, as JSON cannot hold it; what puts an event into its own body is never freed.
    `webhook_id` is the id of the Standard Webhook that it came in, where the signature of that was found to be right.
    An event with a `problem` could not be read; it keeps its raw bytes and is never given to a handler. One with a
    `frame` is no event: a heartbeat, a confirmation. One that was made by hand may have no raw bytes; its dead letter
    then holds its body as JSON, and is read anew from that.
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
    """The events of one request with the id that was signed with it (`Verifier.signed_id`). Of several, each has its
    place behind a dot, which no such id has: they are other events, and a retry has them in the same order."""
    if signed_id is None:
        return list(events)
    if len(events) == 1:
        return [replace(events[0], webhook_id=signed_id)]
    return [replace(event, webhook_id=f"{signed_id}.{place}") for place, event in enumerate(events)]

"""Genesys Cloud: events by topic, in an EventBridge envelope, a WebSocket frame, or stripped to their detail or body.

What a topic's body has differs from topic to topic, `id` most of all: it may name the audit, the user, the
conversation or the message. `topics.py` has the table.
"""

from datetime import datetime
from typing import Any

from oncegate.canonical import decode
from oncegate.events import Delivery, Event
from oncegate.sources.fields import at, first, identifier, name, state, stated, text, when
from oncegate.sources.topics import Topic, id_in, topic_of
from oncegate.times import moment

_NO_ENVELOPE: dict[str, Any] = {}
_BARE = ("sessionId", "participantId", "communicationId")
_COMMUNICATIONS = ("calls", "messages", "chats", "emails", "callbacks", "videos", "screenshares", "cobrowsesessions")


def read(delivery: Delivery, assumed: str | None = None) -> Event | None:
    """`assumed` is the topic of bodies that come without one."""
    detail = delivery.body
    if "eventBody" not in detail or "topicName" not in detail:
        return _read_bare(delivery, assumed)
    named, body = detail["topicName"], detail["eventBody"]
    if type(body) is str:
        body = _parsed(body)
    if type(named) is not str or type(body) is not dict:
        return None
    return _read(delivery, named, body, detail.get("timestamp"))


def _read_bare(delivery: Delivery, assumed: str | None) -> Event | None:
    """An eventBody alone, as a target with an input path, a transformer or a workflow trigger hands it over."""
    body = delivery.body
    if "conversationId" not in body or "eventTime" not in body or not any(part in body for part in _BARE):
        return None
    given = text((delivery.envelope or _NO_ENVELOPE).get("detail-type")) or assumed
    conversation = body["conversationId"]
    topic = given.replace("{id}", conversation) if given and isinstance(conversation, str) else given
    return _read(delivery, topic, body, None)


def _read(delivery: Delivery, named: str | None, body: dict[str, Any], sent: Any) -> Event:
    envelope = delivery.envelope or _NO_ENVELOPE
    given = envelope.get("detail-type")
    kind, topic = topic_of(given if type(given) is str and given[:3] == "v2." else named)
    if topic.frame:
        return _frame(delivery, kind, body)
    told = when(body, topic.time)
    own = _own_id(topic, body) if topic.own else ()
    identity = _identity(topic, body, own) if topic.identifies and own else ()
    return Event(
        source="genesys",
        id=identifier(envelope.get("id")) or (name(own[0]) if own else None),
        type=kind,
        entity=name(first(body, topic.entity)) or (id_in(named) if named else None) or name(body.get("id")),
        part=name(first(body, topic.part)),
        state=_snapshot_state(named, body) if topic.snapshot else stated(body, topic.state),
        occurred_at=told or moment(sent) or moment(envelope.get("time")),
        own_id=own,
        identity=identity or _general(named, told, sent, envelope),
        by_content=not identity,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _general(named: str | None, told: datetime | None, sent: Any, envelope: dict[str, Any]) -> tuple[Any, ...]:
    """The topic with its ids, beside the content. A body that tells no time may be that of a later event too, so
    when it was sent is needed to keep them apart; a WebSocket frame does not even say that."""
    if told is not None:
        return (named,)
    apart = sent if sent is not None else envelope.get("id")
    return (named,) if apart is None else (named, apart)


def _own_id(topic: Topic, body: dict[str, Any]) -> tuple[Any, ...]:
    """What the body itself names this event by: one id, an id and a version, the ids of all its utterances."""
    if topic.each is not None:
        items = at(body, topic.each)
        found = [at(item, topic.own[0]) for item in items] if type(items) is list else []
    else:
        found = [at(body, part) for part in topic.own]
    return tuple(map(name, found)) if found and all(name(value) for value in found) else ()


def _identity(topic: Topic, body: dict[str, Any], own: tuple[Any, ...]) -> tuple[Any, ...]:
    if topic.each is None:
        return (topic.name, *own)
    final = [at(item, ("isFinal",)) for item in at(body, topic.each)]
    return (topic.name, name(body.get("communicationId")), *zip(own, final, strict=True))


def _snapshot_state(named: str | None, body: dict[str, Any]) -> str | None:
    """The state of the last communication of the last participant; of the user's own, if the topic is a user's."""
    participants = body.get("participants")
    if type(participants) is not list:
        return None
    user = id_in(named) if named else None
    own = [each for each in participants if type(each) is dict and user is not None and each.get("userId") == user]
    for participant in reversed(own or participants):
        for media in _COMMUNICATIONS:
            if (found := state(at(participant, (media, "-1", "state")))) is not None:
                return found
    return None


def _frame(delivery: Delivery, kind: str | None, body: dict[str, Any]) -> Event:
    said = text(body.get("message")) or kind or ""
    frame = f"a message of the notification channel itself ({said[:100]})"
    return Event(source="genesys", type=kind, body=body, raw=delivery.raw, evidence=delivery.evidence, frame=frame)


def _parsed(body: str) -> Any:
    try:
        return decode(body.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None

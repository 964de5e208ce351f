"""Read Genesys Cloud events that arrive in an EventBridge envelope, in a WebSocket frame, or only as a detail or body.

The members of a body differ from topic to topic. Above all, `id` may be the id of the audit, the user, the conversation
or the message. `topics.py` has the table of topics.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

from oncegate.canonical import content_digest, has_long_number
from oncegate.carriers.eventbridge import names_genesys
from oncegate.events import NO_EVIDENCE, Delivery, Event, Evidence
from oncegate.sources.fields import at, identifier, latest, name, named, parsed, state, stated, text, when
from oncegate.sources.topics import Topic, filled, id_in, is_topic, topic_of
from oncegate.times import moment


class _Sender(Struct):
    """The members of the envelope that are used. All are None for an event without an envelope."""

    id: Any = None
    kind: Any = field(name="detail-type", default=None)
    time: Any = None


# The types of the usual envelope, for a fast decoder. An envelope that does not fit is read by the slower full path.
# Unknown members do not fit, because the decoder would skip their values without a check. Fractions do not fit, because
# the same number can be written in many ways. The body may be nested only a few levels deep.
_Scalar = None | bool | int | str
_OneLevel = _Scalar | list[_Scalar] | dict[str, _Scalar]
_TwoLevels = _Scalar | list[_OneLevel] | dict[str, _OneLevel]
_Body = dict[str, _Scalar | list[_TwoLevels] | dict[str, _TwoLevels]]


class _Detail(Struct, forbid_unknown_fields=True):
    topic: str = field(name="topicName")
    body: _Body = field(name="eventBody")
    timestamp: _Scalar = None
    version: _Scalar = None
    metadata: dict[str, _Scalar] | None = None


class _Envelope(_Sender, kw_only=True, forbid_unknown_fields=True):
    id: _Scalar = None
    kind: str = field(name="detail-type")
    time: _Scalar = None
    source: str
    detail: _Detail
    version: _Scalar = None
    account: _Scalar = None
    region: _Scalar = None
    resources: list[_Scalar] | None = None


_decode = msgspec.json.Decoder(_Envelope).decode
_NO_SENDER = _Sender()
# EventBridge writes the topic after `version` and `id`, so the topic is nearly always at the same offset.
USUAL_PLACE = slice(73, 77)
EARLY = 256
TOPIC = b'"v2.'
# Prefixes of Genesys topics. A topic with another prefix is accepted only if the envelope names Genesys, or if the
# document has no envelope and no id, like a WebSocket frame.
_TOPICS = ("v2.", "channel.metadata")
MARKERS = {"topicName", "conversationId", "result"}
# The answer of a notification channel to a subscription request over a WebSocket.
_ACKNOWLEDGED = ({"result": "200", "status": "subscribed"}, {"result": 200, "status": "subscribed"})
_LONGEST_NAME = 100
_BARE = ("sessionId", "participantId", "communicationId")
# Members of other senders' documents. No body of a Genesys conversation has these members.
_NOT_BARE = ("id", "eventId", "eventType")
_COMMUNICATIONS = ("calls", "messages", "chats", "emails", "callbacks", "videos", "screenshares", "cobrowsesessions")


def read(delivery: Delivery) -> Event | None:
    """Read an event that names its topic in the detail or in the envelope. Returns None for other deliveries."""
    detail = delivery.body
    topic_name = detail.get("topicName")
    if type(topic_name) is not str:
        if delivery.envelope is not None:
            return _read_by_envelope(delivery, delivery.envelope)
        return _frame("subscribed", detail, delivery.raw, delivery.evidence) if detail in _ACKNOWLEDGED else None
    if not topic_name.lower().startswith(_TOPICS) and _may_be_foreign(delivery):
        return None
    body = parsed(detail.get("eventBody"))
    if type(body) is not dict:
        kind, topic = topic_of(topic_name)
        return _frame(kind, {}, delivery.raw, delivery.evidence) if topic.frame else None
    sender = _sender(delivery.envelope)
    return _read(sender, topic_name, body, detail.get("timestamp"), delivery.raw, delivery.evidence)


def read_short(raw: bytes) -> Event | None:
    """Read an EventBridge envelope with a topic by a fast path that skips the carriers. Nearly all traffic is of this
    form.

    Returns the same event as the full path, or None if the payload needs the full path. The caller uses this function
    only if `TOPIC` is within the first `EARLY` bytes.
    """
    try:
        envelope = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    detail = envelope.detail
    if envelope.source == "lambda" or detail.topic[:3] != "v2." or has_long_number(raw):
        return None
    return _read(envelope, detail.topic, detail.body, detail.timestamp, raw, NO_EVIDENCE)


def read_as(delivery: Delivery, topic: str) -> Event:
    """Read a delivery as an event of the given topic. The delivery is a detail that does not name its topic, or only an
    eventBody. An input path, an input transformer or a workflow trigger can deliver only the eventBody."""
    detail, sender = delivery.body, _sender(delivery.envelope)
    body, sent = parsed(detail.get("eventBody")), detail.get("timestamp")
    if type(body) is not dict:
        body, sent = detail, None
    known = _Sender(sender.id, topic, sender.time)
    return _read(known, filled(topic, body), body, sent, delivery.raw, delivery.evidence)


def guess(delivery: Delivery) -> Event | None:
    """Read a document that looks like the eventBody of a conversation. The topic of the event is unknown. Returns None
    for other documents."""
    body = delivery.body
    return _read(_NO_SENDER, None, body, None, delivery.raw, delivery.evidence) if _is_bare(body) else None


def _may_be_foreign(delivery: Delivery) -> bool:
    """Whether this may be an event of another sender that also uses the members `topicName` and `eventBody`."""
    if delivery.envelope is None:
        return "id" in delivery.body
    return not (names_genesys(delivery.envelope) or is_topic(delivery.envelope.get("detail-type")))


def _read_by_envelope(delivery: Delivery, envelope: dict[str, Any]) -> Event | None:
    kind, detail = text(envelope.get("detail-type")), delivery.body
    if kind is None or not (is_topic(kind) or names_genesys(envelope)):
        return None
    if type(parsed(detail.get("eventBody"))) is dict or (is_topic(kind) and _is_bare(detail)):
        return read_as(delivery, kind)
    return None


def _is_bare(body: dict[str, Any]) -> bool:
    if "conversationId" not in body or "eventTime" not in body or any(part in body for part in _NOT_BARE):
        return False
    return any(part in body for part in _BARE)


def _sender(envelope: dict[str, Any] | None) -> "_Sender":
    if envelope is None:
        return _NO_SENDER
    return _Sender(envelope.get("id"), envelope.get("detail-type"), envelope.get("time"))


def _read(
    sender: "_Sender", topic_name: str | None, body: dict[str, Any], sent: Any, raw: bytes, evidence: Evidence
) -> Event:
    given = sender.kind
    kind, topic = topic_of(given if type(given) is str and given[:3] == "v2." else topic_name)
    if topic.frame:
        return _frame(kind, body, raw, evidence)
    event_time = latest(body, topic.time) if topic.latest else when(body, topic.time)
    own = _own_id(topic, body) if topic.own else ()
    identity = _identity(topic, body, own) if topic.identifies and own else ()
    return Event(
        source="genesys",
        id=identifier(sender.id) or _id_within(topic, body, own),
        type=kind,
        entity=named(body, topic.entity) or (id_in(topic_name, kind) if topic_name else None) or name(body.get("id")),
        part=named(body, topic.part),
        state=_snapshot_state(topic_name, kind, body) if topic.snapshot else stated(body, topic.state),
        occurred_at=event_time or moment(sent) or moment(sender.time),
        own_id=own,
        identity=identity or ((topic_name,) if event_time is not None else _apart(topic_name, sent, sender)),
        content_hash=None if identity else content_digest(body),
        body=body,
        raw=raw,
        evidence=evidence,
    )


def _apart(topic_name: str | None, sent: Any, sender: "_Sender") -> tuple[Any, ...]:
    """Return the identity of an event without an event time: the topic with its ids, and the send time. Without the
    send time, a later event with the same body would have the same identity. If the send time is missing, the id or the
    time of the envelope is used. A WebSocket frame has none of them, so it cannot be distinguished from a later frame
    with the same body."""
    distinct = next((value for value in (sent, sender.id, sender.time) if value is not None), None)
    return (topic_name,) if distinct is None else (topic_name, distinct)


def _own_id(topic: Topic, body: dict[str, Any]) -> tuple[Any, ...]:
    """Return the id of the event in its body: one id, an id and a version, or the ids of all utterances. Returns an
    empty tuple if a part is missing."""
    if topic.each is not None:
        items = at(body, topic.each)
        found = [at(item, topic.own[0]) for item in items] if type(items) is list else []
    else:
        found = [at(body, part) for part in topic.own]
    return tuple(map(name, found)) if found and all(name(value) for value in found) else ()


def _id_within(topic: Topic, body: dict[str, Any], own: tuple[Any, ...]) -> str | None:
    """Return the id in the body, even if this id alone does not identify the event."""
    if own or topic.each is not None or not topic.own:
        return name(own[0]) if own else None
    return name(at(body, topic.own[0]))


def _identity(topic: Topic, body: dict[str, Any], own: tuple[Any, ...]) -> tuple[Any, ...]:
    if topic.each is None:
        return (topic.name, *own)
    marks = [[at(item, path) for path in topic.marks] for item in at(body, topic.each)]
    also = (name(at(body, path)) for path in topic.also)
    return (topic.name, *also, *((id_, *found) for id_, found in zip(own, marks, strict=True)))


def _snapshot_state(topic_name: str | None, kind: str | None, body: dict[str, Any]) -> str | None:
    """Return the state of the last communication of the last participant. In the topic of a user, only the participants
    of this user count, if there are any. For a body without participants, return the state of the conversation."""
    participants = body.get("participants")
    if type(participants) is not list:
        return state(body.get("state"))
    user = id_in(topic_name, kind) if topic_name else None
    own = [each for each in participants if type(each) is dict and user is not None and each.get("userId") == user]
    for participant in reversed(own or participants):
        for media in _COMMUNICATIONS:
            if (found := state(at(participant, (media, "-1", "state")))) is not None:
                return found
    return None


def _frame(kind: str | None, body: dict[str, Any], raw: bytes, evidence: Evidence) -> Event:
    frame = f"a message of the notification channel itself ({(kind or '')[:_LONGEST_NAME]})"
    return Event(source="genesys", type=kind, body=body, raw=raw, evidence=evidence, frame=frame)

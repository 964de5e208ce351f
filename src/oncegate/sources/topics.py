"""The topics of Genesys Cloud: where the bodies of each have what, and a rule for those that need none of their own."""

import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from oncegate.sources.fields import Path, Place, named, places

# Members that tell when the event happened or the thing was last changed. A time of creation does not: it stays.
_TIME = places(
    "eventTime",
    "timestamp",
    "eventDate",
    "modifiedDate",
    "dateModified",
    "lastModifiedDate",
    "dateLastModified",
    "changedDate",
    "updatedDate",
    "dateUpdated",
    "routingStatus.startTime",
)
_STATE = places(
    "flowOutcomeValue",
    "acdOutcome",
    "disconnectType",
    "status.status",
    "status",
    "state",
    "routingStatus.status",
    "presenceDefinition.systemPresence",
    "presence.presenceDefinition.systemPresence",
    "member.state",
    "campaignStatus",
    "importState",
)


class Topic(Struct, frozen=True):
    """Where bodies have what; the first path that leads to something counts.

    An entity that no path leads to is the first id in the topic's name; `names` are the paths to that id, where the
    body has it too. `own` are the paths to what names the event itself, `each` the list whose items each have one; if
    that `identifies` the event, its key is made of it alone. `latest`: of several times the last is the event's. A
    `snapshot` has states within, a `frame` is no event.
    """

    name: str
    entity: tuple[Place, ...] = places("conversationId", "conversation.id")
    part: tuple[Place, ...] = places("sessionId", "member.id")
    state: tuple[Place, ...] = _STATE
    time: tuple[Place, ...] = _TIME
    names: tuple[Place, ...] = places("conversationId", "conversation.id")
    own: tuple[Path, ...] = ()
    each: Path | None = None
    identifies: bool = False
    latest: bool = False
    snapshot: bool = False
    frame: bool = False


_ANY = Topic("any")
_DETAIL = Topic("detail", time=places("eventTime"), state=places("flowOutcomeValue", "acdOutcome", "disconnectType"))
_AUDIT = Topic("audit", places("entity.id"), (), places("action"), own=(("id",),), identifies=True)
_QUALITY = Topic("quality", places("id"), (), own=(("id",), ("version",)), identifies=True)
_TRANSCRIPTION = Topic(
    "transcription",
    part=places("transcripts.0.utteranceId"),
    own=(("utteranceId",),),
    each=("transcripts",),
    identifies=True,
)
_ATTRIBUTES = Topic("attributes", part=places("participantId"))
_CHAT_MESSAGE = Topic("message", part=(), own=(("id",),))
_OUTBOUND = Topic("outbound", state=(*places("wrapupCode"), *_STATE))
# The times in it are not those of joining or leaving.
_QUEUE_MEMBER = Topic(
    "queue member", places("queueId"), places("id"), places("joined"), time=(), names=places("queueId")
)
_SNAPSHOT = Topic("snapshot", places("id"), (), time=places("eventTime"), names=(), snapshot=True)
_PRESENCE = Topic("presence", (), (), names=())
_ROUTING_STATUS = Topic("routing status", (), (), names=places("id"))
_ACTIVITY = Topic(
    "activity",
    (),
    (),
    time=places(
        "routingStatus.startTime", "presence.modifiedDate", "outOfOffice.modifiedDate", "dateActiveQueuesChanged"
    ),
    names=places("id"),
    latest=True,
)
_FRAME = Topic("frame", frame=True)

# The first that matches the template counts. They are compiled when the first topic comes, not at import.
_TOPICS = (
    (r"v2\.detail\.events\.conversation\.\{id\}\.attributes$", _ATTRIBUTES),
    (r"v2\.detail\.events\.conversation\.\{id\}\.outbound", _OUTBOUND),
    (r"v2\.detail\.events\.conversation\.", _DETAIL),
    (r"channel\.metadata$|v2\.system\.", _FRAME),
    (r"v2\.audits\.", _AUDIT),
    (r".*\.quality\b", _QUALITY),
    (r"v2\.conversations\.\{id\}\.transcription", _TRANSCRIPTION),
    (r"v2\.conversations\.\w+\.\{id\}\.messages$", _CHAT_MESSAGE),
    (r"v2\.routing\.queues\.\{id\}\.users$", _QUEUE_MEMBER),
    (r"v2\.[\w.{}]+\.\{id\}\.conversations(\.\w+)?$", _SNAPSHOT),
    (r"v2\.conversations(\.\w+)?\.\{id\}$", _SNAPSHOT),
    (r"v2\.users\.\{id\}\.presence$", _PRESENCE),
    (r"v2\.users\.\{id\}\.routingstatus$", _ROUTING_STATUS),
    (r"v2\.users\.\{id\}\.activity$", _ACTIVITY),
    (r".*\boutbound\b", _OUTBOUND),
)

# No word of a topic has a digit or a hyphen in it, but for the version that it starts with.
_ID = r"[^.{]*[\d-][^.}]*|[a-f]{16,}|(?<=entityid\.)[^.]+"
_OPEN = r"\{[^.}]*\}|(?<=entitytype\.)[^.]+"
_IDS = re.compile(rf"(?<=\.)(?:{_ID})(?=\.|$)", re.IGNORECASE)
_PLACES = re.compile(rf"(?<=\.)(?:{_ID}|{_OPEN})(?=\.|$)", re.IGNORECASE)
_GAP = re.compile(r"\{[^.}]*\}")
_LONGEST = 200


def topic_of(name: str | None) -> tuple[str | None, Topic]:
    """A topic's template, `v2.users.{id}.presence`, and its rule, from its template or its name with ids in it."""
    if not name:
        return None, _ANY
    if len(name) > _LONGEST:
        return _PLACES.sub("{id}", name), _ANY
    return _topic_of(name) if "-" not in name else _topic_of(_PLACES.sub("{id}", name))


def is_topic(name: Any) -> bool:
    """Whether it is named as topics are, and not as whatever else stands in their place."""
    return type(name) is str and name[:3] in ("v2.", "V2.")


def template_of(kind: str | None) -> str | None:
    """A type; the template, if it is a topic."""
    return topic_of(kind)[0] if is_topic(kind) else kind


def id_of(kind: str | None) -> str | None:
    """The id in a type that is a topic."""
    return id_in(kind, topic_of(kind)[0]) if kind is not None and is_topic(kind) else None


def id_in(name: str, template: str | None) -> str | None:
    """The first id in a topic's name: what stands in a gap of its template, else what looks like an id."""
    steps, gaps = name.split("."), (template or "").split(".")
    if len(steps) == len(gaps):
        for place, step in enumerate(steps):
            if gaps[place] == "{id}" and step[:1] != "{" and gaps[place - 1] != "entitytype":
                return step
    found = _IDS.search(name)
    return found[0] if found else None


def filled(topic: str, body: dict[str, Any]) -> str:
    """The name of a topic, from its template and the id that a body of it has; as it is, where the body has none."""
    found = named(body, topic_of(topic)[1].names)
    return topic if found is None else _GAP.sub(lambda _: found, topic)


# Templates are few; names with ids in them are not, and stay out.
@lru_cache(maxsize=512)
def _topic_of(name: str) -> tuple[str, Topic]:
    template = _PLACES.sub("{id}", name)
    return template, next((topic for pattern, topic in _TOPICS if re.match(pattern, template, re.IGNORECASE)), _ANY)

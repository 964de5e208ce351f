"""The topics of Genesys Cloud: which paths the bodies of each topic have, with a rule for all other topics."""

import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from oncegate.sources.fields import Path, Place, named, places

# Paths to the time of the event or of the last change. The list has no creation times, because they never change.
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
    """The paths in the bodies of a topic. Of several paths to a field, the first path with a value is used.

    - `entity`: paths to the entity. If no path has a value, the entity is the first id in the topic's name.
    - `names`: paths in the body to the id that the topic's name contains.
    - `own`: paths to the id of the event itself.
    - `each`: path to a list whose items each have an id. The paths of `own` then start at an item of this list.
    - `identifies`: the key is made from `own`, with `also` and `marks`.
    - `also`: further paths in the body. `marks`: further paths in each item.
    - `latest`: if the body has several times, the latest time is the time of the event.
    - `snapshot`: the state is inside the participants.
    - `frame`: a message of this topic is not an event.
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
    also: tuple[Path, ...] = ()
    marks: tuple[Path, ...] = ()
    latest: bool = False
    snapshot: bool = False
    frame: bool = False

    @property
    def key_members(self) -> tuple[Path, ...]:
        """Paths to all members that the key is made from. Empty if the key is made from the content, as it also is for
        an event that lacks a path of `own`."""
        if not self.identifies:
            return ()
        return (*self.also, *((*(self.each or ()), *path) for path in (*self.own, *self.marks)))


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
    also=(("communicationId",),),
    marks=(("isFinal",),),
)
_ATTRIBUTES = Topic("attributes", part=places("participantId"))
_CHAT_MESSAGE = Topic("message", part=(), own=(("id",),))
_OUTBOUND = Topic("outbound", state=(*places("wrapupCode"), *_STATE))
# The body has no time of joining or leaving; its times have other meanings.
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

# The first pattern that matches the template of a topic is used. Patterns are compiled at the first use, not at import.
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

# A step of a topic with a digit or a hyphen is an id, because no word of a topic has them, except the version at the
# start.
_ID = r"[^.{]*[\d-][^.}]*|[a-f]{16,}|(?<=entityid\.)[^.]+"
_OPEN = r"\{[^.}]*\}|(?<=entitytype\.)[^.]+"
_IDS = re.compile(rf"(?<=\.)(?:{_ID})(?=\.|$)", re.IGNORECASE)
_PLACES = re.compile(rf"(?<=\.)(?:{_ID}|{_OPEN})(?=\.|$)", re.IGNORECASE)
_GAP = re.compile(r"\{[^.}]*\}")
_LONGEST = 200


def topic_of(name: str | None) -> tuple[str | None, Topic]:
    """Return the template of a topic, such as `v2.users.{id}.presence`, and the rule of the topic. `name` is a
    template, or a name with ids."""
    if not name:
        return None, _ANY
    if len(name) > _LONGEST:
        return _PLACES.sub("{id}", name), _ANY
    return _topic_of(name) if "-" not in name else _topic_of(_PLACES.sub("{id}", name))


def is_topic(name: Any) -> bool:
    return type(name) is str and name[:3] in ("v2.", "V2.")


def template_of(kind: str | None) -> str | None:
    """Return the template of a type that is a topic. Other types are returned unchanged."""
    return topic_of(kind)[0] if is_topic(kind) else kind


def id_of(kind: str | None) -> str | None:
    """Return the first id in a type that is a topic. Returns None for other types."""
    return id_in(kind, topic_of(kind)[0]) if kind is not None and is_topic(kind) else None


def id_in(name: str, template: str | None) -> str | None:
    """Return the first id in a topic's name: the step at the place of `{id}` in the template, otherwise the first step
    that looks like an id."""
    steps, gaps = name.split("."), (template or "").split(".")
    if len(steps) == len(gaps):
        for place, step in enumerate(steps):
            if gaps[place] == "{id}" and step[:1] != "{" and gaps[place - 1] != "entitytype":
                return step
    found = _IDS.search(name)
    return found[0] if found else None


def filled(topic: str, body: dict[str, Any]) -> str:
    """Make the name of a topic from its template and the id in a body. Returns the template if the body has no id."""
    found = named(body, topic_of(topic)[1].names)
    return topic if found is None else _GAP.sub(lambda _: found, topic)


# The cache is for templates, because there are few. `topic_of` replaces UUIDs first, because there are too many names
# with UUIDs to cache.
@lru_cache(maxsize=512)
def _topic_of(name: str) -> tuple[str, Topic]:
    template = _PLACES.sub("{id}", name)
    return template, next((topic for pattern, topic in _TOPICS if re.match(pattern, template, re.IGNORECASE)), _ANY)

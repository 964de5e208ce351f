"""The topics that Genesys Cloud offers, with the event time, the id and the key that Oncegate has for each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.genesys.client import GenesysClient
from oncegate.sources.fields import Place
from oncegate.sources.topics import Topic, topic_of
from oncegate.text import quoted

_PATH: Final = "/api/v2/notifications/availabletopics"
_EXPANDED: Final = ("description", "requiresPermissions", "schema", "transports", "visibility")
_BODY_TIME: Final = "topic + content"
_ENVELOPE_TIME: Final = "topic + content + send time"
_MOST_DEPTH: Final = 8
_PLACEHOLDER: Final = "{id}"


class OfferedTopic(Struct, frozen=True):
    """A topic. `time`, `id` and `entity` are paths in the body that the schema of the topic has; None if there is none.
    `key` is what the default key is made from.

    With `any_permission`, one of the permissions is enough. If `own_user_only` is true, Genesys Cloud sends the topic
    only to the user that its name contains, so an OAuth client without a user cannot subscribe to it."""

    name: str
    description: str
    time: str | None
    id: str | None
    entity: str | None
    key: str
    transports: tuple[str, ...]
    permissions: tuple[str, ...]
    any_permission: bool
    own_user_only: bool
    is_preview: bool


def offered_topics(client: GenesysClient, *, filter_: str = "", preview: bool = False) -> list[OfferedTopic]:
    """Request the topics whose name contains the text `filter_`, sorted by name."""
    query = {"expand": _EXPANDED, "includePreview": preview}
    found = (client.call("GET", _PATH, query=query) or {}).get("entities") or []
    topics = [_offered(each) for each in found if filter_.lower() in str(each.get("id", "")).lower()]
    return sorted(topics, key=lambda topic: topic.name)


def _offered(found: Mapping[str, Any]) -> OfferedTopic:
    name = str(found["id"])
    _, rule = topic_of(name)
    paths = frozenset(_paths_of(found.get("schema") or {}))
    time = _first(rule.time, paths)
    own = [".".join((*(rule.each or ()), *path)) for path in rule.own]
    return OfferedTopic(
        name,
        str(found.get("description") or ""),
        time,
        " + ".join(own) or None,
        _first(rule.entity, paths) or ("id in the topic" if _PLACEHOLDER in name else None),
        _key_of(rule, time),
        tuple(found.get("transports") or ()),
        tuple(found.get("requiresPermissions") or ()),
        bool(found.get("requiresAnyValidator")),
        _is_for_own_user(found),
        found.get("visibility") == "Preview",
    )


def _is_for_own_user(found: Mapping[str, Any]) -> bool:
    """Whether the user of the topic is required, and not one of several conditions of which one is enough."""
    others = found.get("requiresPermissions") or found.get("requiresDivisionPermissions")
    one_is_enough = found.get("requiresAnyValidator") or found.get("requiresCurrentUserOrPermission")
    return bool(found.get("requiresCurrentUser") and not (one_is_enough and others))


def _key_of(rule: Topic, time: str | None) -> str:
    if rule.frame:
        return "no event"
    if rule.key_members:
        return " + ".join(map(".".join, rule.key_members))
    return _BODY_TIME if time is not None else _ENVELOPE_TIME


def _first(places: Sequence[Place], paths: frozenset[str]) -> str | None:
    return next((text for place in places if (text := _text(place)) in paths), None)


def _text(place: Place) -> str:
    return ".".join((place[0], *place[1]))


def _paths_of(schema: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[str]:
    """The paths of all members in a JSON schema. A schema may contain itself, so the depth is limited."""
    if depth > _MOST_DEPTH or not isinstance(schema, Mapping):
        return
    for name, member in (schema.get("properties") or {}).items():
        yield f"{before}{name}"
        yield from _paths_of(member, f"{before}{name}.", depth + 1)


def check_topics(topics: Sequence[str], *, template: bool) -> list[str]:
    """Returns the topics without repetitions. An EventBridge filter has templates, such as
    v2.detail.events.conversation.{id}.user.start. A subscription needs a real id in place of {id}. Raises SettingError
    for a name that cannot be a topic."""
    for topic in topics:
        if not topic.startswith("v2.") or any(
            character.isspace() or not character.isprintable() for character in topic
        ):
            raise SettingError(f"{quoted(topic)} is not a topic; `oncegate genesys topics` lists the topics")
        if _PLACEHOLDER in topic and not template:
            raise SettingError(
                f"{quoted(topic)} is a template; write the id of a user, a queue or a conversation for {_PLACEHOLDER}"
            )
    if not topics:
        raise SettingError("no topic is named; use --topics with one or more topics, separated by commas")
    return list(dict.fromkeys(topics))

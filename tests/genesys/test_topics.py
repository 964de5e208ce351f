"""What `oncegate genesys topics` says about the keys of a topic, compared with the keys of real events."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from oncegate import keys
from oncegate.genesys.client import GenesysClient
from oncegate.genesys.topics import offered_topics
from oncegate.sources import read
from oncegate.sources.topics import _ANY, _FRAME, _TOPICS, topic_of
from oncegate.times import moment
from tests.genesys import server
from tests.genesys.server import FakeGenesys

UUID = re.compile("[0-9a-f]{8}-")
CASES = json.loads((Path(__file__).parents[1] / "data" / "events.json").read_text())


def detail_of(document: dict[str, Any]) -> dict[str, Any]:
    found = document.get("detail", document)
    return found if isinstance(found, dict) else {}


DOCUMENTS = {
    case["name"]: case["document"]
    for case in CASES
    if str(detail_of(case["document"]).get("topicName")).startswith("v2.")
    and case["name"] != "transcription that ended"  # without utterances it has no id; the key is made from the content
}


def test_every_family_has_an_event() -> None:
    """Each rule for topics is used by at least one of the events."""
    rules = {topic_of(detail_of(document)["topicName"])[1].name for document in DOCUMENTS.values()}
    assert rules == {rule.name for _, rule in (*_TOPICS, ("", _ANY)) if rule is not _FRAME}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_key_of_an_event(
    client: GenesysClient, fake: FakeGenesys, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is shown as a part of the key changes the key, and nothing else does."""
    document = DOCUMENTS[name]
    detail = detail_of(document)
    template = topic_of(detail["topicName"])[0]
    offered = {"id": template, "schema": schema_of(detail["eventBody"]), "visibility": "Public"}
    monkeypatch.setattr(server, "TOPICS", [offered])
    (topic,) = offered_topics(client)
    shown = topic.key.split(" + ")

    for path in leaves(detail["eventBody"]):
        member = ".".join(step for step in path if isinstance(step, str))
        is_part = "content" in shown or member in shown
        assert (key_of(document) != key_of(changed(document, "eventBody", *path))) is is_part, member
    if "timestamp" in detail:
        is_part = "send time" in shown
        assert (key_of(document) != key_of(changed(document, "timestamp"))) is is_part
    if UUID.search(detail["topicName"]):
        assert (key_of(document) != key_of(changed(document, "topicName"))) is ("topic" in shown)


def key_of(document: dict[str, Any]) -> bytes:
    (event,) = read(document)
    return keys.auto(event).digest


def schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: schema_of(member) for name, member in value.items()}}
    return {"type": "array"} if isinstance(value, list) else {"type": "string"}


def leaves(value: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(member, (*before, name))
    else:
        yield before


def changed(document: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """The document with another value at this path in its detail. A time stays a time, and a topic of the same form."""
    copy = deepcopy(document)
    place: Any = detail_of(copy)
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = another(place[path[-1]])
    return copy


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1_000
    if moment(value) is not None:
        return f"1999{value[4:]}"
    return UUID.sub("00112233-", value) if UUID.search(value) else f"{value}x"

"""100,000 broken documents: each is read as an event, a frame, or an event with a problem."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate import keys, read
from oncegate.carriers import deliveries
from oncegate.errors import MissingKey
from oncegate.events import Event
from oncegate.sources import understood

DOCUMENTS = [
    sample["document"] for sample in json.loads((Path(__file__).parent.parent / "data" / "events.json").read_text())
]
HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 10**30, 1.5, "", " ", "x" * 300, "a\0b", "{", '{"a":1}', "[1]", '"', "-1", "é"),
    *([], {}, [[]], [None], {"id": {}}, {"": ""}, {"detail": 1}, {"seconds": "9" * 30}, "2026-13-99T99:99:99Z"),
]
READERS = ("genesys", "cxone", "cloudevents", "eventbridge", "plain")
COUNT = 100_000


def wrapped(document: Any, chance: random.Random) -> Any:
    text = json.dumps(document)
    return chance.choice(
        [
            document,
            document,
            [document, 5],
            {"Records": [{"eventSource": "aws:sqs", "messageId": "m", "body": text}, document]},
            {"Type": "Notification", "TopicArn": "t", "Message": text},
            {"requestContext": {}, "requestPayload": document},
            {"httpMethod": "POST", "requestContext": {}, "headers": {}, "body": text},
            {"Messages": [{"ReceiptHandle": "r", "Body": text}]},
        ]
    )


def broken(value: Any, chance: random.Random) -> Any:
    """The value with one part replaced, removed or renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        rest = {other: member for other, member in value.items() if other != name}
        act = chance.random()
        if act < 0.1:
            return rest
        if act < 0.15:
            return {**rest, chance.choice([name.upper(), name + "x", "", "id"]): value[name]}
        return {**rest, name: broken(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], broken(value[place], chance), *value[place + 1 :]]
    return chance.choice(HOSTILE)


def payloads(count: int) -> Iterator[Any]:
    chance = random.Random(20260203)  # noqa: S311  # repeatable
    for number in range(count):
        payload = broken(wrapped(DOCUMENTS[number % len(DOCUMENTS)], chance), chance)
        if number % 3:
            yield payload
            continue
        raw = bytearray(json.dumps(payload).encode())
        for _ in range(chance.randrange(3)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        yield bytes(raw)


def fault(event: Event) -> str | None:
    """What is wrong with an event that `read` returned; None if it is valid."""
    if event.problem is not None:
        return None if event.source == "unreadable" and event.problem else "a problem without words"
    if event.source not in READERS:
        return f"the source {event.source}"
    texts = (event.id, event.type, event.entity, event.part, event.state, event.frame)
    if not all(text is None or (isinstance(text, str) and text) for text in texts):
        return f"a member that is no text: {texts}"
    when = event.occurred_at
    if when is not None and (not isinstance(when, datetime) or when.utcoffset() is None):
        return f"the time {when!r}"
    if not isinstance(event.raw, bytes) or not event.raw:
        return "no raw bytes"
    return None


def faults(reader: Callable[[Any], list[Event]], count: int) -> list[tuple[Any, str]]:
    found = []
    for payload in payloads(count):
        try:
            problems = [fault(event) for event in reader(payload)]
        except Exception as error:  # noqa: BLE001  # the check looks for any exception
            problems = [repr(error)]
        found += [(payload, each) for each in problems if each is not None]
    return found


def test_read_never_raises() -> None:
    """No broken document makes `read` raise, or return anything but events, frames and problems."""
    assert faults(read, COUNT) == []


def test_every_event_has_a_key() -> None:
    """Every readable event has its default key and a content hash. Other strategies have a key or raise MissingKey."""
    strategies = (keys.event_id, keys.content, keys.fields("id", "detail.id"), keys.once_per("x", "entity"))
    for payload in payloads(COUNT // 20):
        for event in read(payload):
            if event.problem is None:
                assert len(keys.auto(event).digest) == len(keys.content_hash(event)) == 16
                for strategy in strategies:
                    with suppress(MissingKey):
                        assert len(strategy(event).digest) == 16


def test_the_fast_path_equals_the_full_path() -> None:
    """Broken envelopes give the same event on the fast path and through the carriers."""
    for payload in payloads(COUNT // 20):
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        assert read(raw) == [understood(delivery) for delivery in deliveries(raw)]


def _raises_on_hostile_times(payload: Any) -> list[Event]:
    return [
        event for event in read(payload) if event.problem or datetime.fromisoformat(event.body.get("eventTime", "2026"))
    ]


def _forgets_the_bytes(payload: Any) -> list[Event]:
    return [Event(source=event.source, body=event.body, problem=event.problem) for event in read(payload)]


def _leaves_values_as_they_are(payload: Any) -> list[Event]:
    whole = payload if isinstance(payload, dict) else {}
    return [Event(source="plain", body=whole, raw=b"x", id=whole.get("id"))]


@pytest.mark.parametrize("reader", [_raises_on_hostile_times, _forgets_the_bytes, _leaves_values_as_they_are])
def test_the_check_finds_broken_readers(reader: Callable[[Any], list[Event]]) -> None:
    """A reader that raises, loses the bytes or passes on hostile values is found within a few documents."""
    assert faults(reader, 2_000)

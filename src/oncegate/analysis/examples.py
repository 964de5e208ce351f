"""Examples of what a key loses: the places of two deliveries in the recording, and the members in which they differ."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from oncegate.analysis.database import DeliveryPlace
from oncegate.analysis.judgement import MergeExample
from oncegate.analysis.recording import DocumentBatch, recorded_events
from oncegate.events import Event
from oncegate.gate.outcome import ABSENT, differing_values
from oncegate.sources import Hints

_MOST_PATHS: Final = 6
_LONGEST_VALUE: Final = 60
# Returns the bytes of documents at these places of the recording.
Fetch = Callable[[Iterable[DeliveryPlace]], Mapping[DeliveryPlace, bytes]]


class DifferingMember(Struct, frozen=True):
    """A member in which two deliveries differ, and its values as JSON; None if values are hidden or the member is
    absent."""

    path: str
    first: str | None = None
    second: str | None = None


class ShownExample(Struct, frozen=True):
    """Two deliveries that one key merges, or that are one event and have two keys. `members` are the members in which
    they differ; empty if the bodies are equal."""

    first: str
    second: str
    first_type: str | None
    second_type: str | None
    members: list[DifferingMember]


class Examples:
    """Reads the deliveries of examples again. With `redact`, values are hidden."""

    def __init__(
        self,
        places: Mapping[int, DeliveryPlace],
        files: list[str],
        fetch: Fetch,
        hints: Hints,
        *,
        redact: bool,
    ) -> None:
        self._places, self._files, self._hints, self._redact = places, files, hints, redact
        self._documents = fetch(sorted(set(places.values())))

    def show(self, example: MergeExample | None) -> ShownExample | None:
        if example is None:
            return None
        first, second = (self._event(position) for position in (example.first, example.second))
        if first is None or second is None:
            return None
        return ShownExample(
            self._name(self._places[example.first]),
            self._name(self._places[example.second]),
            first.type,
            second.type,
            list(self._members(first, second)),
        )

    def _name(self, place: DeliveryPlace) -> str:
        item = f", event {place.item + 1}" if place.item else ""
        return f"{self._files[place.file]} at byte {place.offset:,}{item}"

    def _event(self, position: int) -> Event | None:
        place = self._places.get(position)
        raw = None if place is None else self._documents.get(place)
        if place is None or raw is None:
            return None
        events = recorded_events(DocumentBatch(place.file, 0, [(place.offset, raw)]), self._hints)
        return next((each.event for each in events if each.item == place.item), None)

    def _members(self, first: Event, second: Event) -> Iterable[DifferingMember]:
        found = ((path, one, other) for path, one, other in differing_values(first.body, second.body) if path)
        for path, one, other in islice(found, _MOST_PATHS):
            yield DifferingMember(path) if self._redact else DifferingMember(path, _text(one), _text(other))


def _text(value: Any) -> str | None:
    if value is ABSENT:
        return None
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"

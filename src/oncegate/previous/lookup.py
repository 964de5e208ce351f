"""Look up events in an old place, for a gate with the option `previous`."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final

from oncegate import keys
from oncegate.clocks import Clock
from oncegate.errors import MissingKey, PreviousUnavailable, StoreError, StoreRefused
from oncegate.events import Event
from oncegate.previous import open_place
from oncegate.previous.base import KeyPart, OldMark, OldPlace, read_place_url
from oncegate.stores.circuit_breaker import CircuitBreaker

_WHERE: Final = "the place that `previous` names"


class PreviousPlace:
    """The old place that the option `previous` names. It is only read. `wall` is the clock that decides whether `until`
    or the expiry of a mark has passed. The breaker is for a place over a network."""

    def __init__(
        self, place: OldPlace, wall: Clock, *, until: int | None = None, breaker: CircuitBreaker | None = None
    ) -> None:
        self._place = place
        self._until = until
        self._wall = wall
        self._breaker = breaker if place.remote else None

    def find(self, events: Sequence[Event]) -> list[int | None]:
        """Look up the events with as few requests as possible. Returns the time for which each mark is still valid, in
        microseconds; None if the place has no mark of the event, and 0 if the mark does not expire. An event that lacks
        a part of the old key has no mark. After `until`, no event has a mark. Raises PreviousUnavailable if the place
        does not answer."""
        left: list[int | None] = [None] * len(events)
        if self._until is not None and self._wall() >= self._until:
            return left
        try:
            make = self._old_keys
            old_keys = [(index, key) for index, event in enumerate(events) if (key := make(event))]
            marks = self._find([key for _, key in old_keys]) if old_keys else []
        except StoreRefused as error:
            raise PreviousUnavailable(f"{_WHERE}: {error}; if it is no longer needed, remove the setting") from error
        except StoreError as error:
            raise PreviousUnavailable(f"{_WHERE}: {error}") from error
        for (index, _), mark in zip(old_keys, marks, strict=True):
            left[index] = None if mark is None else self._time_left(mark)
        return left

    def check(self) -> None:
        """Look up a key that no event has. Raises StoreError if the place does not answer, or has no such table or
        column."""
        self._place.find([["0"] * len(self._place.parts())])

    def _find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        """Call the place. The breaker counts only calls: an answer without a call would look very fast."""
        with nullcontext() if self._breaker is None else self._breaker.watch(len(keys), reads=True):
            return self._place.find(keys)

    def _time_left(self, mark: OldMark) -> int | None:
        if mark.expires_at is None:
            return 0
        left = mark.expires_at - self._wall()
        return left if left > 0 else None

    @cached_property
    def _old_keys(self) -> "_OldKeys":
        return _OldKeys(self._place.parts())

    def close(self) -> None:
        self._place.close()


def open_previous(url: str, wall: Clock, breaker: CircuitBreaker | None = None) -> PreviousPlace:
    """Open the old place of a URL. Connections are opened when they are first needed. Raises SettingError if the URL is
    invalid."""
    parsed = read_place_url(url)
    place = open_place(parsed)
    if parsed.scheme != "dynamodb":  # to know the key of a DynamoDB table, the table must be read
        _OldKeys(place.parts())
    return PreviousPlace(place, wall, until=parsed.until, breaker=breaker)


class _OldKeys:
    """Makes the old key of an event: a value for each part. The fields of the templates are paths, which are looked up
    like those of `keys.fields`."""

    def __init__(self, parts: Sequence[KeyPart]) -> None:
        self._templates = [part.template for part in parts]
        self._names = tuple(dict.fromkeys(name for template in self._templates for name in template.names))
        self._fields = keys.fields(*self._names)

    def __call__(self, event: Event) -> list[Any] | None:
        """Return the old key; None if the event lacks a part, or if a value cannot be part of a key."""
        try:
            found = self._fields(event).parts[1:]
        except (MissingKey, TypeError, ValueError, RecursionError):  # the last three: the caller made the Event
            return None
        values = dict(zip(self._names, found, strict=True))
        made = [template.make(values) for template in self._templates]
        return None if None in made else made

"""All deliveries of a simulation, in order, each with its original event. The same seed makes the same bytes."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cache
from heapq import heappop, heappush
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from oncegate import keys
from oncegate.errors import MissingKey, SettingError
from oncegate.events import Event
from oncegate.simulate.conversations import LONGEST_WINDOW, Document, conversations
from oncegate.simulate.copies import CopyOptions, EventCopy, copies, copy
from oncegate.simulate.random_source import RandomSource
from oncegate.sources import read

_NO_EVENT: Final = Event(source="plain", body=None)
START: Final = 1_767_603_600_000  # 2026-01-05 09:00 UTC in milliseconds; fixed, so that a seed makes the same bytes


class Plan(Struct, frozen=True, kw_only=True, rename={"copy_options": "wishes"}):
    """What to simulate: the number of `events`, their `rate` per second, the longest `delay` of a delivery in
    microseconds, and the time of the first event (`start`) in milliseconds. `untimed` is the share of conversations
    beside which there are events without an event time. In the truth file, `copy_options` is called `wishes`."""

    events: int = 1_000
    rate: float = 100.0
    delay: int = 0
    start: int = START
    seed: int = 0
    copy_options: CopyOptions = CopyOptions()
    untimed: float = 0.0

    def __post_init__(self) -> None:
        if not 1_000 <= self.copy_options.window <= LONGEST_WINDOW:
            window = f"{self.copy_options.window / 1_000:g}ms"
            raise SettingError(f"the window of echoes must be from 1ms to 5s, not {window}")


class SimulatedEvent(Struct, frozen=True):
    """An event that must take effect once. Events are numbered from 1 in the order of time."""

    number: int
    event: Event
    document: Document

    @property
    def name(self) -> str:
        return f"e-{self.number}"


class PlannedDelivery(Struct, frozen=True):
    """A copy to send `due` microseconds after the start. `event` is the copy as Oncegate reads it. `original` is None
    for an invalid or recorded delivery."""

    number: int
    due: int
    original: SimulatedEvent | None
    copy: EventCopy
    event: Event


def simulated_events(plan: Plan) -> Iterator[SimulatedEvent]:
    """The events that must take effect, in the order of time."""
    timed = islice(conversations(plan.seed, plan.start, plan.untimed), plan.events)
    for number, (_, document) in enumerate(timed, 1):
        yield SimulatedEvent(number, _read(copy("first", document).raw), document)


def deliveries(plan: Plan) -> Iterator[PlannedDelivery]:
    """All deliveries of simulated traffic, in the order of `due`."""
    return _planned(((original, _copies_of(original, plan)) for original in simulated_events(plan)), plan)


def recorded_deliveries(documents: Iterable[tuple[bytes, str | None]], plan: Plan) -> Iterator[PlannedDelivery]:
    """The deliveries of recorded documents, in the order of `due`. Each document comes with its place in the file, such
    as `line 3`. It is sent as it is, and `plan` says how often and how fast. Whether two documents are the same event
    is not known, so the deliveries have no original."""
    numbered = enumerate(documents, 1)
    return _planned(((None, _recorded_copies(raw, place, plan, number)) for number, (raw, place) in numbered), plan)


def _recorded_copies(raw: bytes, place: str | None, plan: Plan, number: int) -> Iterator[EventCopy]:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        document = None
    known = document if isinstance(document, dict) else None
    for position in range(RandomSource(plan.seed, f"copies of {number}").integer(*plan.copy_options.copies)):
        yield EventCopy("redelivery" if position else "first", known, raw, place=place)


def _planned(
    groups: Iterable[tuple[SimulatedEvent | None, Iterable[EventCopy]]], plan: Plan
) -> Iterator[PlannedDelivery]:
    """Number the copies of each group and give them a time. Only delayed deliveries are held in memory."""
    delayed: list[tuple[int, int, PlannedDelivery]] = []
    number = 0
    for position, (original, group) in enumerate(groups, 1):
        now = int((position - 1) * 1_000_000 / plan.rate)
        while delayed and delayed[0][0] < now:
            yield heappop(delayed)[2]
        lateness = RandomSource(plan.seed, f"lateness of {position}")
        for each in group:
            number += 1
            due = now + lateness.integer(0, plan.delay)
            event = None if each.kind == "invalid" else original
            heappush(delayed, (due, number, PlannedDelivery(number, due, event, each, _read(each.raw))))
    while delayed:
        yield heappop(delayed)[2]


def keys_of(event: Event, window: int) -> dict[str, str | None]:
    """The key of an event by strategy; None if the event has no key under a strategy."""
    return {name: _key(event, strategy) for name, strategy in _strategies(window).items()}


@cache
def _strategies(window: int) -> dict[str, keys.Strategy]:
    change = keys.state_change(timedelta(microseconds=window))
    return {"auto": keys.auto, "state_change": change, "event_id": keys.event_id, "content": keys.content}


def _copies_of(original: SimulatedEvent, plan: Plan) -> Iterator[EventCopy]:
    random = RandomSource(plan.seed, f"copies of {original.number}")
    return copies(random, original.document, original.event.state, plan.copy_options)


def _read(raw: bytes) -> Event:
    """The first event of the bytes. Only a recorded document may have several events, or none."""
    return next(iter(read(raw)), _NO_EVENT)


def _key(event: Event, strategy: keys.Strategy) -> str | None:
    if event.problem is not None:
        return None
    try:
        return str(strategy(event))
    except MissingKey:
        return None

"""All deliveries of a simulation, in order, each with its original event. The same seed makes the same bytes."""

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from msgspec import Struct

from oncegate import keys
from oncegate.errors import MissingKey, SettingError
from oncegate.events import Event
from oncegate.simulate.conversations import LONGEST_WINDOW, Document, conversations
from oncegate.simulate.copies import CopyOptions, EventCopy, copies, copy
from oncegate.simulate.random_source import RandomSource
from oncegate.sources import read

START: Final = 1_767_603_600_000  # 2026-01-05 09:00 UTC in milliseconds; fixed, so that a seed makes the same bytes


class Plan(Struct, frozen=True, kw_only=True, rename={"copy_options": "wishes"}):
    """What to simulate: the number of `events`, their `rate` per second, and the longest `delay` of a delivery in
    microseconds. In the truth file, `copy_options` is called `wishes`."""

    events: int = 1_000
    rate: float = 100.0
    delay: int = 0
    seed: int = 0
    copy_options: CopyOptions = CopyOptions()

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
    for an invalid delivery."""

    number: int
    due: int
    original: SimulatedEvent | None
    copy: EventCopy
    event: Event


def simulated_events(plan: Plan) -> Iterator[SimulatedEvent]:
    """The events that must take effect, in the order of time."""
    timed = islice(conversations(plan.seed, START), plan.events)
    for number, (_, document) in enumerate(timed, 1):
        yield SimulatedEvent(number, _read(copy("first", document).raw), document)


def deliveries(plan: Plan) -> Iterator[PlannedDelivery]:
    """All deliveries in the order of `due`. Only delayed deliveries are held in memory."""
    delayed: list[tuple[int, int, PlannedDelivery]] = []
    number = 0
    for original in simulated_events(plan):
        now = int((original.number - 1) * 1_000_000 / plan.rate)
        while delayed and delayed[0][0] < now:
            yield heappop(delayed)[2]
        for delivery in _deliveries_of(original, plan, now, number + 1):
            number = delivery.number
            heappush(delayed, (delivery.due, number, delivery))
    while delayed:
        yield heappop(delayed)[2]


def keys_of(event: Event, window: int) -> dict[str, str | None]:
    """The key of an event by strategy; None if the event has no key under a strategy."""
    return {name: _key(event, strategy) for name, strategy in _strategies(window).items()}


@cache
def _strategies(window: int) -> dict[str, keys.Strategy]:
    change = keys.state_change(timedelta(microseconds=window))
    return {"auto": keys.auto, "state_change": change, "event_id": keys.event_id, "content": keys.content}


def _deliveries_of(original: SimulatedEvent, plan: Plan, now: int, first: int) -> Iterator[PlannedDelivery]:
    random = RandomSource(plan.seed, f"copies of {original.number}")
    lateness = RandomSource(plan.seed, f"lateness of {original.number}")
    sent = copies(random, original.document, original.event.state, plan.copy_options)
    for number, each in enumerate(sent, first):
        due = now + lateness.integer(0, plan.delay)
        yield PlannedDelivery(number, due, None if each.kind == "invalid" else original, each, _read(each.raw))


def _read(raw: bytes) -> Event:
    (event,) = read(raw)
    return event


def _key(event: Event, strategy: keys.Strategy) -> str | None:
    if event.problem is not None:
        return None
    try:
        return str(strategy(event))
    except MissingKey:
        return None

"""Traffic: everything that is delivered, in order, and what it truly is. A seed makes the same bytes again."""

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
from oncegate.simulate.conversations import LONGEST_WINDOW, Document, world
from oncegate.simulate.copies import CopyOptions, EventCopy, copies, copy
from oncegate.simulate.randomness import Chance
from oncegate.sources import read

START: Final = 1_767_603_600_000  # 2026-01-05, nine in the morning: always the same, as the bytes shall be


class Plan(Struct, frozen=True, kw_only=True):
    """How much happens: `events` in all, `rate` of them a second, each delivered up to `delay` microseconds late."""

    events: int = 1_000
    rate: float = 100.0
    delay: int = 0
    seed: int = 0
    wishes: CopyOptions = CopyOptions()

    def __post_init__(self) -> None:
        if not 1_000 <= self.wishes.window <= LONGEST_WINDOW:
            raise SettingError("the window of simulated echoes is from 1ms to 5s, as what differs is further apart")


class Happening(Struct, frozen=True):
    """Something that happens once. Their numbers, from 1 on, are in the order of time."""

    number: int
    event: Event
    document: Document

    @property
    def name(self) -> str:
        return f"e-{self.number}"


class PlannedDelivery(Struct, frozen=True):
    """A copy that is due so many microseconds after the start. What is invalid is `of` nothing."""

    number: int
    due: int
    of: Happening | None
    copy: EventCopy
    event: Event


def happenings(plan: Plan) -> Iterator[Happening]:
    """What truly happens, in the order of time."""
    moments = islice(world(plan.seed, START), plan.events)
    for number, (_, document) in enumerate(moments, 1):
        yield Happening(number, _read(copy("first", document).raw), document)


def deliveries(plan: Plan) -> Iterator[PlannedDelivery]:
    """All deliveries, in the order in which they are due. Only those that are late are in memory."""
    late: list[tuple[int, int, PlannedDelivery]] = []
    number = 0
    for happening in happenings(plan):
        now = int((happening.number - 1) * 1_000_000 / plan.rate)
        while late and late[0][0] < now:
            yield heappop(late)[2]
        for delivery in _deliveries_of(happening, plan, now, number + 1):
            number = delivery.number
            heappush(late, (delivery.due, number, delivery))
    while late:
        yield heappop(late)[2]


def keys_of(event: Event, window: int) -> dict[str, str | None]:
    """The key of an event under each strategy that needs no more than a window; None where it has none."""
    return {name: _key(event, strategy) for name, strategy in _strategies(window).items()}


@cache
def _strategies(window: int) -> dict[str, keys.Strategy]:
    change = keys.state_change(timedelta(microseconds=window))
    return {"auto": keys.auto, "state_change": change, "event_id": keys.event_id, "content": keys.content}


def _deliveries_of(happening: Happening, plan: Plan, now: int, first: int) -> Iterator[PlannedDelivery]:
    chance = Chance(plan.seed, f"copies of {happening.number}")
    lateness = Chance(plan.seed, f"lateness of {happening.number}")
    made = copies(chance, happening.document, happening.event.state, plan.wishes)
    for number, each in enumerate(made, first):
        due = now + lateness.between(0, plan.delay)
        of = None if each.kind == "invalid" else happening
        yield PlannedDelivery(number, due, of, each, _read(each.raw))


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

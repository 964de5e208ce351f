"""The truth of simulated traffic: a file with a line for what was asked for, each event, and each of its deliveries."""

import threading
from collections.abc import Iterable
from typing import Final, Literal, TextIO, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.errors import OncegateError
from oncegate.gate.observers import write_line
from oncegate.simulate.traffic import Happening, Plan, PlannedDelivery, keys_of

VERSION: Final = 1

# Taken by whoever it was sent to; refused for good; or not taken for as long as it was tried.
Fate: TypeAlias = Literal["taken", "refused", "gave up"]


class TruthHeader(Struct, frozen=True, tag="plan", tag_field="line"):
    """The first line: what makes the same traffic again."""

    version: int
    plan: Plan


class TrueEvent(Struct, frozen=True, tag="event", tag_field="line"):
    """Something that happened once. `number` is its place in the order of time."""

    name: str
    number: int
    source: str
    type: str | None
    entity: str | None
    state: str | None
    occurred_at: str | None
    keys: dict[str, str | None]


class Delivered(Struct, frozen=True, tag="delivery", tag_field="line"):
    """One delivery, and what it truly is. Two of one event have the same `event`; one that is invalid has none."""

    number: int
    event: str | None
    kind: str
    wrapping: str | None
    event_id: str | None
    keys: dict[str, str | None]
    fate: Fate
    tries: int


Line: TypeAlias = TruthHeader | TrueEvent | Delivered

_decoder: Final = msgspec.json.Decoder(Line)


class TruthFile:
    """Writes the truth as it comes to be known: an event before its first delivery, a delivery when its fate is known.
    So that of a run that is interrupted is true as well. Without a stream nothing is written."""

    def __init__(self, stream: TextIO | None, plan: Plan) -> None:
        self._stream = stream
        self._window = plan.wishes.window
        self._told: set[int] = set()
        self._lock = threading.Lock()
        self._write(TruthHeader(VERSION, plan))

    def announce(self, delivery: PlannedDelivery) -> None:
        happening = delivery.of
        if self._stream is not None and happening is not None and happening.number not in self._told:
            self._told.add(happening.number)
            self._write(_true_event(happening, self._window))

    def settle(self, delivery: PlannedDelivery, fate: Fate, tries: int, event_id: str | None) -> None:
        """`event_id` is the one that a bus gave it, if it did."""
        if self._stream is None:
            return
        copy, event = delivery.copy, delivery.event
        name = None if delivery.of is None else delivery.of.name
        keys = keys_of(event, self._window)
        known = event_id or event.id
        self._write(Delivered(delivery.number, name, copy.kind, copy.wrapping, known, keys, fate, tries))

    def _write(self, line: Line) -> None:
        if self._stream is not None:
            with self._lock:
                write_line(msgspec.to_builtins(line), self._stream)


class Truth(Struct):
    """What is known of a whole run."""

    plan: Plan
    events: dict[str, TrueEvent]
    deliveries: dict[str, list[Delivered]]


def load(lines: Iterable[bytes], name: str) -> Truth:
    """The truth from the lines of its file, which is called this."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    found = Truth(_plan(next(numbered, (1, b""))[1], name), {}, {})
    for number, line in numbered:
        match _line(line, f"{name}:{number}"):
            case TrueEvent() as event:
                found.events[event.name] = event
            case Delivered(event=str(of)) as delivery:
                found.deliveries.setdefault(of, []).append(delivery)
            case _:
                pass
    return found


def _plan(line: bytes, name: str) -> Plan:
    try:
        asked = _decoder.decode(line)
    except msgspec.MsgspecError:
        asked = None
    if not isinstance(asked, TruthHeader) or asked.version != VERSION:
        raise OncegateError(f"{name} is no truth that this version can read; `oncegate simulate --truth` writes it")
    return asked.plan


def _line(line: bytes, place: str) -> Line:
    try:
        found: Line = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise OncegateError(f"{place} is no line of a truth ({error}); was it cut off or edited?") from error
    return found


def _true_event(happening: Happening, window: int) -> TrueEvent:
    event = happening.event
    when = None if event.occurred_at is None else event.occurred_at.isoformat()
    keys = keys_of(event, window)
    return TrueEvent(happening.name, happening.number, event.source, event.type, event.entity, event.state, when, keys)

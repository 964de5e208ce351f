"""The truth file of a simulation: one line for the plan, one line for each event and one line for each delivery."""

import threading
from collections.abc import Iterable
from typing import Final, Literal, TextIO, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.errors import OncegateError
from oncegate.gate.observers import write_line
from oncegate.simulate.traffic import Plan, PlannedDelivery, SimulatedEvent, keys_of

VERSION: Final = 1

# The target accepted the delivery, rejected it permanently, or did not accept it before the sender gave up.
Fate: TypeAlias = Literal["taken", "refused", "gave up"]


class TruthHeader(Struct, frozen=True, tag="plan", tag_field="line"):
    """The first line: the plan. The same plan makes the same traffic again."""

    version: int
    plan: Plan


class TrueEvent(Struct, frozen=True, tag="event", tag_field="line"):
    """An event that must take effect once. `number` is the position of the event in the order of time."""

    name: str
    number: int
    source: str
    type: str | None
    entity: str | None
    state: str | None
    occurred_at: str | None
    keys: dict[str, str | None]


class Delivered(Struct, frozen=True, tag="delivery", tag_field="line"):
    """One delivery. `event` is the name of its event; None for an invalid delivery."""

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
    """Writes an event before its first delivery, and a delivery when its fate is known. So the file is also correct if
    the run is interrupted. Without a stream, nothing is written."""

    def __init__(self, stream: TextIO | None, plan: Plan) -> None:
        self._stream = stream
        self._window = plan.copy_options.window
        self._announced: set[int] = set()
        self._lock = threading.Lock()
        self._write(TruthHeader(VERSION, plan))

    def announce(self, delivery: PlannedDelivery) -> None:
        original = delivery.original
        if self._stream is not None and original is not None and original.number not in self._announced:
            self._announced.add(original.number)
            self._write(_true_event(original, self._window))

    def settle(self, delivery: PlannedDelivery, fate: Fate, tries: int, event_id: str | None) -> None:
        """Write a delivery and its fate. `event_id` is the id that an event bus assigned, if any."""
        if self._stream is None:
            return
        copy, event = delivery.copy, delivery.event
        name = None if delivery.original is None else delivery.original.name
        keys = keys_of(event, self._window)
        final_id = event_id or event.id
        self._write(Delivered(delivery.number, name, copy.kind, copy.wrapping, final_id, keys, fate, tries))

    def _write(self, line: Line) -> None:
        if self._stream is not None:
            with self._lock:
                write_line(msgspec.to_builtins(line), self._stream)


class Truth(Struct):
    """The content of a truth file. `deliveries` maps the name of an event to the deliveries of the event."""

    plan: Plan
    events: dict[str, TrueEvent]
    deliveries: dict[str, list[Delivered]]


def load(lines: Iterable[bytes], name: str) -> Truth:
    """Load a truth file from its lines. `name` is the name of the file in error messages. Raises OncegateError if the
    file is not a truth file."""
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
        header = _decoder.decode(line)
    except msgspec.MsgspecError:
        header = None
    if not isinstance(header, TruthHeader) or header.version != VERSION:
        raise OncegateError(
            f"{name} is not a truth file of this version; write one with `oncegate simulate --truth FILE`"
        )
    return header.plan


def _line(line: bytes, place: str) -> Line:
    try:
        found: Line = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise OncegateError(
            f"{place}: invalid line in a truth file ({error}); run `oncegate simulate --truth` again"
        ) from error
    return found


def _true_event(original: SimulatedEvent, window: int) -> TrueEvent:
    event = original.event
    when = None if event.occurred_at is None else event.occurred_at.isoformat()
    keys = keys_of(event, window)
    return TrueEvent(original.name, original.number, event.source, event.type, event.entity, event.state, when, keys)

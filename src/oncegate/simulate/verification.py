"""Compare the effects with the truth file of a simulation."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.errors import OncegateError
from oncegate.simulate.truth import Delivered, TrueEvent, Truth

_RUN: Final = frozenset({"processed", "unguarded"})
_DUPLICATE: Final = "duplicate"

# "already processed": the log has no effect of this traffic, and has duplicates of the event. So the event is not lost:
# the store has processed this traffic before the log begins.
Problem: TypeAlias = Literal["lost", "doubled", "extra", "already processed"]


class Effect(Struct, frozen=True):
    """A line of an effects file. A line with a `status` or a `warning` comes from a log. Such a line is an effect only
    if the status is in `_RUN`."""

    key: str | None = None
    event_id: str | int | None = None
    status: str | None = None
    warning: str | None = None

    @property
    def is_of_log(self) -> bool:
        return self.status is not None or self.warning is not None

    @property
    def took_effect(self) -> bool:
        return self.status in _RUN if self.is_of_log else True


class EffectFinding(Struct, frozen=True):
    """One problem. For an extra effect, `event` is None and `called` is the key or the event id of the effect. With
    `only_duplicates`, the log has duplicates of the event, but not the effect that they repeat."""

    what: Problem
    effects: int
    event: TrueEvent | None = None
    deliveries: tuple[Delivered, ...] = ()
    called: str | None = None
    by_echo: bool = False
    only_duplicates: bool = False


class EffectComparison(Struct, frozen=True):
    """`events` is the number of events with an accepted delivery: each must take effect once. `unordered` lists the
    entities whose events did not take effect in the order of time."""

    events: int
    effects: int
    findings: list[EffectFinding]
    entities: int
    unordered: list[str]

    @property
    def once(self) -> bool:
        return not self.findings

    @property
    def already_processed(self) -> bool:
        """Whether the only problem is that the store had processed this traffic before."""
        return bool(self.findings) and all(finding.what == "already processed" for finding in self.findings)

    @property
    def ordered(self) -> bool:
        return not self.unordered

    def of(self, what: Problem) -> list[EffectFinding]:
        return [finding for finding in self.findings if finding.what == what]


def effects(lines: Iterable[bytes], name: str) -> Iterator[Effect]:
    """The effects and the duplicates in the lines of a file, in order. `name` is the name of the file in error
    messages. Raises OncegateError for an invalid line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        effect = _effect(line, f"{name}:{number}")
        if effect.took_effect or effect.status == _DUPLICATE:
            yield effect


def compare(truth: Truth, effects: Iterable[Effect]) -> EffectComparison:
    """Match each effect with an event by any key or id of its deliveries. An event with several effects is doubled."""
    names = _Names(truth)
    taken: dict[str, list[Effect]] = {}
    duplicates: list[Effect] = []
    extra: Counter[str] = Counter()
    order: dict[str, list[int]] = {}
    for effect in effects:
        if not effect.took_effect:
            duplicates.append(effect)
            continue
        name = names.of(effect, taken)
        if name is None:
            extra[str(effect.key or effect.event_id)] += 1
            continue
        if name not in taken:
            event = truth.events[name]
            order.setdefault(event.entity or name, []).append(event.number)
        taken.setdefault(name, []).append(effect)
    expected = {name for name, sent in truth.deliveries.items() if any(each.fate == "taken" for each in sent)}
    findings = [
        *_of_events(truth, taken, expected, _with_only_duplicates(names, taken, duplicates)),
        *(EffectFinding("extra", extra[name], called=name) for name in extra),
    ]
    unordered = [entity for entity, numbers in order.items() if numbers != sorted(numbers)]
    return EffectComparison(
        len(expected), extra.total() + sum(map(len, taken.values())), findings, len(order), unordered
    )


class _Names:
    """Finds the events of keys and ids. Several events may share an id: for example, a receipt has the id of its
    message."""

    def __init__(self, truth: Truth) -> None:
        self._events: dict[str, dict[str, None]] = {}
        for name, event in truth.events.items():
            self._note(name, event.keys.values())
            for delivery in truth.deliveries.get(name, ()):
                self._note(name, (*delivery.keys.values(), delivery.event_id))

    def _note(self, name: str, keys_and_ids: Iterable[str | None]) -> None:
        for each in keys_and_ids:
            if each is not None:
                self._events.setdefault(each, {})[name] = None

    def all_of(self, effect: Effect) -> Iterable[str]:
        """The names of all events that have the key of an effect, or its id if no event has the key."""
        return self._events.get(effect.key or "") or self._events.get(str(effect.event_id), {})

    def of(self, effect: Effect, taken: Container[str]) -> str | None:
        """The name of the event of an effect. The event is found by the key of the effect, otherwise by the id. If
        several events share the key or id, the first event without an effect so far is chosen."""
        events = self.all_of(effect)
        return next((name for name in events if name not in taken), next(iter(events), None))


def _with_only_duplicates(names: _Names, taken: dict[str, list[Effect]], duplicates: Iterable[Effect]) -> set[str]:
    """The names of the events of which the log has duplicates, and no effect with the key of these duplicates. An event
    that is a duplicate of another event in the log does not belong to them: its key is too coarse."""
    in_log = {effect.key for effects in taken.values() for effect in effects}
    return {name for each in duplicates if each.key not in in_log for name in names.all_of(each)}


def _of_events(
    truth: Truth, taken: dict[str, list[Effect]], expected: set[str], only_duplicates: set[str]
) -> Iterator[EffectFinding]:
    """The problems of the events of the truth file.

    If the log has an effect of this traffic, an event with only duplicates counts as lost. A worker that completes an
    event and ends before the handler has run (mode="mark_first") leaves such a log."""
    for name, event in truth.events.items():
        ran, sent = taken.get(name, []), tuple(truth.deliveries.get(name, ()))
        if not ran and name in expected:
            is_duplicate = name in only_duplicates
            what: Problem = "already processed" if is_duplicate and not taken else "lost"
            yield EffectFinding(what, 0, event, sent, only_duplicates=is_duplicate)
        elif len(ran) > 1:
            yield EffectFinding("doubled", len(ran), event, sent, by_echo=_by_echo(ran, sent))


def _by_echo(ran: list[Effect], sent: tuple[Delivered, ...]) -> bool:
    """Whether all effects except one are effects of echoes, each with a different key or id."""
    echoes = [each for each in sent if each.kind == "state-echo"]
    only_echoes = _called(echoes) - _called([each for each in sent if each.kind != "state-echo"])
    called = [effect.key or str(effect.event_id) for effect in ran]
    return len([each for each in called if each in only_echoes]) == len(called) - 1 == len(set(called)) - 1


def _called(sent: list[Delivered]) -> set[str | None]:
    """The keys and ids of these deliveries."""
    return {name for each in sent for name in (*each.keys.values(), each.event_id)}


def _effect(line: bytes, place: str) -> Effect:
    try:
        effect = msgspec.json.decode(line, type=Effect)
    except msgspec.MsgspecError as error:
        raise OncegateError(f"{place}: invalid line in an effects file: {error}") from error
    if not effect.is_of_log and effect.key is None and effect.event_id in (None, ""):
        raise OncegateError(f"{place}: the line has neither a key nor an event_id; write str(event.key) as the key")
    return effect

"""Differences: where two bodies say different things."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import DEAD, RELEASED, Record
from oncegate.durations import spoken, times
from oncegate.events import Event, Key

_MOST: Final = 5
_LONGEST: Final = 100


def differences(one: Any, other: Any) -> tuple[str, ...]:
    """The first few paths at which these bodies differ, such as `data.status`; lists differ as a whole. There is none
    to what is no object."""
    return tuple(_short(path) for path in islice(_paths(one, other, ""), _MOST) if path)


def _short(path: str) -> str:
    """Whoever sends it may call a member anything, and it stands in logs."""
    return path if len(path) <= _LONGEST else f"{path[:_LONGEST]}…"


def _paths(one: Any, other: Any, at: str) -> Iterator[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other or type(one) is not type(other):
            yield at
        return
    for name in sorted(one.keys() | other.keys()):
        name_ = name or '""'
        path = f"{at}.{name_}" if at else name_
        if name in one and name in other:
            yield from _paths(one[name], other[name], path)
        else:
            yield path


# Outcomes: what became of a delivery, and the sentence that says why.


Status: TypeAlias = Literal[
    "processed",
    "accepted",
    "duplicate",
    "in_flight",
    "failed",
    "conflict",
    "buried",
    "invalid",
    "unguarded",
    "skipped",
]
Kind: TypeAlias = Literal["redelivery", "re-emission", "state-echo", "replay", "concurrent"]

_ACKED: Final = frozenset({"processed", "accepted", "duplicate", "conflict", "buried", "unguarded", "skipped"})


class Outcome(Struct, frozen=True):
    """What became of one event.

    `original` is the record that decided, and `at` the store's time then; both are None when the store was not
    asked. `kept` is the key under which a copy of a conflicting or unreadable event was kept, `raised` what a log may
    say of the exception that a handler or a key function raised. `differs` are the first paths at which a conflicting
    event says something else than the original, where that is still at hand. `retry_after` is how long its handler asks
    to be left alone before the next attempt, in microseconds. `cut`: only the first part was kept of an unreadable
    event that is larger than the store can keep.
    """

    status: Status
    event: Event
    key: Key | None = None
    kind: Kind | None = None
    result: Any = None
    error: str | None = None
    original: Record | None = None
    at: int | None = None
    kept: Key | None = None
    raised: str | None = None
    differs: tuple[str, ...] = ()
    retry_after: int | None = None
    cut: bool = False

    @property
    def acked(self) -> bool:
        """Whether the delivery may be acknowledged: its effect is done, or a durable copy is kept."""
        return self.status in _ACKED

    @property
    def reason(self) -> str:
        """One sentence for a person, on one line; what could steer a terminal is spelt out."""
        sentence = " ".join(_SENTENCES[self.status](self).split())
        return sentence if sentence.isprintable() else _printable(sentence)

    @property
    def discreet(self) -> str:
        """The same sentence for a log: without what an exception said, which may be of the payload."""
        said = self.raised or (self.error and "see its record" if self.original is not None else self.error)
        return self.reason if said == self.error else replace(self, error=said).reason


def _processed(outcome: Outcome) -> str:
    attempt = outcome.event.attempt
    done = "Processed at the first attempt" if attempt <= 1 else f"Processed at attempt {attempt}"
    return f"{done}, but {outcome.error}." if outcome.error else f"{done}."


def _accepted(_outcome: Outcome) -> str:
    return "Accepted: it is kept, and will be run."


def _duplicate(outcome: Outcome) -> str:
    original = outcome.original
    if original is not None and original.state == RELEASED:
        return f"Duplicate of {_original(outcome)}, which is kept and waits to be run."
    lost = f"; {outcome.error}" if outcome.error else ""
    return f"Duplicate of {_original(outcome)}; the handler was not run again{lost}."


def _in_flight(outcome: Outcome) -> str:
    if outcome.error:
        return f"Not run: {outcome.error}; deliver it again."
    original = outcome.original
    left = original.lease_until - outcome.at if original is not None and outcome.at is not None else 0
    return f"Another worker is at it, for up to {spoken(left)} more; deliver it again after that."


def _failed(outcome: Outcome) -> str:
    at = f" at attempt {outcome.event.attempt}" if outcome.event.attempt else ""
    kept = outcome.key is not None and outcome.key.strategy == "kept"
    then = "it is kept, and tried again" if kept else "deliver it again"
    if outcome.retry_after is not None:
        then = f"{then}, in {spoken(outcome.retry_after)} at the earliest"
    if kept and outcome.event.entity is not None:
        then = f"{then}; later events of its entity wait for it"
    return f"Failed{at}: {outcome.error}; {then}."


def _conflict(outcome: Outcome) -> str:
    kept = f"; it is kept apart, under the key {outcome.kept}" if outcome.kept else ""
    differs = f" (in {', '.join(outcome.differs)})" if outcome.differs else ""
    return f"Its key is that of {_original(outcome)}, but its content is another{differs}{kept}."


def _buried(outcome: Outcome) -> str:
    original = outcome.original
    if outcome.kept is not None and original is not None:
        return f"Not run, and buried as dead letter {outcome.kept}: {outcome.error}."
    if outcome.kept is not None:
        return f"Buried as dead letter {outcome.kept}, and marked as done: {outcome.error}."
    if original is not None and original.state == DEAD:
        return f"Not run: it is dead letter {outcome.key} since an earlier delivery ({outcome.error})."
    ran = outcome.event.attempt - (outcome.raised is None)  # of the attempt that it was granted no handler knows then
    if ran < 1:
        return f"Not run, and buried as dead letter {outcome.key}: {outcome.error}."
    return f"Buried as dead letter {outcome.key} after {times(ran, 'attempt')}: {outcome.error}."


def _invalid(outcome: Outcome) -> str:
    what = "it is too large for the store, and its first part" if outcome.cut else "it"
    kept = f"; {what} is kept under the key {outcome.kept}" if outcome.kept else ""
    return f"Refused: {outcome.error}{kept}."


def _unguarded(outcome: Outcome) -> str:
    return f"Run without protection from duplicates: {outcome.error}."


def _skipped(outcome: Outcome) -> str:
    return f"Skipped: {outcome.error}."


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _original(outcome: Outcome) -> str:
    """The original by the id it came with, and its age: `evt-1, processed 3 s ago`."""
    original, at = outcome.original, outcome.at
    if original is None or at is None:
        return "another copy in the same batch"
    name = original.about.delivery_id or "an event without an id"
    if original.completed_at is not None and original.handed_to is not None:
        return f"{name}, published to {original.handed_to} {spoken(at - original.completed_at)} ago"
    if original.completed_at is not None:
        return f"{name}, processed {spoken(at - original.completed_at)} ago"
    return f"{name}, first seen {spoken(at - original.first_seen)} ago"


_SENTENCES: Final = {
    "processed": _processed,
    "accepted": _accepted,
    "duplicate": _duplicate,
    "in_flight": _in_flight,
    "failed": _failed,
    "conflict": _conflict,
    "buried": _buried,
    "invalid": _invalid,
    "unguarded": _unguarded,
    "skipped": _skipped,
}

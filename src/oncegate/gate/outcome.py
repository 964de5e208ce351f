"""This module defines the outcome of a delivery: a table with one row for each status, and the sentence that explains
the outcome."""

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import DEAD, RELEASED, Record
from oncegate.durations import spoken, times
from oncegate.events import Event, Key
from oncegate.text import clean

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

_MOST_DIFFERENCES: Final = 5
_LONGEST_PATH: Final = 100
ABSENT: Final = object()  # the value of a member that a body does not have


class Cause(Enum):
    """Why an event did not run or failed, for code that has to distinguish the causes. `Outcome.reason` is the sentence
    for people."""

    BURY = "the handler of an event without a key raised `Bury`"
    SERVICE_UNAVAILABLE = "a service that the handler of an event without a key calls is unavailable"
    STORE_UNAVAILABLE = "the store did not answer the claim"
    PREVIOUS = "earlier code has processed the event: the place that `previous` names has marked it"


class Outcome(Struct, frozen=True):
    """The result of one event.

    `original` is the record that decided the outcome, and `at` is the store's time of that decision. Both are None if
    no record decided. `kept` is the key of the dead letter that has a copy of the event. `raised` describes an
    exception of a handler or key function. It has only the part of the exception that may be written to a log.
    `differs` lists the first paths at which a conflicting event differs from the original, if the content of the
    original is still available. `retry_after` is the delay, in microseconds, that the handler requested before the next
    attempt. `cut` means that an unreadable event was too large for the store, and only its first part was stored.
    `stored` means that the store holds the event, and the event will be retried. `cause` is set only if code has to
    distinguish this failure from other failures. `stack` has the place at which a handler raised an exception, one line
    for each frame. `took` is how long the handler ran, in microseconds. It is None if no handler ran.
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
    stored: bool = False
    cause: Cause | None = None
    stack: str | None = None
    took: int | None = None

    @property
    def acked(self) -> bool:
        """Whether the delivery may be acknowledged: the effect is done, or a durable copy is stored."""
        return STATUSES[self.status].acked

    @property
    def reason(self) -> str:
        """One sentence for people, on one line. Control characters are escaped."""
        sentence = " ".join(STATUSES[self.status].sentence(self).split())
        return sentence if sentence.isprintable() else clean(sentence)

    @property
    def discreet(self) -> str:
        """The same sentence for a log. It does not contain the text of an exception, which may quote the payload."""
        error = self.raised or (self.error and "see its record" if self.original is not None else self.error)
        return self.reason if error == self.error else replace(self, error=error).reason


# ── one sentence for each status ──────────────────────────────────────────────────────────────────────────


def _processed(outcome: Outcome) -> str:
    attempt = outcome.event.attempt
    done = "Processed at the first attempt" if attempt <= 1 else f"Processed at attempt {attempt}"
    return f"{done}, but {outcome.error}." if outcome.error else f"{done}."


def _accepted(_outcome: Outcome) -> str:
    return "Accepted: the event is stored and will be run."


def _duplicate(outcome: Outcome) -> str:
    original = outcome.original
    if outcome.cause is Cause.PREVIOUS:
        return "Duplicate: earlier code has processed this event; the handler was not run."
    if original is not None and original.state == RELEASED:
        return f"Duplicate of {_original(outcome)}, which is stored and waits to be run."
    lost = f"; {outcome.error}" if outcome.error else ""
    if original is None:
        return f"Duplicate of another copy in the same batch; it was not run{lost}."
    return f"Duplicate of {_original(outcome)}; the handler was not run again{lost}."


def _in_flight(outcome: Outcome) -> str:
    if outcome.error:
        return f"Not run: {outcome.error}; deliver it again."
    original = outcome.original
    left = original.lease_until - outcome.at if original is not None and outcome.at is not None else 0
    return f"In flight: another worker holds the claim for up to {spoken(left)} more; deliver it again after that."


def _failed(outcome: Outcome) -> str:
    at = f" at attempt {outcome.event.attempt}" if outcome.event.attempt else ""
    then = "the event is stored and will be retried" if outcome.stored else "deliver it again"
    if outcome.retry_after is not None:
        then = f"{then}, in {spoken(outcome.retry_after)} at the earliest"
    if outcome.stored and outcome.event.entity is not None:
        then = f"{then}; later events of its entity wait for it"
    return f"Failed{at}: {outcome.error}; {then}."


def _conflict(outcome: Outcome) -> str:
    differs = f" (at {', '.join(outcome.differs)})" if outcome.differs else ""
    stored = f" Stored as dead letter {outcome.kept}." if outcome.kept else ""
    name, age = _name_and_age(outcome)
    return f"Conflict: same key as {name}{f' ({age})' if age else ''} but different content{differs}.{stored}"


def _buried(outcome: Outcome) -> str:
    original = outcome.original
    if outcome.kept is not None and original is not None:
        return f"Not run, and buried as dead letter {outcome.kept}: {outcome.error}."
    if outcome.kept is not None:
        marked = ", and marked as done" if outcome.key is not None else ""  # an event without a key has no mark
        return f"Buried as dead letter {outcome.kept}{marked}: {outcome.error}."
    if original is not None and original.state == DEAD:
        return f"Not run: an earlier delivery was buried as dead letter {outcome.key} ({outcome.error})."
    ran = outcome.event.attempt - (outcome.raised is None)  # no exception: buried before the last attempt ran
    if ran < 1:
        return f"Not run, and buried as dead letter {outcome.key}: {outcome.error}."
    return f"Buried as dead letter {outcome.key} after {times(ran, 'attempt')}: {outcome.error}."


def _invalid(outcome: Outcome) -> str:
    what = "it is too large for the store, so only its first part is" if outcome.cut else "it is"
    stored = f"; {what} stored as dead letter {outcome.kept}" if outcome.kept else ""
    return f"Refused: {outcome.error}{stored}."


def _unguarded(outcome: Outcome) -> str:
    return f"Run without protection from duplicates: {outcome.error}."


def _skipped(outcome: Outcome) -> str:
    return f"Skipped: {outcome.error}."


def _original(outcome: Outcome) -> str:
    """Returns the delivery id and the age of the original, such as `evt-1, processed 3 s ago`."""
    name, age = _name_and_age(outcome)
    return f"{name}, {age}" if age else name


def _name_and_age(outcome: Outcome) -> tuple[str, str]:
    original, at = outcome.original, outcome.at
    if original is None or at is None:
        return "another copy in the same batch", ""
    name = original.about.delivery_id or "an event without an id"
    if original.completed_at is not None and original.handed_to is not None:
        return name, f"published to {original.handed_to} {spoken(at - original.completed_at)} ago"
    if original.completed_at is not None and original.is_erased:
        return name, f"erased by an operator {spoken(at - original.completed_at)} ago"
    if original.completed_at is not None and original.is_seeded:
        return name, f"processed by earlier code (seeded {spoken(at - original.completed_at)} ago)"
    if original.completed_at is not None:
        return name, f"processed {spoken(at - original.completed_at)} ago"
    return name, f"first seen {spoken(at - original.first_seen)} ago"


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────


class StatusRule(Struct, frozen=True):
    """What a status means to every part of the program.

    `acked` says whether the delivery may be acknowledged. `http` is the status code of the HTTP answer. Some senders
    retry only on 5xx, so an event that must be delivered again is answered with 503. `figure` is the name of the
    worker's counter for this status; None if no counter counts it. `is_error` says whether a trace marks the event as
    an error. `colour` is the colour in a terminal.
    """

    acked: bool
    http: int
    figure: str | None
    is_error: bool
    colour: str
    sentence: Callable[[Outcome], str]


# To add a status, add it to `Status` and add a row here; a test compares the two.
STATUSES: Final[dict[Status, StatusRule]] = {
    "processed": StatusRule(True, 200, "processed", False, "green", _processed),
    "accepted": StatusRule(True, 200, None, False, "blue", _accepted),
    "duplicate": StatusRule(True, 200, "duplicates", False, "cyan", _duplicate),
    "in_flight": StatusRule(False, 503, None, False, "yellow", _in_flight),
    "failed": StatusRule(False, 503, "failed", True, "red", _failed),
    "conflict": StatusRule(True, 200, "failed", True, "red", _conflict),
    "buried": StatusRule(True, 200, "failed", True, "red", _buried),
    "invalid": StatusRule(False, 400, "failed", True, "red", _invalid),
    "unguarded": StatusRule(True, 200, "processed", False, "red", _unguarded),
    "skipped": StatusRule(True, 200, None, False, "red", _skipped),
}


# ── differences between two bodies ────────────────────────────────────────────────────────────────────────


def differences(one: Any, other: Any, *, most: int = _MOST_DIFFERENCES) -> tuple[str, ...]:
    """Returns the first `most` paths at which two bodies differ, such as `data.status`. A list is compared as one
    value. The result is empty if one of the bodies is not a JSON object."""
    return tuple(_shortened(path) for path, _, _ in islice(differing_values(one, other), most) if path)


def _shortened(path: str) -> str:
    """Cut a path to a bounded length. A sender may use member names of any length, and the path is written to logs."""
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"


def differing_values(one: Any, other: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields each path at which two bodies differ, and the values of both bodies there. A body without this path has
    the value `ABSENT`. The path is empty if one of the bodies is not a JSON object."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other or type(one) is not type(other):
            yield at, one, other
        return
    for member in sorted(one.keys() | other.keys()):
        name = member or '""'
        path = f"{at}.{name}" if at else name
        if member in one and member in other:
            yield from differing_values(one[member], other[member], path)
        else:
            yield path, one.get(member, ABSENT), other.get(member, ABSENT)

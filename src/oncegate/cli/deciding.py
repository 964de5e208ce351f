"""Deciding: what was done with an event and why, in one sentence, by its record."""

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, Record
from oncegate.cli.output import moment
from oncegate.cli.records import WHO_RUNS
from oncegate.durations import spoken, times
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.sources import Hints, understood
from oncegate.stores.base import Entry

# Why a record has the key that it has: as the event's own, or as that of a copy that is kept apart.
Why: TypeAlias = Literal["own", "conflict", "refused", "marked"]

_NOBODY: Final = "an event without an id"
_KEPT_COPY: Final = (
    "it is kept with its payload, so that a copy that comes now is a duplicate to the service, and in flight to"
    " gate.run and serve.mode=inline"
)


class Origin(Struct, frozen=True):
    """What a record's payload tells of its key: what it was made of, and why it is this one."""

    why: Why
    key: Key
    event: Event


def origin(entry: Entry, make: keys.Strategy, hints: Hints) -> Origin | None:
    """Where the key of a record comes from, if it still has its payload and the strategy is the one it was made by."""
    if entry.record.payload is None:
        return None
    event = understood(delivery(entry.record.payload), hints)
    made = _made(event, make)
    known: dict[Why, Key] = {"refused": keys.make("kept", event, [digest(event.raw).hex()], binds=False)}
    if made is not None:
        content = keys.content_hash(event).hex()
        known |= {
            "own": made,
            "conflict": keys.make("conflict", event, [str(made), content]),
            "marked": keys.make("failed", event, [str(made)]),
        }
    return next((Origin(why, made or key, event) for why, key in known.items() if key.digest == entry.key), None)


def _made(event: Event, make: keys.Strategy) -> Key | None:
    if event.problem is not None or event.frame is not None:
        return None
    try:
        return make(event)
    except MissingKey:
        return None
    except Exception:  # noqa: BLE001  # the key function is the user's
        return None


def decision(
    record: Record, now: int, why: Why | None = None, there: Record | None = None, *, ended: bool = False
) -> str:
    """Whether the event was run, why or why not, and what becomes of a copy that comes now. `there` is the record of
    what was handed on; `ended` says that the process that holds the event is known to have ended."""
    if record.state == COMPLETED and record.handed_to is not None:
        return _published(record, there, now)
    if record.state == COMPLETED:
        return _completed(record, now)
    if record.state == DEAD:
        return f"{_dead(record, why)}; nothing runs it until it is redriven or dropped (oncegate dlq)."
    if record.state == IN_PROGRESS:
        return _in_progress(record, now, ended)
    return _released(record, now)


def named(record: Record) -> str:
    return record.about.delivery_id or _NOBODY


def _completed(record: Record, now: int) -> str:
    done = f"{spoken(now - (record.completed_at or now))} ago"
    until = f", until {moment(record.expires_at)}" if record.expires_at is not None else ""
    copy = f"a copy that comes now has the same key, so it is a duplicate and is not run{until}"
    if record.completed_at == record.first_seen:
        ways = "by mark_first or seen, or as another emission of a change that was processed"
        return f"Marked as done: {named(record)} was recorded {done} in one write, {ways}; {copy}."
    return f"Run: {named(record)} was processed {done}, {_at(record)}; {copy}."


def _published(record: Record, there: Record | None, now: int) -> str:
    until = f", until {moment(record.expires_at)}" if record.expires_at is not None else ""
    when = moment(record.completed_at)
    return (
        f"Run: {named(record)} was published to {record.handed_to} at {when}; {_ran(there, now)};"
        f" a copy that comes to its publisher now is a duplicate and is not published again{until}."
    )


def _ran(there: Record | None, now: int) -> str:
    """What became of it where it was published to."""
    if there is None:
        return "nothing has taken it from there yet, in this store and namespace"
    if there.state == COMPLETED and there.handed_to is not None:
        return f"published from there to {there.handed_to} at {moment(there.completed_at)}"
    if there.state == COMPLETED:
        return f"ran there at {moment(there.completed_at)}, {_at(there)}"
    if there.state == DEAD:
        return f"became a dead letter there {_at(there)}, because {_line(there.error or 'no reason is kept')}"
    if there.state == IN_PROGRESS and now < there.lease_until:
        return f"a worker there is at it, {_at(there)}"
    return f"tried there, {_at(there)}, and runs again when it is delivered"


def _in_progress(record: Record, now: int, ended: bool) -> str:
    kept = record.payload is not None
    then = f"{WHO_RUNS} runs it again" if kept else "the next delivery runs it again"
    if ended:
        return (
            f"Run, to an end that is not known: the process that ran {named(record)} has ended, {_at(record)}; {then}."
        )
    if now < record.lease_until:
        left = spoken(record.lease_until - now)
        return (
            f"Being run: a worker is at {named(record)}, {_at(record)}, and holds it for up to {left} more unless it"
            f" renews; {_KEPT_COPY if kept else 'a copy that comes now is in flight and has to be delivered again'}."
        )
    over = spoken(now - record.lease_until)
    return (
        f"Run, to an end that is not known: the worker of {named(record)} did not come back, {_at(record)}, and its"
        f" lease ended {over} ago; {then}."
    )


def _released(record: Record, now: int) -> str:
    kept = record.payload is not None
    then = f"it is kept with its payload, and waits for {WHO_RUNS}" if kept else "the next delivery runs it again"
    if kept and now < record.lease_until:
        then = f"it is kept with its payload, and is not taken up before {moment(record.lease_until)}"
    if record.unavailable_since is not None:
        since, error = spoken(now - record.unavailable_since), _line(record.error or "no reason is kept")
        return f"Run and held up: what {named(record)} needs has been unavailable for {since} ({error}); {then}."
    if record.attempts and record.error:
        return f"Run and failed: {named(record)} ended, {_at(record)}, with {_line(record.error)}; {then}."
    if kept:
        waited = spoken(now - record.first_seen)
        return f"Not run yet: {named(record)} came {waited} ago; {then}, so that a copy that comes now is a duplicate."
    return f"Not run: the claim of {named(record)} was given back before its handler started; {then}."


def _dead(record: Record, why: Why | None) -> str:
    error = _line(record.error or "no reason is kept")
    if why == "conflict":
        return f"Not run: {named(record)} has the key of another event but other content, and is kept apart ({error})"
    if why == "refused":
        return f"Not run: {named(record)} was refused and is kept as a dead letter, because {error}"
    if why == "marked":
        return f"Run, and failed after it was marked as done: {named(record)} is kept as a dead letter, because {error}"
    return f"Given up: {named(record)} became a dead letter {_counted(record)}, because {error}"


def _at(record: Record) -> str:
    counted = _counted(record)
    return f"{counted}, with {times(record.lost, 'attempt')} lost before it" if record.lost else counted


def _counted(record: Record) -> str:
    return "at its first attempt" if record.attempts <= 1 else f"after {times(record.attempts, 'attempt')}"


def _line(error: str) -> str:
    return " ".join(error.split()).rstrip(".")

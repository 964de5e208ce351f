"""Identifying: from an event to a job with its key, by the policies that need no store."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest_of
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import MissingKey
from oncegate.events import Event, Key, StateChange
from oncegate.gate.jobs import HANDED_ON, Bare, Identified, Job, Refused
from oncegate.gate.observing import Observers
from oncegate.gate.outcome import Outcome
from oncegate.gate.terms import Terms
from oncegate.times import microseconds_of


class Identifier:
    def __init__(self, key: Callable[[Event], Any], terms: Terms, wall: Clock, observers: Observers) -> None:
        self._key = keys.strategy(key)
        self._terms = terms
        self._wall = wall
        self._observers = observers

    @property
    def by_webhook_id(self) -> bool:
        """Whether only what came in a signed Standard Webhook has a key."""
        return self._key is keys.webhook_id

    def __call__(self, event: Event, *, trusted: bool = False) -> Identified:
        """`trusted`: it comes from a queue or a bus, whose word is taken for the key that it was published under."""
        if event.problem is not None:
            return Refused(Outcome("invalid", event, error=event.problem))
        if event.frame is not None:
            return Refused(Outcome("skipped", event, error=event.frame))
        carried = event.evidence.handed_key if trusted else None
        try:
            key = self._key(event)
        except MissingKey as error:
            if carried is None:
                return self._without_key(event, str(error), None)
            key, carried = Key(bytes.fromhex(carried), HANDED_ON, (carried,)), None
        except Exception as error:  # noqa: BLE001  # the key function is the user's: refuse this event, not the batch
            name = type(error).__name__
            return self._without_key(
                event, f"its key function raised {name}: {error}", f"its key function raised {name}"
            )
        if event.evidence.replay is not None:
            key = self._replayed(event, key, event.evidence.replay)
        try:
            payload_hash = keys.content_hash(event)
        except (TypeError, ValueError, RecursionError) as error:  # of what was made by hand
            return Refused(Outcome("invalid", event, key, error=f"its body is no JSON value ({error})"))
        too_old = None if self._terms.max_age is None else self._too_old(event)
        job = Job(event, key, payload_hash, too_old)
        if carried is not None and carried != str(key):
            job.carried = bytes.fromhex(carried)
        job.published = trusted and event.evidence.handed_key is not None
        if self._terms.on_conflict == "duplicate" and job.key.binds:
            job.key, job.loosened = replace(job.key, binds=False), True
        return job

    def _without_key(self, event: Event, error: str, raised: str | None) -> Bare | Refused:
        self._observers.tell("policy.missing_key", event, detail=self._terms.on_missing_key)
        too_old = self._too_old(event)
        refusal = Outcome("invalid", event, error=f"{error}; and {too_old}" if too_old else error, raised=raised)
        if self._terms.on_missing_key == "refuse" or too_old is not None:
            return Refused(refusal)
        return Bare(event, error, refusal)

    def _replayed(self, event: Event, key: Key, replay: str) -> Key:
        """A replay that shall run is an event of its own, once for each name under which it was replayed."""
        self._observers.tell("policy.replay", event, key, detail=self._terms.on_replay)
        if self._terms.on_replay == "duplicate":
            return key
        own = keys.make("replay", event, [str(key), replay], binds=key.binds)
        return own if key.change is None else replace(own, change=_in_replay(key.change, replay))

    def _too_old(self, event: Event) -> str | None:
        """Why not to run an event that is older than what is remembered; None to run it."""
        longest = self._terms.max_age
        if longest is None or event.occurred_at is None:
            return None
        age = self._wall() - microseconds_of(event.occurred_at)
        if age <= longest:
            return None
        self._observers.tell("policy.too_old", event, detail=self._terms.on_too_old)
        if self._terms.on_too_old == "run":
            return None
        return f"it happened {spoken(age)} ago, and max_age is {spoken(longest)}: it may have been processed before"


def _in_replay(change: StateChange, replay: str) -> StateChange:
    """The same change in a timeline of the replay's own: what is replayed is told apart as it was the first time."""
    return replace(change, timeline=digest_of(("replay", change.timeline.hex(), replay)))

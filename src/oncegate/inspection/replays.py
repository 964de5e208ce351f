"""Run an event again under a name: once for each name."""

from typing import Final

from msgspec.structs import replace

from oncegate.carriers import delivery
from oncegate.events import Event, Key
from oncegate.gate import Gate, Outcome
from oncegate.gate.job import is_call_reason
from oncegate.gate.options import DEFAULTS
from oncegate.inspection.operators import settings_of_namespace
from oncegate.journal import ChangedEvent, OperatorLog
from oncegate.settings import Settings
from oncegate.sources import understood
from oncegate.stores import keeps_events
from oncegate.stores.base import Store

LONGEST_NAME: Final = 100  # characters


def no_replay(settings: Settings, event: ChangedEvent, payload: bytes | None) -> str | None:
    """Returns why an event cannot be replayed, and which setting would change this. Returns None if it can."""
    route = settings_of_namespace(settings, event.namespace)
    if (reason := is_call_reason(event.about)) is not None:
        return f"It cannot be replayed: {reason}."
    if not keeps_events(settings["store"]):
        return "Only SQLite and Postgres can store an event until it is run. This store cannot."
    if route is None:
        return f"No route of the settings has the namespace {event.namespace}, so no handler would run it."
    if route["mode"] == "mark_first":
        return "An event of mode=mark_first is not stored before it runs. Replay needs mode=lease."
    if payload is None:
        return 'Its payload is not stored. Set journal_payloads to a duration, such as "24h", for later events.'
    problem = understood(delivery(payload), route.hints()).problem
    return None if problem is None else f"Its payload cannot be read: {problem}."


def replay(
    store: Store, settings: Settings, event: ChangedEvent, payload: bytes, name: str, log: OperatorLog
) -> Outcome:
    """Store an event to be run again, under the key H(key, name). The outcome is `accepted`, or says that the event was
    replayed under this name before: then nothing runs. `no_replay` must have returned None.

    The key is the key that on_replay="run" would make for an archive of this name. A second replay with this name is a
    duplicate whatever its content, because a person chose the event by its key."""
    route = settings_of_namespace(settings, event.namespace) or settings
    hints = route.hints()
    original = Key(event.key, "kept", (), binds=False)
    options = {each: route[each] for each in DEFAULTS}
    options |= {"namespace": event.namespace, "on_replay": "run", "max_age": None, "previous": None}
    gate = Gate(store, key=lambda _event: original, hints=hints, **options)
    read: Event = understood(delivery(payload), hints)
    (outcome,) = gate.admit([replace(read, evidence=replace(read.evidence, replay=name))])
    gate.drain()
    if outcome.status == "accepted" and outcome.key is not None:
        log.add(
            "replay", f'Replayed under the name "{name}", with the key {outcome.key}.', event, to=outcome.key.digest
        )
    return outcome

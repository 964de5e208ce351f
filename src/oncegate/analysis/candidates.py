"""The candidates for a key: the strategies of Oncegate, the keys that tutorials use, and combinations of fields.

A candidate maps an event to 8 bytes, or to None if the event lacks a part of the key. Keys of Oncegate have 16 bytes;
8 bytes are enough to compare the events of one recording: for a million different keys, the probability that any two
of them are equal by chance is 3 in 100 million.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b, md5
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate import keys
from oncegate.canonical import encode
from oncegate.errors import MissingKey, OncegateError
from oncegate.events import Event, StateChange
from oncegate.settings.parsing import strategy_of
from oncegate.times import microseconds_of

Origin: TypeAlias = Literal["oncegate", "tutorial", "fields", "yours"]
Digest: TypeAlias = Callable[[Event], bytes | None]

AUTO: Final = "auto"
STATE_CHANGE: Final = "state_change"
MINUTE: Final = 60_000_000  # microseconds


class KeyCandidate(Struct, frozen=True):
    """`name` is the strategy as the settings write it, or the name of a tutorial's key. `column` is the name of its
    column in the table of deliveries. A candidate with `names` is another combination of fields for each type."""

    name: str
    column: str
    origin: Origin
    names: Mapping[int, str] | None = None

    @property
    def exported_name(self) -> str:
        """The name of its column in an export. Athena accepts only letters, digits and underscores."""
        if self.origin == "yours":
            return f"yours_{int(self.column[2:]) + 1}"
        return re.sub(r"\W+", "_", self.name)

    def name_for(self, kind: int) -> str:
        return self.name if self.names is None else self.names[kind]


class KeyDigest(Struct, frozen=True, gc=False):
    """The key of an event under a strategy; `change` is set if a timeline decides which emissions are one event."""

    digest: bytes
    change: StateChange | None = None


def strategy_digest(name: str) -> Callable[[Event], KeyDigest | None]:
    """The function that makes the key of a strategy. A user's function that raises an error makes no key."""
    strategy = keys.strategy(strategy_of(name, "--key"))

    def made(event: Event) -> KeyDigest | None:
        try:
            key = strategy(event)
        except MissingKey:
            return None
        except OncegateError:
            raise
        except Exception:  # noqa: BLE001  # the key function is the user's
            return None
        return KeyDigest(key.digest[:8], key.change)

    return made


# ── the keys of tutorials ─────────────────────────────────────────────────────────────────────────────────


def short_digest(*parts: Any) -> bytes:
    return blake2b(encode(parts), digest_size=8).digest()


def _envelope_id(event: Event) -> bytes | None:
    return None if event.id is None else short_digest(event.id)


def _entity(event: Event) -> bytes | None:
    return None if event.entity is None else short_digest(event.entity)


def _entity_and_time(event: Event) -> bytes | None:
    if event.entity is None or event.occurred_at is None:
        return None
    return short_digest(event.entity, microseconds_of(event.occurred_at))


def _entity_and_minute(event: Event) -> bytes | None:
    if event.entity is None or event.occurred_at is None:
        return None
    return short_digest(event.entity, microseconds_of(event.occurred_at) // MINUTE)


def _entity_and_state(event: Event) -> bytes | None:
    if event.entity is None or (event.state is None and event.type is None):
        return None
    return short_digest(event.entity, event.state or event.type)


def _entity_type_and_time(event: Event) -> bytes | None:
    if event.entity is None or event.occurred_at is None:
        return None
    return short_digest(event.entity, event.type, microseconds_of(event.occurred_at))


def _document(event: Event) -> bytes | None:
    return md5(event.raw, usedforsecurity=False).digest()[:8] if event.raw else None


TUTORIALS: Final[Mapping[str, Digest]] = {
    "envelope id": _envelope_id,
    "entity": _entity,
    "entity + time": _entity_and_time,
    "entity + time to the minute": _entity_and_minute,
    "entity + state": _entity_and_state,
    "entity + type + time": _entity_type_and_time,
    "md5 of the document": _document,
}
BUILT_IN: Final = (AUTO, "event_id", "content")


def candidates(found: Mapping[int, Sequence[str]], own: Sequence[str] = ()) -> list[KeyCandidate]:
    """All candidates that have a column. `found` has the combinations of fields for each type of event; combinations
    of different types share columns, because the type decides which of them applies. `own` are strategies of the
    settings and of the command line. `state_change` has columns of its own, because its window is chosen later."""
    made = [KeyCandidate(name, f"k_{place}", "oncegate") for place, name in enumerate(BUILT_IN)]
    made += [KeyCandidate(name, f"t_{place}", "tutorial") for place, name in enumerate(TUTORIALS)]
    for place in range(max(map(len, found.values()), default=0)):
        names = {kind: each[place] for kind, each in found.items() if len(each) > place}
        made.append(KeyCandidate(f"fields {place + 1}", f"f_{place}", "fields", names))
    others = [name for name in dict.fromkeys(own) if name not in BUILT_IN]
    return made + [KeyCandidate(name, f"o_{place}", "yours") for place, name in enumerate(others)]

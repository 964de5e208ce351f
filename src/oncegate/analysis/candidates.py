"""The candidates for a key: the strategies of Oncegate, the keys that tutorials use, and combinations of fields.

A candidate maps an event to 64 bits, or to null if the event lacks a part of the key. Keys of Oncegate have 16 bytes;
64 bits are enough to compare the events of one recording: for a million different keys, the probability that any two
of them are equal by chance is 3 in 100 million.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate import keys
from oncegate.canonical import encode
from oncegate.errors import MissingKey, OncegateError
from oncegate.events import Event, StateChange
from oncegate.settings.parsing import strategy_of

Origin: TypeAlias = Literal["oncegate", "tutorial", "fields", "yours"]

AUTO: Final = "auto"
STATE_CHANGE: Final = "state_change"
MINUTE: Final = 60_000_000  # microseconds


class KeyCandidate(Struct, frozen=True):
    """`name` is the strategy as the settings write it, or the name of a tutorial's key. `column` is the column of the
    key in the table of deliveries, or an expression. A candidate with `names` is another combination of fields for each
    type."""

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


def short_digest(*parts: Any) -> bytes:
    return blake2b(encode(parts), digest_size=8).digest()


# The keys of tutorials, as expressions of SQL on the columns of a row. They are made in the database, which is faster
# than to make them for each row.
TUTORIALS: Final[Mapping[str, str]] = {
    "envelope id": "envelope",
    "entity": "entity",
    "entity + time": "case when entity is not null and occurred_at is not null then hash(entity, occurred_at) end",
    "entity + time to the minute": "case when entity is not null and occurred_at is not null"
    f" then hash(entity, occurred_at // {MINUTE}) end",
    "entity + state": "case when entity is not null then hash(entity, coalesce(reported, kind)) end",
    "entity + type + time": "case when entity is not null and occurred_at is not null"
    " then hash(entity, kind, occurred_at) end",
    "md5 of the document": "document",
}
BUILT_IN: Final = (AUTO, "event_id", "content")


def candidates(found: Mapping[int, Sequence[str]], own: Sequence[str] = ()) -> list[KeyCandidate]:
    """All candidates that have a column. `found` has the combinations of fields for each type of event; combinations
    of different types share columns, because the type decides which of them applies. `own` are strategies of the
    settings and of the command line. `state_change` has columns of its own, because its window is chosen later."""
    made = [KeyCandidate(name, f"k_{place}", "oncegate") for place, name in enumerate(BUILT_IN)]
    made += [KeyCandidate(name, expression, "tutorial") for name, expression in TUTORIALS.items()]
    for place in range(max(map(len, found.values()), default=0)):
        names = {kind: each[place] for kind, each in found.items() if len(each) > place}
        made.append(KeyCandidate(f"fields {place + 1}", f"f_{place}", "fields", names))
    others = [name for name in dict.fromkeys(own) if name not in BUILT_IN]
    return made + [KeyCandidate(name, f"o_{place}", "yours") for place, name in enumerate(others)]

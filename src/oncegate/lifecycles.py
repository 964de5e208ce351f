"""The states of contact-centre events: their order, and which names mean the same state."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from oncegate.errors import SettingError

# The rank of an unknown state: after the initial states and before the final states.
UNKNOWN: Final = 25

RANKS: Final[Mapping[str, int]] = {
    # any conversation
    "none": 0,
    "created": 1,
    "scheduled": 2,
    "start": 3,
    "started": 3,
    "queued": 8,
    "waiting": 8,
    "dialing": 10,
    "contacting": 12,
    "offering": 14,
    "ringing": 16,
    "alerting": 16,
    "uploading": 18,
    "converting": 18,
    "accepted": 19,
    "answered": 20,
    "connected": 20,
    "transmitting": 22,
    "held": 24,
    "parked": 26,
    "transferred": 30,
    "end": 40,
    "ended": 40,
    "disconnected": 40,
    "terminated": 42,
    "acw": 50,
    "wrapup": 52,
    "complete": 54,
    "completed": 54,
    # Genesys: the reason why a session, a wait in a queue or a flow ended
    "client": 40,
    "endpoint": 40,
    "error": 40,
    "other": 40,
    "peer": 40,
    "spam": 40,
    "system": 40,
    "timeout": 40,
    "transfer": 40,
    "abandon": 40,
    "abandoned": 40,
    "success": 40,
    "failure": 40,
    # Genesys transcriptions and evaluations
    "session_started": 3,
    "session_ongoing": 20,
    "session_ended": 40,
    "inprogress": 28,
    "finished": 44,
    # Genesys audits
    "create": 1,
    "update": UNKNOWN,
    "delete": 40,
    # Genesys presence and routing status; these states have no order, because users change from any state to any other
    "available": UNKNOWN,
    "away": UNKNOWN,
    "break": UNKNOWN,
    "busy": UNKNOWN,
    "communicating": UNKNOWN,
    "idle": UNKNOWN,
    "interacting": UNKNOWN,
    "meal": UNKNOWN,
    "meeting": UNKNOWN,
    "not_responding": UNKNOWN,
    "off_queue": UNKNOWN,
    "offline": UNKNOWN,
    "on_queue": UNKNOWN,
    "training": UNKNOWN,
    # NICE digital cases
    "new": 4,
    "open": 20,
    "pending": 26,
    "escalated": 28,
    "resolved": 44,
    "closed": 46,
    "trashed": 48,
    # NICE ACD contacts
    "prequeue": 5,
    "prompt": 6,
    "inqueue": 8,
    "routing": 12,
    "callback": 13,
    "incoming": 14,
    "active": 20,
    "holding": 24,
    "refused": 30,
    "disconnected (final)": 41,
    "endcontact": 44,
    # messages and their receipts
    "published": 10,
    "sent": 12,
    "delivered": 20,
    "read": 30,
    "failed": 30,
    "typing": UNKNOWN,
    # members of a queue
    "true": 20,
    "false": 40,
}

# Names that senders use for one state. They are not aliases: an emission that reports the other name stays a separate
# event unless the settings name the alias.
_SAME_STATE: Final = (
    frozenset({"start", "started"}),
    frozenset({"create", "created"}),
    frozenset({"queued", "waiting", "inqueue"}),
    frozenset({"ringing", "alerting"}),
    frozenset({"answered", "connected"}),
    frozenset({"held", "holding"}),
    frozenset({"end", "ended", "disconnected"}),
    frozenset({"abandon", "abandoned"}),
    frozenset({"complete", "completed"}),
)

# States that only a member of the body can name. At the end of a type these words are not states: `session.client` is
# not the end of a session, and two `case.update` events are not one state change.
_NEVER_A_TYPE: Final = frozenset(
    {"none", "client", "endpoint", "error", "other", "peer", "system", "create", "delete"}
    | {state for state, rank in RANKS.items() if rank == UNKNOWN}
)


class FoundState(Struct, frozen=True):
    """The state of an event, its rank, and the family of its type. Events of one family share a timeline."""

    family: str
    state: str
    rank: int


class States:
    """Finds and compares states, ignoring case and following aliases."""

    def __init__(
        self, rank: Mapping[str, int] | Sequence[str] | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self._ranks = ranks(rank)
        self._aliases = resolve_aliases(aliases)
        given = {state.casefold() for state in rank or ()}
        aliased = self._aliases.keys() | set(self._aliases.values())
        self._known = (self._ranks.keys() - _NEVER_A_TYPE) | given | aliased

    def find(self, kind: str, stated: str | None) -> FoundState | None:
        """The state of an event of type `kind` whose body names the state `stated`, if any. None if there is no state.

        The last word of the type is a state if it is a known state or equal to `stated`. Other words are not states:
        for example, two updates are not one state change. Types that differ only in the state at their end share a
        family, such as `call.held` and `call.ended`. If the type and the body name different states, both are used:
        `case.created` and `case.transferred` are different events, even if both bodies name the state `open`.
        """
        family, _, last = kind.rpartition(".")
        word, state = self._resolve(last), None if stated is None else self._resolve(stated)
        if word != state and last.casefold() not in self._known:
            return None if state is None else FoundState(kind, state, self._rank(state))
        if state is None or state == word:
            return FoundState(family, word, self._rank(word))
        return FoundState(family, f"{word}.{state}", self._rank(state, word))

    def _resolve(self, state: str) -> str:
        return self._aliases.get(state.casefold(), state.casefold())

    def _rank(self, *states: str) -> int:
        return next((self._ranks[state] for state in states if state in self._ranks), UNKNOWN)


def is_same_state(one: str, other: str) -> bool:
    """Whether two names of states, in lower case, are known to mean one state."""
    return any({one, other} <= names for names in _SAME_STATE)


def resolve_aliases(aliases: Mapping[str, str] | None) -> Mapping[str, str]:
    """The aliases, with every chain of aliases followed to its end. Raises SettingError if aliases form a circle."""
    given = {} if aliases is None else aliases
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        raise SettingError(f'aliases={aliases!r} must map states to states, such as {{"answered": "connected"}}')
    folded = [(name.casefold(), state.casefold()) for name, state in given.items()]
    direct = {name: state for name, state in folded if name != state}
    return {name: _end_of_chain(name, direct) for name in direct}


def _end_of_chain(name: str, direct: Mapping[str, str]) -> str:
    for _ in direct:
        name = direct[name]
        if name not in direct:
            return name
    raise SettingError(f"aliases form a circle through {name!r}; remove one alias of the circle")


def ranks(given: Mapping[str, int] | Sequence[str] | None) -> Mapping[str, int]:
    """The rank of each state. `given` is a mapping from states to ranks, or a list of states in order. It replaces the
    built-in ranks of these states."""
    if given is None:
        return RANKS
    numbers: Mapping[str, int] = {}
    if isinstance(given, Mapping):
        numbers = given
    elif not isinstance(given, str):
        numbers = {state: number for number, state in enumerate(given)}
    valid = all(isinstance(state, str) and type(number) is int for state, number in numbers.items())
    if isinstance(given, str) or not valid:
        raise SettingError(f"rank={given!r} must be a list of states in order, or a mapping from states to numbers")
    return {**RANKS, **{state.casefold(): number for state, number in numbers.items()}}

"""Lifecycles: the states that contact-centre events go through, which of them are one, and which comes first."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from oncegate.errors import SettingError

# The rank of a state that none of the lifecycles has: after the beginnings, before the ends.
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
    # Genesys: how a session, a wait in a queue or a flow ended
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
    # Genesys presence and routing status, which have no order: users go from any of them to any other
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

# States that only a member says. As the last word of a type they are no state: `session.client` is no end of a session,
# and two `case.update` are not one change.
_NEVER_A_TYPE: Final = frozenset(
    {"none", "client", "endpoint", "error", "other", "peer", "system", "create", "delete"}
    | {state for state, rank in RANKS.items() if rank == UNKNOWN}
)


class Told(Struct, frozen=True):
    """The state that an event tells of, and the family of its type: what has one timeline."""

    family: str
    state: str
    rank: int


class States:
    """How states are told and compared: without case, and with what they mean by the aliases."""

    def __init__(
        self, rank: Mapping[str, int] | Sequence[str] | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self._ranks = ranks(rank)
        self._same = meanings(aliases)
        given = {state.casefold() for state in rank or ()}
        self._known = (self._ranks.keys() - _NEVER_A_TYPE) | given | self._same.keys() | set(self._same.values())

    def told(self, kind: str, said: str | None) -> Told | None:
        """What an event of a type tells with the state that it says, if it says one.

        The last word of a type is a state if it is a known one, or the same as what is said; not every word is one, and
        two updates of something are not one change. Types that end so are of one family: `call.held` and `call.ended`.
        Where type and member say two states, it takes both: of `case.created` and `case.transferred`, both open, each
        is an event.
        """
        family, _, last = kind.rpartition(".")
        word, state = self._meant(last), None if said is None else self._meant(said)
        if word != state and last.casefold() not in self._known:
            return None if state is None else Told(kind, state, self._rank(state))
        if state is None or state == word:
            return Told(family, word, self._rank(word))
        return Told(family, f"{word}.{state}", self._rank(state, word))

    def _meant(self, state: str) -> str:
        return self._same.get(state.casefold(), state.casefold())

    def _rank(self, *states: str) -> int:
        return next((self._ranks[state] for state in states if state in self._ranks), UNKNOWN)


def meanings(aliases: Mapping[str, str] | None) -> Mapping[str, str]:
    """What states mean, each by the end of the chain that its alias begins."""
    given = {} if aliases is None else aliases
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        raise SettingError(f'aliases={aliases!r} must map states to states, such as {{"answered": "connected"}}')
    same = {name.casefold(): meant.casefold() for name, meant in given.items() if name.casefold() != meant.casefold()}
    return {name: _end(name, same) for name in same}


def _end(name: str, same: Mapping[str, str]) -> str:
    for _ in same:
        name = same[name]
        if name not in same:
            return name
    raise SettingError(f"aliases lead in a circle from {name!r} back to it; one of its states must mean itself")


def ranks(given: Mapping[str, int] | Sequence[str] | None) -> Mapping[str, int]:
    """Ranks by state: the known ones, and before them those that are given, as a mapping or in their order."""
    if given is None:
        return RANKS
    if isinstance(given, Mapping):
        own = dict(given)
    elif isinstance(given, str):
        raise SettingError(f"rank={given!r} must be a list of states in their order, or a mapping of states to numbers")
    else:
        own = {state: number for number, state in enumerate(given)}
    if not all(isinstance(state, str) and type(number) is int for state, number in own.items()):
        raise SettingError(f"rank={given!r} must be a list of states in their order, or a mapping of states to numbers")
    return {**RANKS, **{state.casefold(): number for state, number in own.items()}}

"""Lifecycles: the states that contact-centre events go through, and which comes first if two have the same time."""

from collections.abc import Mapping, Sequence
from typing import Final

from oncegate.errors import SettingError

# The rank of a state that none of the lifecycles has: after the beginnings, before the ends.
UNKNOWN: Final = 25

RANKS: Final[Mapping[str, int]] = {
    # any conversation
    "created": 1,
    "scheduled": 2,
    "start": 3,
    "started": 3,
    "queued": 8,
    "dialing": 10,
    "contacting": 12,
    "offering": 14,
    "ringing": 16,
    "alerting": 16,
    "uploading": 18,
    "converting": 18,
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
    "completed": 54,
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
    "active": 20,
    "holding": 24,
    "refused": 30,
    "endcontact": 44,
    # messages and their receipts
    "published": 10,
    "sent": 12,
    "delivered": 20,
    "read": 30,
    "failed": 30,
    # members of a queue
    "true": 20,
    "false": 40,
}


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

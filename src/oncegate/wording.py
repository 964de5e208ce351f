"""Words for what was asked and cannot be: the name that was probably meant, and the choices there are."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_MANY: Final = 20  # only settings are more


def unknown(name: str, known: Collection[str], what: str) -> str:
    """A sentence for a name that is not known, with the nearest one that is."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    listed = ", ".join(sorted(known)) if len(known) <= _MANY else f"{len(known)}: see docs/settings.md"
    hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
    return f"there is no {what} {name}; {hint}"


def not_a_choice(setting: str, value: object, choices: Collection[str]) -> str:
    """A sentence for a value that is none of the choices."""
    return f"{setting}={value!r} is not a choice; it is one of {', '.join(choices)}"

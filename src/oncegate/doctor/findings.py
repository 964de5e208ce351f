"""Findings: what a rule has to say."""

from typing import Literal, TypeAlias

from msgspec import Struct

Severity: TypeAlias = Literal["error", "warning", "note"]


class Finding(Struct, frozen=True):
    """`what` it is about, what was `found`, `why` that matters, and a command line that would `mend` it."""

    severity: Severity
    what: str
    found: str
    why: str
    mend: str


def error(what: str, found: str, why: str, mend: str) -> Finding:
    """Events are lost, or take effect twice."""
    return Finding("error", what, found, why, mend)


def warning(what: str, found: str, why: str, mend: str) -> Finding:
    """They are when something else goes wrong."""
    return Finding("warning", what, found, why, mend)


def note(what: str, found: str, why: str, mend: str) -> Finding:
    """Good to know."""
    return Finding("note", what, found, why, mend)

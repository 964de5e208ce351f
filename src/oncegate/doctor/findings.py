"""Define findings, which are what the rules report."""

from typing import Literal, TypeAlias

from msgspec import Struct

Severity: TypeAlias = Literal["error", "warning", "note"]


class Finding(Struct, frozen=True):
    """A problem or a note that a rule reports.

    `what` is the name of the resource or setting. `found` is what the rule found. `why` says why this matters. `mend`
    is a command line that fixes the problem."""

    severity: Severity
    what: str
    found: str
    why: str
    mend: str


def error(what: str, found: str, why: str, mend: str) -> Finding:
    """Return an error: events are lost or take effect twice."""
    return Finding("error", what, found, why, mend)


def warning(what: str, found: str, why: str, mend: str) -> Finding:
    """Return a warning: events are lost or take effect twice if something else fails."""
    return Finding("warning", what, found, why, mend)


def note(what: str, found: str, why: str, mend: str) -> Finding:
    """Return a note: it is information, and nothing is wrong."""
    return Finding("note", what, found, why, mend)

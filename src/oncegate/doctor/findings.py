"""Define findings, which are what the rules report."""

from typing import Literal, TypeAlias

from msgspec import Struct

Severity: TypeAlias = Literal["error", "warning", "note"]


class Finding(Struct, frozen=True):
    """A problem or a note that a rule reports.

    `what` is the name of the resource or setting. `found` is what the rule found. `why` says why this matters. `mend`
    is a command line that fixes the problem. If no command can fix it, `decision` says what a person must decide or do,
    and `mend` only shows the facts or does the first step."""

    severity: Severity
    what: str
    found: str
    why: str
    mend: str
    decision: str | None = None


def error(what: str, found: str, why: str, mend: str, decision: str | None = None) -> Finding:
    """Return an error: events are lost or take effect twice."""
    return Finding("error", what, found, why, mend, decision)


def warning(what: str, found: str, why: str, mend: str, decision: str | None = None) -> Finding:
    """Return a warning: events are lost or take effect twice if something else fails."""
    return Finding("warning", what, found, why, mend, decision)


def note(what: str, found: str, why: str, mend: str, decision: str | None = None) -> Finding:
    """Return a note: it is information, and nothing is wrong."""
    return Finding("note", what, found, why, mend, decision)

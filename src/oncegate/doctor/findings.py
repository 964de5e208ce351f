"""What a rule reports."""

from typing import Literal, TypeAlias

from msgspec import Struct

Severity: TypeAlias = Literal["error", "warning", "note"]


class Finding(Struct, frozen=True):
    """`what` the finding is about, what was `found`, `why` it matters, and a command line that fixes it (`mend`)."""

    severity: Severity
    what: str
    found: str
    why: str
    mend: str


def error(what: str, found: str, why: str, mend: str) -> Finding:
    """Events are lost or take effect twice."""
    return Finding("error", what, found, why, mend)


def warning(what: str, found: str, why: str, mend: str) -> Finding:
    """Events are lost or take effect twice if something else fails too."""
    return Finding("warning", what, found, why, mend)


def note(what: str, found: str, why: str, mend: str) -> Finding:
    """Information; nothing is wrong."""
    return Finding("note", what, found, why, mend)

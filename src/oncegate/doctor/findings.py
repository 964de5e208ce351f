"""Define findings, which are what the rules report."""

import shlex
from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from oncegate.settings.schema import SETTINGS

Severity: TypeAlias = Literal["error", "warning", "note"]
# A command line, or the settings to change: values by the path of the setting.
Mend: TypeAlias = str | Mapping[str, str]


class Finding(Struct, frozen=True):
    """A problem or a note that a rule reports.

    `what` is the name of the resource or setting. `found` is what the rule found. `why` says why this matters. `mend`
    is a command line that fixes the problem. If no command can fix it, `decision` says what a person must decide or do,
    and `mend` only shows the facts or does the first step. If `mend` sets variables, which affects only one shell,
    `keep` says what to write into the settings file."""

    severity: Severity
    what: str
    found: str
    why: str
    mend: str
    decision: str | None = None
    keep: str | None = None


def error(what: str, found: str, why: str, mend: Mend, decision: str | None = None) -> Finding:
    """Return an error: events are lost or take effect twice."""
    return _finding("error", what, found, why, mend, decision)


def warning(what: str, found: str, why: str, mend: Mend, decision: str | None = None) -> Finding:
    """Return a warning: events are lost or take effect twice if something else fails."""
    return _finding("warning", what, found, why, mend, decision)


def note(what: str, found: str, why: str, mend: Mend, decision: str | None = None) -> Finding:
    """Return a note: it is information, and nothing is wrong."""
    return _finding("note", what, found, why, mend, decision)


def _finding(severity: Severity, what: str, found: str, why: str, mend: Mend, decision: str | None) -> Finding:
    if isinstance(mend, str):
        return Finding(severity, what, found, why, mend, decision)
    variables = shlex.join(f"{SETTINGS[path].variable}={value}" for path, value in mend.items())
    keep = " and ".join(_line(path, value) for path, value in mend.items())
    return Finding(severity, what, found, why, f"export {variables}", decision, f"{keep} in oncegate.toml")


def _line(path: str, value: str) -> str:
    """The line of the settings file. A setting without a table must be above the first table."""
    table, _, name = path.rpartition(".")
    place = f"below [{table}]" if table else "above the first table"
    return f'{name} = "{value}" {place}'

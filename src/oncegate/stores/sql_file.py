"""Read the named statements of a `.sql` file."""

import pkgutil
from typing import Final

_NAME: Final = "-- name: "


def read_sql(package: str, name: str = "store.sql") -> str:
    """Return the text of a `.sql` file in a package."""
    return (pkgutil.get_data(package, name) or b"").decode()


def sections(text: str) -> dict[str, str]:
    """Return the sections of a `.sql` file by name, without comment lines.

    A line `-- name: X` starts section X. A section may have several statements.
    """
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if line.startswith(_NAME):
            name = line.removeprefix(_NAME).strip()
            found[name] = []
        elif name is not None and not line.startswith("--"):
            found[name].append(line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}

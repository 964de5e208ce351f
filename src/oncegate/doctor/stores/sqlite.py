"""An SQLite file, and what it is on."""

import os
from typing import Final

from oncegate.doctor.facts import Store
from oncegate.doctor.stores.seen import Seen
from oncegate.stores import open_store
from oncegate.stores.sqlite.settings import read_url

_MOUNTS: Final = "/proc/self/mounts"


def look(url: str, shown: str) -> Seen:
    path = read_url(url).path
    absent = _absent(path)
    if absent is None:
        open_store(url, create=False).close()
    return Seen(store=Store(url=shown, scheme="sqlite", absent=absent, file_system=file_system(path)))


def _absent(path: str) -> str | None:
    """What there is none of; a folder that is missing, or may not be entered, is for the store to tell."""
    if os.path.isfile(path):
        return None if os.path.getsize(path) else "the file of that name is empty"
    folder = os.path.dirname(path) or "."
    found = os.path.exists(path) or not os.path.isdir(folder) or not os.access(folder, os.X_OK)
    return None if found else "there is no file of that name yet"


def file_system(path: str, mounts: str = _MOUNTS) -> str | None:
    """The kind of file system that a file is on, where the machine tells: that of the innermost mount around it."""
    where = os.path.realpath(path)
    found, around = None, ""
    for place, kind in _mounted(mounts):
        inside = where.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(around):
            found, around = kind, place
    return found


def _mounted(mounts: str) -> list[tuple[str, str]]:
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            words = [line.split() for line in lines]
    except OSError:  # not a Linux
        return []
    return [(place.replace("\\040", " "), kind) for _, place, kind, *_ in words]

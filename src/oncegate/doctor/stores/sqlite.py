"""An SQLite file, and what it is on."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

from oncegate.doctor.facts import StoreFacts
from oncegate.doctor.stores.seen import Seen
from oncegate.stores.sqlite import open_sqlite_read_only
from oncegate.stores.sqlite.read_only import is_absent
from oncegate.stores.sqlite.settings import read_url

_MOUNTS: Final = "/proc/self/mounts"
_CHECK_FOR: Final = 10.0
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def look(url: str, shown: str) -> Seen:
    path = read_url(url).path
    absent = _absent(path)
    damage, cut_short = None, False
    if absent is None:
        with closing(open_sqlite_read_only(url)) as store:
            try:
                damage = store.damage(_CHECK_FOR)
            except TimeoutError:
                cut_short = True
    found = StoreFacts(
        url=shown,
        scheme="sqlite",
        absent=absent,
        file_system=file_system(path),
        path=path,
        damage=damage,
        cut_short=cut_short,
        readable=tuple(_readable(path)) if absent is None else (),
    )
    return Seen(store=found)


def _readable(path: str) -> Iterator[str]:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            if os.stat(name).st_mode & _OTHERS:
                yield name


def _absent(path: str) -> str | None:
    """Why it is not there yet; a folder that is missing is for the store to tell."""
    if not is_absent(path) or not os.path.isdir(os.path.dirname(path) or "."):
        return None
    return "the file of that name is empty" if os.path.exists(path) else "there is no file of that name yet"


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

"""What waits: the records that a dispatcher may be given."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from oncegate.stores.base import Want
from oncegate.stores.sqlite.rows import SQL, Where

_LOOKED_AT: Final = 500


def given(db: sqlite3.Connection, wants: Sequence[Want], now: int) -> Iterator[Where | None]:
    """What each of these may be given, looked for one by one, those let go first in front.

    Several statements find it, so it is asked for in a transaction: what another process ends between two of them would
    be in a line by the first, and in none by the second."""
    counts = Counter(want.namespace for want in wants)
    in_order = {want.namespace for want in wants if want.in_order}
    due = {name: _due(db, name, name in in_order, now, most) for name, most in counts.items()}
    for want in wants:
        key = next(due[want.namespace], None)
        yield None if key is None else (want.namespace, key)


def _due(db: sqlite3.Connection, namespace: str, in_order: bool, now: int, most: int) -> Iterator[bytes]:
    if in_order:
        return _heads(db, namespace, now)
    return (key for (key,) in db.execute(SQL["waiting"], (namespace, now, most)).fetchall())


def _heads(db: sqlite3.Connection, namespace: str, now: int) -> Iterator[bytes]:
    """What has no entity, and of each entity the first in its line, if that is due and nobody is at another of it.

    Those let go first are in front. If many of few entities are, the rest is found by going from one entity to the
    next, from any of them on: what waits for one entity, however much, must not be gone through at every look."""
    seen: set[str] = set()
    due = db.execute(SQL["due"], (namespace, now, _LOOKED_AT)).fetchall()
    for key, entity in due:
        if entity is None:
            yield key
        elif entity not in seen:
            seen.add(entity)
            yield from _head(db, namespace, entity, now)
    if len(due) == _LOOKED_AT:
        before = {key for key, entity in due if entity is None}
        others = db.execute(SQL["due without a line"], (namespace, now, _LOOKED_AT)).fetchall()
        yield from (key for (key,) in others if key not in before)
        for entity in _lines(db, namespace, due[-1][1] or ""):
            if entity not in seen:
                yield from _head(db, namespace, entity, now)


def _head(db: sqlite3.Connection, namespace: str, entity: str, now: int) -> Iterator[bytes]:
    held = db.execute(SQL["held in line"], (namespace, entity)).fetchall()
    first = min(held + db.execute(SQL["released in line"], (namespace, entity)).fetchall())
    if first[3] <= now and all(lease_until <= now for *_, lease_until in held):
        yield first[2]


def _lines(db: sqlite3.Connection, namespace: str, start: str) -> Iterator[str]:
    """The entities that something waits for, from this one on, and round to it."""
    for begin, end in ((start, None), ("", start)):
        last = begin
        while row := db.execute(SQL["next line"], (namespace, last)).fetchone():
            (last,) = row
            if end is not None and last > end:
                break
            yield last

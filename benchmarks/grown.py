"""A file that looks as if it had served for long: many completed keys, none of them expiring soon."""

import random
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

from benchmarks.events import NAMESPACE, RESULT, SOURCE, TYPE
from benchmarks.progress import Progress
from benchmarks.sqlite import INSERT, Values, connected
from oncegate.clocks import wall

_CHUNK = 50_000
_SEED = 1
_LONG = 20 * 365 * 24 * 3_600_000_000  # the file is kept: a sweep must not empty it one day


def grown(folder: Path, keys: int, progress: Progress) -> Path:
    """The file that was made before, if its schema is today's, else a new one."""
    path = folder / f"{keys}-keys.db"
    if not path.exists() or _schema(path) != _schema_of_new(folder):
        _build(path, keys, progress)
    return path


def _build(path: Path, keys: int, progress: Progress) -> None:
    """The name is the sign that the file is whole: one left by a run that was stopped has another."""
    unfinished = path.with_suffix(".unfinished")
    _remove(unfinished)
    db = connected(unfinished)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    rows, written = _rows(keys), 0
    while chunk := list(islice(rows, _CHUNK)):
        _insert(db, chunk)
        written += len(chunk)
        progress.step(f"building it, {written:,} of {keys:,}")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    _remove(path)
    unfinished.replace(path)


def _remove(path: Path) -> None:
    """With its log: a log left behind would be played into the next file of that name."""
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _insert(db: sqlite3.Connection, rows: list[Values]) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany(INSERT, rows)
    db.execute("COMMIT")


def _rows(keys: int) -> Iterator[Values]:
    """Rows in the order of their keys, in two passes of a random half each.

    One pass would leave every page with the same room to spare, so that hardly one would have to be split while
    we measure; in random order the building would take far longer. After the second pass the pages are about as
    unevenly full as random inserts would have left them."""
    chance = random.Random(_SEED)
    step = 2**128 // keys
    now = wall()
    for turn in (0, 1):
        halves = random.Random(_SEED)
        for index in range(keys):
            if halves.getrandbits(1) == turn:
                yield _row((index * step + chance.randrange(step)).to_bytes(16, "big"), chance, now)


def _row(key: bytes, chance: random.Random, now: int) -> Values:
    owner, payload_hash = chance.randbytes(16), chance.randbytes(16)
    what = (SOURCE, TYPE, None, None, str(UUID(bytes=owner)))
    return NAMESPACE, key, "C", owner, now, 0, 1, payload_hash, now + _LONG, *what, now, now, RESULT, None, None


def _schema_of_new(folder: Path) -> list[tuple[str]]:
    path = folder / "schema.db"
    _remove(path)
    connected(path).close()
    schema = _schema(path)
    _remove(path)
    return schema


def _schema(path: Path) -> list[tuple[str]]:
    db = sqlite3.connect(path)
    try:
        return db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
    finally:
        db.close()

"""Build an SQLite file as after long use: many completed keys, none of which expires soon."""

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
_LONG = 20 * 365 * 24 * 3_600_000_000  # the file is reused: a later run must not delete its keys as expired


def grown(folder: Path, keys: int, progress: Progress) -> Path:
    """The existing file if it has the current schema, else a new one."""
    path = folder / f"{keys}-keys.db"
    if not path.exists() or _schema(path) != _schema_of_new(folder):
        _build(path, keys, progress)
    return path


def _build(path: Path, keys: int, progress: Progress) -> None:
    """Build the file under another name and rename it at the end, so that a stopped run leaves no incomplete file."""
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
    """Remove the file and its log. SQLite would replay a remaining log into the next file of the same name."""
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _insert(db: sqlite3.Connection, rows: list[Values]) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany(INSERT, rows)
    db.execute("COMMIT")


def _rows(keys: int) -> Iterator[Values]:
    """Rows in the order of their keys, in two passes of a random half each.

    One pass would leave the same free space in every page, so almost no page would be split during the measurement.
    Random order would take much longer. After the second pass the pages are filled about as unevenly as random inserts
    leave them.
    """
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

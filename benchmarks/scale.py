"""Compare the SQLite store with plain sqlite3 on a file that already holds many completed keys.

Both take turns on one file. Two equal copies of a file lie differently on the disk, and that alone made one a fifth
slower. No competitor gains from the turn of the other: each starts with an empty log, and the writes of the other have
invalidated the pages in its cache.
"""

from functools import partial
from pathlib import Path

from benchmarks import sqlite
from benchmarks.grown import grown
from benchmarks.measure import Round, Sizes, by_turns, median
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row

_WARM_UPS = 2
_CHUNK = 1 << 24


def rows(sizes: Sizes, reused: Path, temporary: Path, progress: Progress) -> list[Row]:
    """The large file is found or built in `reused`. The empty files are in `temporary`."""
    progress.stage(f"SQLite, file of {sizes.scale_keys:,} keys")
    path = grown(reused, sizes.scale_keys, progress)
    _read_through(path, progress)
    rounds = _rounds(sizes, path, temporary, progress)
    name = f"SQLite claim + complete, {sizes.scale_keys:,} keys"
    return [sqlite.compared(name, rounds, sizes.sqlite_events), _growth(rounds, sizes)]


def _rounds(sizes: Sizes, path: Path, temporary: Path, progress: Progress) -> list[Round]:
    events = sizes.sqlite_events
    ours, raw = sqlite.Ours(path), sqlite.Raw(path)
    turns = {
        "ours": partial(ours.turn, events),
        "raw": partial(raw.turn, events),
        "empty": partial(sqlite.on_new_file, sqlite.Ours, temporary, events),
    }
    rounds = by_turns(turns, sizes.rounds, _WARM_UPS, progress)
    ours.close()
    raw.close()
    _forget(path, ours.keys + raw.keys)
    return rounds


def _growth(rounds: list[Round], sizes: Sizes) -> Row:
    events = sizes.sqlite_events
    return Row(
        f"SQLite cost of an event, {sizes.scale_keys:,} keys",
        "µs",
        median(rounds, lambda took: 1e6 * took["ours"] / events),
        median(rounds, lambda took: 1e6 * took["empty"] / events),
        "ours, empty file",
        median(rounds, lambda took: took["ours"] / took["empty"]),
        Aim("at most", 2.0),
    )


def _read_through(path: Path, progress: Progress) -> None:
    """Read the file once, so that it is in the cache of the system, as on a machine that has used it for a while."""
    progress.step("reading it once")
    with path.open("rb") as file:
        while file.read(_CHUNK):
            pass


def _forget(path: Path, keys: list[tuple[str, bytes]]) -> None:
    """Delete the new keys, so that the next run finds the same number of keys."""
    db = sqlite.connected(path)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM claims WHERE namespace = ? AND key = ?", sorted(keys))
    db.execute("COMMIT")
    db.close()

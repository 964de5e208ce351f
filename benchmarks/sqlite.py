"""The SQLite store against sqlite3 by hand: the same schema, the same settings, no question asked of a row."""

import sqlite3
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.events import RESULT, RETENTION, Batch, completions, fresh
from benchmarks.measure import Round, Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate.claims import Claim
from oncegate.clocks import wall
from oncegate.stores.base import Store
from oncegate.stores.sqlite.connection import open_file
from oncegate.stores.sqlite.store import SqliteStore

AIM = Aim("at least", 0.75)
INSERT = """
    INSERT INTO claims (
        namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at, source, type, entity,
        occurred_at, delivery_id, first_seen, completed_at, result, error, payload
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE = """
    UPDATE claims SET state = ?, lease_until = ?, expires_at = ?, completed_at = ?, result = ?
    WHERE namespace = ? AND key = ?
"""

Values = tuple[Any, ...]


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    progress.stage("SQLite, empty file")
    turns = {
        "ours": partial(on_new_file, Ours, folder, sizes.sqlite_events),
        "raw": partial(on_new_file, Raw, folder, sizes.sqlite_events),
    }
    rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
    return [compared("SQLite claim + complete, synchronous=FULL", rounds, sizes.sqlite_events)]


def compared(name: str, rounds: list[Round], events: int) -> Row:
    """A ratio of rates: that of the seconds, turned over."""
    return Row(
        name,
        "events/s",
        median(rounds, lambda took: events / took["ours"]),
        median(rounds, lambda took: events / took["raw"]),
        "sqlite3",
        median(rounds, lambda took: took["raw"] / took["ours"]),
        AIM,
    )


def on_new_file(way: "type[Ours | Raw]", folder: Path, events: int) -> float:
    path = folder / f"{way.__name__}-{time.monotonic_ns()}.db"
    contestant = way(path)
    seconds = contestant.turn(events)
    contestant.close()
    path.unlink()
    return seconds


def connected(path: Path) -> sqlite3.Connection:
    """A plain connection made by the store's own hand: so schema and settings are the same, whatever they are."""
    return open_file(str(path), "FULL", 5_000_000)


class _Log:
    """The write-ahead log of a file. Every turn starts with an empty one and pays for writing its own back."""

    def __init__(self, path: Path) -> None:
        self._db = connected(path)

    def empty(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def write_back(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._db.close()


class Ours:
    def __init__(self, path: Path) -> None:
        self._store: Store = SqliteStore(str(path), synchronous="full")
        self._log = _Log(path)
        self.keys: list[tuple[str, bytes]] = []

    def turn(self, events: int) -> float:
        batches = fresh(events)
        self.keys += [(claim.namespace, claim.key) for batch in batches for claim in batch]
        self._log.empty()
        return timed(lambda: self._work(batches))

    def _work(self, batches: list[Batch]) -> None:
        for claims in batches:
            verdicts = self._store.claim(claims)
            answers = self._store.settle(completions(claims, verdicts))
            assert all(answers)
        self._log.write_back()

    def close(self) -> None:
        self._store.close()
        self._log.close()


class Raw:
    def __init__(self, path: Path) -> None:
        self._db = connected(path)
        self._log = _Log(path)
        self.keys: list[tuple[str, bytes]] = []

    def turn(self, events: int) -> float:
        batches = [[_row(claim, wall()) for claim in batch] for batch in fresh(events)]
        self.keys += [row[:2] for batch in batches for row in batch]
        self._log.empty()
        return timed(lambda: self._work(batches))

    def _work(self, batches: list[list[Values]]) -> None:
        for claimed in batches:
            self._write(INSERT, claimed)
            now = wall()
            self._write(_UPDATE, [("C", 0, now + RETENTION, now, RESULT, *row[:2]) for row in claimed])
        self._log.write_back()

    def _write(self, statement: str, values: Iterable[Values]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(statement, values)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
        self._log.close()


def _row(claim: Claim, now: int) -> Values:
    """A row in progress, with all that ours would write."""
    about = claim.about
    return (
        claim.namespace,
        claim.key,
        "P",
        claim.owner,
        now,
        now + claim.lease,
        1,
        claim.payload_hash,
        now + claim.retention,
        about.source,
        about.type,
        about.entity,
        about.occurred_at,
        about.delivery_id,
        now,
        None,
        None,
        None,
        None,
    )

"""The world of one run: a folder, the place of its store, the effects of the workers, and their reports."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.kills.places import Place, Row

_SINK: Final = "CREATE TABLE IF NOT EXISTS effects (key TEXT UNIQUE, event TEXT, half INTEGER, worker TEXT)"


class World:
    """A queue of events `event-0` and so on, each delivered until it is acknowledged, and the sinks of their effects.

    An append to a file is one write: a killed process leaves all of it or nothing. Data in the kernel survives the
    process without a sync.
    """

    def __init__(self, folder: str, events: int, place: Place) -> None:
        self._folder = Path(folder)
        self._place = place
        self.events = [f"event-{number}" for number in range(events)]

    @property
    def url(self) -> str:
        return self._place.url_in(self._folder)

    # ── the queue ─────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, event: str) -> None:
        self._append("acks", event)

    def waiting(self) -> list[str]:
        done = set(self._lines("acks"))
        return [event for event in self.events if event not in done]

    # ── the sinks ─────────────────────────────────────────────────────────────────────────────────────────

    def attempt(self, event: str) -> None:
        """The plain effect: it cannot be undone, and every one counts."""
        self._append("attempts", event)

    def attempts(self) -> list[str]:
        return self._lines("attempts")

    def keep_once(self, key: str, event: str, worker: str) -> None:
        """The idempotent sink: a write under a known key changes nothing."""
        with self._sink() as db:
            db.execute("INSERT OR IGNORE INTO effects VALUES (?, ?, 1, ?)", (key, event, worker))

    def kept(self) -> list[Row]:
        """The content of the idempotent sink: event, half, worker."""
        with self._sink() as db:
            return db.execute("SELECT event, half, worker FROM effects").fetchall()

    def begin(self) -> None:
        if self._place.transacts:
            self._place.rows_in(self._folder).prepare()

    def write_half(self, connection: Any, event: str, half: int, worker: str) -> None:
        """One of the two rows that are the effect of an event in a transaction."""
        self._place.rows_in(self._folder).write(connection, (event, half, worker))

    def rows(self) -> list[Row]:
        """The rows that the transactions of the store wrote."""
        return self._place.rows_in(self._folder).all()

    def end(self) -> None:
        if self._place.transacts:
            self._place.rows_in(self._folder).remove()

    @contextmanager
    def _sink(self) -> Iterator[sqlite3.Connection]:
        # Not with `connect`, whose statements are observed in a worker: the sink is not under test.
        with closing(sqlite3.Connection(str(self._folder / "sink.db"), isolation_level=None, timeout=20)) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute(_SINK)
            yield db

    # ── what workers say ──────────────────────────────────────────────────────────────────────────────────

    def say(self, worker: str, word: str) -> None:
        self._append("words", f"{worker} {word}")

    def said(self, worker: str) -> list[str]:
        return [line.partition(" ")[2] for line in self._lines("words") if line.partition(" ")[0] == worker]

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, name: str, line: str) -> None:
        file = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def _lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

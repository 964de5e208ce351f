"""The handler of the worker. It writes to Postgres in one transaction, and its effect is idempotent on the key."""

import os
import threading

import psycopg

from oncegate import Event
from oncegate.errors import RetryLater

TABLES = """
CREATE TABLE IF NOT EXISTS effects (
    key text PRIMARY KEY, published_key text, type text, entity text, number bigint GENERATED ALWAYS AS IDENTITY
);
CREATE TABLE IF NOT EXISTS cases (entity text PRIMARY KEY, events int NOT NULL);
CREATE TABLE IF NOT EXISTS repeats (key text);
"""
_threads = threading.local()


def record_event(event: Event) -> None:
    """Count the event in the case of its conversation. If an earlier attempt has committed, only record the repeat."""
    try:
        _record(_connection(), event)
    except psycopg.OperationalError as error:
        raise RetryLater("the database is not available") from error


def _record(db: psycopg.Connection[tuple[object, ...]], event: Event) -> None:
    key = str(event.key)
    with db.transaction():
        added = db.execute(
            "INSERT INTO effects VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (key, event.evidence.handed_key, event.type, event.entity),
        )
        if added.rowcount == 0:
            db.execute("INSERT INTO repeats VALUES (%s)", (key,))
            return
        db.execute(
            "INSERT INTO cases VALUES (%s, 1) ON CONFLICT (entity) DO UPDATE SET events = cases.events + 1",
            (event.entity or "none",),
        )


def _connection() -> psycopg.Connection[tuple[object, ...]]:
    """The connection of this thread. A broken connection is replaced."""
    db: psycopg.Connection[tuple[object, ...]] | None = getattr(_threads, "db", None)
    if db is None or db.closed:
        db = _threads.db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    return db

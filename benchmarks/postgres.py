"""Compare the Postgres store with plain psycopg: the same table on the same server, one `unnest` insert and one update
for each batch, without any condition.

The server stores its data in the temporary folder of the system. If that is in memory, a commit costs nothing. This
favours the competitor that does less work, which is plain psycopg.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.events import LEASE, NAMESPACE, RESULT, RETENTION, SOURCE, TYPE, Batch, completions, fresh
from benchmarks.measure import Round, Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import open_store
from oncegate.clocks import wall
from oncegate.stores.base import Store
from tests.stores.postgres_server import INSTALL, PostgresServer, programs, running

# Autovacuum would run during the turn of one competitor. Instead, statistics are updated before every turn.
_SETTINGS = ("autovacuum=off", "max_wal_size=4GB")
_INSERT = b"""
    INSERT INTO raw.claims (
        namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at, source, type, delivery_id,
        first_seen
    )
    SELECT %(namespace)s, key, 'P', owner, %(now)s, %(lease_until)s, 1, hash, %(expires_at)s, %(source)s, %(type)s,
           delivery_id, %(now)s
    FROM unnest(%(keys)s::bytea[], %(owners)s::bytea[], %(hashes)s::bytea[], %(deliveries)s::text[])
         AS each (key, owner, hash, delivery_id)
"""
_UPDATE = b"""
    UPDATE raw.claims c SET state = 'C', lease_until = 0, expires_at = %s, completed_at = %s, result = each.result
    FROM unnest(%s::bytea[], %s::bytea[]) AS each (key, result)
    WHERE namespace = %s AND c.key = each.key
"""


def rows(sizes: Sizes, _folder: Path, progress: Progress) -> list[Row]:
    if programs() is None:
        raise SystemExit(f"this part starts a Postgres server: {INSTALL}")
    progress.stage("Postgres")
    with (
        running(_SETTINGS) as server,
        closing(open_store(f"{server.url()}?oncegate_schema=ours")) as store,
        closing(server.connect()) as db,
    ):
        turns = {"ours": _ours(server, store, sizes.postgres_events), "raw": _raw(server, db, sizes.postgres_events)}
        rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
        return [_speed(rounds, sizes.postgres_events), _room(server)]


def _speed(rounds: list[Round], events: int) -> Row:
    return Row(
        "Postgres claim + complete, synchronous_commit=on",
        "events/s",
        median(rounds, lambda took: events / took["ours"]),
        median(rounds, lambda took: events / took["raw"]),
        "psycopg",
        median(rounds, lambda took: took["raw"] / took["ours"]),
        Aim("at least", 0.6),
    )


def _room(server: PostgresServer) -> Row:
    """With indexes, and with the dead row versions that a vacuum will remove."""
    ours, raw = (_bytes_per_key(server, schema) for schema in ("ours", "raw"))
    return Row("Postgres disk space per completed key", "bytes", ours, raw, "psycopg", ours / raw, Aim("at most", 1.1))


def _bytes_per_key(server: PostgresServer, schema: str) -> float:
    with server.connect() as db:
        ((size,),) = db.execute("SELECT pg_total_relation_size(%s)", (f"{schema}.claims",)).fetchall()
    return float(size) / server.count(f"{schema}.claims")


def _ours(server: PostgresServer, store: Store, events: int) -> Callable[[], float]:
    def work(batches: list[Batch]) -> None:
        for claims in batches:
            assert all(store.settle(completions(claims, store.claim(claims))))

    return partial(_turn, server, "ours", events, work)


def _raw(server: PostgresServer, db: psycopg.Connection[Any], events: int) -> Callable[[], float]:
    open_store(f"{server.url()}?oncegate_schema=raw").close()

    def work(batches: list[Batch]) -> None:
        for claims in batches:
            _insert(db, claims)
            now, keys = wall(), [claim.key for claim in claims]
            db.execute(_UPDATE, (now + RETENTION, now, keys, [RESULT] * len(keys), NAMESPACE))

    return partial(_turn, server, "raw", events, work)


def _insert(db: psycopg.Connection[Any], claims: Batch) -> None:
    now = wall()
    values = {
        "namespace": NAMESPACE,
        "now": now,
        "lease_until": now + LEASE,
        "expires_at": now + RETENTION,
        "source": SOURCE,
        "type": TYPE,
        "keys": [claim.key for claim in claims],
        "owners": [claim.owner for claim in claims],
        "hashes": [claim.payload_hash for claim in claims],
        "deliveries": [claim.about.delivery_id for claim in claims],
    }
    db.execute(_INSERT, values)


def _turn(server: PostgresServer, schema: str, events: int, work: Callable[[list[Batch]], None]) -> float:
    batches = fresh(events)
    with server.connect() as db:
        db.execute(f"ANALYZE {schema}.claims".encode())
        db.execute("CHECKPOINT")
    return timed(partial(work, batches))

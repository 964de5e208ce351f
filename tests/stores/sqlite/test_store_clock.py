"""The clock of an SQLite file, which all processes that use the file share."""

import itertools
from contextlib import closing
from pathlib import Path

from oncegate.claims import ClaimProof, Complete, InFlight
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, RETENTION, claim, granted, stored


def test_time_never_goes_back(tmp_path: Path) -> None:
    """A process whose clock is behind uses the latest time of all processes."""
    ahead, behind = ManualClock(2_000_000_000_000_000), ManualClock(1_900_000_000_000_000)
    path = str(tmp_path / "store.db")
    with closing(SqliteStore(path, clock=ahead)) as first, closing(SqliteStore(path, clock=behind)) as second:
        record = granted(first)
        assert isinstance(claim(second, "bob"), InFlight)
        ahead.advance("30s")
        granted(first, key=b"x" * 16)
        takeover = granted(second, "bob")
        assert takeover.fence == record.fence + 1
        assert takeover.lease_until == ahead.now + LEASE


def test_the_time_of_a_verdict_is_stored(tmp_path: Path) -> None:
    """Time passes between two reads of a clock, but no process judges with an earlier time than a process before it."""
    path = str(tmp_path / "store.db")
    ticking, behind = itertools.count(2_000_000, 5), itertools.count(1_000_000, 5)

    def seen_by_another() -> int:
        with closing(SqliteStore(path, clock=behind.__next__)) as other:
            return int(claim(other, "bob").at)

    with closing(SqliteStore(path, clock=ticking.__next__)) as store:
        verdict = claim(store)
        assert seen_by_another() >= verdict.at
        held = (NAMESPACE, KEY, verdict.record.owner, verdict.record.fence)
        assert store.transact(ClaimProof(*held), lambda _db: Complete(*held, RETENTION))
        completed = stored(store)
        assert completed is not None
        assert completed.completed_at is not None
        assert seen_by_another() >= completed.completed_at

"""Transactions: the effect and its completion are one write."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.claims import ClaimProof, Complete
from oncegate.errors import SettingError
from oncegate.gate import JsonLog, Notice
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, RETENTION, granted, stored
from tests.stores.forking import run


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"), clock=clock)
    store._get_connection().execute("CREATE TABLE effects (event TEXT UNIQUE)")
    yield store
    store.close()


def effects(store: SqliteStore) -> list[str]:
    return [name for (name,) in store._get_connection().execute("SELECT event FROM effects ORDER BY event")]


def write(event: Event, connection: sqlite3.Connection) -> str:
    connection.execute("INSERT INTO effects VALUES (?)", (event.id,))
    return "written"


def write_and_fail(event: Event, connection: sqlite3.Connection) -> None:
    write(event, connection)
    raise ValueError("boom")


class TestTransaction:
    def test_effect_and_completion(self, store: SqliteStore) -> None:
        """The effect of the handler is written once, and duplicates get its result."""
        gate = Gate(store)
        first, second = gate.transaction({"id": "a"}, write), gate.transaction({"id": "a"}, write)
        assert (first.status, first.result) == ("processed", "written")
        assert (second.status, second.result) == ("duplicate", "written")
        assert effects(store) == ["a"]

    def test_failure_is_rolled_back_and_counted(self, store: SqliteStore) -> None:
        """A failing handler leaves no effect, its attempt counts, and in the end the event becomes a dead letter."""
        gate = Gate(store, max_attempts=2)
        outcomes = [gate.transaction({"id": "a"}, write_and_fail) for _ in range(3)]
        assert [outcome.status for outcome in outcomes] == ["failed", "buried", "buried"]
        assert [outcome.error for outcome in outcomes] == ["ValueError: boom"] * 3
        assert effects(store) == []

    def test_commit_fails(self, tmp_path: Path) -> None:
        """A commit that fails counts as an attempt, so that the event is buried in the end; its dead letter has the
        reason."""
        done = run(
            f"""
            import resource
            from oncegate import Gate
            gate = Gate("sqlite:///{tmp_path}/a.db", max_attempts=1)
            def limit(size):
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            def handler(event, connection):
                connection.execute("CREATE TABLE effects AS SELECT zeroblob(300000) AS event")
                limit(100_000)
            first = gate.transaction({{"id": 1}}, handler)
            limit(resource.RLIM_INFINITY)
            second = gate.transaction({{"id": 1}}, lambda event, connection: None)
            print(first.status, "was rolled back" in first.reason, second.status, "was rolled back" in second.reason)
            """
        )
        assert done.stdout.split() == ["failed", "True", "buried", "True"], done

    def test_database_error_of_the_handler(self, store: SqliteStore) -> None:
        """A violated constraint of the user's tables fails the event, not the store."""
        store._get_connection().execute("INSERT INTO effects VALUES ('a')")
        outcome = Gate(store).transaction({"id": "a"}, write)
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.startswith("IntegrityError: UNIQUE constraint failed")

    def test_ignored_rollback(self, store: SqliteStore) -> None:
        """If SQLite rolls back by itself and the handler continues, nothing is completed."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            write(event, connection)
            with suppress(sqlite3.IntegrityError):
                connection.execute("INSERT OR ROLLBACK INTO effects VALUES (?)", (event.id,))

        assert Gate(store).transaction({"id": "a"}, handler).status == "failed"
        assert effects(store) == []
        assert Gate(store).transaction({"id": "a"}, write).status == "processed"

    def test_interrupted(self, store: SqliteStore) -> None:
        """Ctrl-C rolls back, releases the event with the reason, and is raised again."""

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            write(event, connection)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Gate(store).transaction({"id": "a"}, handler)
        assert effects(store) == []
        (entry,) = store.browse()
        assert (entry.record.state, entry.record.error) == ("R", "KeyboardInterrupt")

    def test_no_effect_starts_after_the_lease(self, store: SqliteStore) -> None:
        """A grant that was answered too late is released without a run."""
        boot = ManualClock(0)
        gate = Gate(store, boot=lambda: boot.advance("30s") or boot.now)  # type: ignore[func-returns-value]
        assert gate.transaction({"id": "a"}, write).status == "in_flight"
        assert effects(store) == []

    @pytest.mark.parametrize(("took", "warned"), [("30s", False), ("31s", True)])
    @pytest.mark.parametrize("fails", [False, True])
    def test_write_lock_held_for_longer_than_a_lease(
        self, store: SqliteStore, took: str, warned: bool, fails: bool
    ) -> None:
        """A handler that kept all others from writing for longer than a lease causes one warning, with the event."""
        boot, stream, notices = ManualClock(), StringIO(), list[Notice]()

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            boot.advance(took)
            if fails:
                raise ValueError("boom")

        gate = Gate(store, lease="30s", boot=boot, observers=[JsonLog(stream), notices.append])
        outcome = gate.transaction({"id": "evt-1"}, handler)
        gate._observers.flush(5)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        warnings = [line for line in lines if "warning" in line]
        assert gate.counts.get("transaction.held", 0) == len(warnings) == warned
        assert len(lines) == 1 + warned
        if warned:
            assert (warnings[0]["warning"], warnings[0]["event_id"]) == ("transaction.held", "evt-1")
            assert (warnings[0]["key"], warnings[0]["attempt"]) == (str(outcome.key), 1)
            assert warnings[0]["reason"].startswith(
                "its handler held the store's write lock for 31 s, longer than the lease of 30 s: "
            )
            (notice,) = [notice for notice in notices if notice.name == "transaction.held"]
            assert (notice.event and notice.event.id, notice.key) == ("evt-1", outcome.key)

    def test_invalid_store_mode_or_connection(self, store: SqliteStore) -> None:
        """Stores without transactions, the mode mark_first and a connection for SQLite are refused before anything is
        claimed."""
        with pytest.raises(SettingError, match="needs a store with transactions"):
            Gate("memory://").transaction({"id": "a"}, write)
        with pytest.raises(SettingError, match="mark_first"):
            Gate(store, mode="mark_first").transaction({"id": "a"}, write)
        refused = pytest.raises(SettingError, match="connection= is for Postgres")
        with closing(sqlite3.connect(":memory:")) as own, refused:
            Gate(store).transaction({"id": "a"}, write, connection=own)
        assert store.browse() == []

    def test_handler_uses_the_same_store(self, store: SqliteStore) -> None:
        """A handler that uses its own gate gets an error instead of waiting for its own end."""
        gate = Gate(store)

        def handler(event: Event, connection: sqlite3.Connection) -> None:
            gate.run({"id": "inner"}, lambda event: None)

        outcome = gate.transaction({"id": "a"}, handler)
        assert (outcome.status, outcome.raised) == ("failed", "SettingError")
        assert gate.run({"id": "b"}, lambda event: None).status == "processed"

    def test_closed_connection(self, store: SqliteStore) -> None:
        """A handler that closes the connection fails; the store opens another."""
        gate = Gate(store)
        outcome = gate.transaction({"id": "a"}, lambda event, connection: connection.close())
        assert outcome.status == "failed"
        assert gate.run({"id": "b"}, lambda event: None).status == "processed"

    def test_unreadable(self, store: SqliteStore) -> None:
        """A payload that cannot be read is refused."""
        assert Gate(store).transaction("{", write).status == "invalid"


class TestStaleOwners:
    def attempt(self, store: SqliteStore, held: ClaimProof) -> tuple[bool, list[str]]:
        """Try a transaction with a proof: the answer, and whether the effect ran."""
        ran: list[str] = []

        def effect(connection: Any) -> Complete:
            ran.append("ran")
            return Complete(held.namespace, held.key, held.owner, held.fence, RETENTION)

        return store.transact(held, effect), ran

    def test_taken_over(self, store: SqliteStore, clock: ManualClock) -> None:
        """The transaction of an owner whose claim was taken over does not start, and the new claim is unchanged."""
        record = granted(store)
        clock.advance(LEASE)
        successor = granted(store, "bob")
        assert self.attempt(store, ClaimProof(NAMESPACE, KEY, record.owner, record.fence)) == (False, [])
        assert stored(store) == successor

    def test_completed_before(self, store: SqliteStore) -> None:
        """A transaction that is retried after its commit does not write its effect again."""
        record = granted(store)
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        assert self.attempt(store, held) == (True, ["ran"])
        assert self.attempt(store, held) == (False, [])

    def test_expired_meanwhile(self, store: SqliteStore, clock: ManualClock) -> None:
        """If the record expires while the handler runs, the effect is rolled back."""
        record = granted(store, retention=LEASE)

        def slow(connection: Any) -> Complete:
            connection.execute("INSERT INTO effects VALUES ('late')")
            clock.advance(LEASE)
            return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION)

        assert store.transact(ClaimProof(NAMESPACE, KEY, record.owner, record.fence), slow) is False
        assert effects(store) == []

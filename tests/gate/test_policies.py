"""Policies: what happens to unusual events. Each decision is counted."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.errors import StoreUnavailable, Unreadable
from oncegate.events import Evidence
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling

NOON = datetime(2025, 12, 12, 12, tzinfo=UTC)
MICROSECONDS_AT_NOON = int(NOON.timestamp()) * 1_000_000


class Handler:
    """Records its runs; raises `error` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[Event] = []
        self.error = error

    def __call__(self, event: Event) -> str:
        self.runs.append(event)
        if self.error is not None:
            raise self.error
        return "done"


@pytest.fixture
def handler() -> Handler:
    return Handler()


class TestMissingKey:
    def test_refused_by_default(self, store: MemoryStore, handler: Handler) -> None:
        """An event without a key is refused, and the reason names the missing part."""
        gate = Gate(store, key=keys.event_id)
        outcome = gate.run({"type": "x"}, handler)
        assert (outcome.status, outcome.acked, len(handler.runs)) == ("invalid", False, 0)
        assert "the event_id key needs id" in outcome.reason
        assert gate.counts["policy.missing_key"] == 1

    def test_unguarded(self, store: MemoryStore, handler: Handler) -> None:
        """With on_missing_key="unguarded" it runs without protection, every time, and is counted; the other events of
        its batch are guarded."""
        gate = Gate(store, key=keys.event_id, on_missing_key="unguarded")
        outcomes = gate.run_batch([{"type": "x"}, {"id": 1}, {"type": "x"}, {"id": 1}], handler)
        assert [outcome.status for outcome in outcomes] == ["unguarded", "processed", "unguarded", "duplicate"]
        assert len(handler.runs) == 3
        assert "without protection" in outcomes[0].reason
        assert (outcomes[0].result, outcomes[0].acked) == ("done", True)
        assert gate.counts["policy.missing_key"] == 2
        assert gate.counts["event.unguarded"] == 2
        assert len(store.browse()) == 1

    def test_key_function_raises(self, store: MemoryStore, handler: Handler) -> None:
        """An event whose key function raises has no key either."""
        refusing = Gate(store, key=lambda event: event.body["call"])
        assert "its key function raised KeyError: 'call'" in refusing.run({"id": 1}, handler).reason
        passing = Gate(store, key=lambda event: event.body["call"], on_missing_key="unguarded")
        assert passing.run({"id": 1}, handler).status == "unguarded"

    def test_failure(self, store: MemoryStore) -> None:
        """An unguarded event that fails is not acknowledged; there is nothing to settle."""
        gate = Gate(store, key=keys.event_id, on_missing_key="unguarded")
        outcome = gate.run({"type": "x"}, Handler(ValueError("boom")))
        assert (outcome.status, outcome.error, outcome.acked) == ("failed", "ValueError: boom", False)

    def test_never_in_a_transaction(self, tmp_path: Path) -> None:
        """`transaction` refuses an event without a key, whatever the policy is: it could not be exactly once."""
        gate = Gate(f"sqlite:///{tmp_path}/a.db", key=keys.event_id, on_missing_key="unguarded")
        assert gate.transaction({"type": "x"}, lambda event, connection: None).status == "invalid"
        gate.close()

    def test_seen(self, store: MemoryStore) -> None:
        """For an event without a key, `seen` raises by default and returns False with the policy."""
        with pytest.raises(Unreadable, match="the event_id key needs id"):
            Gate(store, key=keys.event_id).seen({"type": "x"})
        assert Gate(store, key=keys.event_id, on_missing_key="unguarded").seen({"type": "x"}) is False


class TestStoreError:
    def unguarded(self, stumbling: Stumbling, **options: Any) -> Gate:
        return Gate(stumbling, on_store_error="unguarded", unguarded_types=["alarm"], **options)

    def test_refused_by_default(self, stumbling: Stumbling, handler: Handler) -> None:
        """If the store does not answer, nothing runs and nothing is acknowledged."""
        stumbling.failures = {"claim": 1}
        gate = Gate(stumbling)
        outcome = gate.run({"id": 1, "type": "alarm"}, handler)
        assert (outcome.status, outcome.acked, len(handler.runs)) == ("failed", False, 0)
        assert gate.counts["policy.store_error"] == 1

    def test_unguarded_types_run(self, stumbling: Stumbling, handler: Handler) -> None:
        """Only events of the `unguarded_types` run if the store does not answer the claim; that is counted."""
        gate = self.unguarded(stumbling)
        stumbling.failures = {"claim": 1}
        outcomes = gate.run_batch([{"id": 1, "type": "alarm"}, {"id": 2, "type": "other"}], handler)
        assert [outcome.status for outcome in outcomes] == ["unguarded", "failed"]
        assert [event.id for event in handler.runs] == ["1"]
        assert "the store is away" in outcomes[0].reason
        assert gate.counts["policy.store_error"] == 2

    def test_guarded_with_a_store(self, stumbling: Stumbling, handler: Handler) -> None:
        """While the store answers, events of these types are guarded."""
        gate = self.unguarded(stumbling)
        assert gate.run({"id": 1, "type": "alarm"}, handler).status == "processed"
        assert gate.run({"id": 1, "type": "alarm"}, handler).status == "duplicate"

    def test_claims_only(self, stumbling: Stumbling, handler: Handler) -> None:
        """An event that was granted and whose completion is not confirmed has failed; it is not `unguarded`."""
        gate = self.unguarded(stumbling)
        stumbling.failures = {"settle": 9}
        outcome = gate.run({"id": 1, "type": "alarm"}, handler)
        assert (outcome.status, outcome.acked) == ("failed", False)
        assert "did not confirm" in outcome.reason

    def test_seen(self, stumbling: Stumbling) -> None:
        """`seen` raises if the store does not answer, except for the `unguarded_types`."""
        gate = self.unguarded(stumbling)
        stumbling.failures = {"claim": 2}
        assert gate.seen({"id": 1, "type": "alarm"}) is False
        with pytest.raises(StoreUnavailable):
            gate.seen({"id": 2, "type": "other"})


class TestConflict:
    ONE, OTHER = {"id": 1, "n": 1}, {"id": 1, "n": 2}

    def test_run(self, store: MemoryStore, handler: Handler) -> None:
        """With on_conflict="run" other content runs as an event of its own, once."""
        gate = Gate(store, on_conflict="run")
        first = gate.run(self.ONE, handler)
        outcomes = [gate.run(self.OTHER, handler) for _ in range(2)]
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
        assert [event.body["n"] for event in handler.runs] == [1, 2]
        assert outcomes[0].key != first.key
        assert handler.runs[1].key == outcomes[0].key
        assert gate.run(self.ONE, handler).status == "duplicate"
        assert gate.counts["policy.conflict"] == 2

    def test_run_after_a_failure(self, store: MemoryStore) -> None:
        """Its attempts are counted separately, too."""
        gate = Gate(store, on_conflict="run", max_attempts=2)
        gate.run(self.ONE, Handler())
        failing = Handler(ValueError("boom"))
        assert [gate.run(self.OTHER, failing).status for _ in range(3)] == ["failed", "buried", "buried"]
        assert gate.run(self.ONE, failing).status == "duplicate"

    def test_run_in_a_batch(self, store: MemoryStore, handler: Handler) -> None:
        """In one batch both contents run, each once."""
        gate = Gate(store, on_conflict="run")
        outcomes = gate.run_batch([self.ONE, self.OTHER, self.ONE, self.OTHER], handler)
        assert [outcome.status for outcome in outcomes] == ["processed", "processed", "duplicate", "duplicate"]
        assert len(handler.runs) == 2

    def test_duplicate(self, store: MemoryStore, handler: Handler) -> None:
        """With on_conflict="duplicate" other content is dropped as a copy, without a dead letter."""
        gate = Gate(store, on_conflict="duplicate")
        gate.run(self.ONE, handler)
        outcome = gate.run(self.OTHER, handler)
        assert (outcome.status, outcome.result, len(handler.runs)) == ("duplicate", "done", 1)
        assert store.dead_letters() == []
        assert gate.counts["policy.conflict"] == 1
        assert gate.seen(self.OTHER) is True

    def test_duplicate_after_a_failure(self, store: MemoryStore) -> None:
        """While the event is not processed, other content under its key is the next attempt."""
        gate = Gate(store, on_conflict="duplicate")
        assert gate.run(self.ONE, Handler(ValueError("boom"))).status == "failed"
        outcome = gate.run(self.OTHER, Handler())
        assert (outcome.status, outcome.event.attempt) == ("processed", 2)

    def test_duplicate_in_a_batch(self, store: MemoryStore, handler: Handler) -> None:
        """In one batch the first content stands for all."""
        outcomes = Gate(store, on_conflict="duplicate").run_batch([self.ONE, self.OTHER], handler)
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]


class TestReplay:
    def test_echoes_within_a_replay(self, store: MemoryStore, handler: Handler) -> None:
        """With on_replay="run", replayed emissions of one change are one event, as they were the first time."""
        gate = Gate(store, on_replay="run", key=keys.state_change())
        change = {"conversationId": "c-1", "type": "call", "state": "held"}
        events = [
            Event(
                source="plain",
                type="call",
                entity="c-1",
                state="held",
                body=change | {"n": number},
                raw=b"{}",
                occurred_at=NOON + timedelta(milliseconds=100 * number),
                evidence=Evidence(replay=replay),
            )
            for replay in (None, "monday")
            for number in range(2)
        ]
        statuses = [gate.run(event, handler).status for event in events]
        assert statuses == ["processed", "duplicate", "processed", "duplicate"]

    def event(self, replay: str | None = None) -> Event:
        return Event(source="plain", id="1", body={"id": 1}, raw=b'{"id":1}', evidence=Evidence(replay=replay))

    def test_duplicate_by_default(self, store: MemoryStore, handler: Handler) -> None:
        """A replay of a known event is a duplicate of kind `replay`; a replay of an unknown event runs."""
        gate = Gate(store)
        assert gate.run(self.event("archive-1"), handler).status == "processed"
        outcome = gate.run(self.event("archive-1"), handler)
        assert (outcome.status, outcome.kind) == ("duplicate", "replay")
        assert gate.counts["policy.replay"] == 2

    def test_run(self, store: MemoryStore, handler: Handler) -> None:
        """With on_replay="run" an event runs once for each replay name."""
        gate = Gate(store, on_replay="run")
        replays = [None, None, "first", "first", "second", None]
        statuses = [gate.run(self.event(replay), handler).status for replay in replays]
        assert statuses == ["processed", "duplicate", "processed", "duplicate", "processed", "duplicate"]


class TestAge:
    @pytest.fixture
    def wall(self) -> ManualClock:
        return ManualClock(MICROSECONDS_AT_NOON)

    def event(self, name: str = "1") -> Event:
        return Event(source="plain", id=name, body={"id": name}, raw=b"{}", occurred_at=NOON)

    def test_too_old_is_counted(self, store: MemoryStore, wall: ManualClock, handler: Handler) -> None:
        """An event older than `max_age` runs by default, and is counted."""
        gate = Gate(store, max_age="1h", wall=wall)
        wall.advance("1h")
        assert gate.run(self.event("in time"), handler).status == "processed"
        assert "policy.too_old" not in gate.counts
        wall.advance(1)
        assert gate.run(self.event("late"), handler).status == "processed"
        assert gate.counts["policy.too_old"] == 1

    def test_bury(self, store: MemoryStore, wall: ManualClock, handler: Handler) -> None:
        """With on_too_old="bury" it becomes a dead letter with the reason; an event that is still known is a
        duplicate."""
        gate = Gate(store, max_age="1h", on_too_old="bury", wall=wall)
        gate.run(self.event("known"), handler)
        wall.advance("3h")
        outcome = gate.run(self.event("late"), handler)
        assert (outcome.status, len(handler.runs)) == ("buried", 1)
        why = "it happened 3 h ago, and max_age is 1 h: it may have been processed before"
        assert outcome.reason == f"Not run, and buried as dead letter {outcome.key}: {why}."
        assert gate.run(self.event("known"), handler).status == "duplicate"

    def test_buried_in_mark_first_mode(self, store: MemoryStore, wall: ManualClock, handler: Handler) -> None:
        """In mark_first mode it is marked as done and becomes a dead letter under a key of its own, with `run` and
        `arun`."""
        gate = Gate(store, max_age="1h", on_too_old="bury", mode="mark_first", wall=wall)
        wall.advance("3h")
        outcomes = [gate.run(self.event("a"), handler), asyncio.run(gate.arun(self.event("b"), handler))]
        assert [outcome.status for outcome in outcomes] == ["buried", "buried"]
        assert handler.runs == []
        assert len(store.dead_letters()) == 2

    def test_seen(self, store: MemoryStore, wall: ManualClock) -> None:
        """`seen` is True for an event that is too old, and stores a dead letter, also for other content under a known
        key."""
        gate = Gate(store, max_age="1h", on_too_old="bury", on_conflict="run", wall=wall)
        assert not gate.seen(self.event())
        wall.advance("3h")
        assert gate.seen(Event(source="plain", id="1", body={"other": True}, raw=b"{}", occurred_at=NOON))
        assert len(store.dead_letters()) == 1

    def test_never_unguarded(self, stumbling: Stumbling, wall: ManualClock, handler: Handler) -> None:
        """An event that is buried for its age does not run unguarded either, without a store or without a key."""
        options: Any = {"max_age": "1h", "on_too_old": "bury", "wall": wall, "key": keys.event_id}
        wall.advance("3h")
        gate = Gate(stumbling, on_store_error="unguarded", unguarded_types=["alarm"], **options)
        stumbling.failures = {"claim": 1}
        old = Event(source="plain", id="1", type="alarm", body={}, raw=b"{}", occurred_at=NOON)
        assert gate.run(old, handler).status == "failed"
        nameless = Event(source="plain", body={}, raw=b"{}", occurred_at=NOON)
        assert Gate(stumbling, on_missing_key="unguarded", **options).run(nameless, handler).status == "invalid"
        assert handler.runs == []

    def test_event_without_a_time(self, store: MemoryStore, wall: ManualClock, handler: Handler) -> None:
        """An event without a time is not too old."""
        assert Gate(store, max_age="1h", on_too_old="bury", wall=wall).run({"id": 1}, handler).status == "processed"


class TestSliding:
    def test_copies_extend_the_retention(self, store: MemoryStore, clock: ManualClock, handler: Handler) -> None:
        """With sliding, a key is remembered for its retention from the latest copy on, up to the limit."""
        gate = Gate(store, retention="1h", sliding=True, sliding_limit="3h")
        statuses = []
        for _ in range(5):
            statuses.append(gate.run({"id": 1}, handler).status)
            clock.advance("50m")
        assert statuses == ["processed", "duplicate", "duplicate", "duplicate", "processed"]
        assert gate.counts["policy.sliding"] == 3

    def test_not_by_default(self, store: MemoryStore, clock: ManualClock, handler: Handler) -> None:
        """By default copies do not extend the retention."""
        gate = Gate(store, retention="1h", remember=None)
        statuses = []
        for _ in range(3):
            statuses.append(gate.run({"id": 1}, handler).status)
            clock.advance("50m")
        assert statuses == ["processed", "duplicate", "processed"]

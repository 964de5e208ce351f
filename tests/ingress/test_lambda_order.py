"""Batches that come to Lambda: the order within a group, and what is named as failed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate import Event, Gate
from oncegate.claims import COMPLETED, RELEASED
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling
from tests.ingress.invocations import Context, Handler, envelope, fifo, message, missed, nothing, shard_record


@pytest.fixture
def handler() -> Handler:
    return Handler()


class TestFifo:
    def test_a_group_stops_at_its_first_failure(self, gate: Gate, handler: Handler) -> None:
        """The events after a failure in its group do not run and are reported as failed. Other groups are not
        affected."""
        event = fifo((1, "a", False), (2, "a", True), (3, "b", False), (4, "a", False), (5, "b", False))
        assert missed(gate.lambda_handler(handler)(event, Context())) == ["m-2", "m-4"]
        assert sorted(handler.seen) == [1, 2, 3, 5]

    def test_order_within_a_group(self, gate: Gate, handler: Handler) -> None:
        """Events of a group run in order, also after a failed attempt."""
        answer = gate.lambda_handler(handler)
        assert missed(answer(fifo((2, "a", True)), Context())) == ["m-2"]
        handler.seen.clear()
        event = fifo((1, "a", False), (2, "a", True), (3, "a", False))
        assert missed(answer(event, Context())) == ["m-2", "m-3"]
        assert handler.seen == [1, 2]

    def test_groups_share_their_writes(self, stumbling: Stumbling) -> None:
        """The first events of all groups are claimed with one write, then the second ones."""
        event = fifo((1, "a", False), (2, "b", False), (3, "a", False), (4, "c", False))
        Gate(stumbling).lambda_handler(nothing)(event, Context())
        assert [size for verb, size in stumbling.calls if verb == "claim"] == [3, 1]

    def test_an_event_in_flight_stops_its_group(self, gate: Gate, handler: Handler) -> None:
        """While another worker runs an event, the next event of its group does not run."""
        answer = gate.lambda_handler(handler)
        answers = []
        event = fifo((1, "a", False), (2, "a", False), (3, "b", False))
        gate.run(envelope(1, fail=False), lambda _: answers.append(answer(event, Context())))
        assert missed(answers[0]) == ["m-1", "m-2"]
        assert handler.seen == [3]


# What becomes of an event, the group that it is in, and how many seconds its handler takes.
RECORDS = st.lists(
    st.tuples(st.sampled_from(["taken", "failed", "refused", "known"]), st.sampled_from("abc"), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)
WRAPS: dict[str, Any] = {
    "standard": lambda document, name, group: message(document, name),
    "fifo": message,
    "stream": lambda document, name, group: shard_record(document, name),
}


class Trial:
    """A batch of records with known results, through a gate whose clock is moved by the handlers only."""

    def __init__(self, records: list[tuple[str, str, int]], kind: str) -> None:
        self.records, self.kind = records, kind
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.gate = Gate(self.store, boot=self.clock, lease="1h", max_hold="1h")
        self.started: dict[int, int] = {}
        for number, (fate, _, _) in enumerate(records):
            if fate == "known":
                self.gate.run(envelope(number), nothing)

    def named(self, context: Context, reserve: str) -> set[int]:
        wrap = WRAPS[self.kind]
        documents = ["no JSON" if fate == "refused" else envelope(n) for n, (fate, _, _) in enumerate(self.records)]
        records = [wrap(each, f"m-{n}", self.records[n][1]) for n, each in enumerate(documents)]
        names = missed(self.gate.lambda_handler(self._handle, reserve=reserve)({"Records": records}, context))
        numbers = [int(name.removeprefix("m-")) for name in names]
        assert numbers == sorted(set(numbers))
        if self.kind != "stream":
            return set(numbers)
        assert len(numbers) <= 1
        return set(range(numbers[0], len(records))) if numbers else set()

    def _handle(self, event: Event) -> None:
        number = event.body["number"]
        assert number not in self.started
        self.started[number] = self.clock()
        fate, _, seconds = self.records[number]
        self.clock.advance(seconds * 1_000_000)
        if fate == "failed":
            raise ValueError

    def ahead(self, number: int) -> list[int]:
        """The records that must be acknowledged before this one."""
        group = self.records[number][1]
        if self.kind == "standard":
            return []
        return [n for n in range(number) if self.kind == "stream" or self.records[n][1] == group]


@given(RECORDS, st.sampled_from(list(WRAPS)))
@settings(max_examples=100, deadline=None)
def test_exactly_the_failures_are_reported(records: list[tuple[str, str, int]], kind: str) -> None:
    """With enough time, a reported record has failed, was rejected, or waits for such a record; no other is
    reported."""
    trial = Trial(records, kind)
    named = trial.named(Context(3_600_000, trial.clock), "1s")
    bad = {n for n, (fate, _, _) in enumerate(records) if fate in ("failed", "refused")}
    assert named == {n for n in range(len(records)) if n in bad or bad & set(trial.ahead(n))}


@given(RECORDS, st.sampled_from(list(WRAPS)), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_records_that_cannot_start_in_time(records: list[tuple[str, str, int]], kind: str, seconds: int) -> None:
    """Nothing starts in the reserve. A record that has not started is reported, holds no claim and has spent no
    attempt."""
    trial = Trial(records, kind)
    start_by = trial.clock() + seconds * 1_000_000
    named = trial.named(Context((seconds + 1) * 1_000, trial.clock), "1s")
    assert all(at < start_by for at in trial.started.values())
    for number, (fate, _, _) in enumerate(records):
        waits = bool(named & set(trial.ahead(number)))
        if number in trial.started:
            assert (number in named) == (fate == "failed")
            assert not waits
        elif fate != "known":
            assert number in named
        elif number in named:
            assert waits or trial.clock() >= start_by
    for entry in trial.store.browse():
        assert entry.record.state in (RELEASED, COMPLETED)
    spent = {entry.record.about.delivery_id: entry.record.attempts for entry in trial.store.browse()}
    assert all(
        spent.get(envelope(n)["id"], 0) == (fate == "known" or n in trial.started)
        for n, (fate, *_) in enumerate(records)
    )

"""Stories: what the journal and the store say about one event, with every sentence true."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.claims import Redrive, Reset
from oncegate.clocks import wall
from oncegate.errors import StoreUnavailable
from oncegate.inspection.conversations import conversation
from oncegate.inspection.explanations import Explainers
from oncegate.inspection.stories import Stories, Story, find_events
from oncegate.journal import Journal, Recorder, RowFilter, open_journal, open_recorder
from oncegate.journal.base import MINUTE, NewRow, NewRows
from oncegate.journal.rows import Fields
from oncegate.settings import Settings, examine

CALL = {"id": "evt-1", "type": "call.ended", "conversationId": "c-1", "data": {"state": "held", "by": "a"}}
DAY = 86_400_000_000
KEY = b"1" * 16


def succeed(event: Event) -> None: ...


def fail(event: Event) -> None:
    raise ValueError("a secret of the payload")


def change(event_id: str, state: str, at: str) -> dict[str, Any]:
    return {"id": event_id, "type": "call", "conversationId": "c-1", "state": state, "time": f"2026-02-03T10:00:{at}Z"}


class FailFirst:
    """A handler that fails at the first attempt of each event."""

    def __init__(self) -> None:
        self.calls: dict[str | None, int] = {}

    def __call__(self, event: Event) -> None:
        self.calls[event.id] = self.calls.get(event.id, 0) + 1
        if self.calls[event.id] == 1:
            raise ValueError("first")


class Desk:
    """A gate with a journal, and the stories about its events."""

    def __init__(self, folder: Path, *, payloads: bool = False, **options: Any) -> None:
        self.url = f"sqlite:///{folder}/oncegate.db"
        self.journal_url = f"sqlite:///{folder}/oncegate.journal.db"
        self.recorder: Recorder = open_recorder(self.journal_url, payload_age=DAY if payloads else None)
        key = options.get("key", "auto")
        self.settings: Settings = examine(flags={"store": self.url, **({"key": key} if key != "auto" else {})})[0]
        options["key"] = self.settings.strategy()
        self.gate = Gate(self.url, observers=[self.recorder.of("calls")], remember=None, **options)
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        assert self.recorder.flush(10)
        if self._journal is None:
            self._journal = self.settings.open_journal()
        return self._journal

    @property
    def stories(self) -> Stories:
        return Stories(Explainers(self.gate.store, self.settings, 1_000), self.journal)

    def story(self, term: str) -> Story:
        """The story of the newest row that has this term."""
        return self.stories.of_row(find_events(self.journal, term).events[0].latest)

    def close(self) -> None:
        self.gate.close()
        self.recorder.close()
        if self._journal is not None:
            self._journal.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(**options: Any) -> Desk:
        desks.append(Desk(tmp_path, **options))
        return desks[-1]

    yield make
    for each in desks:
        each.close()


# ── one event ─────────────────────────────────────────────────────────────────────────────────────────────


def test_arrivals_and_attempts(desk: Callable[..., Desk]) -> None:
    """The rows of a key are in order, with the gap to the row before. The record decides the sentence."""
    calls = desk()
    calls.gate.run(CALL, fail)
    calls.gate.run(CALL, succeed)
    calls.gate.run(CALL, succeed)
    story = calls.story("evt-1")
    assert story.sentence.startswith("Run: evt-1 was processed ")
    assert [(each.row.status, each.row.attempt, each.is_arrival, each.is_attempt) for each in story.lines] == [
        ("failed", 1, True, True),
        ("processed", 2, True, True),
        ("duplicate", 0, True, False),
    ]
    assert story.lines[0].gap is None
    assert all(each.gap is not None and each.gap >= 0 for each in story.lines[1:])
    assert (story.deliveries, story.deliveries_text, story.is_complete) == (3, "3 deliveries", True)
    assert (story.focus.status, story.is_copy) == ("duplicate", True)
    assert story.original == story.lines[0].row
    assert story.difference is not None
    assert (story.difference.paths, story.difference.values, story.difference.reason) == ((), None, None)


def test_attempts_of_a_stored_event_are_not_deliveries(desk: Callable[..., Desk]) -> None:
    """An event of an inbox arrives once, however often it is attempted."""
    calls = desk(max_attempts=3, backoff="1ms")
    calls.gate.admit([CALL])
    calls.gate.run_waiting(fail)
    calls.gate.admit([CALL])
    story = calls.story("evt-1")
    assert [(each.row.status, each.is_arrival, each.is_attempt) for each in story.lines][:2] == [
        ("accepted", True, False),
        ("failed", False, True),
    ]
    assert [each.row.attempt for each in story.lines[:2]] == [0, 1]
    assert story.deliveries == 2
    assert story.sentence.startswith("Run and failed: evt-1 failed at its first attempt with ")


def run_until(calls: Desk, handler: Callable[[Event], None], done: Callable[[], bool]) -> None:
    """Run waiting events, and retry them after their backoff."""
    deadline = time.monotonic() + 10
    while True:
        calls.gate.run_waiting(handler)
        if done():
            return
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_attempts_of_a_stored_event(desk: Callable[..., Desk]) -> None:
    """If the journal has all attempts of a stored event, their number is exact. After a redrive, it starts again."""
    calls = desk(max_attempts=2, backoff="1ms")
    calls.gate.admit([{"id": "evt-0", "conversationId": "c-1"}, CALL])
    run_until(calls, FailFirst(), lambda: len(calls.journal.rows(RowFilter(status="processed"))) == 2)
    for event_id in ("evt-0", "evt-1"):
        assert f"Run: {event_id} was processed " in calls.story(event_id).sentence
        assert " ago after 2 attempts. " in calls.story(event_id).sentence
    calls.gate.admit([{"id": "evt-2"}])
    run_until(calls, fail, lambda: bool(calls.gate.store.dead_letters("default")))
    assert " became a dead letter after 2 attempts: " in calls.story("evt-2").sentence
    (letter,) = calls.gate.store.dead_letters("default")
    assert calls.gate.store.redrive([Redrive("default", letter.key)]) == [True]
    run_until(calls, succeed, lambda: not calls.gate.store.dead_letters("default"))
    assert " ago at attempt 1 (counted from the last redrive, if there was one). " in calls.story("evt-2").sentence


def test_an_attempt_of_a_stored_event_is_no_copy(desk: Callable[..., Desk]) -> None:
    """The row of an attempt is about the first delivery: it is not compared with that delivery."""
    calls = desk()
    calls.gate.admit([CALL])
    calls.gate.run_waiting(succeed)
    story = calls.story("evt-1")
    assert [each.row.status for each in story.lines] == ["accepted", "processed"]
    assert (story.focus.status, story.is_copy, story.difference) == ("processed", False, None)
    assert {each.decision for each in story.strategies} <= {"new", "not known", "no key"}


def test_a_storm_is_counted(desk: Callable[..., Desk]) -> None:
    """A row that stands for many copies counts as many deliveries."""
    calls = desk()
    for _ in range(30):
        calls.gate.run(CALL, succeed)
    story = calls.story("evt-1")
    assert story.lines[-1].row.count == 24
    assert len(story.lines) == 7
    assert (story.deliveries, story.deliveries_text) == (30, "30 deliveries")


def counted(calls: Desk, term: str = "evt-1") -> tuple[str, bool]:
    story = calls.story(term)
    return story.deliveries_text, story.is_complete


def test_one_delivery_of_a_stored_event(desk: Callable[..., Desk]) -> None:
    """An inbox: before, during and after each attempt, also in a worker, there was one delivery and no row is
    missing."""
    calls = desk(max_attempts=3, backoff="1ms")
    found: list[tuple[str, bool]] = []
    with closing(Gate(calls.url, observers=[calls.recorder.of("worker")], max_attempts=3, backoff="1ms")) as worker:

        def fail_once(event: Event) -> None:
            found.append(counted(calls))
            if len(found) == 1:
                fail(event)

        calls.gate.admit([CALL])
        assert counted(calls) == ("1 delivery", True)
        worker.run_waiting(fail_once)
        assert counted(calls) == ("1 delivery", True)
        time.sleep(0.02)
        worker.run_waiting(fail_once)
    assert found == [("1 delivery", True)] * 2
    assert [each.row.status for each in calls.story("evt-1").lines] == ["accepted", "failed", "processed"]
    assert counted(calls) == ("1 delivery", True)


def test_an_attempt_without_a_row(desk: Callable[..., Desk]) -> None:
    """The row of an attempt is written up to a second after the record. Later, a row without this attempt shows that
    rows are missing."""
    calls = desk()
    calls.gate.admit([CALL])
    with closing(Gate(calls.url)) as unrecorded:
        unrecorded.run_waiting(succeed)
    assert counted(calls) == ("1 delivery", True)
    explainers = Explainers(calls.gate.store, calls.settings, 1_000)
    (row,) = calls.journal.rows()
    later = Stories(explainers, calls.journal, lambda: wall() + MINUTE).of_row(row)
    assert (later.deliveries_text, later.is_complete) == ("at least 1 delivery", False)


def test_a_copy_that_arrives_while_the_event_runs(desk: Callable[..., Desk]) -> None:
    """Inline: the row of the first delivery is written after the row of the copy."""
    calls = desk()
    found: list[tuple[str, bool]] = []

    def deliver_again(_event: Event) -> None:
        calls.gate.run(CALL, succeed)
        found.append(counted(calls))

    calls.gate.run(CALL, deliver_again)
    assert found == [("at least 1 delivery", False)]  # the delivery that runs has no row yet
    assert [each.row.status for each in calls.story("evt-1").lines] == ["in_flight", "processed"]
    assert counted(calls) == ("2 deliveries", True)


def test_a_storm_of_a_stored_event(desk: Callable[..., Desk]) -> None:
    calls = desk()
    for _ in range(31):
        calls.gate.admit([CALL])
    calls.gate.run_waiting(succeed)
    for _ in range(30):
        calls.gate.admit([CALL])
    assert counted(calls) == ("61 deliveries", True)


def test_deliveries_until_the_event_is_a_dead_letter(desk: Callable[..., Desk]) -> None:
    """Inline, each attempt is a delivery. A copy of the dead letter is one, too."""
    calls = desk(max_attempts=2, backoff="1ms")
    for number in range(3):
        calls.gate.run(CALL, fail)
        assert counted(calls) == ("1 delivery" if number == 0 else f"{number + 1} deliveries", True)
    calls.gate.admit([{"id": "evt-2"}])
    for _ in range(2):
        calls.gate.run_waiting(fail)
        time.sleep(0.02)
    calls.gate.admit([{"id": "evt-2"}])
    assert [each.row.status for each in calls.story("evt-2").lines] == ["accepted", "failed", "buried", "buried"]
    assert counted(calls, "evt-2") == ("2 deliveries", True)


def test_a_conflict_with_a_stored_event(desk: Callable[..., Desk]) -> None:
    calls = desk()
    calls.gate.admit([CALL])
    calls.gate.run_waiting(succeed)
    calls.gate.admit([CALL | {"more": 1}])
    assert counted(calls) == ("2 deliveries", True)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_replay(desk: Callable[..., Desk], is_stored: bool) -> None:
    """An event from an EventBridge archive is one more delivery."""
    calls = desk()
    event = {
        "version": "0",
        "id": "evt-1",
        "detail-type": "call.ended",
        "source": "calls",
        "account": "1",
        "time": "2026-02-03T10:00:00Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": {"conversationId": "c-1"},
    }
    for each in (event, event | {"replay-name": "again"}):
        if is_stored:
            calls.gate.admit([each])
            calls.gate.run_waiting(succeed)
        else:
            calls.gate.run(each, succeed)
    assert calls.journal.rows()[0].kind == "replay"
    assert counted(calls) == ("2 deliveries", True)


def test_a_storm_that_is_not_counted_yet(desk: Callable[..., Desk]) -> None:
    """While copies arrive, the number of deliveries is a lower bound. If the count is missing after the minute, the
    reason says how it can be lost."""
    calls = desk()
    calls.gate.run({"id": "evt-2"}, succeed)
    journal, deadline = calls.journal, time.monotonic() + 10
    for number in range(8):
        assert calls.gate.run(CALL, succeed).status == ("duplicate" if number else "processed")
    while len(journal.rows(RowFilter(term="evt-1"))) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    explainers, latest = Explainers(calls.gate.store, calls.settings, 1_000), find_events(journal, "evt-1").events[0]
    story = Stories(explainers, journal).of_row(latest.latest)
    assert (story.is_complete, story.deliveries_text) == (False, "at least 6 deliveries")
    assert story.missing.endswith("they are counted when the minute ends")
    later = Stories(explainers, journal, clock=lambda: wall() + 2 * MINUTE).of_row(latest.latest)
    assert (later.is_complete, later.deliveries_text) == (False, "at least 6 deliveries")
    assert later.missing.endswith("not if the process was killed before that")
    assert calls.story("evt-1").deliveries_text == "8 deliveries"
    assert calls.story("evt-2").deliveries_text == "1 delivery"


def test_missing_rows(desk: Callable[..., Desk]) -> None:
    """If the first rows are missing, the number of deliveries is a lower bound."""
    calls = desk()
    with closing(Gate(calls.url)) as unrecorded:
        unrecorded.run(CALL, succeed)
    calls.gate.run(CALL, succeed)
    story = calls.story("evt-1")
    assert (story.original, story.is_complete, story.deliveries_text) == (None, False, "at least 1 delivery")
    assert story.difference is None
    with closing(Gate(calls.url)) as unrecorded:
        unrecorded.run({"id": "evt-2"}, fail)
    calls.gate.run({"id": "evt-2"}, succeed)
    assert calls.story("evt-2").deliveries_text == "at least 1 delivery"


def test_without_a_record(desk: Callable[..., Desk]) -> None:
    """If the store has no record any more, the sentence says so and quotes the last decision."""
    calls = desk()
    outcome = calls.gate.run(CALL, succeed)
    assert outcome.key is not None
    calls.gate.store.reset([Reset("default", outcome.key.digest)])
    story = calls.story("evt-1")
    assert story.sentence.startswith("The store has no record of evt-1 any more: the record has expired, or an ")
    assert story.sentence.endswith(" ago: Processed at the first attempt.")
    assert (story.explanation, story.deliveries_text) == (None, "1 delivery")


@pytest.mark.parametrize("status", ["failed", "unguarded"])
def test_an_event_that_the_store_did_not_record(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """If the store never had a record, the sentence does not say that there was one."""

    def refuse(*_: object) -> None:
        raise StoreUnavailable("the file is locked")

    unguarded = {"on_store_error": "unguarded", "unguarded_types": ["call.ended"]} if status == "unguarded" else {}
    calls = desk(**unguarded)
    monkeypatch.setattr(calls.gate.store, "claim", refuse)
    assert calls.gate.run(CALL, succeed).status == status
    sentence = calls.story("evt-1").sentence
    assert sentence.startswith("The store has no record of evt-1. The last decision, ")
    assert "the file is locked" in sentence
    monkeypatch.undo()
    calls.gate.run(CALL, fail)
    calls.gate.store.reset([Reset("default", calls.story("evt-1").focus.key)])
    assert calls.story("evt-1").sentence.startswith("The store has no record of evt-1 any more: the record has expired")


def test_a_skipped_event_has_no_record(desk: Callable[..., Desk]) -> None:
    calls = desk(key='state_change("500ms")', on_stale="skip")
    calls.gate.run(change("evt-1", "connected", "05"), succeed)
    calls.gate.run(change("evt-2", "held", "03"), succeed)
    sentence = calls.story("evt-2").sentence
    assert sentence.startswith("The store has no record of evt-2. The last decision, ")
    assert " ago: Skipped: " in sentence


def test_events_without_a_key(desk: Callable[..., Desk]) -> None:
    """A delivery that could not be read has a story: its dead letter, or its reason."""
    calls = desk(on_missing_key="refuse", key="event_id")
    calls.gate.run(b"not json", succeed)
    story = calls.stories.of_row(calls.journal.rows()[0])
    assert "Refused: " in story.sentence or "was refused" in story.sentence
    assert (story.key, len(story.lines), story.strategies) == (None, 1, ())
    assert (story.deliveries_text, story.is_copy) == ("1 delivery", False)


# ── the difference and the key ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("payloads", [False, True])
def test_a_conflict(desk: Callable[..., Desk], payloads: bool) -> None:
    """The paths at which a conflict differs are always known; the values only with both payloads. The dead letter is
    found by its own key, and decides the sentence."""
    calls = desk(payloads=payloads)
    calls.gate.run(CALL, succeed)
    other = CALL | {"data": {"state": "ended", "by": "a"}, "more": [1]}
    outcome = calls.gate.run(other, succeed)
    assert outcome.kept is not None
    assert outcome.key is not None
    story = calls.story(str(outcome.kept))
    assert story.sentence.startswith("Not run: evt-1 has the key of another event but different content")
    same = calls.stories.of_key("default", outcome.kept.digest)
    assert same is not None
    assert (same.sentence, same.lines, same.focus) == (story.sentence, story.lines, story.focus)
    assert story.difference is not None
    assert story.difference.paths == ("data.state", "more")
    if payloads:
        found = [(each.path, each.original, each.value) for each in story.difference.values or ()]
        assert found == [("data.state", '"held"', '"ended"'), ("more", None, "[1]")]
        assert story.difference.reason is None
    else:
        assert story.difference.values is None
        assert "journal_payloads" in (story.difference.reason or "")
    own = calls.stories.of_key("default", outcome.key.digest)
    assert own is not None
    assert own.sentence.startswith("Run: evt-1 was processed")
    assert own.lines == story.lines


def test_a_run_after_a_failure(desk: Callable[..., Desk]) -> None:
    """The dead letter of an event that failed after its mark does not decide after a later run of the same key."""
    calls = desk(mode="mark_first")
    outcome = calls.gate.run(CALL, fail)
    assert outcome.key is not None
    assert calls.story("evt-1").sentence.startswith("Run and failed after it was marked as done: evt-1 ")
    calls.gate.store.reset([Reset("default", outcome.key.digest)])
    calls.gate.run(CALL, succeed)
    assert calls.story("evt-1").sentence.startswith("Marked as done: evt-1 ")


def test_a_dead_letter_that_is_gone(desk: Callable[..., Desk]) -> None:
    """If the dead letter of a conflict has expired, its story does not tell the run of the original."""
    calls = desk()
    calls.gate.run(CALL, succeed)
    kept = calls.gate.run(CALL | {"more": 1}, succeed).kept
    assert kept is not None
    calls.gate.store.reset([Reset("default", kept.digest)])
    calls.gate.run(CALL, succeed)
    assert calls.recorder.flush(10)
    story = calls.stories.of_key("default", kept.digest)
    assert story is not None
    start = f"The store has no record of the dead letter {kept} of evt-1 any more: the record has expired, or an "
    assert story.sentence.startswith(start)
    assert story.sentence.endswith(f" but different content. Stored as dead letter {kept}.")
    assert (story.explanation, len(story.lines)) == (None, 3)


def test_the_parts_of_a_key(desk: Callable[..., Desk]) -> None:
    """The parts are known with a payload; without one, the story says why not."""
    calls = desk(payloads=True)
    calls.gate.run(CALL, succeed)
    calls.gate.run(CALL, succeed)
    key = calls.story("evt-1").key
    assert key is not None
    assert (key.strategy, key.parts, key.reason) == ("event_id", ("evt-1",), None)
    calls.settings = examine(flags={"store": calls.url, "key": "content"})[0]
    changed = calls.story("evt-1").key
    assert changed is not None
    assert changed.parts is None
    assert "the key strategy has changed" in (changed.reason or "")


def test_the_parts_of_a_key_that_an_emission_has_joined(desk: Callable[..., Desk]) -> None:
    """The key of a logical duplicate is that of the first emission, so its parts are those of the first emission. All
    further emissions are duplicates, whatever their content."""
    calls = desk(key='state_change("500ms")', payloads=True)
    calls.gate.run(change("evt-1", "held", "05"), succeed)
    calls.gate.run(change("evt-2", "held", "05.2"), succeed)
    first, echo = calls.story("evt-1"), calls.story("evt-2")
    assert echo.focus.kind == "state-echo"
    assert first.key is not None
    assert first.key == echo.key
    assert first.key.parts is not None
    assert first.key.parts[-1] == 1_770_112_805_000_000
    assert "every further delivery with this key, whatever its content, is a duplicate" in echo.sentence


def test_no_parts_of_a_key_of_another_emission(desk: Callable[..., Desk]) -> None:
    """If the payload of the first emission is not stored, the parts of its key are not known."""
    calls = desk(key='state_change("500ms")', payloads=True)
    with closing(Gate(calls.url, key=calls.settings.strategy())) as unrecorded:
        unrecorded.run(change("evt-1", "held", "05"), succeed)
    calls.gate.run(change("evt-2", "held", "05.2"), succeed)
    key = calls.story("evt-2").key
    assert key is not None
    assert (key.parts, (key.reason or "")[:41]) == (None, "it is the key of another emission of the ")


def test_no_parts_without_a_payload(desk: Callable[..., Desk]) -> None:
    calls = desk()
    calls.gate.run(CALL, succeed)
    key = calls.story("evt-1").key
    assert key is not None
    assert key.parts is None
    assert "journal_payloads is off" in (key.reason or "")


# ── other strategies ──────────────────────────────────────────────────────────────────────────────────────


def decided(story: Story) -> dict[str, str]:
    """What each strategy would have decided."""
    return {each.strategy: each.text for each in story.strategies}


def test_other_strategies(desk: Callable[..., Desk]) -> None:
    """Each strategy names the earlier event that it would have joined, or says that the event would be new."""
    genesys = {
        "version": "0",
        "detail-type": "v2.detail.events.conversation.{id}.user.start",
        "source": "aws.partner/genesys.com/x",
        "account": "1",
        "time": "2026-02-03T10:00:00Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": {"eventBody": {"conversationId": "c-1", "participantId": "p", "eventTime": 1770112800000}},
    }
    calls = desk(key="event_id")
    calls.gate.run(genesys | {"id": "env-1"}, succeed)
    calls.gate.run(genesys | {"id": "env-2"}, succeed)
    story = calls.story("env-2")
    assert story.focus.status == "processed"
    assert decided(story) == {
        "auto": "duplicate of env-1",
        "event_id": "new event",
        "content": "duplicate of env-1",
        "state_change": "duplicate of env-1",
    }
    assert story.compared == 1
    first = calls.story("env-1")
    assert {each.decision for each in first.strategies} == {"new"}


def test_conflicts_under_other_strategies(desk: Callable[..., Desk]) -> None:
    calls = desk(key="content")
    calls.gate.run(CALL, succeed)
    calls.gate.run(CALL | {"x": 1}, succeed)
    calls.gate.run({"noId": 1}, succeed)
    assert decided(calls.story("evt-1")) == {
        "auto": "conflict with evt-1",
        "event_id": "conflict with evt-1",
        "content": "new event",
        "state_change": "no key for this event",
    }
    (row,) = calls.journal.rows(limit=1)
    assert decided(calls.stories.of_row(row)) == {
        "auto": "new event",
        "event_id": "no key for this event",
        "content": "new event",
        "state_change": "no key for this event",
    }


def test_a_state_change_under_another_strategy(desk: Callable[..., Desk]) -> None:
    """Events with different ids and content, but one state and nearly one time, would be one event with state_change.
    An event with another state, or at another time, would be new. Rows without hashes suffice."""
    calls = desk()
    for event_id, state, at in (
        ("1", "ringing", "00"),
        ("2", "held", "05"),
        ("3", "held", "05.4"),
        ("4", "held", "09"),
    ):
        calls.gate.run(change(event_id, state, at), succeed)
        calls.gate.run(change(event_id, state, at), succeed)
    found = {each: decided(calls.story(each))["state_change"] for each in "1234"}
    assert found == {"1": "duplicate of 1", "2": "duplicate of 2", "3": "duplicate of 2", "4": "duplicate of 4"}
    first = [row for row in calls.journal.rows() if row.status == "processed"]
    assert {row.event_id: decided(calls.stories.of_row(row))["state_change"] for row in first} == {
        "1": "new event",
        "2": "new event",
        "3": "duplicate of 2",
        "4": "new event",
    }


def test_an_event_that_the_journal_does_not_have(desk: Callable[..., Desk]) -> None:
    """An event of a file is compared with the original: by hashes without payloads, and by values with payloads."""
    calls = desk()
    calls.gate.run(CALL, succeed)
    calls.gate.run(CALL, succeed)
    for given, paths in ((CALL, ()), (CALL | {"agent": "a", "data": {"state": "held"}}, ("agent", "data.by"))):
        (event,) = read(given)
        story = calls.stories.of_event("default", keys.auto(event), event)
        assert story is not None
        assert story.difference is not None
        assert (story.difference.paths, story.difference.values) == (paths, None)
        assert (story.focus.status, story.deliveries, story.compared) == ("", 2, 1)
        assert decided(story)["event_id"] == ("conflict with evt-1" if paths else "duplicate of evt-1")
        assert decided(story)["content"] == ("new event" if paths else "duplicate of evt-1")
        assert story.key is not None
        assert story.key.parts == ("evt-1",)
    assert calls.stories.of_event("other", keys.auto(event), event) is None


def test_the_values_of_an_event_that_the_journal_does_not_have(desk: Callable[..., Desk]) -> None:
    calls = desk(payloads=True)
    calls.gate.run(CALL, succeed)
    (event,) = read(CALL | {"agent": "a"})
    story = calls.stories.of_event("default", keys.auto(event), event)
    assert story is not None
    assert story.difference is not None
    assert [(each.path, each.original, each.value) for each in story.difference.values or ()] == [
        ("agent", None, '"a"')
    ]


def test_rows_without_details(desk: Callable[..., Desk]) -> None:
    """A row without hashes says that the difference and the other strategies are not known."""
    calls = desk()
    calls.gate.run(CALL, succeed)
    (first,) = calls.journal.rows()
    label = ("calls", "default", "plain", "call.ended", "duplicate", "redelivery")
    fields = Fields(first.key, "evt-1", "c-1", at=first.at + 5)
    with closing(open_journal(calls.url.replace("oncegate.db", "oncegate.journal.db"))) as journal:
        journal.append(NewRows([NewRow(label, fields)], {(first.at // MINUTE, label): 1}, {}))
    story = calls.story("evt-1")
    assert {each.decision for each in story.strategies if each.strategy != "state_change"} == {"not known"}
    assert story.difference is not None
    assert story.difference.paths is None
    assert "no hashes of its body" in (story.difference.reason or "")


def write_rows(calls: Desk, *rows: tuple[str, str, dict[str, Any]]) -> None:
    """Write rows of KEY with this status, kind and these fields; a row may have another key."""
    values = {"key": KEY, "event_id": "evt-1", "entity": "c-1"}
    with closing(open_journal(calls.journal_url)) as journal:
        for status, kind, fields in rows:
            label = ("calls", "default", "plain", "call", status, kind)
            journal.append(NewRows([NewRow(label, Fields(**{**values, **fields}))], {}, {}))


def test_rows_of_a_storm_are_in_the_order_of_time(desk: Callable[..., Desk]) -> None:
    """The row of the copies of a storm is written after later rows. It stands where its first copy arrived."""
    calls, at = desk(), wall() - 100_000_000
    write_rows(
        calls,
        ("processed", "", {"at": at, "attempt": 1}),
        ("duplicate", "redelivery", {"at": at + 9_000_000, "reason": "the last"}),
        ("processed", "", {"at": at + 10_000_000, "key": b"2" * 16, "event_id": "evt-2", "attempt": 1}),
        ("duplicate", "redelivery", {"at": at + 5_000_000, "since": at + 2_000_000, "count": 40, "lag": 1}),
    )
    story = calls.stories.of_key("default", KEY)
    assert story is not None
    assert [line.row.count for line in story.lines] == [1, 40, 1]
    assert [line.gap for line in story.lines] == [None, 2_000_000, 7_000_000]
    assert story.focus.reason == "the last"
    assert story.lines[1].row.occurred_at == at + 2_000_000 - 1
    lines = conversation(calls.journal, "c-1").lines
    assert [(line.row.event_id, line.gap) for line in lines] == [
        ("evt-1", None),
        ("evt-1", 2_000_000),
        ("evt-1", 7_000_000),
        ("evt-2", 1_000_000),
    ]
    assert [each.latest.event_id for each in find_events(calls.journal, "c-1").events] == ["evt-2", "evt-1"]


def test_the_run_of_a_redriven_conflict_is_an_attempt(desk: Callable[..., Desk]) -> None:
    """A redrive runs what the dead letter holds. Nothing arrives with the key of the dead letter."""
    calls = desk()
    calls.gate.run(CALL, succeed)
    kept = calls.gate.run({**CALL, "data": 1}, succeed).kept
    assert kept is not None
    assert calls.gate.store.redrive([Redrive("default", kept.digest)]) == [True]
    calls.gate.run_waiting(succeed)
    assert calls.recorder.flush(10)
    story = calls.stories.of_key("default", kept.digest)
    assert story is not None
    assert [(line.row.status, line.is_arrival) for line in story.lines] == [("conflict", True), ("processed", False)]
    assert (story.deliveries_text, story.is_complete, story.is_copy) == ("1 delivery", True, False)


def test_the_run_of_a_redriven_event_is_an_attempt(desk: Callable[..., Desk]) -> None:
    calls, at = desk(), wall() - 10_000_000
    write_rows(
        calls,
        ("buried", "", {"at": at, "attempt": 1}),
        ("operator", "redrive", {"at": at + 1}),
        ("processed", "", {"at": at + 2, "attempt": 1}),
    )
    story = calls.stories.of_key("default", KEY)
    assert story is not None
    assert [line.is_arrival for line in story.lines] == [True, False, False]


def test_the_run_of_a_replay_is_an_attempt(desk: Callable[..., Desk]) -> None:
    """The row of the replay belongs to the event and to its copy. Its time may be later than that of a fast run."""
    calls, at, copy = desk(), wall() - 10_000_000, b"2" * 16
    write_rows(
        calls,
        ("processed", "", {"at": at, "attempt": 1}),
        ("processed", "", {"at": at + 1, "attempt": 1, "key": copy}),
        ("operator", "replay", {"at": at + 2, "kept": copy, "worker": "Ada"}),
    )
    story, original = calls.stories.of_key("default", copy), calls.stories.of_key("default", KEY)
    assert story is not None
    assert original is not None
    assert [line.is_arrival for line in story.lines] == [False, False]
    assert (story.deliveries_text, story.is_complete) == ("0 deliveries, 1 replay", True)
    assert story.replay is not None
    assert (story.replay.key, story.replay.worker) == (KEY, "Ada")
    assert (original.replay, original.deliveries_text) == (None, "1 delivery")


def test_several_completed_runs_are_named(desk: Callable[..., Desk]) -> None:
    """After a reset, a second delivery runs. The record describes only the second run."""
    calls = desk()
    key = calls.gate.run(CALL, succeed).key
    assert key is not None
    calls.gate.run(CALL, succeed)
    assert "completed runs" not in calls.story("evt-1").sentence
    calls.gate.store.reset([Reset("default", key.digest)])
    calls.gate.run(CALL, succeed)
    assert calls.story("evt-1").sentence.endswith(" The journal has 2 completed runs of this key.")


def test_an_operator_who_deleted_the_record_is_named(desk: Callable[..., Desk]) -> None:
    calls, at = desk(), wall() - 300_000_000
    write_rows(
        calls,
        ("processed", "", {"at": at, "attempt": 1, "reason": "Processed."}),
        ("operator", "reset", {"at": at + 120_000_000, "worker": "Ada"}),
    )
    story = calls.stories.of_key("default", KEY)
    assert story is not None
    assert story.sentence == (
        "The store has no record of evt-1 any more: the operator Ada reset its key 3 m ago."
        " The last decision, 5 m ago: Processed."
    )
    write_rows(calls, ("processed", "", {"at": at + 180_000_000, "attempt": 1}))
    later = calls.stories.of_key("default", KEY)
    assert later is not None
    assert "the record has expired, or an operator" in later.sentence


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────


def test_search_by_any_id(desk: Callable[..., Desk]) -> None:
    """An event is found by its id, entity, key and delivery id, also by the delivery id of a later delivery."""
    calls = desk()

    def message(message_id: str) -> dict[str, Any]:
        body = '{"id": "evt-1", "conversationId": "c-1"}'
        return {"messageId": message_id, "receiptHandle": "r", "body": body, "eventSource": "aws:sqs", "attributes": {}}

    for number in (1, 2):
        calls.gate.run_batch([{"Records": [message(f"message-{number}")]}], succeed)
    calls.gate.run({"id": "evt-2", "conversationId": "c-1"}, succeed)
    key = calls.story("evt-1").focus.key_text
    assert key is not None
    for term in ("evt-1", "message-1", "message-2", key):
        (found,) = find_events(calls.journal, term).events
        assert found.key.hex() == key, term
    assert [(each.latest.event_id, each.rows) for each in find_events(calls.journal, "c-1").events] == [
        ("evt-2", 1),
        ("evt-1", 2),
    ]
    assert calls.story("message-2").focus.status == "duplicate"
    assert find_events(calls.journal, "message-3").events == []
    assert find_events(calls.journal, "c-1", RowFilter(status="duplicate")).events[0].rows == 1
    cut = find_events(calls.journal, "c-1", most=2)
    assert (len(cut.events), cut.next is None) == (2, False)
    rest = find_events(calls.journal, "c-1", before=cut.next)
    assert ([each.latest.status for each in rest.events], rest.next) == (["processed"], None)


def test_an_unknown_key(desk: Callable[..., Desk]) -> None:
    calls = desk()
    calls.gate.run(CALL, succeed)
    assert calls.stories.of_key("default", b"x" * 16) is None
    (row,) = calls.journal.rows()
    assert calls.stories.of_key("other", row.key) is None

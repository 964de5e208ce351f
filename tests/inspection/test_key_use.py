"""The use of keys: strategies, duplicates, conflicts and events without a key, and what they mean."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, keys
from oncegate.clocks import wall
from oncegate.inspection.figures import read_totals
from oncegate.inspection.key_use import KeyUse, read_key_uses
from oncegate.journal import Journal, open_journal, open_recorder
from oncegate.journal.base import MINUTE
from oncegate.settings import load
from tests.console.pages.journals import row, write

HOUR = 60 * MINUTE


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/oncegate.journal.db"


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    with closing(open_journal(url)) as journal:
        yield journal


def uses(journal: Journal, every: int = HOUR) -> list[KeyUse]:
    until = (wall() // every + 1) * every
    since = until - 2 * every
    totals = read_totals(journal, load(environ={}), since, until, every)
    return read_key_uses(journal, totals, range(since, until, every), since, until, {"chosen": "content"})


def succeed(_event: Event) -> None: ...


def test_keys_of_real_events(tmp_path: Path, url: str, journal: Journal) -> None:
    """Gates write the rows: events with an id, without an id, with a conflict, and without a key."""
    recorder = open_recorder(url)
    store = f"sqlite:///{tmp_path}/oncegate.db"
    with (
        closing(Gate(store, observers=[recorder.of("auto")])) as auto,
        closing(Gate(store, namespace="strict", key=keys.event_id, observers=[recorder.of("strict")])) as strict,
        closing(
            Gate(
                store,
                namespace="loose",
                key=keys.event_id,
                on_missing_key="unguarded",
                observers=[recorder.of("loose")],
            )
        ) as loose,
    ):
        for _ in range(2):
            auto.run({"id": "evt-1", "type": "with.id"}, succeed)
        auto.run({"type": "without.id", "value": 1}, succeed)
        auto.run({"id": "evt-2", "type": "reused"}, succeed)
        auto.run({"id": "evt-2", "type": "reused", "value": 2}, succeed)
        strict.run({"type": "without.id"}, succeed)
        strict.run(b"not JSON", succeed)
        loose.run({"type": "without.id"}, succeed)
        assert recorder.close(10)
    found = {(use.place, use.type): use for use in uses(journal)}

    fine = found["auto", "with.id"]
    assert (fine.deliveries, fine.duplicates, fine.ratio, fine.strategies) == (2, 1, 0.5, Counter(event_id=2))
    assert fine.judgement.tone == "good"
    content = found["auto", "without.id"]
    assert content.strategies == Counter(content=1)
    assert (content.judgement.tone, content.judgement.name) == ("warn", "content as key")
    assert (found["auto", "reused"].conflicts, found["auto", "reused"].judgement.name) == (1, "weak key")
    refused = found["strict", "without.id"]
    assert (refused.refused, refused.unguarded, refused.judgement.name) == (1, 0, "no key")
    assert refused.reason is not None
    assert "the event_id key needs id, which the event does not have" in refused.reason
    assert found["strict", None].refused == 1
    assert (found["loose", "without.id"].unguarded, found["loose", "without.id"].judgement.name) == (1, "no key")


def test_the_worst_comes_first_and_then_the_most_deliveries(journal: Journal) -> None:
    now = wall()
    rows = [row(number, now, named="good.rare", strategy="auto") for number in range(2)]
    rows += [row(number, now, named="good.often", strategy="auto") for number in range(9)]
    rows += [row(20, now, named="content", strategy="auto.content")]
    rows += [row(21, now, "conflict", named="conflict", strategy="auto")]
    write(journal, rows)

    assert [use.type for use in uses(journal)] == ["conflict", "content", "good.often", "good.rare"]


def test_the_share_of_duplicates_over_time(journal: Journal) -> None:
    now = wall()
    rows = [row(1, now - HOUR, strategy="auto"), row(2, now - HOUR, strategy="auto")]
    rows += [row(1, now, "duplicate", "replay", strategy="auto", count=3), row(3, now, strategy="auto")]
    write(journal, rows)
    (use,) = uses(journal)

    assert use.ratios == [0.0, 0.75]


def test_events_without_a_key_are_counted_without_their_rows(url: str, journal: Journal) -> None:
    """Copies in a storm have one row, which is written later. The totals count them at once."""
    recorder = open_recorder(url)
    with closing(Gate("memory://", key=keys.event_id, observers=[recorder.of("strict")])) as strict:
        strict.run_batch([{"type": "without.id", "value": number} for number in range(40)], succeed)
        assert recorder.close(10)
    (use,) = uses(journal)

    assert use.refused == 40


def test_unguarded_events_with_a_key_have_a_key(journal: Journal) -> None:
    """Events also run unguarded while the store does not answer. Their totals are those of events with a key."""
    now = wall()
    rows = [row(number, now, "unguarded", strategy="auto") for number in range(5)]
    rows += [row(9, now, "unguarded", key=b"", strategy=""), row(10, now, "unguarded", strategy="unguarded")]
    write(journal, rows)
    (use,) = uses(journal)

    assert use.unguarded == 2


def test_content_is_a_sign_only_if_it_was_not_chosen(journal: Journal) -> None:
    now = wall()
    places = ("chosen", "default")
    write(journal, [row(number, now, place=place, strategy="content") for number, place in enumerate(places)])

    assert [(use.place, use.judgement.tone, use.judgement.name) for use in uses(journal)] == [
        ("default", "warn", "content as key"),
        ("chosen", "info", "content as key"),
    ]


def test_attempts_of_stored_events_have_no_strategy(tmp_path: Path, url: str, journal: Journal) -> None:
    recorder = open_recorder(url)
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", observers=[recorder.of("calls")])) as gate:
        gate.admit([{"id": "evt-1"}])
        gate.run_waiting(succeed)
        assert recorder.close(10)
    (use,) = uses(journal)

    assert {each.strategy for each in journal.rows()} == {"event_id", "kept"}
    assert (use.strategies, use.judgement.name) == (Counter(event_id=1), "good")


def test_messages_that_are_no_events_need_no_key(url: str, journal: Journal) -> None:
    """A heartbeat never gets a key. An event that is skipped because it is old has a key."""
    recorder = open_recorder(url)
    with closing(Gate("memory://", observers=[recorder.of("calls")])) as gate:
        gate.run({"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}, succeed)
        assert recorder.close(10)
    write(journal, [row(1, wall(), "skipped", place="calls", named="old", strategy="state_change")])
    found = {use.type: use for use in uses(journal)}

    heartbeat, old = found["channel.metadata"], found["old"]
    assert (heartbeat.deliveries, heartbeat.skipped, heartbeat.reason) == (1, 1, None)
    assert (heartbeat.judgement.tone, heartbeat.judgement.name) == ("good", "skipped")
    assert (old.deliveries, old.skipped, old.judgement.name) == (1, 0, "good")


def test_no_rows(journal: Journal) -> None:
    assert uses(journal) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "good"),
        ({"strategies": Counter()}, "unknown"),
        ({"strategies": Counter(), "skipped": 99}, "unknown"),
        ({"strategies": Counter(), "skipped": 100}, "skipped"),
        ({"duplicates": 80}, "many copies"),
        ({"duplicates": 50}, "good"),
        ({"deliveries": 4, "duplicates": 3}, "good"),
        ({"strategies": Counter({"auto": 99, "auto.content": 1})}, "content as key"),
        ({"strategies": Counter(content=9), "setting": "content", "duplicates": 80}, "many copies"),
        ({"refused": 1, "duplicates": 80}, "no key"),
        ({"unguarded": 1, "refused": 1}, "no key"),
        ({"conflicts": 1, "unguarded": 1}, "weak key"),
    ],
)
def test_the_worst_sign_decides(changes: dict[str, object], name: str) -> None:
    use = KeyUse("crm", "call.ended", deliveries=100, strategies=Counter(auto=100))
    judgement = replace(use, **changes).judgement

    assert judgement.name == name
    assert judgement.sentence.endswith(".")

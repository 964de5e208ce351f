"""Copies: which deliveries belong together, and the conclusion about each group."""

import json
from pathlib import Path
from typing import Any

import pytest

from oncegate import keys, read
from oncegate.cli import exit_codes
from oncegate.inspection.copies import (
    CopyGroup,
    FileSightings,
    Sighting,
    conclusion,
    groups_of_deliveries,
    groups_of_records,
)
from oncegate.stores.memory import MemoryStore
from tests.cli.conftest import Run

CALL = {"id": "1", "type": "call", "conversationId": "c", "state": "held", "timestamp": "2026-02-03T04:05:06Z"}


def groups(strategy: keys.Strategy, *documents: Any) -> list[CopyGroup]:
    look = FileSightings(MemoryStore())
    found = []
    for document in documents:
        (event,) = read(document)
        if (sighting := look.add(event, "default", strategy(event), None)) is not None:
            found.append(sighting)
    return groups_of_deliveries(found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "2 deliveries of the same content: retries; they have one key, and"),
        (
            {"id": "2", "timestamp": "2026-02-03T04:05:06.0004Z"},
            "2 deliveries less than 1 ms apart, different content, same state (held): double emission; their keys",
        ),
        ({"id": "2"}, "2 deliveries with the same event time, different content, same state (held): double emission"),
        ({"n": 1}, "2 deliveries with the same event time, different content for one key: conflict, not retries."),
        ({"id": "2", "timestamp": "2026-02-03T04:05:07Z"}, None),
        ({"id": "2", "state": "connected"}, None),
        ({"id": "2", "conversationId": "d"}, None),
    ],
)
def test_two_deliveries(change: dict[str, Any], sentence: str | None) -> None:
    """Content, state, time and key decide what two deliveries are."""
    found = groups(keys.auto, CALL, CALL | change)
    assert [each.sentence.startswith(sentence or "") for each in found] == ([] if sentence is None else [True])


def test_a_strategy_that_merges_on_purpose() -> None:
    """Events that share a key only because the strategy merges different content are not copies."""
    assert groups(keys.once_per("survey", "conversationId"), CALL, CALL | {"id": "2", "state": "connected"}) == []


def test_a_key_that_binds_the_content() -> None:
    """A double emission under one binding key conflicts, and the sentence says so."""
    (group,) = groups(keys.fields("conversationId", "state", "timestamp"), CALL, CALL | {"id": "2"})
    assert group.sentence.endswith(
        "double emission; their common key binds the content, so they conflict; the key strategy"
        ' state_change("500ms") would join them.'
    )


def test_a_conflict_beside_a_re_emission() -> None:
    """Only the deliveries with the conflicting key count as the conflict."""
    about = (("default", "plain", "c"), "call", 1_000)
    seen = [
        Sighting(1, *about, "a", b"x", b"key-1", binds=True),
        Sighting(2, *about, "a", b"y", b"key-1", binds=True),
        Sighting(3, *about, "b", b"x", b"key-2"),
    ]
    (group,) = groups_of_records(seen)
    assert group.sentence == (
        "2 of 3 records with the same event time, different content for one key: conflict, not retries. The record of a"
        " conflict has another key than the original record."
    )


def test_a_replay_that_runs() -> None:
    """With on_replay="run" a replay has another key on purpose, so no other strategy is recommended."""
    about = (("default", "plain", "c"), "call", 1_000)
    seen = [
        Sighting(1, *about, "a", b"x", b"key-1"),
        Sighting(2, *about, "a", b"x", b"key-1"),
        Sighting(3, *about, "a", b"x", b"key-2", replayed=True),
    ]
    (group,) = groups_of_deliveries(seen)
    assert group.sentence == (
        "3 deliveries of the same content: retries and replay from an archive; the replay has another key because of"
        " on_replay."
    )


def test_the_most_important_group_first() -> None:
    """A double emission with different keys is reported before retries, however late the retries are."""
    later = CALL | {"id": "3", "conversationId": "d", "timestamp": "2026-02-03T05:05:06Z"}
    found = groups(keys.auto, later, later, CALL, CALL | {"id": "2"})
    assert [each.verdict for each in found] == ["double emission", "retries"]
    assert conclusion(found, "none").endswith("would join them (1 of 2 groups of copies).")
    assert conclusion([], "none") == "none"


def test_simulated_traffic(oncegate: Run, tmp_path: Path) -> None:
    """In simulated traffic each group has all deliveries of one event, and each echo is a double emission."""
    shares = ("--echo", "0.3", "--conflict", "0.1", "--reemit", "0.2", "--replay", "0.1", "--rewrap", "0.2")
    sent = ("--events", "300", "--rate", "100000", "--seed", "11", "--to", "file://f.jsonl", "--truth", "truth.jsonl")
    assert oncegate("simulate", *shares, *sent)[0] == exit_codes.OK
    truth = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    deliveries = [each for each in truth if each["line"] == "delivery"]
    documents = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    expected: dict[str, list[int]] = {}
    for number, each in enumerate(deliveries, 1):
        expected.setdefault(each["event"], []).append(number)
    found = groups(keys.auto, *documents)
    numbers = [[each.number for each in group.sightings] for group in found]
    assert sorted(numbers) == sorted(each for each in expected.values() if len(each) > 1)
    kinds = [{deliveries[number - 1]["kind"] for number in group} for group in numbers]
    for kind, group in zip(kinds, found, strict=True):
        assert ("state-echo" in kind) == (group.verdict == "double emission")
        assert ("conflict" in kind) == (group.verdict == "conflict") or "state-echo" in kind
    assert {group.verdict for group in found} >= {"double emission", "conflict", "re-emission", "retries"}


def test_unknown_content() -> None:
    """A record whose content is not known is no copy of another record."""
    seen = [Sighting(n, ("default", "plain", "c"), "call", 1_000, str(n), b"") for n in (1, 2)]
    assert groups_of_records(seen) == []


def test_the_same_content_at_another_time() -> None:
    """Equal content is not a copy if the event times are far apart: the body of some events has no time."""
    seen = [Sighting(n, ("default", "genesys", "q"), "joined", n * 1_000_000, str(n), b"x") for n in (1, 2)]
    assert groups_of_records(seen) == []
    near = [Sighting(n, ("default", "genesys", "q"), "joined", n, str(n), b"x", bytes([n])) for n in (1, 2)]
    (group,) = groups_of_records(near)
    assert (group.verdict, group.separate) == ("re-emission", True)

"""The analysis against recordings whose truth is known: the simulator knows which deliveries are which event."""

from collections import Counter
from pathlib import Path

import pytest

from oncegate.analysis.analysis import Analysis
from oncegate.analysis.delivery_rows import RecordedDelivery, Rows
from oncegate.inspection.strategy_comparison import NamedStrategy, StrategyComparison
from oncegate.settings.parsing import strategy_of
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, PlannedDelivery, deliveries
from tests.analysis import analyzed

CERTAIN = ("redelivery", "re-emission", "replay")

# Every kind of copy, at several rates, with several seeds: name → events, seed, and what happens to them.
RECORDINGS = {
    "no copies": Plan(events=300, seed=1, copy_options=CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0)),
    "redeliveries": Plan(events=300, seed=2, copy_options=CopyOptions(copies=(2, 4), reemit=0, rewrap=0, replay=0)),
    "re-emissions": Plan(events=300, seed=3, copy_options=CopyOptions(copies=(1, 1), reemit=0.5, rewrap=0.5)),
    "replays": Plan(events=300, seed=4, copy_options=CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0.6)),
    "few echoes": Plan(events=300, seed=5, copy_options=CopyOptions(echo=0.05)),
    "many echoes": Plan(events=300, seed=6, copy_options=CopyOptions(echo=0.8)),
    "wide echoes": Plan(events=300, seed=7, copy_options=CopyOptions(echo=0.4, window=4_000_000)),
    "conflicts": Plan(events=300, seed=8, copy_options=CopyOptions(conflict=0.5)),
    "reordered": Plan(events=300, seed=9, rate=1_000, delay=2_000_000, copy_options=CopyOptions(echo=0.2)),
    "equal bodies": Plan(events=300, seed=10, untimed=0.8, copy_options=CopyOptions(reemit=0.3)),
    "everything": Plan(
        events=600,
        seed=11,
        untimed=0.5,
        delay=1_000_000,
        rate=2_000,
        copy_options=CopyOptions(reemit=0.3, rewrap=0.3, replay=0.2, echo=0.3, conflict=0.2, invalid=0.1),
    ),
    "another seed": Plan(
        events=600, seed=12, untimed=0.2, delay=3_000_000, copy_options=CopyOptions(echo=0.1, conflict=0.05)
    ),
}


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda name: name.replace(" ", "-"))
def recording(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[PlannedDelivery], Analysis]:
    sent = list(deliveries(RECORDINGS[request.param]))
    return sent, analyzed([each.copy.raw for each in sent], tmp_path_factory.mktemp("analysis"))


def readable(sent: list[PlannedDelivery]) -> list[PlannedDelivery]:
    return [each for each in sent if each.copy.kind != "invalid"]


def test_the_recommended_key_merges_no_two_different_events(recording: tuple[list[PlannedDelivery], Analysis]) -> None:
    """Under the recommended key, two deliveries with one key are always one event of the simulator."""
    sent, analysis = recording
    events: dict[int, set[str]] = {}
    for each, first in keyed(sent, analysis.recommended.name):
        assert each.original is not None
        events.setdefault(first, set()).add(each.original.name)
    assert all(len(names) == 1 for names in events.values())


def test_the_recommended_key_catches_certain_duplicates(recording: tuple[list[PlannedDelivery], Analysis]) -> None:
    """At least 99 % of the copies that are certainly copies have the key of an earlier delivery of their event."""
    sent, analysis = recording
    caught = total = 0
    known: dict[str, set[int]] = {}
    for each, first in keyed(sent, analysis.recommended.name):
        assert each.original is not None
        if each.copy.kind not in ("first", *CERTAIN):
            continue
        firsts = known.setdefault(each.original.name, set())
        if firsts:  # the first delivery to arrive may be a copy
            total += 1
            caught += first in firsts
        firsts.add(first)
    assert caught >= 0.99 * total


def keyed(sent: list[PlannedDelivery], name: str) -> list[tuple[PlannedDelivery, int]]:
    """Each delivery, and the number of the first delivery with its key, as a gate with this strategy would decide."""
    comparison = StrategyComparison([NamedStrategy(name, strategy_of(name, ""))])
    found = []
    for number, each in enumerate(readable(sent)):
        comparison.add(each.event)
        first = comparison.columns[0].firsts[-1]
        found.append((each, -number if first is None else first))
    return found


def test_certain_copies_are_copies(recording: tuple[list[PlannedDelivery], Analysis]) -> None:
    """Deliveries that the analysis calls certainly one event are one event of the simulator."""
    sent, _ = recording
    rows, events = Rows(), dict[str, set[str]]()
    place = list(rows.columns).index("certain")
    for number, each in enumerate(readable(sent)):
        assert each.original is not None
        certain = rows.line(RecordedDelivery(number, 0, 0, 0, 0, each.event)).split(",")[place]
        events.setdefault(certain, set()).add(each.original.name)
    assert all(len(names) == 1 for names in events.values())


def test_the_counts_are_those_of_the_simulator(recording: tuple[list[PlannedDelivery], Analysis]) -> None:
    """The analysis counts deliveries, unreadable documents, certain copies, echoes and conflicts exactly."""
    sent, analysis = recording
    kinds = Counter(each.copy.kind for each in sent)
    assert analysis.read.unreadable == kinds["invalid"]
    assert analysis.traffic.deliveries == len(readable(sent))
    assert analysis.traffic.conflicts == kinds["conflict"]
    copies = sum(count for kind, count in kinds.items() if kind in (*CERTAIN, "state-echo"))
    assert analysis.traffic.duplicates + analysis.traffic.inferred == copies
    assert analysis.of("auto").missed == 0


def test_the_tutorial_keys_lose_events(recording: tuple[list[PlannedDelivery], Analysis]) -> None:
    """In each recording, the conversation with the time loses events; this check would notice an analysis that finds
    no fault with any key."""
    _, analysis = recording
    assert analysis.of("entity + time").wrong > 0
    assert analysis.of("entity").wrong > analysis.of("entity + time").wrong


def test_equal_bodies_without_a_time_are_not_merged(tmp_path: Path) -> None:
    """A user joins a queue twice. The bodies are equal, so a content key may lose the second event; the analysis says
    so and recommends a key that keeps both."""
    sent = list(deliveries(RECORDINGS["equal bodies"]))
    analysis = analyzed([each.copy.raw for each in sent], tmp_path)
    originals = {each.original.name: each.original for each in sent if each.original}
    bodies = Counter(each.event.content_hash for each in originals.values() if "joined" in str(each.document))
    repeated = sum(count - 1 for count in bodies.values())
    assert analysis.of("content").doubtful == analysis.traffic.possible == repeated > 5
    assert analysis.recommended.name == "auto"
    assert analysis.recommended.doubtful == 0

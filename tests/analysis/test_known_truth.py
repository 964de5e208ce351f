"""The analysis against recordings whose truth is known: the simulator knows which deliveries are which event."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

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
    "no copies": Plan(events=200, seed=1, copy_options=CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0)),
    "redeliveries": Plan(events=200, seed=2, copy_options=CopyOptions(copies=(2, 4), reemit=0, rewrap=0, replay=0)),
    "re-emissions": Plan(events=200, seed=3, copy_options=CopyOptions(copies=(1, 1), reemit=0.5, rewrap=0.5)),
    "replays": Plan(events=200, seed=4, copy_options=CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0.6)),
    "few echoes": Plan(events=200, seed=5, copy_options=CopyOptions(echo=0.05)),
    "many echoes": Plan(events=200, seed=6, copy_options=CopyOptions(echo=0.8)),
    "wide echoes": Plan(events=200, seed=7, copy_options=CopyOptions(echo=0.4, window=4_000_000)),
    "conflicts": Plan(events=200, seed=8, copy_options=CopyOptions(conflict=0.5)),
    "reordered": Plan(events=200, seed=9, rate=1_000, delay=2_000_000, copy_options=CopyOptions(echo=0.2)),
    "equal bodies": Plan(events=200, seed=10, untimed=0.8, copy_options=CopyOptions(reemit=0.3)),
    "everything": Plan(
        events=400,
        seed=11,
        untimed=0.5,
        delay=1_000_000,
        rate=2_000,
        copy_options=CopyOptions(reemit=0.3, rewrap=0.3, replay=0.2, echo=0.3, conflict=0.2, invalid=0.1),
    ),
    "another seed": Plan(
        events=400, seed=12, untimed=0.2, delay=3_000_000, copy_options=CopyOptions(echo=0.1, conflict=0.05)
    ),
}


def readable(sent: list[PlannedDelivery]) -> list[PlannedDelivery]:
    return [each for each in sent if each.copy.kind != "invalid"]


def keyed(sent: list[PlannedDelivery], name: str) -> Iterator[tuple[PlannedDelivery, str, int]]:
    """Each delivery, the name of its event, and the number of the first delivery with its key, as a gate with this
    strategy would decide."""
    comparison = StrategyComparison([NamedStrategy(name, strategy_of(name, ""))])
    for number, each in enumerate(readable(sent)):
        assert each.original is not None
        comparison.add(each.event)
        first = comparison.columns[0].firsts[-1]
        yield each, each.original.name, -number if first is None else first


@pytest.mark.parametrize("name", RECORDINGS)
def test_known_recordings(name: str, tmp_path: Path) -> None:
    """The recommended key merges no two different events and catches at least 99 % of the certain copies; certain
    copies are copies; the counts are those of the simulator; and the keys of tutorials lose events."""
    check(RECORDINGS[name], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_random_recordings(seed: int, tmp_path: Path) -> None:
    """The same for recordings with random shares, rates, delays and windows."""
    random = Random(seed)  # noqa: S311  # not used for secrets
    options = CopyOptions(
        copies=(1, random.randint(1, 4)),
        reemit=random.random() / 2,
        rewrap=random.random() / 2,
        replay=random.random() / 2,
        echo=random.choice([0, 0.1, 0.5, 1]),
        conflict=random.choice([0, 0, 0.2]),
        invalid=random.choice([0, 0.1]),
        window=random.choice([100_000, 500_000, 2_000_000, 5_000_000]),
    )
    rate, delay, untimed = random.choice([50, 500, 5_000]), random.choice([0, 10**6, 10**7]), random.choice([0, 0.3, 1])
    plan = Plan(events=1_500, seed=seed, rate=rate, delay=delay, untimed=untimed, copy_options=options)
    check(plan, tmp_path)


def check(plan: Plan, folder: Path) -> None:
    sent = list(deliveries(plan))
    analysis = analyzed([each.copy.raw for each in sent], folder)
    check_the_recommended_key(sent, analysis.recommended.name)
    check_certain_copies(sent)
    check_counts(sent, analysis)
    assert analysis.of("entity + time").wrong > 0
    assert analysis.of("entity").wrong > analysis.of("entity + time").wrong


def check_the_recommended_key(sent: list[PlannedDelivery], name: str) -> None:
    events: dict[int, set[str]] = {}
    known: dict[str, set[int]] = {}
    caught = total = 0
    for each, event, first in keyed(sent, name):
        events.setdefault(first, set()).add(event)
        if each.copy.kind in ("first", *CERTAIN):
            firsts = known.setdefault(event, set())
            total += bool(firsts)  # the first delivery to arrive may be a copy
            caught += first in firsts
            firsts.add(first)
    assert all(len(names) == 1 for names in events.values())
    assert caught >= 0.99 * total


def check_certain_copies(sent: list[PlannedDelivery]) -> None:
    rows, events = Rows(), dict[str, set[str]]()
    place = list(rows.columns).index("certain")
    for number, each in enumerate(readable(sent)):
        assert each.original is not None
        certain = rows.line(RecordedDelivery(number, 0, 0, 0, 0, each.event)).split(",")[place]
        events.setdefault(certain, set()).add(each.original.name)
    assert all(len(names) == 1 for names in events.values())


def check_counts(sent: list[PlannedDelivery], analysis: Analysis) -> None:
    kinds = Counter(each.copy.kind for each in sent)
    assert analysis.read.unreadable == kinds["invalid"]
    assert analysis.traffic.deliveries == len(readable(sent))
    assert analysis.traffic.conflicts == kinds["conflict"]
    copies = sum(count for kind, count in kinds.items() if kind in (*CERTAIN, "state-echo"))
    assert analysis.traffic.duplicates + analysis.traffic.inferred == copies
    found = Counter[str]()
    for each in analysis.types:
        for copy in each.copies:
            found[copy.kind] += copy.count
    if not sent_out_of_order(sent):
        assert found == Counter({kind: kinds[kind] for kind in found})  # type: ignore[index]
    assert analysis.of("auto").missed == 0


def sent_out_of_order(sent: list[PlannedDelivery]) -> bool:
    """Whether a copy arrives before the first delivery. Then another delivery is the first, and kinds differ."""
    return any(one.number > other.number for one, other in pairwise(sent))


@pytest.mark.parametrize("name", ["entity + time", "content"])
def test_the_check_finds_a_wrong_key(name: str) -> None:
    """The check itself fails for the key of a tutorial, and for the content if bodies are equal."""
    sent = list(deliveries(RECORDINGS["equal bodies"]))
    with pytest.raises(AssertionError):
        check_the_recommended_key(sent, {"entity + time": 'fields("entity", "occurred_at")'}.get(name, name))


def test_equal_bodies_without_a_time_are_not_merged(tmp_path: Path) -> None:
    """A user joins a queue twice. The bodies are equal, so a content key may lose the second event; the analysis says
    so and recommends a key that keeps both."""
    sent = list(deliveries(RECORDINGS["equal bodies"]))
    analysis = analyzed([each.copy.raw for each in sent], tmp_path)
    originals = {each.original.name: each.original for each in sent if each.original}
    bodies = Counter(each.event.content_hash for each in originals.values() if "joined" in str(each.document))
    repeated = sum(count - 1 for count in bodies.values())
    assert analysis.of("content").doubtful == analysis.traffic.possible == repeated > 3
    assert analysis.recommended.name == "auto"
    assert analysis.recommended.doubtful == 0

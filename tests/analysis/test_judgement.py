"""Which of several keys is the best."""

from typing import Any

import pytest

from oncegate.analysis.judgement import Half, KeyJudgement, best, total


def judged(name: str, origin: Any = "oncegate", **counts: int) -> KeyJudgement:
    names = ("keyless", "caught", "missed", "inferred", "doubtful", "conflicts", "wrong")
    numbers: dict[str, Any] = {each: counts.get(each, 0) for each in names}
    return KeyJudgement(
        name=name, origin=origin, deliveries=10, halves=(Half(1, 0), Half(2, counts.get("wrong", 0))), **numbers
    )


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (judged("content", missed=5), judged("auto", wrong=1)),
        (judged("content", missed=5), judged("auto", keyless=1)),
        (judged("event_id", missed=5), judged("content", doubtful=1)),
        (judged("content"), judged("auto", missed=1, inferred=9)),
        (judged('first(state_change("1s"), auto)', inferred=1), judged("auto")),
        (judged("auto"), judged("content")),
        (judged("auto", conflicts=3), judged("content")),
        (judged("auto"), judged('state_change("1s")', conflicts=1, inferred=5)),
        (judged("content"), judged('fields("a")', "fields")),
        (judged('first(state_change("1s"), auto)'), judged('first(state_change("9s"), auto)', "yours")),
        (judged("auto"), judged("entity", "tutorial", inferred=9)),
    ],
)
def test_the_order(better: KeyJudgement, worse: KeyJudgement) -> None:
    """Losing nothing comes first, then catching certain copies, then probable copies, then simplicity. Other content
    under a key that binds content becomes a conflict; other strategies drop it. A key of a tutorial is never chosen."""
    assert best([worse, better]) == best([better, worse]) == better


def test_the_sum_of_types() -> None:
    """The judgement for all types is the sum of those of each type."""
    found = total([judged("auto", caught=3, wrong=1), judged("auto", caught=4)])
    assert (found.deliveries, found.caught, found.wrong, found.halves) == (20, 7, 1, (Half(2, 0), Half(4, 1)))
    assert found.presence == 1.0

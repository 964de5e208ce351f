"""Comparing key strategies without files."""

import pytest

from oncegate import keys, read
from oncegate.inspection.strategy_comparison import NamedStrategy, StrategyComparison, advice, listed


def compared(*documents: object) -> StrategyComparison:
    comparison = StrategyComparison([NamedStrategy("auto", keys.auto), NamedStrategy("content", keys.content)])
    for document in documents:
        (event,) = read(document)
        comparison.add(event)
    return comparison


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([1], "1"),
        ([1, 2], "1 and 2"),
        ([1, 2, 3], "1, 2 and 3"),
        (list(range(1, 11)), "1, 2, 3, 4, 5, 6, 7, 8 and 2 more"),
    ],
)
def test_listed(numbers: list[int], text: str) -> None:
    """Numbers are listed as in a sentence, and a long list is cut."""
    assert listed(numbers) == text


def test_groups() -> None:
    """Events with one key are a group; a conflict in it is marked, and the strategy that separates them is named."""
    comparison = compared({"id": 1, "n": 1}, {"id": 1, "n": 1}, {"id": 1, "n": 2})
    auto, content = comparison.columns
    (group,) = auto.groups
    assert (group.events, [each.conflict for each in group.merged]) == ([1, 2, 3], [False, True])
    assert [each.events for each in content.groups] == [[1, 2]]
    assert advice(comparison).endswith("; content treats 1 and 3 as different events.")


def test_what_is_not_counted() -> None:
    """An unreadable event has no key and is not counted, and later events keep their numbers."""
    comparison = compared({"id": 1}, {}, {"id": 1})
    assert comparison.count == 2
    assert comparison.columns[0].groups[0].events == [1, 3]

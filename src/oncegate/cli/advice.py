"""Advice: one sentence on what sets the strategies apart, for somebody who has to choose one."""

from collections.abc import Sequence

from oncegate.cli.comparing import Column, Comparison, Group

_MOST_LISTED = 8

_NONE = "There is no event in it."
_ONE = "That is one event: give others of its kind, or copies of it, to see what each strategy makes of them."


def listed(numbers: Sequence[int]) -> str:
    """Numbers for a sentence: `1`, `1 and 2`, `1, 2 and 3`."""
    if len(numbers) > _MOST_LISTED:
        return f"{', '.join(map(str, numbers[:_MOST_LISTED]))} and {len(numbers) - _MOST_LISTED} more"
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def advice(comparison: Comparison) -> str:
    """How the default takes the events, and each strategy that takes them otherwise."""
    if comparison.count < 2:
        return _ONE if comparison.count else _NONE
    auto, *others = comparison.columns
    found = [said for column in others if (said := _against(column, auto))]
    rest = found or ["no other strategy that has a key for them takes them otherwise"]
    return f"{'; '.join([_of_default(auto, comparison.count), *rest])}."


def _of_default(auto: Column, count: int) -> str:
    groups = auto.groups
    if not groups:
        return f"{auto.name} keeps all {count} apart"
    unequal = [group for group in groups if not group.same_content]
    if unequal:
        return f"{auto.name} takes {listed(unequal[0].events)} for one, which differ in content{_more(unequal)}"
    if len(groups) == 1:
        return f"{auto.name} takes {listed(groups[0].events)} for one event"
    return f"{auto.name} finds {auto.distinct} events in these {count}"


def _against(column: Column, auto: Column) -> str | None:
    """What the strategy takes for one that the default does not, and what it keeps apart."""
    merges = [group for group in column.groups if _is_divided(group, auto)]
    splits = [group for group in auto.groups if _is_divided(group, column)]
    said = [_merging(merges)] if merges else []
    if splits:
        said.append(f"would keep {listed(_parted(splits[0], column))} apart{_more(splits)}")
    if column.own and column.missing:
        said.append(f"has no key for {listed(column.keyless)}")
    return f"{column.name} {', and '.join(said)}" if said else None


def _merging(groups: list[Group]) -> str:
    """The worst of them: what differs in content."""
    worst = next((group for group in groups if not group.same_content), groups[0])
    what = "say the same" if worst.same_content else "differ in content"
    return f"would merge {listed(worst.events)}, which {what}{_more(groups)}"


def _more(groups: list[Group]) -> str:
    return f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""


def _is_divided(group: Group, column: Column) -> bool:
    """Whether a column keeps events of a group apart; those without a key there say nothing."""
    return len(_parted(group, column)) > 1


def _parted(group: Group, column: Column) -> list[int]:
    """Of the events of a group, the first of each part that a column keeps apart."""
    parts: dict[int, int] = {}
    for number in group.events:
        if (first := column.firsts[number - 1]) is not None:
            parts.setdefault(first, number)
    return list(parts.values())

"""All rules, by names such as `queue.visibility`: each a function from facts to what it has to say."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import aws, function, queue, rule, settings, store, table

Judge: TypeAlias = Callable[[Facts], Iterator[Finding]]

_ORDER: Final = ("error", "warning", "note")
RULES: Final[Mapping[str, Judge]] = {
    f"{module.__name__.rpartition('.')[2]}.{judge.__name__}": judge
    for module in (aws, settings, store, table, queue, function, rule)
    for judge in module.RULES
}


def judged(facts: Facts) -> list[tuple[str, Finding]]:
    """What all rules say, each with the rule's name, the worst first."""
    found = [(name, finding) for name, judge in RULES.items() for finding in judge(facts)]
    return sorted(found, key=lambda each: _ORDER.index(each[1].severity))

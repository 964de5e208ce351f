"""List all rules by name, such as `queue.visibility`. A rule is a function that takes facts and yields findings."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import aws, function, queue, rule, settings, store, table
from oncegate.durations import times

Rule: TypeAlias = Callable[[Facts], Iterator[Finding]]

# The facts that a rule needs. If a rule has no entry, the entry for its module applies.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "store": ("store",),
    "table": ("table",),
    "queue": ("queue",),
    "function": ("function",),
    "rule": ("rules",),
    "settings.replays": ("archives",),
    "settings.signed": ("routes",),
    "store.eviction": ("redis",),
    "store.persistence": ("redis",),
    "store.clock": ("clocks",),
    "queue.visibility": ("queue", "function"),
    "queue.policy": ("queue", "rules"),
    "function.failures": ("function", "rules"),
    "function.retries": ("function", "rules"),
    "function.permission": ("function", "rules"),
}
_FACT_NAMES: Final = {
    "store": "store",
    "table": "table",
    "queue": "queue",
    "function": "function",
    "rules": "EventBridge rule",
    "routes": "route",
    "archives": "archive",
    "redis": "Redis server",
    "clocks": "other clock",
}
_ORDER: Final = ("error", "warning", "note")
RULES: Final[Mapping[str, Rule]] = {
    f"{module.__name__.rpartition('.')[2]}.{check.__name__}": check
    for module in (aws, settings, store, table, queue, function, rule)
    for check in module.RULES
}


def check(facts: Facts) -> list[tuple[str, Finding]]:
    """Return the findings of all rules, each with the name of its rule. Errors come first, then warnings, then
    notes."""
    found = [(name, finding) for name, rule_ in RULES.items() for finding in rule_(facts)]
    return sorted(found, key=lambda pair: _ORDER.index(pair[1].severity))


def unchecked(facts: Facts) -> dict[str, str]:
    """Return the rules that could not be checked, each with the name of the missing part."""
    missing = {name: [need for need in _needs(name) if not getattr(facts, need)] for name in RULES}
    return {name: _FACT_NAMES[needs[0]] for name, needs in missing.items() if needs}


def _needs(rule_name: str) -> tuple[str, ...]:
    return _NEEDS.get(rule_name, _NEEDS.get(rule_name.partition(".")[0], ()))


def summary(facts: Facts, found: Sequence[tuple[str, Finding]]) -> str:
    """Return how many findings there are, and how many rules could not be checked, and why."""
    counts = Counter(finding.severity for _, finding in found)
    missing = Counter(unchecked(facts).values())
    text = f"No problem found: {len(RULES) - missing.total()} of {len(RULES)} rules were checked."
    if found:
        text = f"{', '.join(times(counts[severity], severity) for severity in _ORDER if counts[severity])}."
    if not missing:
        return text
    named = ", ".join(f"no {part} ({count})" for part, count in missing.items())
    return f"{text} {times(missing.total(), 'rule')} could not be checked: {named}."

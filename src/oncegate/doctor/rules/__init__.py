"""All rules, by names such as `queue.visibility`: each a function from facts to what it has to say."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import aws, function, queue, rule, settings, store, table

Judge: TypeAlias = Callable[[Facts], Iterator[Finding]]

# What a rule speaks of, by the names of facts: that of its module, or what is said of the rule itself.
_ABOUT: Final[Mapping[str, tuple[str, ...]]] = {
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
_SPOKEN: Final = {
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
RULES: Final[Mapping[str, Judge]] = {
    f"{module.__name__.rpartition('.')[2]}.{judge.__name__}": judge
    for module in (aws, settings, store, table, queue, function, rule)
    for judge in module.RULES
}


def unasked(facts: Facts) -> dict[str, str]:
    """The rules that had nothing to look at, each with what there was none of."""
    missing = {name: [about for about in _about(name) if not getattr(facts, about)] for name in RULES}
    return {name: _SPOKEN[lacks[0]] for name, lacks in missing.items() if lacks}


def _about(rule: str) -> tuple[str, ...]:
    return _ABOUT.get(rule, _ABOUT.get(rule.partition(".")[0], ()))


def judged(facts: Facts) -> list[tuple[str, Finding]]:
    """What all rules say, each with the rule's name, the worst first."""
    found = [(name, finding) for name, judge in RULES.items() for finding in judge(facts)]
    return sorted(found, key=lambda each: _ORDER.index(each[1].severity))

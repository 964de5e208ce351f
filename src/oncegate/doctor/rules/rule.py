"""Rules for the rules of EventBridge, and where they send to."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from oncegate.doctor.facts import Facts, RuleFacts, TargetFacts, queue_beside
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.doctor.policies import repaired
from oncegate.durations import spoken
from oncegate.infra.rights import allow_rule, document
from oncegate.infra.wanted import GENESYS, misses_partner

PARTNER: Final = "aws.partner/"
_LEAST_AGE: Final = 3_600
_SECOND: Final = 1_000_000
_DELIVERY: Final = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
_WHOLE: Final = {"Input": None, "InputPath": None, "InputTransformer": None}
# What an event of Genesys has in `detail`; all that it is about is further in, in `eventBody`.
_DETAIL: Final = frozenset({"topicName", "version", "userId", "eventBody", "metadata", "timestamp"})


def enabled(facts: Facts) -> Iterator[Finding]:
    """The rule is on."""
    for rule in facts.rules:
        if not rule.enabled:
            yield error(
                facts.named(rule),
                "it is disabled",
                "Events that come meanwhile are dropped; nobody keeps them.",
                facts.aws("events enable-rule", name=rule.name, event_bus_name=rule.bus),
            )


def pattern(facts: Facts) -> Iterator[Finding]:
    """The pattern can match what comes over its bus."""
    for rule in facts.rules:
        found = _unmatched(rule)
        if found is not None:
            yield error(
                facts.named(rule),
                found,
                "The rule takes nothing, and nothing says so: events that no rule takes are dropped.",
                facts.aws(
                    "events put-rule", name=rule.name, event_bus_name=rule.bus, event_pattern=json.dumps(GENESYS)
                ),
            )


def _unmatched(rule: RuleFacts) -> str | None:
    """Why the pattern matches nothing; None if it may."""
    if rule.pattern is None:
        return None
    if strange := _strange_members(rule):
        return f"its pattern asks for detail.{strange[0]}, but events of Genesys have that in detail.eventBody"
    if rule.matches is False or (rule.matches is None and not _source_fits(rule)):
        return f"its pattern {json.dumps(rule.pattern)} matches no sample event of Genesys on the bus {rule.bus}"
    return None


def _strange_members(rule: RuleFacts) -> list[str]:
    detail = (rule.pattern or {}).get("detail")
    return sorted(set(detail) - _DETAIL) if is_of_genesys(rule.bus, rule.pattern) and isinstance(detail, dict) else []


def _source_fits(rule: RuleFacts) -> bool:
    """Every event on a partner's bus has the name of the bus as its source."""
    sources = (rule.pattern or {}).get("source")
    if not rule.bus.startswith(PARTNER) or not isinstance(sources, list):
        return True
    return any(_fits(wanted, rule.bus) for wanted in sources)


def _fits(wanted: Any, source: str) -> bool:
    if isinstance(wanted, str):
        return wanted == source
    prefix = wanted.get("prefix") if isinstance(wanted, Mapping) else None
    return source.startswith(prefix) if isinstance(prefix, str) else True


def is_of_genesys(bus: str, pattern: Mapping[str, Any] | None) -> bool:
    """Whether the rule is meant for what Genesys itself sends. What others forward may have any source and shape."""
    asked = json.dumps((pattern or {}).get("source", ""))
    return f"{PARTNER}genesys" in bus or f"{PARTNER}genesys" in asked


def bus(facts: Facts) -> Iterator[Finding]:
    """Events of Genesys are looked for where they arrive."""
    for rule in facts.rules:
        if misses_partner(rule.bus, rule.pattern):
            yield error(
                facts.named(rule),
                "it waits for events of Genesys on the default bus, and none arrives there",
                "They arrive on a bus with the name of the partner's source: run oncegate infra up with"
                " --partner-source, or move the rule to the bus that they are forwarded to.",
                facts.aws("events list-event-sources"),
            )
        elif _is_elsewhere(rule):
            yield note(
                facts.named(rule),
                f"it looks for events of Genesys on the bus {rule.bus}",
                "They arrive on a bus with the name of the partner's source; here only if something forwards them.",
                facts.aws("events list-event-sources"),
            )


def _is_elsewhere(rule: RuleFacts) -> bool:
    return not rule.bus.startswith(PARTNER) and "genesys" in json.dumps((rule.pattern or {}).get("source", ""))


def target(facts: Facts) -> Iterator[Finding]:
    """The rule sends to something, and that exists."""
    for rule in facts.rules:
        if not rule.targets:
            yield error(
                facts.named(rule),
                "it has no target",
                "The events that it takes are dropped at once.",
                _targeted(facts, rule),
            )
    for rule, each in _targets(facts):
        if not each.exists:
            yield error(
                facts.named(rule),
                f"its target {each.arn} does not exist",
                "EventBridge tries for a day, and drops the events.",
                _gone(facts, rule, each),
            )


def _targeted(facts: Facts, rule: RuleFacts) -> str:
    """Let the rule send to the consumer, if it can get events and no other does; else it is of no use."""
    queue, function = facts.queue, facts.function
    feeds = {feed.source for feed in function.feeds} if function is not None else set()
    part = function if queue is None or (function is not None and queue.arn not in feeds) else queue
    fed = {target.arn for other, target in _targets(facts) if _gets_events(other)}
    if part is None or part.arn in fed or not _gets_events(rule):
        return facts.aws("events delete-rule", name=rule.name, event_bus_name=rule.bus)
    return _put_target(facts, rule, TargetFacts(id=rule.name, arn=part.arn), RetryPolicy=_DELIVERY)


def _gone(facts: Facts, rule: RuleFacts, target: TargetFacts) -> str:
    """A queue that is the rule's only target is made anew: without it what EventBridge cannot hand over, and keeps as
    dead letters, would be dropped."""
    if ":sqs:" in target.arn and len(rule.targets) == 1:
        return facts.aws("sqs create-queue", queue_name=target.arn.rpartition(":")[2])
    return facts.aws("events remove-targets", rule=rule.name, event_bus_name=rule.bus, ids=target.id)


def envelope(facts: Facts) -> Iterator[Finding]:
    """The event reaches the consumer whole."""
    for rule, target in _targets(facts):
        if target.shape is None:
            continue
        say = warning if target.shape.startswith("InputPath $.detail") else error
        yield say(
            facts.named(rule),
            f"its target {target.id} has {target.shape}",
            "Who sent the event, when, and whether it is replayed is lost, and with it what some keys are made of.",
            _put_target(facts, rule, target, **_WHOLE),
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """EventBridge tries for a while to hand an event over."""
    for rule, target in _targets(facts):
        if target.retries == 0 or target.age < _LEAST_AGE:
            yield warning(
                facts.named(rule),
                f"its target {target.id} is tried {target.retries} times more, for {spoken(target.age * _SECOND)}",
                "A short outage of the target is enough to lose events; up to 185 times in 24 h are possible.",
                _put_target(facts, rule, target, RetryPolicy=_DELIVERY),
            )


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """What EventBridge cannot hand over is kept."""
    for rule, target in _targets(facts):
        if target.dead_arn is None:
            name = f"{rule.name}-dead"
            dead = queue_beside(target.arn, name)
            # One queue for all rules of that name: it cannot be made a second time with another policy.
            alike = [allow_rule(dead, each.arn) for each in facts.rules if each.name == rule.name]
            policy = json.dumps({"Policy": json.dumps(document(*alike))})
            made = facts.aws("sqs create-queue", queue_name=name, attributes=policy)
            yield warning(
                facts.named(rule),
                f"its target {target.id} has no dead-letter queue",
                "After 24 h, or at once if the target refuses, the event is dropped.",
                f"{made} && {_put_target(facts, rule, target, DeadLetterConfig={'Arn': dead})}",
            )


def dead_policy(facts: Facts) -> Iterator[Finding]:
    """The rule may send to the dead-letter queue of its target."""
    for rule, target in _targets(facts):
        if target.dead_arn is None or target.dead_admits:
            continue
        yield error(
            facts.named(rule),
            f"it may not send to {target.dead_arn}, the dead-letter queue of its target {target.id}, or that is gone",
            "What EventBridge cannot hand over is dropped, although there is a place for it.",
            _admitted(facts, target.dead_arn, target.dead_statements),
        )


def _admitted(facts: Facts, queue: str, statements: Iterable[Mapping[str, Any]] | None) -> str:
    """All who have this dead-letter queue may send to it, beside those who may already."""
    senders = [rule.arn for rule, target in _targets(facts) if target.dead_arn == queue]
    policy = json.dumps({"Policy": json.dumps(repaired(statements or (), queue, senders))})
    name = queue.rpartition(":")[2]
    if statements is None:
        return facts.aws("sqs create-queue", queue_name=name, attributes=policy)
    return facts.aws("sqs set-queue-attributes", queue_url=_url(facts, queue, name), attributes=policy)


def _url(facts: Facts, arn: str, name: str) -> str:
    region, account = arn.split(":")[3:5]
    return f"{facts.endpoint or f'https://sqs.{region}.amazonaws.com'}/{account}/{name}"


def doubled(facts: Facts) -> Iterator[Finding]:
    """Each consumer is reached in one way."""
    reached: dict[str, list[tuple[RuleFacts, TargetFacts]]] = {}
    for rule, target in _targets(facts):
        reached.setdefault(_consumer(facts, target.arn), []).append((rule, target))
    for consumer, ways in reached.items():
        if len(ways) > 1:
            listed = " and ".join(f"{facts.named(rule)} (target {target.id})" for rule, target in ways)
            spare = _spare(ways)
            say = warning if spare else note
            yield say(
                consumer.rpartition(":")[2],
                f"it is reached by {listed}",
                "An event that several of them take comes several times, and is new again if they shape it otherwise.",
                _dropped(facts, *spare) if spare else _described(facts, ways[-1][0]),
            )


def _spare(ways: list[tuple[RuleFacts, TargetFacts]]) -> tuple[RuleFacts, TargetFacts] | None:
    """The way that nothing is lost without: one by which no event comes, else the last if another takes the same from
    the same bus."""
    idle = [way for way in ways if not _gets_events(way[0])]
    if 0 < len(idle) < len(ways):
        return idle[-1]
    *others, (last, target) = ways
    alike = any((rule.bus, rule.pattern) == (last.bus, last.pattern) for rule, _ in others)
    return (last, target) if alike else None


def _described(facts: Facts, rule: RuleFacts) -> str:
    return facts.aws("events describe-rule", name=rule.name, event_bus_name=rule.bus)


def _dropped(facts: Facts, rule: RuleFacts, target: TargetFacts) -> str:
    """Without the target; and a rule that would have none goes too."""
    removed = facts.aws("events remove-targets", rule=rule.name, event_bus_name=rule.bus, ids=target.id)
    if len(rule.targets) > 1:
        return removed
    return f"{removed} && {facts.aws('events delete-rule', name=rule.name, event_bus_name=rule.bus)}"


def _gets_events(rule: RuleFacts) -> bool:
    return rule.enabled and _unmatched(rule) is None and not _is_elsewhere(rule)


def _consumer(facts: Facts, arn: str) -> str:
    """Whoever takes the events in the end: the function that is fed from a queue, else the target itself."""
    function = facts.function
    if function is not None and arn in {feed.source for feed in function.feeds}:
        return function.arn
    return arn


def _targets(facts: Facts) -> Iterator[tuple[RuleFacts, TargetFacts]]:
    for rule in facts.rules:
        for target in rule.targets:
            yield rule, target


def _put_target(facts: Facts, rule: RuleFacts, target: TargetFacts, **changes: Any) -> str:
    """A target is put whole: as it was told, but for the changes, and without what is changed to nothing."""
    whole = {"Id": target.id, "Arn": target.arn, **target.told, **changes}
    targets = json.dumps([{name: value for name, value in whole.items() if value is not None}])
    return facts.aws("events put-targets", rule=rule.name, event_bus_name=rule.bus, targets=targets)


RULES: Final = (enabled, pattern, bus, target, envelope, retries, dead_letters, dead_policy, doubled)

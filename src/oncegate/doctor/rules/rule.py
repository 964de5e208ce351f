"""Check EventBridge rules and their targets."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from oncegate.doctor.facts import Facts, RuleFacts, TargetFacts, sibling_queue_arn
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.doctor.policies import repair_policy
from oncegate.durations import spoken, times
from oncegate.infra.rights import allow_rule, document
from oncegate.infra.wanted import GENESYS, misses_partner

PARTNER: Final = "aws.partner/"
_MIN_AGE: Final = 3_600
_SECOND: Final = 1_000_000
_DELIVERY: Final = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
_NO_TRANSFORMATION: Final = {"Input": None, "InputPath": None, "InputTransformer": None}
# The members of `detail` in a Genesys event. The member `eventBody` holds the content of the event.
_DETAIL: Final = frozenset({"topicName", "version", "userId", "eventBody", "metadata", "timestamp"})


def enabled(facts: Facts) -> Iterator[Finding]:
    """The rule is enabled."""
    for rule in facts.rules:
        if not rule.enabled:
            yield error(
                facts.named(rule),
                "the rule is disabled",
                "Events that arrive while the rule is disabled are lost.",
                facts.aws("events enable-rule", name=rule.name, event_bus_name=rule.bus),
            )


def pattern(facts: Facts) -> Iterator[Finding]:
    """The pattern can match the events on its bus."""
    for rule in facts.rules:
        found = _unmatched(rule)
        if found is not None:
            yield error(
                facts.named(rule),
                found,
                "EventBridge drops events that match no rule, and reports no error.",
                facts.aws(
                    "events put-rule", name=rule.name, event_bus_name=rule.bus, event_pattern=json.dumps(GENESYS)
                ),
            )


def _unmatched(rule: RuleFacts) -> str | None:
    """Return why the pattern of a rule matches no event; None if the pattern may match an event."""
    if rule.pattern is None:
        return None
    if unknown := _unknown_members(rule):
        return f"the pattern has a condition on detail.{unknown[0]}; in Genesys events that is in detail.eventBody"
    if rule.matches is False or (rule.matches is None and not _source_fits(rule)):
        return f"the pattern {json.dumps(rule.pattern)} matches no sample Genesys event on the bus {rule.bus}"
    return None


def _unknown_members(rule: RuleFacts) -> list[str]:
    detail = (rule.pattern or {}).get("detail")
    return sorted(set(detail) - _DETAIL) if is_of_genesys(rule.bus, rule.pattern) and isinstance(detail, dict) else []


def _source_fits(rule: RuleFacts) -> bool:
    """Return whether the pattern accepts the source of the events on a partner bus. Every event on a partner bus has
    the name of the bus as its source. Returns True for other buses."""
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
    """Return whether the rule is for events that come directly from Genesys. Forwarded events may have any source and
    any structure."""
    source = json.dumps((pattern or {}).get("source", ""))
    return f"{PARTNER}genesys" in bus or f"{PARTNER}genesys" in source


def bus(facts: Facts) -> Iterator[Finding]:
    """A rule for Genesys events is on the bus where Genesys events arrive."""
    for rule in facts.rules:
        if misses_partner(rule.bus, rule.pattern):
            yield error(
                facts.named(rule),
                "the rule is for Genesys events but is on the default bus, where none arrive",
                "Genesys events arrive on a bus with the name of the partner event source.",
                facts.aws("events list-event-sources"),
                "Run oncegate infra up with --partner-source, or move the rule to the bus that the events are forwarded"
                " to.",
            )
        elif _is_elsewhere(rule):
            yield note(
                facts.named(rule),
                f"the rule is for Genesys events but is on the bus {rule.bus}",
                "Genesys events arrive on a bus with the name of the partner event source; they reach another bus only"
                " if a rule forwards them.",
                facts.aws("events list-event-sources"),
                "Check that a rule forwards the events to this bus.",
            )


def _is_elsewhere(rule: RuleFacts) -> bool:
    return not rule.bus.startswith(PARTNER) and "genesys" in json.dumps((rule.pattern or {}).get("source", ""))


def target(facts: Facts) -> Iterator[Finding]:
    """The rule has a target, and the target exists."""
    for rule in facts.rules:
        if not rule.targets:
            yield error(
                facts.named(rule),
                "the rule has no target",
                "EventBridge drops the events that match the rule.",
                _add_target_command(facts, rule),
            )
    for rule, rule_target in _targets(facts):
        if not rule_target.exists:
            yield error(
                facts.named(rule),
                f"the target {rule_target.arn} does not exist",
                "EventBridge retries for a day, and then drops the events.",
                _missing_target_command(facts, rule, rule_target),
            )


def _add_target_command(facts: Facts, rule: RuleFacts) -> str:
    """Return the command that repairs a rule without a target. The command adds the consumer as the target if the rule
    can get events and no other rule sends events to the consumer. Otherwise the command deletes the rule."""
    queue, function = facts.queue, facts.function
    feeds = {feed.source for feed in function.feeds} if function is not None else set()
    part = function if queue is None or (function is not None and queue.arn not in feeds) else queue
    reached = {target.arn for other, target in _targets(facts) if _gets_events(other)}
    if part is None or part.arn in reached or not _gets_events(rule):
        return facts.aws("events delete-rule", name=rule.name, event_bus_name=rule.bus)
    return _put_target_command(facts, rule, TargetFacts(id=rule.name, arn=part.arn), RetryPolicy=_DELIVERY)


def _missing_target_command(facts: Facts, rule: RuleFacts, target: TargetFacts) -> str:
    """Return the command that removes a missing target from a rule. If the target is a queue and the only target of the
    rule, the command creates the queue instead: without a target, EventBridge would drop the events that it now sends
    to the dead-letter queue of the target."""
    if ":sqs:" in target.arn and len(rule.targets) == 1:
        return facts.aws("sqs create-queue", queue_name=target.arn.rpartition(":")[2])
    return facts.aws("events remove-targets", rule=rule.name, event_bus_name=rule.bus, ids=target.id)


def envelope(facts: Facts) -> Iterator[Finding]:
    """The target receives the whole event."""
    for rule, target in _targets(facts):
        if target.shape is None:
            continue
        report = warning if target.shape.startswith("InputPath $.detail") else error
        yield report(
            facts.named(rule),
            f"the target {target.id} has {target.shape}",
            "The source, the time and the replay name of the event are lost; some keys are made of them.",
            _put_target_command(facts, rule, target, **_NO_TRANSFORMATION),
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """EventBridge retries a failed delivery for an hour or more."""
    for rule, target in _targets(facts):
        if target.retries == 0 or target.age < _MIN_AGE:
            yield warning(
                facts.named(rule),
                f"EventBridge retries the target {target.id} {times(target.retries, 'time')}, for"
                f" {spoken(target.age * _SECOND)}",
                "A short outage of the target loses events; up to 185 retries in 24 h are possible.",
                _put_target_command(facts, rule, target, RetryPolicy=_DELIVERY),
            )


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """The target has a dead-letter queue for events that EventBridge cannot deliver."""
    for rule, target in _targets(facts):
        if target.dead_arn is None:
            name = f"{rule.name}-dead"
            dead = sibling_queue_arn(target.arn, name)
            # All rules with this name get the same dead-letter queue. Its policy must allow all of them, because SQS
            # refuses to create an existing queue again with another policy.
            namesakes = [allow_rule(dead, other.arn) for other in facts.rules if other.name == rule.name]
            policy = json.dumps({"Policy": json.dumps(document(*namesakes))})
            create = facts.aws("sqs create-queue", queue_name=name, attributes=policy)
            yield warning(
                facts.named(rule),
                f"the target {target.id} has no dead-letter queue",
                "EventBridge drops the event after 24 h, or at once if the target rejects it.",
                f"{create} && {_put_target_command(facts, rule, target, DeadLetterConfig={'Arn': dead})}",
            )


def dead_policy(facts: Facts) -> Iterator[Finding]:
    """The rule is allowed to send to the dead-letter queue of the target."""
    for rule, target in _targets(facts):
        if target.dead_arn is None or target.dead_admits:
            continue
        yield error(
            facts.named(rule),
            f"the rule may not send to {target.dead_arn}, the dead-letter queue of the target {target.id}, or that"
            " queue does not exist",
            "EventBridge drops the events that it cannot deliver, although a dead-letter queue is configured.",
            _permission_command(facts, target.dead_arn, target.dead_statements),
        )


def _permission_command(facts: Facts, queue: str, statements: Iterable[Mapping[str, Any]] | None) -> str:
    """Return the command that allows every rule with this dead-letter queue to send to the queue. The command keeps the
    existing permissions, except for permissions of the rules of any account."""
    senders = [rule.arn for rule, target in _targets(facts) if target.dead_arn == queue]
    policy = json.dumps({"Policy": json.dumps(repair_policy(statements or (), queue, senders))})
    name = queue.rpartition(":")[2]
    if statements is None:
        return facts.aws("sqs create-queue", queue_name=name, attributes=policy)
    return facts.aws("sqs set-queue-attributes", queue_url=_url(facts, queue, name), attributes=policy)


def _url(facts: Facts, arn: str, name: str) -> str:
    region, account = arn.split(":")[3:5]
    return f"{facts.endpoint or f'https://sqs.{region}.amazonaws.com'}/{account}/{name}"


def doubled(facts: Facts) -> Iterator[Finding]:
    """Each consumer is the target of one rule only."""
    reached: dict[str, list[tuple[RuleFacts, TargetFacts]]] = {}
    for rule, target in _targets(facts):
        reached.setdefault(_consumer(facts, target.arn), []).append((rule, target))
    for consumer, routes in reached.items():
        if len(routes) > 1:
            listed = " and ".join(f"{facts.named(rule)} (target {target.id})" for rule, target in routes)
            redundant = _redundant(routes)
            report = warning if redundant else note
            yield report(
                consumer.rpartition(":")[2],
                f"several rules or targets send to it: {listed}",
                "An event that several of them match is delivered several times, and gets another key if they"
                " transform it differently.",
                _removal_command(facts, *redundant) if redundant else _describe_command(facts, routes[-1][0]),
                None if redundant else "Compare the patterns, and remove a rule or target that is not needed.",
            )


def _redundant(routes: list[tuple[RuleFacts, TargetFacts]]) -> tuple[RuleFacts, TargetFacts] | None:
    """Return a route that can be removed without losing events; None if no route can be removed.

    If some routes get no events and others do, this is the last route that gets none. Otherwise it is the last route,
    if another route has the same pattern on the same bus."""
    idle = [route for route in routes if not _gets_events(route[0])]
    if 0 < len(idle) < len(routes):
        return idle[-1]
    *others, (last, target) = routes
    has_twin = any((rule.bus, rule.pattern) == (last.bus, last.pattern) for rule, _ in others)
    return (last, target) if has_twin else None


def _describe_command(facts: Facts, rule: RuleFacts) -> str:
    return facts.aws("events describe-rule", name=rule.name, event_bus_name=rule.bus)


def _removal_command(facts: Facts, rule: RuleFacts, target: TargetFacts) -> str:
    """Return the command that removes the target from the rule. If the rule has no other target, the command also
    deletes the rule."""
    remove = facts.aws("events remove-targets", rule=rule.name, event_bus_name=rule.bus, ids=target.id)
    if len(rule.targets) > 1:
        return remove
    return f"{remove} && {facts.aws('events delete-rule', name=rule.name, event_bus_name=rule.bus)}"


def _gets_events(rule: RuleFacts) -> bool:
    return rule.enabled and _unmatched(rule) is None and not _is_elsewhere(rule)


def _consumer(facts: Facts, arn: str) -> str:
    """Return the ARN of the final consumer of a target. If the target is a queue that the function reads, this is the
    function. Otherwise it is the target itself."""
    function = facts.function
    if function is not None and arn in {feed.source for feed in function.feeds}:
        return function.arn
    return arn


def _targets(facts: Facts) -> Iterator[tuple[RuleFacts, TargetFacts]]:
    for rule in facts.rules:
        for target in rule.targets:
            yield rule, target


def _put_target_command(facts: Facts, rule: RuleFacts, target: TargetFacts, **changes: Any) -> str:
    """Return the command that changes a target. The command contains the whole definition of the target with the
    changes, because EventBridge replaces the whole target. A change to None removes a member of the definition."""
    whole = {"Id": target.id, "Arn": target.arn, **target.definition, **changes}
    targets = json.dumps([{name: value for name, value in whole.items() if value is not None}])
    return facts.aws("events put-targets", rule=rule.name, event_bus_name=rule.bus, targets=targets)


RULES: Final = (enabled, pattern, bus, target, envelope, retries, dead_letters, dead_policy, doubled)

"""Check the SQS queue."""

import json
from collections.abc import Iterator
from typing import Any, Final

from oncegate.doctor.facts import Facts, sibling_queue_arn
from oncegate.doctor.findings import Finding, error, warning
from oncegate.doctor.policies import SEND, admits, admits_anybody, repair_policy
from oncegate.durations import spoken, times
from oncegate.gate.options import outlasts_lease

_SECOND: Final = 1_000_000
_VISIBILITY_FACTOR: Final = 6
_MIN_RECEIVES: Final = 5
_LONGEST_RETENTION: Final = 1_209_600
_LONGEST_VISIBILITY: Final = 43_200
_FIFO: Final = ".fifo"


def visibility(facts: Facts) -> Iterator[Finding]:
    """The visibility timeout is at least six times the timeout of the function that reads the queue."""
    queue, function = facts.queue, facts.function
    if queue is None or function is None or queue.arn not in {feed.source for feed in function.feeds}:
        return
    needed = _VISIBILITY_FACTOR * function.timeout
    if queue.visibility < needed:
        yield error(
            queue.name,
            f"the visibility timeout is {queue.visibility} s, and the timeout of {function.name} is"
            f" {function.timeout} s",
            f"Lambda may delay and retry a batch: below {needed} s, messages are redelivered while the first delivery"
            " still runs.",
            _set_command(facts, queue.url, VisibilityTimeout=needed),
        )


def lease(facts: Facts) -> Iterator[Finding]:
    """The visibility timeout of a worker is at least as long as the lease."""
    queue, hidden, lease = facts.queue, facts.worker_visibility, facts.config.lease
    if queue is None or hidden is None or (facts.function is not None and facts.function.feeds):
        return  # a function reads the queue: it shortens each lease to the remaining time of the invocation
    if not outlasts_lease(hidden, lease):
        yield error(
            queue.name,
            f"the visibility timeout of a worker is {spoken(hidden)} (work.visibility), and a claim is held for"
            f" {spoken(lease)} (lease)",
            "The message of a dead worker is redelivered while the claim is still held, and every such receive counts"
            " towards the dead-letter limit.",
            _longer_visibility(-(-lease // _SECOND)),
        )


def _longer_visibility(lease: int) -> dict[str, str]:
    """Return the settings that make the visibility timeout as long as the lease, in seconds. SQS allows at most 12 h,
    so a longer lease is shortened instead."""
    if lease > _LONGEST_VISIBILITY:
        return {"lease": f"{_LONGEST_VISIBILITY}s", "work.visibility": f"{_LONGEST_VISIBILITY}s"}
    return {"work.visibility": f"{lease}s"}


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """The queue has a dead-letter queue, and that queue exists."""
    queue = facts.queue
    if queue is None or (queue.dead_arn is not None and queue.dead_retention is not None):
        return
    found = (
        "the queue has no dead-letter queue"
        if queue.dead_arn is None
        else f"the dead-letter queue {queue.dead_arn} does not exist"
    )
    name = f"{queue.name.removesuffix(_FIFO)}-dead"
    kind = {}
    if queue.name.endswith(_FIFO):  # the dead-letter queue of a FIFO queue must be a FIFO queue
        name, kind = name + _FIFO, {"attributes": "FifoQueue=true"}
    create = facts.aws("sqs create-queue", queue_name=name, **kind)
    yield error(
        queue.name,
        found,
        "An event that always fails is redelivered until the retention of the queue ends, and is then lost.",
        f"{create} && {_set_command(facts, queue.url, RedrivePolicy=_redrive(sibling_queue_arn(queue.arn, name)))}",
    )


def receives(facts: Facts) -> Iterator[Finding]:
    """A message becomes a dead letter after five receives or more."""
    queue = facts.queue
    if queue is None or queue.dead_arn is None or queue.max_receives is None or queue.max_receives >= _MIN_RECEIVES:
        return
    report = error if queue.max_receives == 1 else warning
    yield report(
        queue.name,
        f"a message becomes a dead letter after {times(queue.max_receives, 'receive')}",
        "A receive of an event that is in flight counts too, so an event may become a dead letter without being run.",
        _set_command(facts, queue.url, RedrivePolicy=_redrive(queue.dead_arn)),
    )


def dead_retention(facts: Facts) -> Iterator[Finding]:
    """The dead-letter queue has a longer retention than the queue."""
    queue = facts.queue
    if queue is None or queue.dead_arn is None or queue.dead_retention is None:
        return
    if queue.dead_retention <= queue.retention:
        url = queue.url.removesuffix(queue.name) + queue.dead_arn.rpartition(":")[2]
        yield warning(
            queue.name,
            f"the retention of the dead-letter queue is {spoken(queue.dead_retention * _SECOND)}, and that of the"
            f" queue is {spoken(queue.retention * _SECOND)}",
            "The age of a dead letter counts from its first send, so SQS may delete it before anybody sees it.",
            _set_command(facts, url, MessageRetentionPeriod=_LONGEST_RETENTION),
            None
            if queue.retention < _LONGEST_RETENTION
            else "No queue keeps messages for longer than 14 d. Shorten the retention of the queue; it then deletes"
            " messages earlier.",
        )


def policy(facts: Facts) -> Iterator[Finding]:
    """The rule is allowed to send to the queue, and rules of other accounts are not."""
    queue = facts.queue
    if queue is None:
        return
    senders = [rule for rule in facts.rules if queue.arn in {target.arn for target in rule.targets}]
    # The new policy is for all rules, because it replaces the previous policy.
    mend = _set_command(
        facts, queue.url, Policy=repair_policy(queue.statements, queue.arn, [rule.arn for rule in senders])
    )
    refused = [rule for rule in senders if not admits(queue.statements, SEND, rule.arn)]
    for rule in refused:
        yield error(
            queue.name,
            f"the policy of the queue does not allow the rule {facts.named(rule)} to send",
            "EventBridge is denied access, retries for a day, and then drops the events.",
            mend,
        )
    if senders and not refused and admits_anybody(queue.statements, SEND):
        yield warning(
            queue.name,
            "the policy of the queue has no condition on aws:SourceArn: the rules of any account may send",
            "Rules in other accounts can send forged events to the queue.",
            mend,
        )


def _redrive(dead: str) -> dict[str, Any]:
    return {"deadLetterTargetArn": dead, "maxReceiveCount": str(_MIN_RECEIVES)}


def _set_command(facts: Facts, url: str, **attributes: Any) -> str:
    """Return the command that sets attributes of a queue. SQS takes the value of every attribute as text, also if the
    value is JSON."""
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in attributes.items()}
    return facts.aws("sqs set-queue-attributes", queue_url=url, attributes=json.dumps(texts))


RULES: Final = (visibility, lease, dead_letters, receives, dead_retention, policy)

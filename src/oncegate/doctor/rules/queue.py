"""Rules for the queue."""

import json
from collections.abc import Iterator
from typing import Any, Final

from oncegate.doctor.facts import Facts, queue_beside
from oncegate.doctor.findings import Finding, error, warning
from oncegate.doctor.policies import SEND, admits, admits_anybody, repaired
from oncegate.durations import spoken, times
from oncegate.gate.options import outlasts_lease

_SECOND: Final = 1_000_000
_TIMES_TIMEOUT: Final = 6
_RECEIVES: Final = 5
_LONGEST_RETENTION: Final = 1_209_600
_FIFO: Final = ".fifo"


def visibility(facts: Facts) -> Iterator[Finding]:
    """A message stays hidden for at least six times the timeout of the function that takes it."""
    queue, function = facts.queue, facts.function
    if queue is None or function is None or queue.arn not in {feed.source for feed in function.feeds}:
        return
    needed = _TIMES_TIMEOUT * function.timeout
    if queue.visibility < needed:
        yield error(
            queue.name,
            f"it hides a message for {queue.visibility} s, and {function.name} may take {function.timeout} s",
            f"Lambda may hold a batch back and try it again; under {needed} s copies come while the first still runs.",
            _set(facts, queue.url, VisibilityTimeout=needed),
        )


def lease(facts: Facts) -> Iterator[Finding]:
    """A message of a worker that died comes back after its claim is free, not before."""
    queue, hidden, lease = facts.queue, facts.worker_visibility, facts.terms.lease
    if queue is None or hidden is None or (facts.function is not None and facts.function.feeds):
        return  # a function's lease is cut to what is left of its invocation
    if not outlasts_lease(hidden, lease):
        yield error(
            queue.name,
            f"a worker hides its messages for {spoken(hidden)} (work.visibility), and a claim is held for"
            f" {spoken(lease)} (lease)",
            "Its copy finds the claim of a dead worker still held, and every such receive counts towards its limit.",
            f"export ONCEGATE_WORK_VISIBILITY={-(-lease // _SECOND)}s",
        )


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """What fails again and again ends in a dead-letter queue that exists."""
    queue = facts.queue
    if queue is None or (queue.dead_arn is not None and queue.dead_retention is not None):
        return
    found = (
        "it has no dead-letter queue" if queue.dead_arn is None else f"its dead-letter queue {queue.dead_arn} is gone"
    )
    name = f"{queue.name.removesuffix(_FIFO)}-dead"
    kind = {}
    if queue.name.endswith(_FIFO):  # and then the dead letters must be, too
        name, kind = name + _FIFO, {"attributes": "FifoQueue=true"}
    made = facts.aws("sqs create-queue", queue_name=name, **kind)
    yield error(
        queue.name,
        found,
        "An event that always fails comes back until the queue drops it, and is then lost without a trace.",
        f"{made} && {_set(facts, queue.url, RedrivePolicy=_redrive(queue_beside(queue.arn, name)))}",
    )


def receives(facts: Facts) -> Iterator[Finding]:
    """A message may be received five times or more before it is a dead letter."""
    queue = facts.queue
    if queue is None or queue.dead_arn is None or queue.max_receives is None or queue.max_receives >= _RECEIVES:
        return
    say = error if queue.max_receives == 1 else warning
    yield say(
        queue.name,
        f"a message is a dead letter after {times(queue.max_receives, 'receive')}",
        "A receive that finds another worker at the event counts too, so what was never tried may end there.",
        _set(facts, queue.url, RedrivePolicy=_redrive(queue.dead_arn)),
    )


def dead_retention(facts: Facts) -> Iterator[Finding]:
    """Dead letters are kept for longer than messages wait in the queue itself."""
    queue = facts.queue
    if queue is None or queue.dead_arn is None or queue.dead_retention is None:
        return
    if queue.dead_retention <= queue.retention:
        url = queue.url.removesuffix(queue.name) + queue.dead_arn.rpartition(":")[2]
        yield warning(
            queue.name,
            f"its dead letters are kept for {spoken(queue.dead_retention * _SECOND)}, and its messages for"
            f" {spoken(queue.retention * _SECOND)}",
            "The age of a dead letter counts from when it was first sent, so it may be gone before anybody looks.",
            _set(facts, url, MessageRetentionPeriod=_LONGEST_RETENTION),
        )


def policy(facts: Facts) -> Iterator[Finding]:
    """The rule may send to the queue, and nobody else's rules may."""
    queue = facts.queue
    if queue is None:
        return
    senders = [rule for rule in facts.rules if queue.arn in {target.arn for target in rule.targets}]
    # One for all of them: of two policies that are put, the second takes the place of the first.
    mend = _set(facts, queue.url, Policy=repaired(queue.statements, queue.arn, [rule.arn for rule in senders]))
    refused = [rule for rule in senders if not admits(queue.statements, SEND, rule.arn)]
    for rule in refused:
        yield error(
            queue.name,
            f"its policy does not let the rule {facts.named(rule)} send",
            "EventBridge is refused, tries for a day, and drops the events.",
            mend,
        )
    if senders and not refused and admits_anybody(queue.statements, SEND):
        yield warning(
            queue.name,
            "its policy lets EventBridge send on behalf of anybody: it has no condition on aws:SourceArn",
            "Rules in other accounts can put events into it that nobody here has sent.",
            mend,
        )


def _redrive(dead: str) -> dict[str, Any]:
    return {"deadLetterTargetArn": dead, "maxReceiveCount": str(_RECEIVES)}


def _set(facts: Facts, url: str, **attributes: Any) -> str:
    """SQS takes everything as text, also what is JSON itself."""
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in attributes.items()}
    return facts.aws("sqs set-queue-attributes", queue_url=url, attributes=json.dumps(texts))


RULES: Final = (visibility, lease, dead_letters, receives, dead_retention, policy)

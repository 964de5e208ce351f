"""Check the Lambda function."""

import json
from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import EventSourceFacts, Facts, FunctionFacts, new_table, sibling_queue_arn
from oncegate.doctor.findings import Finding, error, warning
from oncegate.doctor.policies import admits
from oncegate.durations import times
from oncegate.infra.rights import sid

_RETRIES: Final = 2


def failures(facts: Facts) -> Iterator[Finding]:
    """A function that a rule invokes has an OnFailure destination."""
    for function in _invoked(facts):
        if function.on_failure is not None:
            continue
        name = f"{function.name}-dead"
        destination = {"OnFailure": {"Destination": sibling_queue_arn(function.arn, name)}}
        create = facts.aws("sqs create-queue", queue_name=name)
        configure = facts.aws(
            "lambda put-function-event-invoke-config",
            function_name=function.name,
            maximum_retry_attempts=str(_RETRIES),
            destination_config=json.dumps(destination),
        )
        yield error(
            function.name,
            "the function has no OnFailure destination",
            "Lambda retries a failed event twice within three minutes; after that the event is lost.",
            f"{create} && {configure}",
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """Lambda retries a failed event twice."""
    for function in _invoked(facts):
        if function.retries >= _RETRIES:
            continue
        yield warning(
            function.name,
            f"Lambda retries a failed event {times(function.retries, 'time')}; {_RETRIES} times are possible",
            "An event that is in flight in another instance, or that arrives while the store is unavailable, fails and"
            " is retried too few times.",
            facts.aws(
                "lambda update-function-event-invoke-config",
                function_name=function.name,
                maximum_retry_attempts=str(_RETRIES),
            ),
        )


def reports(facts: Facts) -> Iterator[Finding]:
    """The event source mapping reports the failed messages of a batch."""
    for function, feed in _feeds(facts):
        if not feed.reports_failures:
            report = {"function_response_types": "ReportBatchItemFailures"}
            yield error(
                function.name,
                f"the event source mapping from {feed.source} does not use ReportBatchItemFailures",
                "Lambda treats every answer as success of the whole batch, and deletes the failed messages.",
                facts.aws("lambda update-event-source-mapping", uuid=feed.id, **report),
            )


def enabled(facts: Facts) -> Iterator[Finding]:
    """The event source mapping is enabled."""
    for function, feed in _feeds(facts):
        if not feed.enabled:
            yield error(
                function.name,
                f"the event source mapping from {feed.source} is disabled",
                "Events wait in the queue until its retention ends, and are then lost.",
                facts.aws("lambda update-event-source-mapping", uuid=feed.id, enabled=""),
            )


def permission(facts: Facts) -> Iterator[Finding]:
    """The rule is allowed to invoke the function."""
    for function in _invoked(facts):
        for rule in facts.rules:
            reached = function.arn in {target.arn for target in rule.targets}
            if not reached or admits(function.statements, "lambda:InvokeFunction", rule.arn):
                continue
            yield error(
                function.name,
                f"the policy of the function does not allow the rule {facts.named(rule)} to invoke it",
                "EventBridge is denied access, retries for a day, and then drops the events.",
                facts.aws(
                    "lambda add-permission",
                    function_name=function.name,
                    statement_id=sid(rule.arn),
                    action="lambda:InvokeFunction",
                    principal="events.amazonaws.com",
                    source_arn=rule.arn,
                ),
            )


def store(facts: Facts) -> Iterator[Finding]:
    """All instances of the function share one store."""
    function = facts.function
    if function is None or function.store is None or function.store.partition("://")[0] not in ("memory", "sqlite"):
        return
    yield error(
        function.name,
        f"ONCEGATE_STORE of the function is {function.store}",
        "Instances of a function share neither files nor memory, so two instances run the same event.",
        new_table(function.name),
    )


def _invoked(facts: Facts) -> Iterator[FunctionFacts]:
    """Yield the function if it is the target of a rule."""
    function = facts.function
    if function is not None and any(target.arn == function.arn for rule in facts.rules for target in rule.targets):
        yield function


def _feeds(facts: Facts) -> Iterator[tuple[FunctionFacts, EventSourceFacts]]:
    if facts.function is not None:
        for feed in facts.function.feeds:
            yield facts.function, feed


RULES: Final = (failures, retries, reports, enabled, permission, store)

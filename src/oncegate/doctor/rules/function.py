"""Rules for the Lambda function."""

import json
from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import EventSourceFacts, Facts, FunctionFacts, new_table, queue_beside
from oncegate.doctor.findings import Finding, error, warning
from oncegate.doctor.policies import admits
from oncegate.infra.rights import sid

_RETRIES: Final = 2


def failures(facts: Facts) -> Iterator[Finding]:
    """What the function fails at, when a rule invokes it, has somewhere to go."""
    for function in _invoked(facts):
        if function.on_failure is not None:
            continue
        name = f"{function.name}-dead"
        destination = {"OnFailure": {"Destination": queue_beside(function.arn, name)}}
        made = facts.aws("sqs create-queue", queue_name=name)
        told = facts.aws(
            "lambda put-function-event-invoke-config",
            function_name=function.name,
            maximum_retry_attempts=str(_RETRIES),
            destination_config=json.dumps(destination),
        )
        yield error(
            function.name,
            "it has no OnFailure destination",
            "Lambda tries an event twice more, within three minutes, and then it is lost.",
            f"{made} && {told}",
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """Lambda tries again what failed."""
    for function in _invoked(facts):
        if function.retries >= _RETRIES:
            continue
        yield warning(
            function.name,
            f"Lambda tries it again {function.retries} of {_RETRIES} times",
            "An event that another instance is at, or that comes while the store is away, fails once and is over.",
            facts.aws(
                "lambda update-function-event-invoke-config",
                function_name=function.name,
                maximum_retry_attempts=str(_RETRIES),
            ),
        )


def reports(facts: Facts) -> Iterator[Finding]:
    """Lambda looks at which messages of a batch have failed."""
    for function, feed in _feeds(facts):
        if not feed.reports_failures:
            asked = {"function_response_types": "ReportBatchItemFailures"}
            yield error(
                function.name,
                f"the mapping from {feed.source} does not ask for ReportBatchItemFailures",
                "Lambda then takes every answer for a success of the whole batch and deletes what has failed.",
                facts.aws("lambda update-event-source-mapping", uuid=feed.id, **asked),
            )


def enabled(facts: Facts) -> Iterator[Finding]:
    """The mapping from the queue is on."""
    for function, feed in _feeds(facts):
        if not feed.enabled:
            yield error(
                function.name,
                f"the mapping from {feed.source} is disabled",
                "Events wait in the queue until they are too old, and are then lost.",
                facts.aws("lambda update-event-source-mapping", uuid=feed.id, enabled=""),
            )


def permission(facts: Facts) -> Iterator[Finding]:
    """The rule may invoke the function."""
    for function in _invoked(facts):
        for rule in facts.rules:
            reached = function.arn in {target.arn for target in rule.targets}
            if not reached or admits(function.statements, "lambda:InvokeFunction", rule.arn):
                continue
            yield error(
                function.name,
                f"its policy does not let the rule {facts.named(rule)} invoke it",
                "EventBridge is refused, tries for a day, and drops the events.",
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
    """The instances of the function share their store."""
    function = facts.function
    if function is None or function.store is None or function.store.partition("://")[0] not in ("memory", "sqlite"):
        return
    yield error(
        function.name,
        f"its ONCEGATE_STORE is {function.store}",
        "Every instance keeps its files and its memory to itself, so two of them run the same event.",
        new_table(function.name),
    )


def _invoked(facts: Facts) -> Iterator[FunctionFacts]:
    """The function, if a rule hands events to it itself."""
    function = facts.function
    if function is not None and any(target.arn == function.arn for rule in facts.rules for target in rule.targets):
        yield function


def _feeds(facts: Facts) -> Iterator[tuple[FunctionFacts, EventSourceFacts]]:
    if facts.function is not None:
        for feed in facts.function.feeds:
            yield facts.function, feed


RULES: Final = (failures, retries, reports, enabled, permission, store)

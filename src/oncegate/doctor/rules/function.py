"""Check the Lambda function."""

import json
from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import EventSourceFacts, Facts, FunctionFacts, new_table, sibling_queue_arn
from oncegate.doctor.findings import Finding, error, warning
from oncegate.doctor.policies import SEND, admits
from oncegate.durations import times
from oncegate.infra.rights import document, sid

_RETRIES: Final = 2


def failures(facts: Facts) -> Iterator[Finding]:
    """A function that a rule invokes has an OnFailure destination."""
    for function in _invoked(facts):
        if function.on_failure is None:
            yield error(
                function.name,
                "the function has no OnFailure destination",
                "Lambda retries a failed event twice within three minutes; after that the event is lost.",
                _invocation_command(facts, function),
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
            _invocation_command(facts, function),
        )


def _invocation_command(facts: Facts, function: FunctionFacts) -> str:
    """Return the command that sets the retries and the OnFailure destination. Lambda replaces the whole configuration,
    so the command contains all destinations. It creates a queue if the function has no OnFailure destination."""
    commands, destinations = [], function.destinations
    if function.on_failure is None:
        name = f"{function.name}-dead"
        queue = sibling_queue_arn(function.arn, name)
        destinations = {**destinations, "OnFailure": {"Destination": queue}}
        commands.append(facts.aws("sqs create-queue", queue_name=name))
        if function.role is not None:  # Lambda refuses a destination that the role may not send to
            may_send = json.dumps(document({"Effect": "Allow", "Action": SEND, "Resource": queue}))
            role = function.role.rpartition("/")[2]
            options = {"role_name": role, "policy_name": name, "policy_document": may_send}
            commands.append(facts.aws("iam put-role-policy", **options))
    configured = {"destination_config": json.dumps(destinations)} if destinations else {}
    put = facts.aws(
        "lambda put-function-event-invoke-config",
        function_name=function.name,
        maximum_retry_attempts=str(_RETRIES),
        **configured,
    )
    return " && ".join([*commands, put])


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
                _permission_command(facts, function, rule.arn),
            )


def _permission_command(facts: Facts, function: FunctionFacts, rule: str) -> str:
    """Return the command that allows a rule to invoke the function. Lambda refuses a second statement with the same id,
    so an existing statement is removed first."""
    name = sid(rule)
    remove = facts.aws("lambda remove-permission", function_name=function.name, statement_id=name)
    add = facts.aws(
        "lambda add-permission",
        function_name=function.name,
        statement_id=name,
        action="lambda:InvokeFunction",
        principal="events.amazonaws.com",
        source_arn=rule,
    )
    exists = any(statement.get("Sid") == name for statement in function.statements)
    return f"{remove} && {add}" if exists else add


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
        "Create a table with this command. Set ONCEGATE_STORE of the function to the URL of the table, and allow its"
        " role to use the table.",
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

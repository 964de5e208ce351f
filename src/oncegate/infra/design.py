"""List the parts of a deployment, in the order in which they are created."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.infra import rights
from oncegate.infra.parts.functions import digest
from oncegate.infra.platform import Part
from oncegate.infra.wanted import DEFAULT_BUS, Function, Wanted
from oncegate.sinks.aws import Destination, read_destination
from oncegate.stores.dynamodb.table import INDEX, TIME_TO_LIVE, definition

_EVENTS: Final = "events.amazonaws.com"
# The maximum of SQS. The age of a dead letter counts from the time when the message was sent to its first queue.
_DEAD_RETENTION: Final = 14 * 86_400
_DEAD_VISIBILITY: Final = 30
# The maximum that EventBridge allows for deliveries, and that Lambda allows for asynchronous invocations.
_DELIVERY_RETRIES: Final = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
_INVOCATION_RETRIES: Final = {"MaximumEventAgeInSeconds": 21_600, "MaximumRetryAttempts": 2}
_BATCH_SIZE: Final = 10
_PUBLISH_NAMES: Final = {
    "sqs": "PublishToQueues",
    "events": "PublishToBuses",
    "stepfunctions": "PublishToStateMachines",
}
# With the key of SQS, the rule needs no permission for a key. A key of KMS would need one for EventBridge.
_ENCRYPTION: Final = {"SqsManagedSseEnabled": True}
# The table can be restored to any second of the last 35 days. Claims that are lost would run again.
_RECOVERY: Final = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}


class Placement(Struct, frozen=True):
    """The partition, region and account of the parts. They determine the ARN of a part before the part exists."""

    partition: str
    region: str
    account: str

    def arn(self, service: str, resource: str) -> str:
        region = "" if service == "iam" else self.region
        return f"arn:{self.partition}:{service}:{region}:{self.account}:{resource}"


class Design:
    """The names and ARNs of all possible parts, and the list of the wanted parts."""

    def __init__(self, wanted: Wanted, place: Placement) -> None:
        self.wanted = wanted
        self.place = place
        name = wanted.name
        self.table, self.queue, self.dead = f"{name}-claims", f"{name}-events", f"{name}-dead"
        self.rule, self.function = f"{name}-events", f"{name}-function"
        self.role = f"{name}-function-{place.region}"  # a role is not in a region, so its name contains the region
        self.bus = wanted.bus_name
        self.destinations = [_destination(url) for url in wanted.publish]

    def parts(self) -> list[Part]:
        return list(self._parts())

    def _parts(self) -> Iterator[Part]:
        wanted = self.wanted
        if wanted.rule and self.bus != DEFAULT_BUS:
            yield self.bus_part()
        if wanted.table:
            yield self._part("table", self.table, self.table_arn, self._table())
        if wanted.queue or wanted.function:
            yield self._part("queue", self.dead, self.dead_arn, self._dead())
        if wanted.queue:
            yield self._part("queue", self.queue, self.queue_arn, self._queue())
        if wanted.rule:
            yield from self._policies()
        if wanted.function is not None:
            yield from self._function_parts(wanted.function)
        if wanted.rule:
            yield self.rule_part()

    def _part(self, kind: str, name: str, arn: str, properties: Mapping[str, Any], about: str = "") -> Part:
        return Part(kind, name, arn, properties, self.wanted.name, about)

    # ── ARNs ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def table_arn(self) -> str:
        return self.place.arn("dynamodb", f"table/{self.table}")

    @property
    def queue_arn(self) -> str:
        return self.place.arn("sqs", self.queue)

    @property
    def dead_arn(self) -> str:
        return self.place.arn("sqs", self.dead)

    @property
    def function_arn(self) -> str:
        return self.place.arn("lambda", f"function:{self.function}")

    @property
    def role_arn(self) -> str:
        return self.place.arn("iam", f"role/{self.role}")

    @property
    def rule_arn(self) -> str:
        path = self.rule if self.bus == DEFAULT_BUS else f"{self.bus}/{self.rule}"
        return self.place.arn("events", f"rule/{path}")

    @property
    def store_url(self) -> str:
        """The store URL that the function and the workers use."""
        options = {"region": self.place.region}
        if self.wanted.endpoint:
            options["endpoint"] = self.wanted.endpoint
        return f"dynamodb://{self.table}?{urlencode(options, safe=':/${}')}"

    # ── the table and the queues ──────────────────────────────────────────────────────────────────────────

    def _table(self) -> dict[str, Any]:
        return {"TableName": self.table, **definition(), "TimeToLiveSpecification": TIME_TO_LIVE, **_RECOVERY}

    def _queue(self) -> dict[str, Any]:
        return {
            "QueueName": self.queue,
            **_ENCRYPTION,
            "VisibilityTimeout": self.wanted.visibility,
            "MessageRetentionPeriod": self.wanted.message_retention,
            "RedrivePolicy": {"deadLetterTargetArn": self.dead_arn, "maxReceiveCount": self.wanted.max_receives},
        }

    def _dead(self) -> dict[str, Any]:
        return {
            "QueueName": self.dead,
            **_ENCRYPTION,
            "VisibilityTimeout": _DEAD_VISIBILITY,
            "MessageRetentionPeriod": _DEAD_RETENTION,
        }

    def _policies(self) -> Iterator[Part]:
        """Yield the policies that allow the rule to send to its queue and to the dead-letter queue. EventBridge sends
        the events that it cannot deliver to the dead-letter queue."""
        queues = {self.dead: self.dead_arn} | ({self.queue: self.queue_arn} if self.wanted.queue else {})
        for name, arn in queues.items():
            policy = rights.document(rights.allow_rule(arn, self.rule_arn))
            yield self._part("policy", name, arn, {"Queues": [arn], "PolicyDocument": policy}, about=name)

    # ── the bus and the rule ──────────────────────────────────────────────────────────────────────────────

    def bus_part(self) -> Part:
        source = {"EventSourceName": self.bus} if self.wanted.partner_source else {}
        return self._part(
            "bus", self.bus, self.place.arn("events", f"event-bus/{self.bus}"), {"Name": self.bus, **source}
        )

    def rule_part(self) -> Part:
        target = {
            "Id": self.wanted.name,
            "Arn": self.queue_arn if self.wanted.queue else self.function_arn,
            "RetryPolicy": _DELIVERY_RETRIES,
            "DeadLetterConfig": {"Arn": self.dead_arn},
        }
        properties = {
            "Name": self.rule,
            "EventBusName": self.bus,
            "Description": f"Made by oncegate infra for {self.wanted.name}.",
            "State": "ENABLED",
            "EventPattern": self.wanted.pattern,
            "Targets": [target],
        }
        return self._part("rule", self.rule, self.rule_arn, properties)

    # ── the function ──────────────────────────────────────────────────────────────────────────────────────

    def _function_parts(self, function: Function) -> Iterator[Part]:
        policy = {"PolicyName": "oncegate", "PolicyDocument": self.consumer_policy()}
        trust = rights.assumed_by("lambda.amazonaws.com")
        role = {"RoleName": self.role, "AssumeRolePolicyDocument": trust, "Policies": [policy]}
        yield self._part("role", self.role, self.role_arn, role)
        properties = self._function(function)
        yield Part("function", self.function, self.function_arn, properties, self.wanted.name, code=function.code)
        if self.wanted.queue:
            yield self._mapping()
            return
        if self.wanted.rule:
            yield self._permission()
        yield self._retries()

    def _function(self, function: Function) -> dict[str, Any]:
        store = {"ONCEGATE_STORE": self.store_url} if self.wanted.table else {}
        return {
            "FunctionName": self.function,
            "Runtime": function.runtime,
            "Handler": function.handler,
            "Timeout": function.timeout,
            "MemorySize": function.memory,
            "Role": self.role_arn,
            "Environment": {"Variables": {**store, **function.variables}},
            "Code": {"Sha256": digest(function.code)},
        }

    def _mapping(self) -> Part:
        """Return the event source mapping. It has `ReportBatchItemFailures`, because Lambda would otherwise delete
        failed messages."""
        properties = {
            "EventSourceArn": self.queue_arn,
            "FunctionName": self.function,
            "BatchSize": _BATCH_SIZE,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "Enabled": True,
        }
        return self._part("mapping", self.queue, self.function_arn, properties, about=self.function)

    def _permission(self) -> Part:
        properties = {
            "FunctionName": self.function,
            "Action": "lambda:InvokeFunction",
            "Principal": _EVENTS,
            "SourceArn": self.rule_arn,
        }
        return self._part("permission", rights.sid(self.rule_arn), self.function_arn, properties, about=self.function)

    def _retries(self) -> Part:
        properties = {
            "FunctionName": self.function,
            "Qualifier": "$LATEST",
            "DestinationConfig": {"OnFailure": {"Destination": self.dead_arn}},
            **_INVOCATION_RETRIES,
        }
        return self._part("retries", self.function, self.function_arn, properties, about=self.function)

    # ── permissions ───────────────────────────────────────────────────────────────────────────────────────

    def consumer_policy(self) -> dict[str, Any]:
        """Return the policy with the permissions that the function or a worker needs."""
        return rights.document(*self._statements())

    def _statements(self) -> Iterator[dict[str, Any]]:
        wanted = self.wanted
        if wanted.table:
            index = f"{self.table_arn}/index/{INDEX}"
            yield rights.allow("Claims", rights.TABLE_ACTIONS, self.table_arn, index)
        if wanted.queue:
            yield rights.allow("Events", rights.QUEUE_ACTIONS, self.queue_arn)
        if wanted.function is not None:
            group = self.place.arn("logs", f"log-group:/aws/lambda/{self.function}")
            yield rights.allow("Log", rights.LOG_ACTIONS, group, f"{group}:*")
            if not wanted.queue:
                yield rights.allow("Failures", "sqs:SendMessage", self.dead_arn)
        for service, actions in rights.PUBLISH_ACTIONS.items():
            arns = [self._published_arn(each) for each in self.destinations if each.service == service]
            if arns:
                yield rights.allow(_PUBLISH_NAMES[service], actions, *dict.fromkeys(arns))

    def _published_arn(self, destination: Destination) -> str:
        """The ARN of a queue, a bus or a state machine. The URL may name another region and another account than the
        parts have."""
        if destination.service == "stepfunctions":
            return destination.name
        place = Placement(
            self.place.partition, destination.region or self.place.region, destination.account or self.place.account
        )
        name = destination.name if destination.service == "sqs" else f"event-bus/{destination.name}"
        return place.arn(destination.service, name)


def _destination(url: str) -> Destination:
    try:
        return read_destination(url)
    except SettingError as error:
        raise SettingError(f"--publish: {error}") from error

"""Define the facts about a deployment. A part that was not read is None or empty, and rules do not report on it."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from oncegate.gate.options import GateConfig, validate


class QueueFacts(Struct, frozen=True, kw_only=True):
    """An SQS queue. Times are in seconds, the unit of SQS. `dead_retention` is the retention of the dead-letter queue;
    None if the dead-letter queue does not exist."""

    name: str
    url: str
    arn: str
    visibility: int
    retention: int
    dead_arn: str | None = None
    dead_retention: int | None = None
    max_receives: int | None = None
    statements: tuple[Mapping[str, Any], ...] = ()


class EventSourceFacts(Struct, frozen=True, kw_only=True):
    """An event source mapping from a queue to a Lambda function."""

    id: str
    source: str
    reports_failures: bool = True
    enabled: bool = True


class FunctionFacts(Struct, frozen=True, kw_only=True):
    """A Lambda function. `role` is the ARN of its role. `destinations` are the destinations of asynchronous events."""

    name: str
    arn: str
    timeout: int
    on_failure: str | None = None
    retries: int = 2
    feeds: tuple[EventSourceFacts, ...] = ()
    statements: tuple[Mapping[str, Any], ...] = ()
    store: str | None = None
    role: str | None = None
    destinations: Mapping[str, Any] = {}


class TargetFacts(Struct, frozen=True, kw_only=True):
    """A target of a rule.

    `dead_admits` is true if the rule is allowed to send to the dead-letter queue of the target. `dead_statements` is
    the policy of the dead-letter queue; None if this queue does not exist. `shape` says how EventBridge transforms the
    event, such as `InputPath $.detail`. `definition` is the definition of the target that EventBridge returns."""

    id: str
    arn: str
    exists: bool = True
    retries: int = 185
    age: int = 86_400
    dead_arn: str | None = None
    dead_admits: bool = True
    dead_statements: tuple[Mapping[str, Any], ...] | None = ()
    shape: str | None = None
    definition: Mapping[str, Any] = {}


class RuleFacts(Struct, frozen=True, kw_only=True):
    """An EventBridge rule. `matches` says whether the pattern matches a sample Genesys event. It is None if EventBridge
    did not answer, or if the pattern is for other events."""

    name: str
    arn: str
    bus: str
    pattern: Mapping[str, Any] | None
    enabled: bool = True
    targets: tuple[TargetFacts, ...] = ()
    matches: bool | None = None


class ArchiveFacts(Struct, frozen=True, kw_only=True):
    """An EventBridge archive. `days` is 0 if the archive keeps events forever."""

    name: str
    bus: str
    days: int


class TableFacts(Struct, frozen=True, kw_only=True):
    """A DynamoDB table. `problem` is the reason why the store refuses the table; None if the store accepts the table.
    `sweeps_by` is the time-to-live attribute; None if time to live is off."""

    name: str
    on_demand: bool = True
    sweeps_by: str | None = "expiresAt"
    problem: str | None = None


class RedisFacts(Struct, frozen=True, kw_only=True):
    """A Redis server. `login` has the options of redis-cli that the server needs: for TLS, the user and the password,
    which redis-cli asks for."""

    host: str
    port: int
    login: tuple[str, ...] = ()
    evicts_by: str | None = None
    append_only: bool = True


class ClockFacts(Struct, frozen=True, kw_only=True):
    """The clock of a server. `ahead` says how far it is ahead of the clock of this machine. `within` is the maximum
    error of `ahead`. Both are in microseconds."""

    of: str
    ahead: int
    within: int


class Unread(Struct, frozen=True, kw_only=True):
    """A part that was requested but could not be read. `mend` and `decision` are those of the finding, if the cause is
    known."""

    what: str
    why: str
    mend: str | None = None
    decision: str | None = None


class StoreFacts(Struct, frozen=True, kw_only=True):
    """The store that the settings name.

    `url` has no secrets. `problem` is the reason why the store cannot be used. `absent` is the reason why the store
    does not exist yet. `skew` is the tolerated clock difference in microseconds, for a store that depends on the clocks
    of its clients.

    The other fields are for SQLite. `path` is the path of the file. `damage` is the damage that the integrity check
    found. `cut_short` is true if the integrity check was stopped before its end. `readable` lists the files that users
    other than the owner can read."""

    url: str
    scheme: str
    problem: str | None = None
    absent: str | None = None
    file_system: str | None = None
    skew: int | None = None
    path: str | None = None
    damage: str | None = None
    cut_short: bool = False
    readable: tuple[str, ...] = ()


class RouteFacts(Struct, frozen=True, kw_only=True):
    """A route of the service. `signature` is None if the settings name no signature for the route."""

    path: str
    key: str
    signature: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """All facts about a deployment. `worker_visibility` is the visibility timeout, in microseconds, that a worker sends
    with each receive. It overrides the visibility timeout of the queue."""

    config: GateConfig = validate({})
    routes: tuple[RouteFacts, ...] = ()
    worker_visibility: int | None = None
    store: StoreFacts | None = None
    redis: RedisFacts | None = None
    queue: QueueFacts | None = None
    function: FunctionFacts | None = None
    rules: tuple[RuleFacts, ...] = ()
    archives: tuple[ArchiveFacts, ...] = ()
    table: TableFacts | None = None
    clocks: tuple[ClockFacts, ...] = ()
    unread: tuple[Unread, ...] = ()
    identity: str | None = None
    region: str | None = None
    endpoint: str | None = None

    def named(self, rule: RuleFacts) -> str:
        """Return the name of a rule. If several rules have this name, the returned text also names the bus."""
        namesakes = [other for other in self.rules if other.name == rule.name]
        return f"{rule.name} on the bus {rule.bus}" if len(namesakes) > 1 else rule.name

    def aws(self, command: str, **options: str) -> str:
        """Return a command line of the AWS CLI, with the region and the endpoint of the facts. If the value of an
        option is empty, the option is a flag without a value."""
        given = {**options, "region": self.region, "endpoint_url": self.endpoint}
        flags = [(f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None]
        return shlex.join(["aws", *command.split(), *(word for flag in flags for word in flag if word)])


def new_table(name: str) -> str:
    """Return a command line that creates a table for claims and prints the URL of the store."""
    plain = re.sub("[^A-Za-z0-9-]", "-", name)[:27]
    return f"oncegate infra up --name {plain}-new --no-queue --no-rule"


def sibling_queue_arn(arn: str, name: str) -> str:
    """Return the ARN of the queue `name` in the same account and region as `arn`."""
    partition, _, region, account = arn.split(":")[1:5]
    return f"arn:{partition}:sqs:{region}:{account}:{name}"

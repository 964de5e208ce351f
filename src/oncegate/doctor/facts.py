"""Facts: what was read of a deployment. What was not looked at is None or empty, and no rule speaks of it."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from oncegate.gate.options import GateConfig, validate


class QueueFacts(Struct, frozen=True, kw_only=True):
    """Times are in seconds, as SQS has them. `dead_retention` is that of its dead-letter queue, None if there is none
    of that name."""

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
    """A mapping by which Lambda feeds a function from a queue."""

    id: str
    source: str
    reports_failures: bool = True
    enabled: bool = True


class FunctionFacts(Struct, frozen=True, kw_only=True):
    name: str
    arn: str
    timeout: int
    on_failure: str | None = None
    retries: int = 2
    feeds: tuple[EventSourceFacts, ...] = ()
    statements: tuple[Mapping[str, Any], ...] = ()
    store: str | None = None


class TargetFacts(Struct, frozen=True, kw_only=True):
    """What a rule sends to. `dead_admits`: whether the rule may send to the dead-letter queue too, whose statements are
    None if it is gone. `shape` is what is done to the event on the way: `InputPath $.detail`; `told` is all that
    EventBridge has of it."""

    id: str
    arn: str
    exists: bool = True
    retries: int = 185
    age: int = 86_400
    dead_arn: str | None = None
    dead_admits: bool = True
    dead_statements: tuple[Mapping[str, Any], ...] | None = ()
    shape: str | None = None
    told: Mapping[str, Any] = {}


class RuleFacts(Struct, frozen=True, kw_only=True):
    """`matches`: whether EventBridge says that the pattern takes a sample event of Genesys; None if it was not asked,
    or the pattern is about something else."""

    name: str
    arn: str
    bus: str
    pattern: Mapping[str, Any] | None
    enabled: bool = True
    targets: tuple[TargetFacts, ...] = ()
    matches: bool | None = None


class ArchiveFacts(Struct, frozen=True, kw_only=True):
    """`days` is 0 for an archive that keeps everything."""

    name: str
    bus: str
    days: int


class TableFacts(Struct, frozen=True, kw_only=True):
    """`problem` is what the store says of a table that it would not take."""

    name: str
    on_demand: bool = True
    sweeps_by: str | None = "expiresAt"
    problem: str | None = None


class RedisFacts(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    evicts_by: str | None = None
    append_only: bool = True


class ClockFacts(Struct, frozen=True, kw_only=True):
    """By how much a clock is ahead of this machine's, in microseconds, and how exactly that is known."""

    of: str
    ahead: int
    within: int


class Unread(Struct, frozen=True, kw_only=True):
    """Something that was asked for and could not be read."""

    what: str
    why: str


class StoreFacts(Struct, frozen=True, kw_only=True):
    """The store of the settings. `url` has no secrets; `problem` is why it cannot be used, and `absent` why it is not
    there yet; `skew` is by how much clocks may differ, in microseconds, where that matters to the store. Of an SQLite
    file: its `path`, the `damage` that SQLite finds in it, whether that check was `cut_short`, and those of its files
    that others than their owner may read."""

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
    """A route of the service, by its path. `signature` is None where none was named."""

    path: str
    key: str
    signature: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """`worker_visibility` is the visibility timeout that a worker sends with each receive, in microseconds: it takes
    the place of the queue's own."""

    terms: GateConfig = validate({})
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
        """The name of a rule, with its bus where others have that name too."""
        alike = [each for each in self.rules if each.name == rule.name]
        return f"{rule.name} on the bus {rule.bus}" if len(alike) > 1 else rule.name

    def aws(self, command: str, **options: str) -> str:
        """A command of the AWS command line, for the place that was looked at; an empty option is a flag."""
        given = {**options, "region": self.region, "endpoint_url": self.endpoint}
        flags = [(f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None]
        return shlex.join(["aws", *command.split(), *(word for flag in flags for word in flag if word)])


def new_table(name: str) -> str:
    """A command that makes a table for claims, and tells the URL of the store."""
    plain = re.sub("[^A-Za-z0-9-]", "-", name)[:27]
    return f"oncegate infra up --name {plain}-new --no-queue --no-rule"


def queue_beside(arn: str, name: str) -> str:
    """The address of a queue in the same account and region as something else."""
    partition, _, region, account = arn.split(":")[1:5]
    return f"arn:{partition}:sqs:{region}:{account}:{name}"

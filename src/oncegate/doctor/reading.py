"""Read facts about a deployment on AWS. A part that cannot be read is listed in `unread`; the other parts are read."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

from botocore.exceptions import NoRegionError
from msgspec import Struct
from msgspec.structs import replace

from oncegate.aws.cloud import Cloud, Missing, Unanswered
from oncegate.clocks import wall
from oncegate.doctor.facts import (
    ArchiveFacts,
    ClockFacts,
    EventSourceFacts,
    Facts,
    FunctionFacts,
    QueueFacts,
    RuleFacts,
    TableFacts,
    TargetFacts,
    Unread,
)
from oncegate.doctor.policies import SEND, admits
from oncegate.doctor.samples import envelope_of, samples
from oncegate.errors import AwsError, StoreError
from oncegate.infra.parts import Part, events, functions, queues, tables
from oncegate.infra.plan import buses
from oncegate.infra.wanted import DEFAULT_BUS
from oncegate.stores.dynamodb.settings import read_url
from oncegate.stores.dynamodb.table import check

_T = TypeVar("_T")
_NO_TABLE: Final = "the table does not exist yet"
_HALF_SECOND: Final = 500_000  # microseconds: AWS sends its time in whole seconds


class ReadRequest(Struct, frozen=True, kw_only=True):
    """The parts to read. With `name`, these are also the parts that `infra up` creates under this name. A
    part of this kind may be missing: that is not a failure."""

    name: str | None = None
    queue: str | None = None
    function: str | None = None
    rule: str | None = None
    bus: str = DEFAULT_BUS
    table: str | None = None


def read(facts: Facts, request: ReadRequest, store: str | None, region: str | None, endpoint: str | None) -> Facts:
    """Return the facts, completed with the facts from AWS. `store` is the URL of a DynamoDB store. The
    URL supplies the region and the endpoint if these are None."""
    settings = read_url(store) if store is not None else None
    if settings is not None:
        region, endpoint = region or settings.region, endpoint or settings.endpoint
    with closing(Cloud(region, endpoint)) as cloud:
        found = _Reader(cloud, request, settings.table if settings is not None else None)
    return replace(
        facts,
        store=replace(facts.store, absent=_NO_TABLE) if facts.store is not None and found.lacks_table else facts.store,
        identity=found.identity,
        region=found.region,
        endpoint=endpoint,
        queue=found.queue,
        function=found.function,
        table=found.table,
        rules=tuple(found.rules),
        archives=tuple(found.archives),
        clocks=(*facts.clocks, *found.clocks),
        unread=tuple(found.unread),
    )


class _Reader:
    """Reads the facts from AWS and holds them. `identity` and `region` are None if they could not be read.
    `lacks_table` is true if the table of the store does not exist."""

    def __init__(self, cloud: Cloud, request: ReadRequest, store_table: str | None) -> None:
        self._cloud = cloud
        self._request = request
        self._store_table = store_table
        self.lacks_table = False
        self.unread: list[Unread] = []
        self.identity: str | None = None
        self._account = "123456789012"
        self.region: str | None = None
        self.clocks: list[ClockFacts] = []
        self.queue: QueueFacts | None = None
        self.function: FunctionFacts | None = None
        self.rules: list[RuleFacts] = []
        self.archives: list[ArchiveFacts] = []
        self.table: TableFacts | None = None
        try:
            self._read_identity()
            self._read()
        except Unanswered as error:
            self.unread = [_no_answer(error)]

    def _read_identity(self) -> None:
        self.region = self._cloud.region
        before = wall()
        try:
            answer = self._cloud.call("sts", "get_caller_identity")
        except Unanswered:
            raise
        except AwsError:  # the identity is information only
            return
        self.identity, self._account = answer["Arn"], answer["Account"]
        self.clocks += _clocks(answer, before)

    def _read(self) -> None:
        request = self._request
        self.function = self._read_part(request.function, "function", self._function)
        source = next((feed.source for feed in self.function.feeds), None) if self.function else None
        self.queue = self._read_part(request.queue or source, "queue", self._queue, suffix="events")
        self.table = self._table_of_store() or self._read_part(request.table, "table", self._table, suffix="claims")
        self._try_read("rules", self._read_rules)
        self._try_read("archives", self._read_archives)
        if request.name and not (self.queue or self.function or self.table or self.rules or self.unread):
            create = f"oncegate infra up --name {request.name}"
            why = f"no part of a deployment with that name exists in {self.region}; create it with {create}"
            self.unread.append(Unread(what=request.name, why=why))

    def _table_of_store(self) -> TableFacts | None:
        """Return the facts about the table of the store; None if the request names a table. If the table of the store
        does not exist, set `lacks_table`. This is no failure, because the store creates the table when it is opened."""
        name = self._store_table
        if name is None or self._request.table is not None:
            return None
        try:
            return self._try_read(f"the table {name}", lambda: self._table(name), raise_missing=True)
        except Missing:
            self.lacks_table = True
            return None

    def _read_part(
        self, name: str | None, what: str, read: Callable[[str], _T], suffix: str | None = None
    ) -> _T | None:
        """Return the facts about the part with this name. If `name` is None and the request has a `name`, return the
        facts about the part that `infra up` creates, or None if this part does not exist."""
        if name is not None:
            return self._try_read(f"the {what} {name}", lambda: read(_name_in(name)))
        if self._request.name is None:
            return None
        created = f"{self._request.name}-{suffix or what}"
        with suppress(Missing):
            return self._try_read(f"the {what} {created}", lambda: read(created), raise_missing=True)
        return None

    def _try_read(self, what: str, read: Callable[[], _T], *, raise_missing: bool = False) -> _T | None:
        """Return the result of `read`. If `read` fails, add the failure to `unread` and return None. With
        `raise_missing`, raise Missing instead if the part does not exist."""
        try:
            return read()
        except Unanswered:
            raise
        except Missing as error:
            if raise_missing:
                raise
            self.unread.append(Unread(what=what, why=str(error)))
        except AwsError as error:
            self.unread.append(Unread(what=what, why=str(error)))
        return None

    # ── the parts ─────────────────────────────────────────────────────────────────────────────────────────

    def _function(self, name: str) -> FunctionFacts:
        part = _part_named("function", name)
        found = functions.read_function(self._cloud, part)
        if found is None:
            raise Missing(f"the function {name} does not exist in {self.region}; check the name and the region")
        retries = functions.read_retries(self._cloud, part)
        config = retries.properties if retries else {}
        return FunctionFacts(
            name=name,
            arn=found.arn,
            timeout=found.properties["Timeout"],
            on_failure=config.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination"),
            retries=config.get("MaximumRetryAttempts", 2),
            feeds=tuple(_event_sources(functions.mappings_of(self._cloud, name))),
            statements=tuple(functions.statements_of(self._cloud, name)),
            store=found.properties["Environment"]["Variables"].get("ONCEGATE_STORE"),
            role=found.properties.get("Role"),
            destinations={name: each for name, each in config.get("DestinationConfig", {}).items() if each},
        )

    def _queue(self, name: str) -> QueueFacts:
        found = queues.describe_queue(self._cloud, name)
        if found is None:
            raise Missing(f"the queue {name} does not exist in {self.region}; check the name and the region")
        url, attributes = found
        redrive = queues.parse_json(attributes.get("RedrivePolicy")) or {}
        dead = redrive.get("deadLetterTargetArn")
        dead_queue = queues.describe_queue(self._cloud, _name_in(dead)) if dead else None
        return QueueFacts(
            name=name,
            url=url,
            arn=attributes["QueueArn"],
            visibility=int(attributes["VisibilityTimeout"]),
            retention=int(attributes["MessageRetentionPeriod"]),
            dead_arn=dead,
            dead_retention=int(dead_queue[1]["MessageRetentionPeriod"]) if dead_queue else None,
            max_receives=int(redrive["maxReceiveCount"]) if redrive else None,
            statements=tuple(queues.statements_of(queues.parse_json(attributes.get("Policy")))),
        )

    def _table(self, name: str) -> TableFacts:
        found = tables.read(self._cloud, _part_named("table", name))
        if found is None:
            raise Missing(f"the table {name} does not exist in {self.region}; check the name and the region")
        sweep = found.properties["TimeToLiveSpecification"]
        return TableFacts(
            name=name,
            on_demand=found.properties["BillingMode"] == "PAY_PER_REQUEST",
            sweeps_by=sweep["AttributeName"] if sweep["Enabled"] else None,
            problem=_problem(name, dict(found.properties)),
        )

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read_rules(self) -> None:
        """Read three groups of rules: the requested rule, the rules with the name of the deployment, and the rules on
        any bus that send to the queue or to the function."""
        request = self._request
        named = [(request.bus, request.rule)] if request.rule else []
        known_buses = buses(self._cloud) if request.name or self.queue or self.function else []
        created = [(bus, f"{request.name}-events") for bus in known_buses if request.name]
        for bus, name in dict.fromkeys([*named, *created, *self._senders(known_buses)]):
            rule = self._rule(name, bus)
            if rule is not None:
                self.rules.append(rule)
            elif name == request.rule:
                raise Missing(f"the rule {name} does not exist on the bus {bus}; check --rule, --bus and the region")

    def _senders(self, known_buses: list[str]) -> Iterator[tuple[str, str]]:
        consumers = [part.arn for part in (self.queue, self.function) if part is not None]
        for bus in known_buses:
            for arn in consumers:
                where = {"TargetArn": arn, "EventBusName": bus}
                for name in self._cloud.list_all("events", "list_rule_names_by_target", "RuleNames", **where):
                    yield bus, name

    def _rule(self, name: str, bus: str) -> RuleFacts | None:
        found = events.read_rule(self._cloud, _part_named("rule", name, EventBusName=bus, Description=""))
        if found is None:
            return None
        pattern = found.properties["EventPattern"]
        return RuleFacts(
            name=name,
            arn=found.arn,
            bus=bus,
            pattern=pattern,
            enabled=found.properties["State"] != "DISABLED",
            targets=tuple(self._target(target, found.arn) for target in found.properties["Targets"]),
            matches=self._matches(pattern, bus),
        )

    def _target(self, target: dict[str, Any], rule: str) -> TargetFacts:
        retry = target.get("RetryPolicy", {})
        dead = target.get("DeadLetterConfig", {}).get("Arn")
        return TargetFacts(
            id=target["Id"],
            arn=target["Arn"],
            exists=self._exists(target["Arn"]),
            retries=retry.get("MaximumRetryAttempts", 185),
            age=retry.get("MaximumEventAgeInSeconds", 86_400),
            dead_arn=dead,
            **self._dead(dead, rule),
            shape=_shape(target),
            definition=target,
        )

    def _dead(self, queue: str | None, rule: str) -> dict[str, Any]:
        """Return the fields `dead_admits` and `dead_statements` of TargetFacts. A queue of another account is not
        read."""
        if queue is None or self._account not in queue:
            return {}
        found = queues.describe_queue(self._cloud, _name_in(queue))
        if found is None:
            return {"dead_admits": False, "dead_statements": None}
        statements = queues.statements_of(queues.parse_json(found[1].get("Policy")))
        return {"dead_admits": admits(statements, SEND, rule), "dead_statements": tuple(statements)}

    def _exists(self, arn: str) -> bool:
        """Return whether the target exists, if it is a queue or a function. Returns True for other kinds of targets,
        and for targets in other accounts."""
        if self._account not in arn:
            return True
        if ":sqs:" in arn:
            return queues.describe_queue(self._cloud, _name_in(arn)) is not None
        return ":lambda:" not in arn or self._cloud.find("lambda", "get_function", FunctionName=arn) is not None

    def _matches(self, pattern: dict[str, Any] | None, bus: str) -> bool | None:
        """Ask EventBridge whether the pattern matches a sample event. Returns None if there is no sample or EventBridge
        does not answer. Conditions on `detail` are left out, because the samples have no real detail."""
        envelope = json.dumps(envelope_of(pattern))
        events = [json.dumps(sample) for sample in samples(pattern, bus, self._account, str(self.region))]
        test = partial(self._cloud.call, "events", "test_event_pattern", EventPattern=envelope)
        try:
            answers = [test(Event=event) for event in events]
        except AwsError:
            return None
        return any(answer["Result"] for answer in answers) if answers else None

    def _read_archives(self) -> None:
        used = {rule.bus for rule in self.rules}
        for archive in self._cloud.list_all("events", "list_archives", "Archives") if used else ():
            bus = archive["EventSourceArn"].partition(":event-bus/")[2]
            if bus in used:
                days = archive.get("RetentionDays", 0)
                self.archives.append(ArchiveFacts(name=archive["ArchiveName"], bus=bus, days=days))


# ── from the answers of AWS to facts ──────────────────────────────────────────────────────────────────────


def _no_answer(error: Unanswered) -> Unread:
    if not isinstance(error.__cause__, NoRegionError):
        return Unread(what="AWS", why=str(error))
    decision = "Choose the region of the deployment: use --region, or set AWS_REGION."
    return Unread(what="AWS", why=str(error), mend="export AWS_REGION=eu-central-1", decision=decision)


def _part_named(kind: str, name: str, **properties: Any) -> Part:
    return Part(kind, name, "", properties, "", about=name)


def _name_in(reference: str) -> str:
    """Return the name at the end of a URL or an ARN. A plain name is returned unchanged."""
    return reference.rpartition("/")[2].rpartition(":")[2]


def _event_sources(mappings: list[dict[str, Any]]) -> Iterator[EventSourceFacts]:
    for mapping in mappings:
        if ":sqs:" in mapping.get("EventSourceArn", ""):
            yield EventSourceFacts(
                id=mapping["UUID"],
                source=mapping["EventSourceArn"],
                reports_failures="ReportBatchItemFailures" in mapping.get("FunctionResponseTypes", []),
                enabled=mapping.get("State") not in ("Disabled", "Disabling"),
            )


def _shape(target: dict[str, Any]) -> str | None:
    """Return how the target transforms the event; None if the target receives the event unchanged. The path `$` selects
    the whole event."""
    path = target.get("InputPath")
    if path and path != "$":
        return f"InputPath {path}"
    return "an InputTransformer" if "InputTransformer" in target else "a constant Input" if "Input" in target else None


def _problem(name: str, properties: dict[str, Any]) -> str | None:
    try:
        check(f"the table {name}", properties)
    except StoreError as error:
        return str(error)
    return None


def _clocks(answer: dict[str, Any], before: int) -> Iterator[ClockFacts]:
    """Yield the facts about the clock of AWS. Its time is the Date header of an answer that AWS sent between `before`
    and now."""
    half = (wall() - before) // 2
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    with suppress(TypeError, ValueError):
        clock_us = int(parsedate_to_datetime(date).timestamp()) * 1_000_000
        yield ClockFacts(of="AWS", ahead=clock_us + _HALF_SECOND - before - half, within=_HALF_SECOND + half)

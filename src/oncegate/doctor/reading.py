"""Reading a deployment on AWS. What cannot be read is told, and the rest is read all the same."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

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
_NO_TABLE: Final = "there is no table of that name yet"
_HALF: Final = 500_000  # AWS tells its time in whole seconds


class ReadRequest(Struct, frozen=True, kw_only=True):
    """What to look at. With `name`, the parts that `infra up` makes; those of them that are not there are no matter."""

    name: str | None = None
    queue: str | None = None
    function: str | None = None
    rule: str | None = None
    bus: str = DEFAULT_BUS
    table: str | None = None


def read(facts: Facts, asked: ReadRequest, store: str | None, region: str | None, endpoint: str | None) -> Facts:
    """The facts with all that AWS tells. A store in DynamoDB says where its table is, if nobody says otherwise."""
    settings = read_url(store) if store is not None else None
    if settings is not None:
        region, endpoint = region or settings.region, endpoint or settings.endpoint
    with closing(Cloud(region, endpoint)) as cloud:
        found = _Reader(cloud, asked, settings.table if settings is not None else None)
    return replace(
        facts,
        store=replace(facts.store, absent=_NO_TABLE) if facts.store is not None and found.tableless else facts.store,
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
    """What was read. `identity` and `region` are None where AWS does not tell; `tableless` is a store without its
    table."""

    def __init__(self, cloud: Cloud, asked: ReadRequest, stored: str | None) -> None:
        self._cloud = cloud
        self._asked = asked
        self._stored = stored
        self.tableless = False
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
            self._ask_who()
            self._read()
        except Unanswered as error:
            self.unread = [Unread(what="AWS", why=str(error))]

    def _ask_who(self) -> None:
        self.region = self._cloud.region
        before = wall()
        try:
            answer = self._cloud.call("sts", "get_caller_identity")
        except Unanswered:
            raise
        except AwsError:  # who asks is good to know, but no need
            return
        self.identity, self._account = answer["Arn"], answer["Account"]
        self.clocks += _clocks(answer, before)

    def _read(self) -> None:
        asked = self._asked
        self.function = self._looked_for(asked.function, "function", self._function)
        source = next((feed.source for feed in self.function.feeds), None) if self.function else None
        self.queue = self._looked_for(asked.queue or source, "queue", self._queue, suffix="events")
        self.table = self._table_of_store() or self._looked_for(asked.table, "table", self._table, suffix="claims")
        self._tried("rules", self._read_rules)
        self._tried("archives", self._read_archives)
        if asked.name and not (self.queue or self.function or self.table or self.rules or self.unread):
            why = f"nothing of that name exists in {self.region}; make it with oncegate infra up --name {asked.name}"
            self.unread.append(Unread(what=asked.name, why=why))

    def _table_of_store(self) -> TableFacts | None:
        """That of the store, if no other is named. Where there is none, the store makes it when it is first opened."""
        stored = self._stored
        if stored is None or self._asked.table is not None:
            return None
        try:
            return self._tried(f"the table {stored}", lambda: self._table(stored), or_missing=True)
        except Missing:
            self.tableless = True
            return None

    def _looked_for(
        self, named: str | None, what: str, read: Callable[[str], _T], suffix: str | None = None
    ) -> _T | None:
        """Something that was named; else, with `--name`, what that would be called, if it is there."""
        if named is not None:
            return self._tried(f"the {what} {named}", lambda: read(_last(named)))
        if self._asked.name is None:
            return None
        guessed = f"{self._asked.name}-{suffix or what}"
        with suppress(Missing):
            return self._tried(f"the {what} {guessed}", lambda: read(guessed), or_missing=True)
        return None

    def _tried(self, what: str, read: Callable[[], _T], *, or_missing: bool = False) -> _T | None:
        try:
            return read()
        except Unanswered:
            raise
        except Missing as error:
            if or_missing:
                raise
            self.unread.append(Unread(what=what, why=str(error)))
        except AwsError as error:
            self.unread.append(Unread(what=what, why=str(error)))
        return None

    # ── the parts ─────────────────────────────────────────────────────────────────────────────────────────

    def _function(self, name: str) -> FunctionFacts:
        part = _named("function", name)
        found = functions.read_function(self._cloud, part)
        if found is None:
            raise Missing(f"there is no function {name} in {self.region}; check name and region")
        retries = functions.read_retries(self._cloud, part)
        config = retries.properties if retries else {}
        return FunctionFacts(
            name=name,
            arn=found.arn,
            timeout=found.properties["Timeout"],
            on_failure=config.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination"),
            retries=config.get("MaximumRetryAttempts", 2),
            feeds=tuple(_feeds(functions.mappings_of(self._cloud, name))),
            statements=tuple(functions.statements_of(self._cloud, name)),
            store=found.properties["Environment"]["Variables"].get("ONCEGATE_STORE"),
        )

    def _queue(self, name: str) -> QueueFacts:
        described = queues.described(self._cloud, name)
        if described is None:
            raise Missing(f"there is no queue {name} in {self.region}; check name and region")
        url, attributes = described
        redrive = queues.parsed(attributes.get("RedrivePolicy")) or {}
        dead = redrive.get("deadLetterTargetArn")
        beside = queues.described(self._cloud, _last(dead)) if dead else None
        return QueueFacts(
            name=name,
            url=url,
            arn=attributes["QueueArn"],
            visibility=int(attributes["VisibilityTimeout"]),
            retention=int(attributes["MessageRetentionPeriod"]),
            dead_arn=dead,
            dead_retention=int(beside[1]["MessageRetentionPeriod"]) if beside else None,
            max_receives=int(redrive["maxReceiveCount"]) if redrive else None,
            statements=tuple(queues.statements_of(queues.parsed(attributes.get("Policy")))),
        )

    def _table(self, name: str) -> TableFacts:
        found = tables.read(self._cloud, _named("table", name))
        if found is None:
            raise Missing(f"there is no table {name} in {self.region}; check name and region")
        sweep = found.properties["TimeToLiveSpecification"]
        return TableFacts(
            name=name,
            on_demand=found.properties["BillingMode"] == "PAY_PER_REQUEST",
            sweeps_by=sweep["AttributeName"] if sweep["Enabled"] else None,
            problem=_problem(name, dict(found.properties)),
        )

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read_rules(self) -> None:
        """The rule that was named, those of the deployment's name, and every one on whatever bus that reaches the queue
        or the function."""
        asked = self._asked
        named = [(asked.bus, asked.rule)] if asked.rule else []
        known = buses(self._cloud) if asked.name or self.queue or self.function else []
        guessed = [(bus, f"{asked.name}-events") for bus in known if asked.name]
        for bus, name in dict.fromkeys([*named, *guessed, *self._reaching(known)]):
            rule = self._rule(name, bus)
            if rule is not None:
                self.rules.append(rule)
            elif name == asked.rule:
                raise Missing(f"there is no rule {name} on the bus {bus}; check --rule, --bus and region")

    def _reaching(self, known: list[str]) -> Iterator[tuple[str, str]]:
        consumers = [part.arn for part in (self.queue, self.function) if part is not None]
        for bus in known:
            for arn in consumers:
                where = {"TargetArn": arn, "EventBusName": bus}
                for name in self._cloud.list_all("events", "list_rule_names_by_target", "RuleNames", **where):
                    yield bus, name

    def _rule(self, name: str, bus: str) -> RuleFacts | None:
        found = events.read_rule(self._cloud, _named("rule", name, EventBusName=bus, Description=""))
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
            told=target,
        )

    def _dead(self, queue: str | None, rule: str) -> dict[str, Any]:
        """Whether a rule may send to a dead-letter queue, and who may; that of another account is not looked at."""
        if queue is None or self._account not in queue:
            return {}
        there = queues.described(self._cloud, _last(queue))
        if there is None:
            return {"dead_admits": False, "dead_statements": None}
        statements = queues.statements_of(queues.parsed(there[1].get("Policy")))
        return {"dead_admits": admits(statements, SEND, rule), "dead_statements": tuple(statements)}

    def _exists(self, arn: str) -> bool:
        """Whether there is such a queue or function; other targets, and those of others, are not looked for."""
        if self._account not in arn:
            return True
        if ":sqs:" in arn:
            return queues.described(self._cloud, _last(arn)) is not None
        return ":lambda:" not in arn or self._cloud.find("lambda", "get_function", FunctionName=arn) is not None

    def _matches(self, pattern: dict[str, Any] | None, bus: str) -> bool | None:
        """Whether EventBridge says that the pattern takes a sample; of `detail` no sample can tell."""
        asked = json.dumps(envelope_of(pattern))
        tested = [json.dumps(sample) for sample in samples(pattern, bus, self._account, str(self.region))]
        try:
            answers = [
                self._cloud.call("events", "test_event_pattern", EventPattern=asked, Event=one) for one in tested
            ]
        except AwsError:
            return None
        return any(answer["Result"] for answer in answers) if answers else None

    def _read_archives(self) -> None:
        fed = {rule.bus for rule in self.rules}
        for archive in self._cloud.list_all("events", "list_archives", "Archives") if fed else ():
            bus = archive["EventSourceArn"].partition(":event-bus/")[2]
            if bus in fed:
                days = archive.get("RetentionDays", 0)
                self.archives.append(ArchiveFacts(name=archive["ArchiveName"], bus=bus, days=days))


# ── from what AWS answers to facts ────────────────────────────────────────────────────────────────────────


def _named(kind: str, name: str, **properties: Any) -> Part:
    return Part(kind, name, "", properties, "", about=name)


def _last(written: str) -> str:
    """The name in a URL or an ARN, or the name itself."""
    return written.rpartition("/")[2].rpartition(":")[2]


def _feeds(mappings: list[dict[str, Any]]) -> Iterator[EventSourceFacts]:
    for mapping in mappings:
        if ":sqs:" in mapping.get("EventSourceArn", ""):
            yield EventSourceFacts(
                id=mapping["UUID"],
                source=mapping["EventSourceArn"],
                reports_failures="ReportBatchItemFailures" in mapping.get("FunctionResponseTypes", []),
                enabled=mapping.get("State") not in ("Disabled", "Disabling"),
            )


def _shape(target: dict[str, Any]) -> str | None:
    """What is done to the event on the way; the path of all of it does nothing."""
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
    """The time in the answer, which was given at some time since `before`."""
    half = (wall() - before) // 2
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    with suppress(TypeError, ValueError):
        told = int(parsedate_to_datetime(date).timestamp()) * 1_000_000
        yield ClockFacts(of="AWS", ahead=told + _HALF - before - half, within=_HALF + half)

"""A deployment that breaks no rule, and one for each rule that breaks it."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from oncegate.doctor.facts import (
    ArchiveFacts,
    ClockFacts,
    EventSourceFacts,
    Facts,
    FunctionFacts,
    QueueFacts,
    RedisFacts,
    RouteFacts,
    RuleFacts,
    StoreFacts,
    TableFacts,
    TargetFacts,
    Unread,
)
from oncegate.gate.options import validate
from oncegate.infra.rights import allow_rule

HERE = "eu-central-1:123456789012"
QUEUE = f"arn:aws:sqs:{HERE}:crm-events"
DEAD = f"arn:aws:sqs:{HERE}:crm-dead"
FUNCTION = f"arn:aws:lambda:{HERE}:function:crm-function"
PARTNER = "aws.partner/genesys.com/cloud/0e5c3f2a/crm"
RULE = f"arn:aws:events:{HERE}:rule/{PARTNER}/crm-events"
DIRECT = f"arn:aws:events:{HERE}:rule/{PARTNER}/crm-direct"
AUDITS = f"arn:aws:events:{HERE}:rule/{PARTNER}/crm-audits"
DAY = 86_400
INVOKED = {
    "Effect": "Allow",
    "Principal": {"Service": "events.amazonaws.com"},
    "Action": "lambda:InvokeFunction",
    "Condition": {"ArnLike": {"AWS:SourceArn": DIRECT}},
}

queue = QueueFacts(
    name="crm-events",
    url="https://sqs.eu-central-1.amazonaws.com/123456789012/crm-events",
    arn=QUEUE,
    visibility=180,
    retention=4 * DAY,
    dead_arn=DEAD,
    dead_retention=14 * DAY,
    max_receives=5,
    statements=(allow_rule(QUEUE, RULE),),
)
feed = EventSourceFacts(id="0d8f", source=QUEUE)
function = FunctionFacts(
    name="crm-function", arn=FUNCTION, timeout=30, feeds=(feed,), store="dynamodb://crm-claims?region=eu-central-1"
)
direct = FunctionFacts(name="crm-function", arn=FUNCTION, timeout=30, on_failure=DEAD, statements=(INVOKED,))
target = TargetFacts(id="crm", arn=QUEUE, dead_arn=DEAD)
rule = RuleFacts(
    name="crm-events",
    arn=RULE,
    bus=PARTNER,
    pattern={"source": [{"prefix": "aws.partner/genesys.com"}]},
    targets=(target,),
    matches=True,
)
direct_rule = replace(rule, name="crm-direct", arn=DIRECT, targets=(replace(target, arn=FUNCTION),))
audits = replace(rule, name="crm-audits", arn=AUDITS, pattern={"detail-type": [{"prefix": "v2.audits"}]})
TWO_MAY_SEND = replace(queue, statements=(allow_rule(QUEUE, RULE), allow_rule(QUEUE, AUDITS)))
table = TableFacts(name="crm-claims")
store = StoreFacts(url="dynamodb://crm-claims?region=eu-central-1", scheme="dynamodb", skew=2_000_000)
sqlite = StoreFacts(url="sqlite:///a%20b.db", scheme="sqlite", path="a b.db")
redis = RedisFacts(host="cache", port=6379)

SIGNED = RouteFacts(path="/events/billing", key="webhook_id", signature="standard-webhooks")

BEHIND_A_QUEUE: Final = Facts(
    routes=(SIGNED,),
    store=store,
    redis=redis,
    queue=queue,
    function=function,
    rules=(rule,),
    archives=(ArchiveFacts(name="calls", bus=PARTNER, days=5),),
    table=table,
    clocks=(ClockFacts(of="AWS", ahead=400_000, within=600_000),),
    region="eu-central-1",
)
BEHIND_A_RULE: Final = replace(BEHIND_A_QUEUE, queue=None, function=direct, rules=(direct_rule,))
WITH_A_WORKER: Final = replace(BEHIND_A_QUEUE, function=None, worker_visibility=30_000_000)


def lacking(facts: Facts, **changes: Any) -> Facts:
    """A deployment with changes, such as `queue={"visibility": 30}`."""
    changed = {
        name: replace(getattr(facts, name), **change) if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return replace(facts, **changed)


def with_rule(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, rules=(replace(facts.rules[0], **changes),))


def with_target(facts: Facts, **changes: Any) -> Facts:
    return with_rule(facts, targets=(replace(facts.rules[0].targets[0], **changes),))


def with_feed(**changes: Any) -> Facts:
    return lacking(BEHIND_A_QUEUE, function={"feeds": (replace(feed, **changes),)})


# rule → the severity with which it speaks of each deployment that breaks it
BROKEN: Final[Mapping[str, list[tuple[str, Facts]]]] = {
    "aws.readable": [("error", lacking(BEHIND_A_QUEUE, unread=(Unread(what="the queue crm", why="there is none"),)))],
    "settings.retention": [
        ("error", lacking(BEHIND_A_QUEUE, config=validate({"retention": "5d"}), archives=())),
        ("error", lacking(BEHIND_A_RULE, config=validate({"retention": "30h"}), archives=())),
    ],
    "settings.replays": [
        ("warning", lacking(BEHIND_A_QUEUE, archives=(ArchiveFacts(name="calls", bus=PARTNER, days=8),))),
        ("warning", lacking(BEHIND_A_QUEUE, archives=(ArchiveFacts(name="calls", bus=PARTNER, days=0),))),
    ],
    "settings.attempts": [("warning", Facts(config=validate({"retention": "299s", "lease": "30s"})))],
    "settings.signed": [
        ("warning", lacking(BEHIND_A_QUEUE, routes=(SIGNED, RouteFacts(path="/events", key="auto")))),
        (
            "warning",
            lacking(BEHIND_A_QUEUE, routes=(RouteFacts(path="/events/crm", key="event_id", signature="none"),)),
        ),
        ("note", lacking(BEHIND_A_QUEUE, routes=(RouteFacts(path="/events/bus", key="auto", signature="api-key"),))),
    ],
    "settings.previous": [
        (
            "note",
            Facts(config=validate({"previous": "dynamodb://Dedup?region=eu-central-1&until=2026-01-01T00:00:00Z"})),
        )
    ],
    "store.reachable": [("error", lacking(BEHIND_A_QUEUE, store={"problem": "it cannot be reached"}))],
    "store.present": [
        ("note", Facts(store=StoreFacts(url="sqlite:///oncegate.db", scheme="sqlite", absent="there is no file")))
    ],
    "store.memory": [("warning", Facts(store=StoreFacts(url="memory://", scheme="memory")))],
    "store.disk": [("error", Facts(store=StoreFacts(url="sqlite:///a.db", scheme="sqlite", file_system="nfs4")))],
    "store.integrity": [
        ("error", Facts(store=replace(sqlite, damage="Page 3: btreeInitPage() returns error code 11"))),
        ("note", Facts(store=replace(sqlite, cut_short=True))),
    ],
    "store.private": [("warning", Facts(store=replace(sqlite, readable=("a b.db", "a b.db-wal"))))],
    "store.eviction": [("error", lacking(BEHIND_A_QUEUE, redis={"evicts_by": "allkeys-lru"}))],
    "store.persistence": [("warning", lacking(BEHIND_A_QUEUE, redis={"append_only": False}))],
    "store.clock": [
        ("error", lacking(BEHIND_A_QUEUE, clocks=(ClockFacts(of="AWS", ahead=2_700_000, within=600_000),))),
        ("error", lacking(BEHIND_A_QUEUE, clocks=(ClockFacts(of="AWS", ahead=-2_700_000, within=600_000),))),
        ("warning", lacking(Facts(), clocks=(ClockFacts(of="Redis at cache:6379", ahead=5_000_002, within=1),))),
    ],
    "table.shape": [("error", lacking(BEHIND_A_QUEUE, table={"problem": "it is no table of Oncegate"}))],
    "table.sweep": [
        ("warning", lacking(BEHIND_A_QUEUE, table={"sweeps_by": None})),
        ("error", lacking(BEHIND_A_QUEUE, table={"sweeps_by": "leaseUntil"})),
    ],
    "table.capacity": [("warning", lacking(BEHIND_A_QUEUE, table={"on_demand": False}))],
    "queue.visibility": [("error", lacking(BEHIND_A_QUEUE, queue={"visibility": 179}))],
    "queue.lease": [
        ("error", lacking(WITH_A_WORKER, worker_visibility=29_000_000)),
        ("error", lacking(WITH_A_WORKER, config=validate({"lease": "31s"}))),
    ],
    "queue.dead_letters": [
        ("error", lacking(BEHIND_A_QUEUE, queue={"dead_arn": None, "dead_retention": None, "max_receives": None})),
        ("error", lacking(BEHIND_A_QUEUE, queue={"dead_retention": None})),
        ("error", lacking(BEHIND_A_QUEUE, queue={"dead_retention": None, "name": "crm-events.fifo"})),
    ],
    "queue.receives": [
        ("error", lacking(BEHIND_A_QUEUE, queue={"max_receives": 1})),
        ("warning", lacking(BEHIND_A_QUEUE, queue={"max_receives": 4})),
    ],
    "queue.dead_retention": [("warning", lacking(BEHIND_A_QUEUE, queue={"dead_retention": 4 * DAY}))],
    "queue.policy": [
        ("error", lacking(BEHIND_A_QUEUE, queue={"statements": ()})),
        ("error", lacking(BEHIND_A_QUEUE, queue={"statements": (allow_rule(QUEUE, DIRECT),)})),
        (
            "warning",
            lacking(BEHIND_A_QUEUE, queue={"statements": (allow_rule(QUEUE, RULE) | {"Condition": {}},)}),
        ),
    ],
    "function.failures": [("error", lacking(BEHIND_A_RULE, function={"on_failure": None}))],
    "function.retries": [("warning", lacking(BEHIND_A_RULE, function={"retries": 0}))],
    "function.reports": [("error", with_feed(reports_failures=False))],
    "function.enabled": [("error", with_feed(enabled=False))],
    "function.permission": [
        ("error", lacking(BEHIND_A_RULE, function={"statements": ()})),
        ("error", lacking(BEHIND_A_RULE, function={"statements": (INVOKED | {"Effect": "Deny"},)})),
    ],
    "function.store": [
        ("error", lacking(BEHIND_A_QUEUE, function={"store": "sqlite:////tmp/oncegate.db"})),
        ("error", lacking(BEHIND_A_QUEUE, function={"store": "memory://"})),
    ],
    "rule.enabled": [("error", with_rule(BEHIND_A_QUEUE, enabled=False))],
    "rule.pattern": [
        ("error", with_rule(BEHIND_A_QUEUE, matches=False)),
        ("error", with_rule(BEHIND_A_QUEUE, matches=None, pattern={"source": ["genesys.cloud"]})),
        ("error", with_rule(BEHIND_A_QUEUE, pattern={"detail": {"conversationId": [{"exists": True}]}})),
    ],
    "rule.bus": [
        ("error", with_rule(BEHIND_A_QUEUE, bus="default")),
        ("note", with_rule(BEHIND_A_QUEUE, bus="forwarded")),
        ("note", with_rule(BEHIND_A_QUEUE, bus="calls", matches=None, pattern={"source": ["genesys.cloud"]})),
    ],
    "rule.target": [
        ("error", with_target(BEHIND_A_QUEUE, exists=False)),
        ("error", with_target(BEHIND_A_RULE, exists=False)),
        ("error", with_rule(BEHIND_A_QUEUE, targets=())),
        ("error", lacking(with_rule(WITH_A_WORKER, targets=()), queue=None)),
    ],
    "rule.envelope": [
        ("warning", with_target(BEHIND_A_QUEUE, shape="InputPath $.detail")),
        ("error", with_target(BEHIND_A_QUEUE, shape="an InputTransformer")),
    ],
    "rule.retries": [
        ("warning", with_target(BEHIND_A_QUEUE, retries=0)),
        ("warning", with_target(BEHIND_A_QUEUE, age=3_599)),
    ],
    "rule.dead_letters": [("warning", with_target(BEHIND_A_QUEUE, dead_arn=None))],
    "rule.dead_policy": [
        ("error", with_target(BEHIND_A_QUEUE, dead_admits=False)),
        ("error", with_target(BEHIND_A_QUEUE, dead_admits=False, dead_statements=None)),
    ],
    "rule.doubled": [
        ("warning", with_rule(BEHIND_A_QUEUE, targets=(target, replace(target, id="again")))),
        (
            "warning",
            lacking(
                BEHIND_A_QUEUE,
                function={"statements": (INVOKED,), "on_failure": DEAD},
                rules=(rule, direct_rule),
            ),
        ),
        ("note", replace(BEHIND_A_QUEUE, queue=TWO_MAY_SEND, rules=(rule, audits))),
    ],
}

"""Read and write SQS queues and their policies."""

import json
from typing import Any, Final

from oncegate.aws.cloud import Cloud, Missing
from oncegate.infra.platform import FoundPart, Part, PartKind
from oncegate.infra.rights import document

_NUMBERS: Final = ("VisibilityTimeout", "MessageRetentionPeriod")
_MESSAGE_COUNTS: Final = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


def read_queue(cloud: Cloud, part: Part) -> FoundPart | None:
    found = describe_queue(cloud, part.name)
    if found is None:
        return None
    url, attributes = found
    properties: dict[str, Any] = {name: int(attributes[name]) for name in _NUMBERS}
    properties["SqsManagedSseEnabled"] = attributes.get("SqsManagedSseEnabled") == "true"
    if redrive := parse_json(attributes.get("RedrivePolicy")):
        properties["RedrivePolicy"] = redrive | {"maxReceiveCount": int(redrive["maxReceiveCount"])}
    waiting = sum(int(attributes.get(name, 0)) for name in _MESSAGE_COUNTS)
    note = f"{waiting} messages" if waiting else ""
    return FoundPart(attributes["QueueArn"], _tags(cloud, url), properties, url, note)


def _create_queue(cloud: Cloud, part: Part) -> None:
    cloud.call("sqs", "create_queue", QueueName=part.name, Attributes=_attributes(part), tags=part.tags)
    cloud.wait_until(lambda: describe_queue(cloud, part.name) is not None, f"the queue {part.name}")


def _change_queue(cloud: Cloud, part: Part, found: FoundPart) -> None:
    cloud.call("sqs", "set_queue_attributes", QueueUrl=found.url, Attributes=_attributes(part))


def _delete_queue(cloud: Cloud, _part: Part, found: FoundPart) -> None:
    cloud.call("sqs", "delete_queue", QueueUrl=found.url)


def _attributes(part: Part) -> dict[str, str]:
    """Return the properties as SQS attributes. The value of every SQS attribute is a text."""
    properties = {name: value for name, value in part.properties.items() if name != "QueueName"}
    return {
        name: json.dumps(value) if isinstance(value, dict | bool) else str(value) for name, value in properties.items()
    }


QUEUE: Final = PartKind[Cloud](
    "AWS::SQS::Queue", read_queue, _create_queue, _change_queue, _delete_queue, fixed=("QueueName",)
)

# ── the policy ────────────────────────────────────────────────────────────────────────────────────────────


def read_policy(cloud: Cloud, part: Part) -> FoundPart | None:
    """Read the statements of Oncegate in the policy of a queue. Other statements are ignored."""
    found = describe_queue(cloud, part.name)
    if found is None:
        return None
    url, attributes = found
    sids = {statement["Sid"] for statement in statements_of(part.properties["PolicyDocument"])}
    current = statements_of(parse_json(attributes.get("Policy")))
    matching = [statement for statement in current if statement.get("Sid") in sids]
    if not matching:
        return None
    return FoundPart(attributes["QueueArn"], _tags(cloud, url), {"PolicyDocument": document(*matching)}, url)


def _put_policy(cloud: Cloud, part: Part) -> None:
    url, attributes = describe_queue(cloud, part.name) or _raise_missing(part.name)
    wanted = statements_of(part.properties["PolicyDocument"])
    sids = {statement["Sid"] for statement in wanted}
    current = statements_of(parse_json(attributes.get("Policy")))
    others = [statement for statement in current if statement.get("Sid") not in sids]
    policy = json.dumps(document(*others, *wanted))
    cloud.call("sqs", "set_queue_attributes", QueueUrl=url, Attributes={"Policy": policy})


def _raise_missing(name: str) -> Any:
    raise Missing(f"the queue {name} was deleted in the meantime; run the command again")


def statements_of(policy: dict[str, Any] | None) -> list[dict[str, Any]]:
    found = (policy or {}).get("Statement", [])
    return found if isinstance(found, list) else [found]


POLICY: Final = PartKind[Cloud](
    "AWS::SQS::QueuePolicy",
    read_policy,
    _put_policy,
    lambda cloud, part, _found: _put_policy(cloud, part),
    fixed=("Queues",),
)

# ── requests for both kinds ───────────────────────────────────────────────────────────────────────────────


def describe_queue(cloud: Cloud, name: str) -> tuple[str, dict[str, str]] | None:
    """Request the URL and the attributes of a queue. Returns None if the queue does not exist."""
    found = cloud.find("sqs", "get_queue_url", QueueName=name)
    if found is None:
        return None
    answer = cloud.find("sqs", "get_queue_attributes", QueueUrl=found["QueueUrl"], AttributeNames=["All"])
    return None if answer is None else (found["QueueUrl"], answer["Attributes"])


def _tags(cloud: Cloud, url: str) -> dict[str, str]:
    found: dict[str, str] = cloud.call("sqs", "list_queue_tags", QueueUrl=url).get("Tags", {})
    return found


def parse_json(text: str | None) -> dict[str, Any] | None:
    return json.loads(text) if text else None

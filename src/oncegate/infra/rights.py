"""Build IAM policies. A policy grants only the permissions that a consumer needs."""

from hashlib import sha256
from typing import Any, Final

TABLE_ACTIONS: Final = (
    "dynamodb:DescribeTable",
    "dynamodb:PutItem",
    "dynamodb:GetItem",
    "dynamodb:BatchGetItem",
    "dynamodb:DeleteItem",
    "dynamodb:Query",
    "dynamodb:Scan",
)
QUEUE_ACTIONS: Final = (
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
)
PUBLISH_ACTIONS: Final = {
    "sqs": ("sqs:GetQueueUrl", "sqs:SendMessage"),
    "events": ("events:PutEvents",),
    "stepfunctions": ("states:StartExecution",),
}
LOG_ACTIONS: Final = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")


def document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(sid: str, actions: tuple[str, ...] | str, *resources: str) -> dict[str, Any]:
    listed = [actions] if isinstance(actions, str) else list(actions)
    return {"Sid": sid, "Effect": "Allow", "Action": listed, "Resource": list(resources)}


def sid(rule: str) -> str:
    """Return the id of the policy statement for a rule, from the ARN of the rule. Each bus and rule name has a
    different id, so that the statement of one rule does not replace the statement of another rule."""
    path = rule.partition(":rule/")[2]
    return f"OncegateRule{sha256(path.encode()).hexdigest()[:8]}"


def allow_rule(queue: str, rule: str) -> dict[str, Any]:
    """Return the statement that allows one rule to send to a queue. Without the condition, the rules of any account
    could send to the queue."""
    return {
        "Sid": sid(rule),
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }


def assumed_by(service: str) -> dict[str, Any]:
    return document({"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"})

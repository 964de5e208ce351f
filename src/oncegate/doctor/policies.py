"""Resource policies: whether a policy allows an EventBridge rule, whether it allows everybody, and a correct policy."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from oncegate.infra.rights import allow_rule, document

SEND: Final = "sqs:SendMessage"
_EVENTS: Final = "events.amazonaws.com"
_COMPARED: Final = ("ArnEquals", "ArnLike", "StringEquals", "StringLike")
_RESTRICTING: Final = ("aws:sourcearn", "aws:sourceaccount")


def admits(statements: Iterable[Mapping[str, Any]], action: str, rule: str) -> bool:
    """Whether the policy allows EventBridge the action on behalf of a rule."""
    return any(_allows_events(statement, action) and _is_for(statement, rule) for statement in statements)


def admits_anybody(statements: Iterable[Mapping[str, Any]], action: str) -> bool:
    """Whether a statement allows the action to the rules of any account."""
    return any(_allows_events(statement, action) and not _is_restricted(statement) for statement in statements)


def repaired(statements: Iterable[Mapping[str, Any]], queue: str, rules: Iterable[str]) -> dict[str, Any]:
    """The policy of a queue without the statements that allow everybody, and with one statement for each rule."""
    kept = [dict(one) for one in statements if not admits_anybody([one], SEND)]
    missing = [allow_rule(queue, rule) for rule in dict.fromkeys(rules) if not admits(kept, SEND, rule)]
    replaced = {statement["Sid"] for statement in missing}
    return document(*(one for one in kept if one.get("Sid") not in replaced), *missing)


def _allows_events(statement: Mapping[str, Any], action: str) -> bool:
    if statement.get("Effect") != "Allow":
        return False
    return _is_events(statement.get("Principal")) and any(
        fnmatchcase(action.lower(), str(allowed).lower()) for allowed in _listed(statement.get("Action"))
    )


def _is_events(principal: Any) -> bool:
    if principal == "*":
        return True
    principals = principal if isinstance(principal, Mapping) else {}
    return _EVENTS in _listed(principals.get("Service")) or "*" in _listed(principals.get("AWS"))


def _is_for(statement: Mapping[str, Any], rule: str) -> bool:
    sources = _conditions(statement).get("aws:sourcearn")
    return sources is None or any(fnmatchcase(rule, source) for source in sources)


def _is_restricted(statement: Mapping[str, Any]) -> bool:
    return any(name in _conditions(statement) for name in _RESTRICTING)


def _conditions(statement: Mapping[str, Any]) -> dict[str, list[str]]:
    """The values of each condition key, by its name in lower case: condition keys are not case-sensitive in AWS."""
    found = statement.get("Condition") or {}
    pairs = [pair for operator in _COMPARED for pair in found.get(operator, {}).items()]
    return {name.lower(): _listed(values) for name, values in pairs}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]

"""Check whether resource policies allow an EventBridge rule or the rules of any account, and repair such policies."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from oncegate.infra.rights import allow_rule, document

SEND: Final = "sqs:SendMessage"
_EVENTS: Final = "events.amazonaws.com"
_COMPARED: Final = ("ArnEquals", "ArnLike", "StringEquals", "StringLike")
_RESTRICTING: Final = ("aws:sourcearn", "aws:sourceaccount")


def admits(statements: Iterable[Mapping[str, Any]], action: str, rule: str) -> bool:
    """Return whether the policy allows EventBridge to perform the action for a rule."""
    return any(_allows_events(statement, action) and _is_for(statement, rule) for statement in statements)


def admits_anybody(statements: Iterable[Mapping[str, Any]], action: str) -> bool:
    """Return whether a statement allows the rules of any account to perform the action."""
    return any(_allows_events(statement, action) and not _is_restricted(statement) for statement in statements)


def repair_policy(statements: Iterable[Mapping[str, Any]], queue: str, rules: Iterable[str]) -> dict[str, Any]:
    """Return a correct policy for a queue. Statements that allow the rules of any account are removed. A statement is
    added for each rule that the remaining statements do not allow."""
    remaining = [dict(statement) for statement in statements if not admits_anybody([statement], SEND)]
    missing = [allow_rule(queue, rule) for rule in dict.fromkeys(rules) if not admits(remaining, SEND, rule)]
    replaced = {statement["Sid"] for statement in missing}
    return document(*(statement for statement in remaining if statement.get("Sid") not in replaced), *missing)


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
    """Return the values of each condition key. The names of the keys are in lower case, because AWS ignores the case of
    condition keys."""
    found = statement.get("Condition") or {}
    pairs = [pair for operator in _COMPARED for pair in found.get(operator, {}).items()]
    return {name.lower(): _listed(values) for name, values in pairs}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]

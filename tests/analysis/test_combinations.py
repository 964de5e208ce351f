"""Combinations of fields that distinguish the events of a sample."""

from typing import Any

from oncegate import read
from oncegate.analysis.combinations import combinations, leaves


def events(*bodies: dict[str, Any]) -> Any:
    return [event for body in bodies for event in read(body)]


def test_minimal_combinations() -> None:
    """The order number and the state together distinguish the events; neither of them does alone."""
    found = events(*({"order": {"id": n // 3}, "state": "abc"[n % 3], "region": "eu", "noise": [n]} for n in range(60)))
    assert combinations(found, 2) == ['fields("order.id", "state")']


def test_a_single_field_is_enough() -> None:
    """If one field distinguishes the events, no combination with it is minimal. Names of ids come first."""
    found = events(*({"amount": n * 7, "ticketNumber": n, "shop": n % 4} for n in range(40)))
    assert combinations(found, 3) == ['fields("ticketNumber")', 'fields("amount")']


def test_absent_fields_are_left_out() -> None:
    """A field that many events lack is no part of a key, because an event without it would have no key."""
    found = events(*({"serial": n, "other": {"id": n}} if n % 2 else {"other": {"id": n}} for n in range(40)))
    assert combinations(found, 3) == ['fields("other.id")']


def test_copies_are_no_different_events() -> None:
    """Copies of an event need not be distinguished, and a few events show nothing."""
    assert combinations(events(*[{"a": 1}] * 50), 2) == []
    assert combinations(events(*({"a": n} for n in range(5))), 2) == []


def test_unstable_fields_are_left_out() -> None:
    """A field in which copies of an event differ is no part of a key."""
    found = events(*({"ticketNumber": n, "sentAt": 1_770_091_500_000 + sent} for n in range(40) for sent in (n, n + 7)))
    assert combinations(found, 3) == ['fields("ticketNumber")']


def test_paths() -> None:
    """Lists, empty texts and names that no path can write are left out."""
    body = {"a": {"b": {"c": 1}}, "list": [1], "none": None, "empty": "", "with space": 1, "dot.dot": {"x": 1}}
    assert dict(leaves(body)) == {"a.b.c": 1}

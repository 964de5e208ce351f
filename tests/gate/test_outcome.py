"""Outcomes: the table of statuses, the sentence that says why, and differences between two bodies."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.gate.outcome import STATUSES, Status, differences
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock

ROOT = Path(__file__).parents[2]


def succeed(event: Event) -> None: ...


def fail(event: Event) -> None:
    raise ValueError("two\nlines")


def test_reasons(store: MemoryStore, clock: ManualClock) -> None:
    """Each reason is one sentence on one line, and names the original and its age if there is one."""
    gate = Gate(store, max_attempts=2, remember=None)
    reasons = [gate.run({"id": "a"}, succeed).reason]
    clock.advance("3s")
    reasons.append(gate.run({"id": "a"}, succeed).reason)
    conflict = gate.run({"id": "a", "n": 2}, succeed)
    reasons += [conflict.reason, gate.run({"id": "b"}, fail).reason]
    buried = gate.run({"id": "b"}, fail)
    reasons += [buried.reason, gate.run({"id": "b"}, fail).reason, gate.run({"id": 1.5}, fail).reason]
    reasons += [gate.run_batch([{"id": "c"}, {"id": "c"}], succeed)[1].reason]
    assert reasons == [
        "Processed at the first attempt.",
        "Duplicate of a, processed 3 s ago; the handler was not run again.",
        f"Conflict: same key as a (processed 3 s ago) but different content. Stored as dead letter {conflict.kept}.",
        "Failed at attempt 1: ValueError: two lines; deliver it again.",
        f"Buried as dead letter {buried.key} after 2 attempts: ValueError: two lines.",
        f"Not run: an earlier delivery was buried as dead letter {buried.key} (ValueError: two lines).",
        "Refused: id must be a string or a whole number.",
        "Duplicate of another copy in the same batch; it was not run.",
    ]


def test_reason_in_flight(gate: Gate, clock: ManualClock) -> None:
    """The reason of a copy in flight says how long the claim can last."""
    reasons = []

    def handler(event: Event) -> None:
        clock.advance("10s")
        reasons.append(gate.run({"id": "a"}, succeed).reason)

    gate.run({"id": "a"}, handler)
    assert reasons == ["In flight: another worker holds the claim for up to 20 s more; deliver it again after that."]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x7f", "\u202e"])
def test_reasons_are_printable(gate: Gate, hostile: str) -> None:
    """Control characters in an id or an error are escaped in the reason."""

    def fail(event: Event) -> None:
        raise ValueError(f"no {hostile}é")

    gate.run({"id": f"a{hostile}"}, lambda event: None)
    copy, failed = gate.run({"id": f"a{hostile}"}, fail), gate.run({"id": "b"}, fail)
    assert copy.reason.startswith("Duplicate of a\\")
    assert failed.reason.startswith("Failed at attempt 1: ValueError: no \\")
    assert "é" in failed.reason
    assert (copy.reason + failed.reason).isprintable()


def test_kind_of_a_copy_with_the_same_id(store: MemoryStore) -> None:
    """A copy with the original's delivery id is a redelivery."""
    gate = Gate(store, key=lambda event: event.body["call"])
    gate.run({"id": "a", "call": 1}, succeed)
    assert gate.run({"id": "a", "call": 1}, succeed).kind == "redelivery"


# status: acknowledged, HTTP code, counter of a worker
RULES: dict[str, tuple[bool, int, str | None]] = {
    "processed": (True, 200, "processed"),
    "duplicate": (True, 200, "duplicates"),
    "skipped": (True, 200, None),
    "unguarded": (True, 200, "processed"),
    "accepted": (True, 200, None),
    "conflict": (True, 200, "failed"),
    "buried": (True, 200, "failed"),
    "invalid": (False, 400, "failed"),
    "in_flight": (False, 503, None),
    "failed": (False, 503, "failed"),
}


def test_every_status_has_a_rule() -> None:
    """STATUSES has exactly the statuses of `Status`."""
    assert sorted(STATUSES) == sorted(get_args(Status)) == sorted(RULES)


@pytest.mark.parametrize("status", get_args(Status))
def test_rules(status: Status) -> None:
    """Acknowledgement, HTTP code and counter of each status: only an event that is done, or durably stored, is
    acknowledged; an event to deliver again is 503; a refused one is 400. Every status has its sentence."""
    rule, outcome = STATUSES[status], Outcome(status, Event(source="plain", body={}), error="why")
    assert (rule.acked, rule.http, rule.figure) == RULES[status]
    assert outcome.acked is rule.acked
    assert outcome.reason.endswith(".")


@pytest.mark.parametrize("page", ["README.md", "docs/reference/outcome.md"])
def test_documented(page: str) -> None:
    """The status table of the page has one row for each status, with its acknowledgement and its HTTP code."""
    text = (ROOT / page).read_text()
    header, _, *rows = re.findall(r"^\| status \|.*\n(?:\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    columns = [name.strip() for name in header.strip("|").split("|")]
    documented = {}
    for row in rows:
        cells = dict(zip(columns, [cell.strip() for cell in row.strip("|").split("|")], strict=True))
        documented[cells["status"].strip("`")] = cells["acknowledged"], cells["HTTP"]
    assert documented == {status: ("yes" if rule.acked else "no", str(rule.http)) for status, rule in STATUSES.items()}


class TestDifferences:
    @pytest.mark.parametrize(
        ("one", "other", "paths"),
        [
            ({"a": 1}, {"a": 1}, ()),
            ({"a": 1}, {"a": True}, ("a",)),
            ({"a": {"b": 1}}, {"a": {"b": 2}}, ("a.b",)),
            ({"a": {"b": 1}}, {"a": 1}, ("a",)),
            ({"a": None}, {}, ("a",)),
            ({"a": [1, 2]}, {"a": [1, 3]}, ("a",)),
            ({str(n): n for n in range(9)}, {}, ("0", "1", "2", "3", "4")),
            ("a", "b", ()),
            ({"": 1}, {"": 2}, ('""',)),
            ({"a": {"x" * 999: 1}}, {"a": {}}, ("a." + "x" * 98 + "…",)),
        ],
    )
    def test_paths(self, one: Any, other: Any, paths: tuple[str, ...]) -> None:
        """Differences are listed by path, the first five of them, whichever side has them."""
        assert differences(one, other) == paths
        assert differences(other, one) == paths
        assert differences(one, other, most=1) == paths[:1]

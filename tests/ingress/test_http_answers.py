"""HTTP responses for outcomes and errors."""

import http
import json
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.errors import RetryLater
from oncegate.gate.outcome import STATUSES
from oncegate.ingress.http_answers import CLOSE, answer_of, due_in, keep_refused, problem


def outcome(status: Any, **fields: Any) -> Outcome:
    return Outcome(status, Event(source="plain", id="evt-1", body={}, raw=b"{}"), **fields)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503])
def test_titles_are_status_phrases(code: int) -> None:
    """The title of a problem is the standard phrase of its status; 413 has the current one on every Python."""
    body = json.loads(problem(code, "why").body)
    phrase = "Content Too Large" if code == 413 else http.HTTPStatus(code).phrase
    assert body == {"type": "about:blank", "title": phrase, "detail": "why", "status": code}


@pytest.mark.parametrize("code", [400, 429, 503])
def test_retry_after(code: int) -> None:
    """Only 429 and 503 have Retry-After; additional headers are kept."""
    answer = problem(code, "why", retry_after=7, headers=[CLOSE])
    assert ((b"retry-after", b"7") in answer.headers) == (code != 400)
    assert CLOSE in answer.headers


@pytest.mark.parametrize("status", STATUSES)
def test_code_of_each_status(status: Any) -> None:
    """Each status is answered with its code in STATUSES, as an outcome or as a problem with the member `outcome`."""
    answer = answer_of([outcome(status)])
    body = json.loads(answer.body)
    assert answer.code == STATUSES[status].http
    assert (body["status"] if answer.code == 200 else body["outcome"]) == status


def test_highest_code_counts() -> None:
    """Of several outcomes the one with the highest code decides, and the body has all of them."""
    answer = answer_of([outcome("processed"), outcome("failed", error="boom"), outcome("invalid", error="bad")])
    assert answer.code == 503
    assert [each["status"] for each in json.loads(answer.body)["outcomes"]] == ["processed", "failed", "invalid"]


def test_no_event() -> None:
    """A request without an event is 400."""
    assert answer_of([]).code == 400


def test_discreet() -> None:
    """A discreet response to a failure hides the error; another response has it."""
    failed = outcome("failed", error="ValueError: hunter2")
    assert b"hunter2" in answer_of([failed]).body
    assert b"hunter2" not in answer_of([failed], discreet=True).body


def test_due_in() -> None:
    """Retry-After is the delay that the handler asked for, rounded up to seconds; None if there is none."""

    def later(event: Event) -> None:
        raise RetryLater("busy", after=2.5)

    assert due_in(Gate("memory://").run({"id": 1}, later)) == 3
    assert due_in(outcome("failed", error="boom")) is None


def test_keep_refused() -> None:
    """Invalid outcomes are replaced by what `keep` returns, in order; the others stay."""
    outcomes = [
        outcome("processed"),
        outcome("invalid", error="a"),
        outcome("duplicate"),
        outcome("invalid", error="b"),
    ]
    kept = keep_refused(outcomes, lambda invalid: [outcome("invalid", error=f"{each.error}, kept") for each in invalid])
    assert [each.status for each in kept] == ["processed", "invalid", "duplicate", "invalid"]
    assert [each.error for each in kept if each.status == "invalid"] == ["a, kept", "b, kept"]

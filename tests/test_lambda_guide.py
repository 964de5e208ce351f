"""The guide to Lambda is correct: its code runs and prints what the page shows."""

import ast
import json
import re

import pytest

from tests import test_guide
from tests.test_guide import DOCS, output

PAGE = DOCS / "guide" / "lambda.md"


def test_the_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page handles an event, its duplicate, and a batch with one failed record. The log line on the
    page has the members of real lines."""
    monkeypatch.setenv("ONCEGATE_STORE", "memory://")
    lines = output(PAGE).splitlines()
    answers = [ast.literal_eval(line) for line in lines if line.startswith("{'")]
    first, second, batch = answers
    assert [json.loads(answer["body"])["status"] for answer in (first, second)] == ["processed", "duplicate"]
    assert batch == {"batchItemFailures": [{"itemIdentifier": "m-2"}]}
    logged = [json.loads(line) for line in lines if line.startswith('{"')]
    assert [line["status"] for line in logged] == ["processed", "duplicate", "duplicate", "invalid"]
    shown = re.search(r'{"level".+?}', PAGE.read_text(), re.DOTALL)
    assert shown
    assert list(json.loads(shown[0].replace("\n", ""))) == list(logged[0])


def test_links_lead_somewhere() -> None:
    """A link names an existing file and heading."""
    test_guide.test_links_lead_somewhere(PAGE)

"""The guide to Lambda is true: its code runs, and says what the page says it does."""

import ast
import json
import re

import pytest

from tests import test_guide
from tests.test_guide import DOCS, output

PAGE = DOCS / "guide" / "lambda.md"


def test_the_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom: an event, the same again, and a batch of which one record is named. The log line that is
    shown has the members that lines have."""
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
    """As those of the other guides do."""
    test_guide.test_links_lead_somewhere(PAGE)

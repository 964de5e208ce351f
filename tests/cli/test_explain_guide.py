"""The guide "What happened to an event": its commands exist, and its output is that of the commands."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event
from tests import test_docs, test_guide
from tests.cli.conftest import RecordedGate, Run, sqs_message
from tests.test_guide import DOCS

PAGE = DOCS / "guide" / "explain.md"
TEXT = PAGE.read_text()
CALL = {"id": "evt-1", "type": "call.ended", "conversationId": "c-7", "agent": "a-1"}


def unavailable(_event: Event) -> None:
    raise TimeoutError("crm")


def normal(text: str) -> list[str]:
    """The lines without blanks, times, durations and keys of dead letters."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    text = re.sub(r"\b\d+ m?s\b", "DURATION", text)
    text = re.sub(r"\b(?:[0-9a-f]{32})\b", "KEY", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_commands_exist() -> None:
    """Every command in the guide exists, with its options."""
    typed = re.findall(r"^ {4}(oncegate [a-z].+)$", TEXT, re.MULTILINE)
    typed += re.findall(r"`(oncegate [a-z][^`]+)`", TEXT)
    assert len(typed) >= 15
    for command in typed:
        test_docs.test_commands_exist(command)


def test_the_output_shown(oncegate: Run, tmp_path: Path) -> None:
    """Each line of output in the guide is printed by the command, for the same deliveries."""
    with closing(RecordedGate(tmp_path)) as recorded:
        recorded.run(sqs_message("message-1", CALL), unavailable)
        recorded.run(sqs_message("message-2", CALL))
        recorded.run(sqs_message("message-3", CALL))
        recorded.run(sqs_message("message-4", CALL | {"agent": "a-2"}))
    printed = normal(oncegate("explain", "message-3")[1] + oncegate("explain", "message-4")[1])
    shown = [
        line for line in re.findall(r"^ {4}(\S.*|\s{5}.*\S)$", TEXT, re.MULTILINE) if "oncegate events" not in line
    ]
    shown = [line for line in shown if not line.startswith("oncegate ")]
    assert len(shown) >= 15
    for line in normal("\n".join(shown)):
        assert line in printed


def test_the_sentences(oncegate: Run) -> None:
    """Each first line of the table is the start of a sentence of the code."""
    starts = re.findall(r"`([A-Z][a-z ]+:?)`", TEXT.split("## What to do")[1].split("## More than one event")[0])
    source = Path("src/oncegate/inspection") if Path("src").exists() else DOCS.parent / "src/oncegate/inspection"
    code = "".join((source / name).read_text() for name in ("explanations.py", "records.py", "stories.py"))
    assert len(starts) >= 10
    for start in starts:
        assert f'"{start}' in code, start


def test_links_lead_somewhere() -> None:
    """The links of the guide have targets."""
    test_guide.test_links_lead_somewhere(PAGE)


@pytest.mark.parametrize("name", ["docs/operations.md", "docs/command-line.md", "README.md"])
def test_the_guide_is_linked(name: str) -> None:
    assert "guide/explain.md" in (DOCS.parent / name).read_text()

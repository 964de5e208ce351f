"""The page for readers of tutorials: its parts, words, tables, commands and short examples."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.errors import NotTaken
from tests import test_docs
from tests.cli.conftest import Run, oncegate
from tests.stores.dynamo_server import Wire, reply
from tests.tutorials.page import OURS, SAMPLES, SECTIONS, TEXT, examples, loaded

__all__ = ["oncegate"]

WORDS = (
    "sliding window",
    "SETNX",
    "is_duplicate",
    "ConditionalCheckFailedException",
    "ProvisionedThroughputExceededException",
    "FOR UPDATE",
    "circuit breaker",
    "clock drift",
    "X-Request-ID",
    "input transformer",
    "double emission",
    "certificate pinning",
    "AccessDenied",
    "ElastiCache",
    "Kafka",
    "RabbitMQ",
    "TTL",
    "retention",
    "detail.id",
    "time.time()",
    "reserved keyword: timestamp",
    "ExpressionAttributeNames",
    '{"statusCode": 200, "body": "Duplicate"}',
    "statusCode` 400",
    "updated_at < :t",
    "oncegate seed",
    "previous = URL",
    "oncegate infra template",
    "genesyscloud.eventstreams.read",
    "payload.interactionId",
    "createdTime",
    "gate.run_batch",
    "outcome.acked",
)
LINKS = (
    "lambda.md",
    "sqs.md",
    "webhooks.md",
    "aws.md",
    "../doctor.md",
    "../troubleshooting.md",
    "switching.md",
    "keys.md",
)
COMMANDS = re.findall(r"^ {4}(oncegate .+)$", TEXT, re.MULTILINE) + re.findall(
    r"`(oncegate (?:dlq|keys|infra) [^`]+)`", TEXT
)
ENVELOPE = {"id": "e-1", "source": "genesys.cloud", "detail-type": "Conversation"}
REAL = "v2.detail.events.conversation.c-1.customer.end"
MOMENT = "2026-02-03T04:05:06.123Z"


@pytest.mark.parametrize("word", WORDS)
def test_the_words_of_tutorials_are_found(word: str) -> None:
    """A reader who searches the page for a word of a tutorial finds it."""
    assert word in TEXT


@pytest.mark.parametrize("link", LINKS)
def test_the_other_guides_are_linked(link: str) -> None:
    """The page links the guides that continue where it ends; tests/test_docs.py checks that the targets exist."""
    assert re.search(rf"\]\({re.escape(link)}[#)]", TEXT)


def test_each_section_has_three_parts() -> None:
    """A program of a tutorial, the file that replaces it, and what differs, in this order."""
    parts = r"\*\*The program\.\*\*.+?```py\n.+?\*\*The files? that replaces? it\.\*\*.+?```python\n.+?\*\*What differs"
    for text in list(SECTIONS.values())[:5]:
        assert re.search(parts, text, re.DOTALL)


@pytest.mark.parametrize("typed", COMMANDS)
def test_commands_exist(typed: str) -> None:
    """Every command and option on the page exists."""
    test_docs.test_commands_exist(typed)


@pytest.mark.parametrize("block", examples())
def test_the_short_examples_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their assertions hold."""
    monkeypatch.chdir(tmp_path)
    names = loaded(block)
    if "gate" in names:
        names["gate"].close()


def test_your_own_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A processed event, its copy and an unreadable message are acknowledged, and the latter is a dead letter. An
    event that is in flight is not acknowledged."""
    monkeypatch.chdir(tmp_path)
    (block,) = OURS.findall(SECTIONS["Their words and ours"])
    names = loaded(block)
    done: list[str] = []

    def consume(body: bytes) -> str:
        names["consume"](body, lambda: done.append("acknowledged"), lambda: done.append("requeued"))
        return done[-1]

    body = json.dumps(SAMPLES["customer end"]).encode()
    assert [consume(each) for each in (body, body, b"no JSON")] == ["acknowledged"] * 3
    other = json.dumps({"id": "evt-2", "conversationId": "c-2"}).encode()
    assert names["gate"].run(other, lambda event: consume(other)).result == "requeued"
    assert [each.record.payload for each in names["gate"].store.dead_letters()] == [b"no JSON"]
    names["gate"].close()
    assert capsys.readouterr().out.count("opening a case") == 1


def _rows(section: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.+) \|$", SECTIONS[section], re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\) ?\| ?", line)] for line in lines[1:]]


FIELDS = [
    (path, field.strip("`"))
    for paths, field, _note in _rows("Their fields and ours")
    for path in re.findall(r"`([^`]+)`", paths)
]


def _document(path: str, value: Any) -> dict[str, Any]:
    """A payload that has a value at this path."""
    document: dict[str, Any] = {}
    if path.startswith("detail.eventBody."):
        document = {**ENVELOPE, "detail-type": REAL, "detail": {"topicName": REAL, "eventBody": {"x": 1}}}
    elif path.startswith(("detail.", "time")) and path != "timestamp":
        document = {**ENVELOPE, "detail": {"conversationId": "c-1", "x": 1}}
    elif path == "payload.status":
        document = {"payload": {"interactionId": "i-1"}}
    *folders, member = path.split(".")
    place = document
    for folder in folders:
        place = place.setdefault(folder, {})
    place[member] = value
    if path == "detail.interactionId":
        del place["conversationId"]
    return document


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_the_fields(path: str, field: str) -> None:
    """The value at each path is read as the field beside it; where there is no field, as none."""
    event = _event(_document(path, MOMENT if field == "occurred_at" else "value-1"))
    values = {name: getattr(event, name) for name in ("id", "type", "entity", "part", "state")}
    if field == "occurred_at":
        assert event.occurred_at == datetime.fromisoformat(MOMENT)
    else:
        assert [name for name, value in values.items() if value == "value-1"] == ([field] if field else [])


def test_the_first_state_and_the_type_of_the_envelope() -> None:
    """The first state that is present counts, and the detail-type is the type if there is no other."""
    detail = {"conversationId": "c-1", "state": "a", "status": "b", "data": {"status": "c"}}
    (event,) = read({**ENVELOPE, "detail": detail})
    assert (event.state, event.type) == ("a", "Conversation")


def test_what_the_notes_on_ids_say() -> None:
    """`keys.auto` ignores the envelope's id of a Genesys event with a time; `keys.event_id` takes the detail's id
    first; `keys.fields` takes any other id."""
    timed = {"conversationId": "c-1", "timestamp": MOMENT}
    for details in (timed, SAMPLES["customer end"]["detail"]):
        one, other = (_event({**ENVELOPE, "id": number, "detail": details}) for number in ("1", "2"))
        assert keys.auto(one) == keys.auto(other)
        assert keys.event_id(one) != keys.event_id(other)
    one, other = (_event({**ENVELOPE, "id": number, "detail": {**timed, "id": "own"}}) for number in ("1", "2"))
    assert keys.event_id(one) == keys.event_id(other)
    one, other = (_event({**ENVELOPE, "id": number, "detail": {"event_id": "own"}}) for number in ("1", "2"))
    assert keys.fields("event_id")(one) == keys.fields("event_id")(other)


def _event(document: Any) -> Event:
    (event,) = read(document)
    return event


def test_processed_events_are_made_known() -> None:
    """A handler that does nothing makes the gate know the events that another program has processed."""
    gate = Gate("memory://")
    gate.run_batch([{"id": "evt-1"}, {"id": "evt-2"}], lambda event: None)
    assert [gate.run({"id": number}, print).status for number in ("evt-2", "evt-3")] == ["duplicate", "processed"]


def test_the_input_path_and_the_request_id() -> None:
    """`$.detail` has the key of the whole event; a request id is evidence and not part of a key."""
    whole = SAMPLES["customer end"]
    assert keys.auto(_event(whole)) == keys.auto(_event(whole["detail"]))
    one, other = (read({"id": "evt-1"}, {"X-Request-ID": number})[0] for number in ("1", "2"))
    assert keys.auto(one) == keys.auto(other)
    assert [each.evidence.request_id for each in (one, other)] == ["1", "2"]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("ProvisionedThroughputExceededException", "throttled"),
        ("AccessDeniedException", "does not allow dynamodb:PutItem"),
    ],
)
def test_an_error_of_dynamodb(cloud: Any, code: str, shown: str) -> None:
    """The event fails with a reason, and runs when it is delivered again."""
    gate = Gate(cloud.url(cloud.new_table(), timeout="300ms"))
    wire = Wire(gate.store)  # type: ignore[arg-type]  # the store behind the circuit breaker
    wire.before = lambda action: reply(400, code) if action == "PutItem" else None
    outcome = gate.run({"id": "evt-1"}, lambda event: None)
    assert (outcome.status, outcome.acked) == ("failed", False)
    assert shown in outcome.reason
    with pytest.raises(NotTaken):  # an event that cannot be read and cannot be stored is not answered with 400
        gate.lambda_handler(lambda event: None)("no JSON", None)
    wire.before = lambda action: None
    assert gate.run({"id": "evt-1"}, lambda event: None).status == "processed"
    gate.close()


def test_the_policy(oncegate: Run) -> None:
    """The printed policy names the table and the queue, and nothing else."""
    code, printed, _ = oncegate("infra", "template", "--name", "crm", "--policy")
    assert code == 0
    resources = [name for each in json.loads(printed)["Statement"] for name in each["Resource"]]
    assert {re.split(r"[:/]", name)[5] for name in resources} == {"table", "crm-events"}
    assert all(":crm-events" in name or "table/crm-claims" in name for name in resources)

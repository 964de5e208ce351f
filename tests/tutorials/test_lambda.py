"""Lambda and DynamoDB: the program of a tutorial and the file that replaces it, on an emulator of both."""

import io
import json
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from oncegate import Gate, keys, open_store
from tests.ingress.sqs.queues import Cloud
from tests.stores.dynamo_server import CREDENTIALS
from tests.tutorials.page import LAMBDA, event, failing_once, file_of, loaded, program_of

FUNCTION = "tutorial"
# A handler that fails once for each event, in a file that outlives the function's instance.
FAILS_ONCE = """

import app, pathlib

def open_case(event):
    attempts = pathlib.Path({folder!r}) / f"{{event.key}}"
    if not attempts.exists():
        attempts.touch()
        raise ValueError("boom")
    return app.open_case(event)

handler = app.gate.lambda_handler(open_case)
"""


def table_of(cloud: Cloud, name: str, key: str) -> None:
    cloud.client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
    )


class TestTheProgram:
    @pytest.fixture(autouse=True)
    def table(self, cloud: Cloud) -> Iterator[None]:
        table_of(cloud, "EventDeduplication", "event_id")
        yield
        cloud.client.delete_table(TableName="EventDeduplication")

    def statuses(self, process: Any, *events: Any) -> list[Any]:
        program = loaded(program_of(LAMBDA), process=process)
        answers = []
        for each in events:
            try:
                answers.append(program["lambda_handler"](each, None))
            except ValueError:
                answers.append("an exception")
        program["table"].meta.client.close()
        return answers

    def test_what_it_answers(self) -> None:
        """The answers on the page; the detail's id counts before that of the envelope."""
        duplicate = {"statusCode": 200, "body": "Duplicate"}
        processed = {"statusCode": 200, "body": "Processed"}
        named = event(id="1", detail={"id": "own"}), event(id="2", detail={"id": "own"})
        effects: list[Any] = []
        assert self.statuses(effects.append, event(), event(), *named) == [processed, duplicate] * 2
        assert (
            self.statuses(effects.append, {"detail": {"x": 1}}, {"Records": []})
            == [{"statusCode": 400, "body": "Missing event id"}] * 2
        )
        assert len(effects) == 2

    def test_it_loses_an_event_that_failed(self) -> None:
        """The mark stays, so both retries are duplicates."""
        effects: list[Any] = []
        assert self.statuses(failing_once(effects), event(), event(), event()) == [
            "an exception",
            *[{"statusCode": 200, "body": "Duplicate"}] * 2,
        ]
        assert effects == []

    def test_it_runs_an_event_twice_that_was_published_again(self) -> None:
        """A real detail has no id, so the id of the envelope counts."""
        assert "id" not in event()["detail"]
        effects: list[Any] = []
        self.statuses(effects.append, event(id="1"), event(id="2"))
        assert len(effects) == 2


def test_the_reserved_word(cloud: Cloud) -> None:
    """The condition fails for every event; with a placeholder it works, and the item may have the attribute."""
    import boto3  # type: ignore[import-untyped]  # has no types

    table_of(cloud, "States", "conversationId")
    table = boto3.resource("dynamodb").Table("States")
    detail = {"conversationId": "c-1", "timestamp": "2026-02-03T04:05:06Z"}
    written = program_of(LAMBDA, 1)
    for _ in range(2):
        with pytest.raises(ClientError, match=r"ValidationException.+reserved keyword; reserved keyword: timestamp"):
            loaded(written, table=table, detail=detail)
    aliased = written.replace("timestamp < :t", "#t < :t").replace(
        "ConditionExpression", 'ExpressionAttributeNames={"#t": "timestamp"}, ConditionExpression'
    )
    loaded(aliased, table=table, detail=detail)
    with pytest.raises(ClientError, match="ConditionalCheckFailedException"):
        loaded(aliased, table=table, detail=detail)
    for word in ("ttl", "state", "status", "data"):
        with pytest.raises(ClientError, match=f"reserved keyword: {word}"):
            table.put_item(Item=detail, ConditionExpression=f"attribute_not_exists({word})")
    table.meta.client.close()


def test_an_old_key_loses_nothing() -> None:
    """Two updates with one conversation and one time: the second is a dead letter. The default key runs both."""
    updates = [event("attributes: the participant is the part") for _ in range(2)]
    updates[1]["detail"]["eventBody"]["attributes"] = {"vip": "no"}
    for key, wanted in ((keys.fields("conversationId", "eventTime"), "conflict"), (keys.auto, "processed")):
        outcomes = Gate("memory://", key=key).run_batch(updates, lambda event: None)
        assert [outcome.status for outcome in outcomes] == ["processed", wanted]


class TestTheFile:
    @pytest.fixture(autouse=True)
    def function(self, cloud: Cloud, tmp_path: Any) -> Iterator[None]:
        """Deploy the file of the page, beside a second handler that fails once."""
        self.store = cloud.url(cloud.new_table())
        self.client = cloud.client_of("lambda")
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as package:
            package.writestr("app.py", file_of(LAMBDA))
            package.writestr("fails.py", FAILS_ONCE.format(folder=str(tmp_path)))
        for name, handler in ((FUNCTION, "app.handler"), (f"{FUNCTION}-fails", "fails.handler")):
            self.client.create_function(
                FunctionName=name,
                Runtime=f"python3.{sys.version_info.minor}",
                Role="arn:aws:iam::000000000000:role/crm",
                Handler=handler,
                Code={"ZipFile": archive.getvalue()},
                Timeout=10,
                Environment={"Variables": {**CREDENTIALS, "ONCEGATE_STORE": self.store}},
            )
        yield
        for name in (FUNCTION, f"{FUNCTION}-fails"):
            self.client.delete_function(FunctionName=name)
        self.client.close()

    def invoked(self, payload: Any, function: str = FUNCTION) -> Any:
        answer = self.client.invoke(FunctionName=function, Payload=json.dumps(payload))
        return json.loads(answer["Payload"].read())

    def bodies(self, *payloads: Any) -> list[dict[str, Any]]:
        return [json.loads(self.invoked(each)["body"]) for each in payloads]

    def test_a_copy_is_a_duplicate(self) -> None:
        """A redelivery, the event published again and the detail alone are copies. Two updates of one conversation in
        one millisecond are two events."""
        copies = self.bodies(event(), event(), event(id="2"), event()["detail"])
        assert [each["status"] for each in copies] == ["processed", *["duplicate"] * 3]
        assert [each["kind"] for each in copies[:3]] == [None, "redelivery", "re-emission"]
        assert list(copies[0]) == ["message", "status", "kind", "key"]
        assert len({each["key"] for each in copies}) == 1
        updates = [event("attributes: the participant is the part") for _ in range(2)]
        updates[1]["detail"]["eventBody"]["attributes"] = {"vip": "no"}
        ended = event("acd end: the outcome before the way it ended")
        assert [each["status"] for each in self.bodies(*updates, ended)] == ["processed"] * 3

    def test_an_event_that_failed_runs_at_the_retry(self) -> None:
        """The invocation fails, so that Lambda retries it, and the retry runs the event."""
        failing = f"{FUNCTION}-fails"
        assert "deliver it again" in self.invoked(event(), failing)["errorMessage"]
        assert json.loads(self.invoked(event(), failing)["body"])["status"] == "processed"

    def test_status_400(self) -> None:
        """An unreadable event is stored before the answer. In a batch of SQS its message is reported."""
        for payload in ("no JSON", event(detail={})):
            answer = self.invoked(payload)
            assert (answer["statusCode"], json.loads(answer["body"])["status"]) == (400, "invalid")
        store = open_store(self.store)
        assert len(store.dead_letters()) == 2
        record = {"messageId": "m-1", "receiptHandle": "r", "eventSource": "aws:sqs", "body": "no JSON"}
        assert self.invoked({"Records": [record]}) == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
        assert len(store.dead_letters()) == 2
        store.close()

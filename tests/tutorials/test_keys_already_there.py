"""The keys that the programs of tutorials have written: each line of the page finds them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate, keys
from tests.cli.conftest import Run, oncegate
from tests.ingress.sqs.queues import Cloud
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer
from tests.tutorials.page import LAMBDA, SECTIONS, SQS, WEBHOOKS, event, loaded, program_of
from tests.tutorials.test_lambda import table_of
from tests.tutorials.test_webhooks import Flask, flask, processed

__all__ = ["flask", "oncegate", "processed"]

SECTION = SECTIONS["The keys that you already have"]
PREVIOUS: list[str] = re.findall(r'^previous = "(.+)"', SECTION, re.MULTILINE)
SEED: list[str] = re.findall(r"^ {4}oncegate (seed .+)$", SECTION, re.MULTILINE)
END = event(id="envelope-2")
STATUS = event("routing status: the id is the user's", id="envelope-3")
NAMED = event("tutorial Genesys", id="envelope-1", detail={"id": "evt-1", "conversationId": "c-1"})
PLAIN = {"id": "evt-2", "conversationId": "c-2"}
UNKNOWN = {"id": "evt-9"}


def test_a_line_for_each_program() -> None:
    """DynamoDB, Redis and Postgres have one line for each way."""
    schemes = [[line.split("://")[0].split()[-1].strip("'") for line in lines] for lines in (PREVIOUS, SEED)]
    assert schemes == [["dynamodb", "redis", "postgresql"]] * 2


def found(previous: str, *payloads: Any) -> list[str]:
    gate = Gate("memory://", previous=previous)
    statuses: list[str] = [gate.run(payload, lambda event: None).status for payload in payloads]
    gate.close()
    return statuses


def seeded(oncegate: Run, folder: Path, line: str, *payloads: Any) -> list[str]:
    words = shlex.split(line)
    code, out, err = oncegate(*words, "--store", f"sqlite:///{folder}/new.db")
    assert code == 0, err
    assert "unreadable" in out
    assert words[words.index("--key") + 1] == "event_id"
    gate = Gate(f"sqlite:///{folder}/new.db", key=keys.event_id)
    statuses: list[str] = [gate.run(payload, lambda event: None).status for payload in payloads]
    gate.close()
    return statuses


class TestDynamoDB:
    @pytest.fixture(autouse=True)
    def table(self, cloud: Cloud) -> Iterator[None]:
        table_of(cloud, "EventDeduplication", "event_id")
        program = loaded(program_of(LAMBDA), process=lambda detail: None)
        for each in (NAMED, END, STATUS):
            assert program["lambda_handler"](each, None)["body"] == "Processed"
        program["table"].meta.client.close()
        yield
        cloud.client.delete_table(TableName="EventDeduplication")

    def test_previous(self) -> None:
        """The id of the detail is found, otherwise the id of the envelope. The event with another id in its body is not
        found, as the page says."""
        assert found(PREVIOUS[0], NAMED, END, UNKNOWN) == ["duplicate", "duplicate", "processed"]
        assert found(PREVIOUS[0], STATUS) == ["processed"]

    def test_seed(self, oncegate: Run, tmp_path: Path) -> None:
        """`keys.event_id` has the rule of the program for every event."""
        statuses = seeded(oncegate, tmp_path, SEED[0], NAMED, END, STATUS, UNKNOWN)
        assert statuses == ["duplicate", "duplicate", "duplicate", "processed"]


class TestRedis:
    @pytest.fixture(autouse=True)
    def marks(self, cloud: Cloud, redis: RedisServer) -> None:
        program = loaded(program_of(SQS))
        for each in (NAMED, END, STATUS, PLAIN):
            assert not program["is_duplicate"](each["id"])
        program["sqs"].close()
        program["cache"].close()

    def test_previous(self, redis: RedisServer) -> None:
        """The id of the document that arrived is found, unless the body has another id."""
        url = PREVIOUS[1].replace("redis://cache.example.com:6379", redis.url)
        assert found(url, END, PLAIN, UNKNOWN) == ["duplicate", "duplicate", "processed"]
        assert found(url, NAMED, STATUS) == ["processed", "processed"]

    def test_seed(self, oncegate: Run, tmp_path: Path, redis: RedisServer) -> None:
        line = SEED[1].replace("redis://cache.example.com:6379", redis.url)
        assert seeded(oncegate, tmp_path, line, END, STATUS, UNKNOWN) == ["duplicate", "duplicate", "processed"]
        assert seeded(oncegate, tmp_path, line.replace("genesys", "plain"), PLAIN) == ["duplicate"]


@pytest.mark.usefixtures("processed", "flask")
class TestPostgres:
    @pytest.fixture(autouse=True)
    def rows(self, processed: None, flask: Any) -> None:
        program = loaded(program_of(WEBHOOKS), process=lambda event: None)
        Flask.request.get_json, Flask.request.headers = lambda: PLAIN, {}
        assert program["webhook"]() == ({"status": "ok"}, 200)

    def test_previous(self, postgres: PostgresServer) -> None:
        url = PREVIOUS[2].replace("postgresql://app@db.example.com/app", postgres.url())
        assert found(url, PLAIN, UNKNOWN) == ["duplicate", "processed"]

    def test_seed(self, oncegate: Run, tmp_path: Path, postgres: PostgresServer) -> None:
        line = SEED[2].replace("postgresql://app@db.example.com/app", postgres.url())
        assert seeded(oncegate, tmp_path, line, PLAIN, UNKNOWN) == ["duplicate", "processed"]

"""Race conditions: the program of a tutorial and the file that replaces it, with concurrent deliveries."""

import os
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.cli.conftest import Run, oncegate
from tests.ingress.sqs.queues import Cloud
from tests.stores.redis_server import RedisServer
from tests.tutorials.page import RACES, SECTIONS, event, file_of, loaded, output_of, program_of
from tests.tutorials.test_lambda import table_of

__all__ = ["oncegate"]


@pytest.fixture
def table(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TABLE", "Races")
    table_of(cloud, "Races", "event_id")
    yield
    cloud.client.delete_table(TableName="Races")


@pytest.mark.usefixtures("table")
def test_the_program_runs_an_event_twice() -> None:
    """Two deliveries at the same time both find nothing. A later delivery is a duplicate."""
    effects: list[Any] = []
    together = Barrier(2, timeout=20)

    def process(detail: Any) -> None:
        effects.append(detail)
        together.wait()

    program = loaded(program_of(RACES), process=process)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: program["lambda_handler"](event(), None)["body"], range(2)))
    assert (answers, len(effects)) == (["Processed"] * 2, 2)
    assert program["lambda_handler"](event(), None)["body"] == "Duplicate"
    program["table"].meta.client.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis", "dynamodb"])
def test_the_file(kind: str, cloud: Cloud, redis: RedisServer, tmp_path: Path) -> None:
    """Twenty deliveries at the same time have one effect, and a later delivery is a duplicate."""
    stores = {"sqlite": "", "redis": redis.url, "dynamodb": cloud.url(cloud.new_table())}
    environment = {name: value for name, value in os.environ.items() if name != "ONCEGATE_STORE"}
    if stores[kind]:
        environment["ONCEGATE_STORE"] = stores[kind]
    counts, reason = output_of(file_of(RACES), tmp_path, environment).splitlines()
    found = {status: int(count) for status, count in re.findall(r"'(\w+)': (\d+)", counts)}
    assert found.pop("processed") == 1
    assert sum(found.values()) == 19
    assert set(found) <= {"in_flight", "duplicate"}
    assert counts.endswith("cases: 1")
    assert reason.startswith("Duplicate of d-1, processed ")
    again, _ = output_of(file_of(RACES), tmp_path, environment).splitlines()
    assert again == "Counter({'duplicate': 20}) cases: 0"


def test_the_commands(tmp_path: Path, oncegate: Run) -> None:
    """`explain` finds the event of the race by its conversation, and `read` shows what an old key joins."""
    output_of(file_of(RACES), tmp_path, {**os.environ, "ONCEGATE_STORE": "sqlite:///race.db"})
    explain, _, compare, _ = re.findall(r"^ {4}oncegate (.+)$", SECTIONS[RACES], re.MULTILINE)
    code, explained, _ = oncegate(*shlex.split(explain))
    assert (code, "d-1 was processed" in explained) == (0, True)
    (tmp_path / "both.jsonl").write_text(
        '{"id": "1", "conversationId": "c-1", "timestamp": "2026-02-03T04:05:06Z", "vip": "yes"}\n'
        '{"id": "2", "conversationId": "c-1", "timestamp": "2026-02-03T04:05:06Z", "vip": "no"}\n'
    )
    code, read, _ = oncegate(*shlex.split(compare))
    assert (code, "1 and 2 share a key" in read) == (0, True)

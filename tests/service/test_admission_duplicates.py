"""Concurrent duplicates at an inline route on Redis: they wait for the first, and few calls reach the store."""

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import Service, receive_all, until
from tests.stores.redis_server import RedisServer

COPIES = 300
BODY = b'{"id": 1}'
REQUEST = b"POST /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
NOTED = """
def note(event):
    with open("effects", "a") as file:
        file.write(f"{event.id}\\n")
"""
PLAIN = NOTED + "import time\n\ndef handle(event):\n    note(event)\n    time.sleep(1)\n"
HELD = NOTED + "import pathlib, time\n\ndef handle(event):\n    note(event)\n"


HELD += "    while not pathlib.Path('go').exists():\n        time.sleep(0.01)\n"


SETUP = ("--serve-mode", "inline", "--log", "off")


def send(stack: ExitStack, service: Service, copies: int) -> list[socket.socket]:
    """Send the event `copies` times, each on its own connection. Returns the connections."""
    connections = [stack.enter_context(service.connect()) for _ in range(copies)]
    for connection in connections:
        connection.sendall(REQUEST)
    return connections


def answers(connections: list[socket.socket]) -> Counter[tuple[int, str]]:
    """The number of responses by code and status."""
    found: Counter[tuple[int, str]] = Counter()
    for connection in connections:
        head, _, body = receive_all(connection).partition(b"\r\n\r\n")
        answer = json.loads(body)
        found[int(head.split()[1]), answer.get("outcome", answer["status"])] += 1
    return found


def in_flight(service: Service) -> int:
    found = re.search(r"^oncegate_in_hand (\S+)$", service.client.get("/metrics").text, re.MULTILINE)
    assert found
    return int(float(found[1]))


def calls(server: Any) -> int:
    """The number of script calls on the server."""
    stats = server.client.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


def test_duplicates_in_one_process(tmp_path: Path, server: RedisServer) -> None:
    """Of 300 concurrent requests with one event that takes a second, one is processed, 299 are duplicates and none gets
    503."""
    with Service(tmp_path, "--store", server.url, *SETUP, handler=PLAIN) as service, ExitStack() as stack:
        before = calls(server)
        found = answers(send(stack, service, COPIES))
        assert found == {(200, "processed"): 1, (200, "duplicate"): COPIES - 1}
        assert calls(server) - before < COPIES / 2
        assert service.effects() == ["1"]


def test_duplicates_of_another_process(tmp_path: Path, server: RedisServer) -> None:
    """Duplicates of an event that another service runs wait for it; only one of them polls the store."""
    with ExitStack() as stack:
        folders = [tmp_path / "first", tmp_path / "second"]
        for folder in folders:
            folder.mkdir()
        first, second = (
            stack.enter_context(Service(folder, "--store", server.url, *SETUP, handler=HELD)) for folder in folders
        )
        running = send(stack, first, 1)
        until(first.effects)
        copies = send(stack, second, COPIES)
        until(lambda: in_flight(second) == COPIES)
        before = calls(server)
        (first.folder / "go").touch()
        assert answers(running) == {(200, "processed"): 1}
        assert answers(copies) == {(200, "duplicate"): COPIES}
        assert calls(server) - before < COPIES / 2
        assert (first.effects(), second.effects()) == (["1"], [])

"""What every queue worker does, on SQS, NATS and RabbitMQ: one effect for each event, order, the limit, and figures."""

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from oncegate import Event, Gate
from tests.ingress.nats_server import NatsServer
from tests.ingress.sqs.conftest import cloud, credentials
from tests.ingress.sqs.queues import Cloud, Handler, call, working
from tests.stores.servers import until

__all__ = ["cloud", "credentials"]


class Source(Protocol):
    """A queue or a stream of messages."""

    source: str

    def send(self, *bodies: Any) -> None: ...

    def until_empty(self) -> None: ...


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture(params=["sqs", "nats", "rabbitmq"])
def source(request: pytest.FixtureRequest) -> Source:
    if request.param == "nats":
        return request.getfixturevalue("nats").stream()  # type: ignore[no-any-return]
    if request.param == "rabbitmq":
        return request.getfixturevalue("rabbit").queue()  # type: ignore[no-any-return]
    emulator: Cloud = request.getfixturevalue("cloud")
    return emulator.queue()


def test_copies_run_once(source: Source) -> None:
    """Each event takes effect once, each message is acknowledged, and the figures count both."""
    source.send(*[call(number % 5) for number in range(15)])
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(source.source, handler, wait="1s")
    with working(worker):
        source.until_empty()
    assert sorted(handler.ran) == list(range(5))
    figures = worker.figures
    assert (figures.received, figures.processed, figures.duplicates, figures.in_hand) == (15, 5, 10, 0)
    gate.close()


def test_the_events_of_an_entity_run_in_order(source: Source) -> None:
    """Events of one entity run one after the other. An event that fails is run again before the later events."""
    source.send(*[call(number, "c-1", fails=number == 1) for number in range(4)])
    handler, gate = Handler(), Gate("memory://", backoff="10ms")
    with working(gate.worker(source.source, handler, wait="1s")):
        source.until_empty()
    assert list(dict.fromkeys(handler.ran)) == [0, 1, 2, 3]
    assert handler.ran.count(1) == 2
    gate.close()


def test_the_limit_of_events_in_hand(source: Source) -> None:
    """At most `in_hand` events wait or run at a time."""
    beside = most = 0

    async def handler(_event: Event) -> None:
        nonlocal beside, most
        beside += 1
        most = max(most, beside)
        await asyncio.sleep(0.1)
        beside -= 1

    source.send(*(call(number) for number in range(9)))
    gate = Gate("memory://")
    worker = gate.worker(source.source, handler, wait="1s", in_hand=3)
    with working(worker):
        until(lambda: worker.figures.in_hand == 3, "three events in hand")
        source.until_empty()
    assert most == 3
    gate.close()


def test_stop_finishes_what_runs(source: Source) -> None:
    """A worker that stops finishes the running handler and returns the other messages to the queue."""
    source.send(call(1, "c-1", takes=1), call(2, "c-1"))
    first, second, gate = Handler(), Handler(), Gate("memory://")
    with working(gate.worker(source.source, first, wait="1s")):
        until(lambda: first.ran == [1], "the first event")
    with working(gate.worker(source.source, second, wait="1s")):
        source.until_empty()
    assert (first.ran, second.ran) == ([1], [2])
    gate.close()

"""One cluster for all tests of this folder, and a topic for each test."""

from collections.abc import Iterator

import pytest

from tests.ingress.kafka_server import KafkaServer, Topic


@pytest.fixture(scope="package")
def server() -> Iterator[KafkaServer]:
    server = KafkaServer()
    yield server
    server.stop()


@pytest.fixture
def topic(server: KafkaServer) -> Topic:
    return server.topic()

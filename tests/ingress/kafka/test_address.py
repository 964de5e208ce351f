"""Addresses of consumer groups."""

import pytest

from oncegate import Gate
from oncegate.errors import SettingError
from oncegate.ingress.kafka.address import read_group


def test_an_address() -> None:
    """A URL has the brokers, the topic and the group."""
    address = read_group("kafka://a,b/events?group=crm")
    assert (address.at.brokers, address.topics, address.group) == ("a:9092,b:9092", ["events"], "crm")
    assert address.place == "the group crm of the Kafka topic events"
    assert read_group("kafka://a/events?group=crm&retry_topic=again").topics == ["events", "again"]
    assert read_group("kafka://a/again?group=crm&retry_topic=again").topics == ["again"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "kafka://h/events",
            "the URL has no name of a Kafka consumer group; write 'kafka://HOST:PORT/TOPIC?group=NAME'",
        ),
        ("kafka://h?group=crm", "the URL has no name of a Kafka topic"),
        ("kafka://h/events?group=crm&retry_topic=a%2Fb", "'a/b' is not the name of a Kafka topic; write 'retry_topic="),
        ("kafka://h/events?group=crm&start=latest", "unknown option 'start' in a Kafka URL; use group, retry_topic, m"),
        ("kafka://h/events?group=crm&colour=red", "unknown option 'colour' in a Kafka URL; use group, retry_topic, m"),
        ("kafka://ann@h/events?group=crm", "has a user and no password"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    """An invalid URL is rejected when the worker is created, with what to write instead."""
    with pytest.raises(SettingError) as rejected:
        Gate("memory://").worker(url, print)
    assert problem in str(rejected.value)

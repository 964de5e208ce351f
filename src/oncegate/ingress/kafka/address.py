"""The address of a Kafka consumer group."""

import re
from typing import Final

from msgspec import Struct

from oncegate.buses.kafka import KafkaAddress, checked_topic, client_config, read_address
from oncegate.buses.urls import bus_name

_USE: Final = "write 'kafka://HOST:PORT/TOPIC?group=NAME'"
_OWN: Final = ("group", "retry_topic")
_GROUP: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class GroupAddress(Struct, frozen=True):
    """A consumer group of a topic."""

    at: KafkaAddress
    group: str
    retry_topic: str | None

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(filter(None, [self.at.topic, self.retry_topic])))

    @property
    def place(self) -> str:
        """The names of the group and the topic, for messages to people."""
        return f"the group {self.group} of the Kafka topic {self.at.topic}"


def read_group(url: str) -> GroupAddress:
    """Parse `kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME`, and check the files that it names. Raises SettingError."""
    address = read_address(url, _OWN, _USE)
    client_config(address)
    group, retry_topic = address.options.get("group", ""), address.options.get("retry_topic")
    bus_name(group, "Kafka consumer group", _USE, is_valid=_GROUP.fullmatch(group) is not None)
    if retry_topic is not None:
        checked_topic(retry_topic, "write 'retry_topic=TOPIC'")
    return GroupAddress(address, group, retry_topic)

"""A Kafka cluster for tests, in a process of its own, and a topic for each test.

The cluster is the mock cluster of librdkafka: a broker with the protocol of Kafka, which keeps messages in memory.
Workers can be killed without an effect on it. Run as a program, this module is that process: it reads commands.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from oncegate.buses.kafka import client_config, read_address
from tests.stores.servers import until

PRODUCE, FETCH, OFFSET_COMMIT = 0, 1, 8  # the numbers of requests in the protocol of Kafka
REAL = "ONCEGATE_TEST_KAFKA"  # the variable with the URL of a real broker, such as kafka://ann:s3cret@127.0.0.1:9092


class KafkaServer:
    """One broker. `down` and `up` cut and restore all its connections. `fail` makes the next requests of a kind fail
    with these error codes."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.ingress.kafka_server"]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._answer()
        self._topics = 0

    def topic(self, partitions: int = 1) -> "Topic":
        self._topics += 1
        name = f"events-{self._topics}"
        self.create(name, partitions)
        return Topic(f"kafka://{self.address}", name, partitions)

    def create(self, name: str, partitions: int = 1) -> None:
        self.command("topic", name, partitions)

    def down(self) -> None:
        self.command("down")

    def up(self) -> None:
        self.command("up")

    def fail(self, request: int, *codes: int) -> None:
        self.command("fail", request, *codes)

    def forget(self, topic: str) -> None:
        """Answer that this topic does not exist. The cluster would create an unknown topic."""
        self.command("forget", topic)

    def command(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        assert self._answer() == "0"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate(timeout=20)


class RealKafka:
    """A broker that the environment names, by a URL without a topic. The URL may have a login and options: the mock
    cluster has no SASL. Topics are deleted after the tests."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = AdminClient(connection(url))
        self._made: list[str] = []

    def topic(self, partitions: int = 1) -> "Topic":
        name = f"oncegate-test-{os.getpid()}-{len(self._made)}"
        self.create(name, partitions)
        return Topic(self._url, name, partitions)

    def create(self, name: str, partitions: int = 1) -> None:
        for made in self._admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(30)
        self._made.append(name)

    def stop(self) -> None:
        if self._made:
            for deleted in self._admin.delete_topics(self._made).values():
                deleted.result(30)


def url_of(cluster: str, topic: str, **options: str) -> str:
    """The URL of a topic. `cluster` is a URL without a topic, which may have options."""
    place, _, given = cluster.partition("?")
    query = "&".join([*filter(None, [given]), *(f"{name}={value}" for name, value in options.items())])
    return f"{place}/{topic}{'?' if query else ''}{query}"


def connection(cluster: str) -> dict[str, Any]:
    """The configuration of a client that only connects."""
    return client_config(read_address(url_of(cluster, "none"), (), "use a URL without a topic"))


class Topic:
    """A topic, the address of a consumer group of it, and the address to publish to it."""

    def __init__(self, cluster: str, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = range(partitions)
        self.target = url_of(cluster, name)
        self.source = url_of(cluster, name, group=name)
        self._config = connection(cluster)

    def send(self, *bodies: Any, partition: int = 0, key: bytes | None = None, **headers: str) -> None:
        producer = Producer(self._config)
        for body in bodies:
            value = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            named: list[Any] = [(name.replace("__", "-"), text) for name, text in headers.items()]
            producer.produce(self.name, value, key, partition, headers=named)
        assert producer.flush(20) == 0

    def stored(self) -> list[Any]:
        """All messages of the topic, by partition and offset."""
        consumer = Consumer({**self._config, "group.id": "reader", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(self.name, each, 0) for each in self.partitions])
            found: list[Any] = []
            while len(found) < sum(self.ends()):
                found += consumer.consume(100, 0.1)
            return sorted(found, key=lambda each: (each.partition(), each.offset()))
        finally:
            consumer.close()

    def ends(self) -> list[int]:
        """The number of messages of each partition."""
        return [end for _, end in self._with_group(lambda group, at: group.get_watermark_offsets(at, 20))]

    def committed(self, group: str = "") -> list[int]:
        """The committed offset of each partition; 0 if there is none. The group has the name of the topic."""
        found = self._with_group(lambda member, at: member.committed([at], 20)[0].offset, group)
        return [max(0, offset) for offset in found]

    def left(self, group: str = "") -> int:
        return sum(self.ends()) - sum(self.committed(group))

    def until_empty(self, patience: float = 60) -> None:
        until(lambda: self.left() == 0, f"{self.name} to be worked off", patience)

    def _with_group(self, ask: Any, group: str = "") -> list[Any]:
        member = Consumer({**self._config, "group.id": group or self.name})
        try:
            return [ask(member, TopicPartition(self.name, each)) for each in self.partitions]
        finally:
            member.close()


# ── the process of the cluster ────────────────────────────────────────────────────────────────────────────


def _library() -> Any:
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    for name in ("conf_new", "new", "mock_cluster_new"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


def _run() -> None:
    library, error = _library(), ctypes.create_string_buffer(512)
    config = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(ctypes.c_void_p(config), b"log_level", b"0", error, ctypes.c_size_t(512))
    client = ctypes.c_void_p(library.rd_kafka_new(0, ctypes.c_void_p(config), error, ctypes.c_size_t(512)))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 100)
    _say(library.rd_kafka_mock_cluster_bootstraps(cluster).decode())

    def fail(request: int, *codes: int) -> int:
        integers = ctypes.c_int * len(codes)
        library.rd_kafka_mock_push_request_errors_array(
            cluster, ctypes.c_int16(request), ctypes.c_size_t(len(codes)), integers(*codes)
        )
        return 0

    def forget(name: str) -> int:
        library.rd_kafka_mock_topic_set_error(cluster, name.encode(), 3)  # UNKNOWN_TOPIC_OR_PART
        return 0

    commands: dict[str, Any] = {
        "topic": lambda name, count: library.rd_kafka_mock_topic_create(cluster, name.encode(), count, 1),
        "down": lambda: library.rd_kafka_mock_broker_set_down(cluster, 1),
        "up": lambda: library.rd_kafka_mock_broker_set_up(cluster, 1),
        "fail": fail,
        "forget": forget,
    }
    for line in sys.stdin:  # the process ends when the tests have ended
        name, *words = json.loads(line)
        _say(commands[name](*words))


def _say(answer: Any) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _run()

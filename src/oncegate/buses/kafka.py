"""Addresses of Kafka topics, the configuration of clients, and a producer that waits until the brokers have stored a
message. Workers and publishers use this module.

librdkafka, the library below the client, connects again by itself and with growing pauses.
"""

import ctypes
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from oncegate import forks
from oncegate.buses.urls import (
    TLS_FILES,
    bus_name,
    named_files,
    read_login,
    read_options,
    read_secret,
    refuse_at_sign,
    refuse_options_without_effect,
)
from oncegate.errors import MissingExtra, SettingError
from oncegate.text import any_of, quoted

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as _error:
    raise MissingExtra("the use of Kafka", "kafka") from _error

_log: Final = logging.getLogger("oncegate.kafka")
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_CONNECTION: Final = ("mechanism", "password_file", *TLS_FILES)
_FILES: Final = {
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "certificate_key": "ssl.key.location",
}
_BROKER: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_STATE: Final = re.compile(r" \(after \d+ms[^)]*.*$")
_PORT: Final = 9092
_LARGEST: Final = 64 * 1024 * 1024  # bytes; the brokers decide what is too large, and their limit is far below
_UNKNOWN_TOPIC_AFTER: Final = 3_000  # milliseconds
_POLL: Final = 0.2  # seconds; a producer that is closed waits for the open call
_CLOSE_WITHIN: Final = 5.0
_GRACE: Final = 5.0  # librdkafka looks for messages that have timed out about once a second


# ── address ───────────────────────────────────────────────────────────────────────────────────────────────


class KafkaAddress(Struct, frozen=True):
    """A topic on a cluster. Secrets come from the URL or from a file. `options` are those behind the question mark."""

    brokers: str
    topic: str
    is_encrypted: bool
    user: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}

    @property
    def canonical(self) -> str:
        """The form in which records store the topic as a destination. Secrets and brokers are not included, because the
        same topic may be reached through several brokers."""
        return f"kafka://{self.topic}"


def read_address(url: str, own: Sequence[str], use: str) -> KafkaAddress:
    """Parse `kafka://HOST:PORT,HOST:PORT/TOPIC?…`. `kafka+tls://` uses TLS. `own` are the options of the caller,
    besides those of the connection, and `use` tells people what to write. Raises SettingError."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    refuse_at_sign(query, "Kafka", use)
    options = read_options(query, "Kafka", (*own, *_CONNECTION))
    user, password = read_login(place)
    is_encrypted = scheme == "kafka+tls"
    refuse_options_without_effect(options, "Kafka", "kafka+tls", is_encrypted=is_encrypted, has_user=bool(user))
    hosts, _, topic = place.rpartition("@")[2].partition("/")
    return KafkaAddress(
        brokers=",".join(_broker(each, use) for each in hosts.split(",")),
        topic=checked_topic(topic, use),
        is_encrypted=is_encrypted,
        user=user,
        password=password,
        options=options,
    )


def _broker(text: str, use: str) -> str:
    if not text:
        raise SettingError(f"the URL of the Kafka topic has no host; {use}")
    found = _BROKER.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) < 65_536:
        raise SettingError(f"{quoted(text)} is not the address of a Kafka broker; {use}")
    return f"{found['host']}:{found['port'] or _PORT}"


def checked_topic(value: str, use: str) -> str:
    is_valid = _TOPIC.fullmatch(value) is not None and value not in (".", "..")
    return bus_name(value, "Kafka topic", use, is_valid=is_valid)


def client_config(address: KafkaAddress) -> dict[str, Any]:
    """The configuration of a client, for the connection only. Raises SettingError if a file cannot be read."""
    security = "SSL" if address.is_encrypted else "PLAINTEXT"
    config: dict[str, Any] = {
        "bootstrap.servers": address.brokers,
        "client.id": "oncegate",
        "security.protocol": security if address.user is None else f"SASL_{security}",
        "reconnect.backoff.max.ms": 2_000,
        "log_level": 0,  # only what ends a client; other failures are told by exceptions and callbacks
        "logger": _log,
    }
    if address.user is not None:
        config |= _login(address, address.user)
    for name in _FILES.keys() & address.options.keys():
        _read(address.options[name])
        config[_FILES[name]] = address.options[name]
    return config


def _login(address: KafkaAddress, user: str) -> dict[str, str]:
    mechanism = address.options.get("mechanism", _MECHANISMS[0])
    if mechanism not in _MECHANISMS:
        raise SettingError(f"unknown mechanism {mechanism!r} in a Kafka URL; use {any_of(_MECHANISMS)}")
    password = address.password
    if "password_file" in address.options:
        password = _read(address.options["password_file"])
    if not password:
        raise SettingError("the Kafka URL has a user and no password; add password_file=PATH")
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def _read(path: str) -> str:
    with named_files("Kafka"):
        return read_secret(path)


def error_of(raised: KafkaException) -> KafkaError:
    error: KafkaError = raised.args[0]
    return error


def error_text(error: KafkaError) -> str:
    """The text of an error, without the state of the connection, which means nothing to users."""
    return _STATE.sub("", error.str())


# ── producer ──────────────────────────────────────────────────────────────────────────────────────────────


class ConfirmedProducer:
    """Sends messages, and waits for the confirmation of all in-sync replicas. Thread-safe. The client and its thread
    start with the first message; after a fork, the child starts its own.

    A message that is not confirmed within `timeout` seconds is given up: it is not sent later."""

    def __init__(self, address: KafkaAddress, timeout: float) -> None:
        self._timeout = timeout
        self._config = client_config(address) | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": max(1, int(timeout * 1_000)),
            "message.max.bytes": _LARGEST,
            "topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_AFTER,
            "partitioner": "murmur2_random",  # a key has the same partition as with a client in Java
            "linger.ms": 0,
        }
        self._lock = threading.Lock()
        self._running: _RunningProducer | None = None
        self._watch = forks.holding(self._lock, self._forget)

    def send(self, topic: str, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, Any]]) -> None:
        """Returns when the message is stored. Raises KafkaException if it is not, or if that is unknown."""
        with self._lock:
            if self._running is not None and self._running.is_broken:
                self._running.stop()
                self._running = None
            running = self._running = self._running or _RunningProducer(self._config)
        error = running.send(topic, value, key, headers, self._timeout + _GRACE)
        if error is not None:
            raise KafkaException(error)

    def close(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _forget(self) -> None:
        """In a forked child: leave the client of the parent alone. To free it would wait for threads that the child
        does not have, so it is never freed."""
        if self._running is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._running.client))
            self._running = None


class _RunningProducer:
    """A client, and the thread that receives its confirmations. A client that `is_broken` can send no more."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.is_broken = False
        self.client = Producer(dict(config))
        self._stopped = False
        self._thread = threading.Thread(target=self._poll, name="oncegate-kafka", daemon=True)
        self._thread.start()

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, Any]], within: float
    ) -> KafkaError | None:
        """Send a message and wait. Returns the error, or None if the message is confirmed."""
        answered, errors = threading.Event(), [KafkaError(KafkaError._MSG_TIMED_OUT)]

        def confirm(error: KafkaError | None, _message: Any) -> None:
            errors[:] = [] if error is None else [error]
            answered.set()

        try:
            self.client.produce(topic, value, key, headers=list(headers), on_delivery=confirm)
        except KafkaException as error:
            return error_of(error)
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        if not answered.wait(within):
            self.client.purge()  # never leave a message behind that could be sent later
        return errors[0] if errors else None

    def stop(self) -> None:
        """Wait for open messages, give up those that are not confirmed, and end the thread."""
        if not self.is_broken:
            with suppress(KafkaException):
                self.client.flush(_CLOSE_WITHIN)
        self.client.purge()
        self._stopped = True
        self._thread.join(_CLOSE_WITHIN)

    def _poll(self) -> None:
        while not self._stopped or len(self.client):
            try:
                self.client.poll(_POLL)
            except KafkaException:  # only an error that ends the client is raised here
                self.is_broken = True

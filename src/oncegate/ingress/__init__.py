"""This package receives events from Lambda, from queues and from the inbox. `open_worker` creates the worker for a
queue URL."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.ingress.options import (
    KAFKA_LIMITS,
    NATS_LIMITS,
    RABBITMQ_LIMITS,
    SQS_LIMITS,
    OptionLimits,
    QueueOptions,
    validate,
)
from oncegate.text import any_of, quoted

if TYPE_CHECKING:
    from oncegate.gate.handlers import AsyncHandler, Handler
    from oncegate.ingress.worker import Worker, WorkerContext


class _Driver(Struct, frozen=True):
    """What a queue module provides. `check` checks the URL. `open` takes the URL, the handler, the checked options and
    the context, and creates the worker. `counts_attempts`: the queue counts how often a message was delivered, and
    moves a message that always fails to its dead-letter queue. It may depend on the URL."""

    check: Callable[[str], object]
    limits: OptionLimits
    open: "Callable[[str, AsyncHandler | Handler, QueueOptions, WorkerContext], Worker]"
    counts_attempts: bool | Callable[[str], bool]


def _sqs() -> _Driver:
    from oncegate.ingress.sqs import read_address, sqs_worker

    return _Driver(read_address, SQS_LIMITS, sqs_worker, counts_attempts=True)


def _kafka() -> _Driver:
    from oncegate.ingress.kafka import kafka_worker, read_group

    return _Driver(read_group, KAFKA_LIMITS, kafka_worker, counts_attempts=False)


def _nats() -> _Driver:
    from oncegate.ingress.nats import nats_worker, read_consumer

    return _Driver(read_consumer, NATS_LIMITS, nats_worker, counts_attempts=False)


def _rabbitmq() -> _Driver:
    from oncegate.ingress.rabbitmq import queue_counts_attempts, rabbit_worker, read_queue

    return _Driver(read_queue, RABBITMQ_LIMITS, rabbit_worker, counts_attempts=queue_counts_attempts)


# A driver is imported when its scheme is first used, so that a process does not import the code of a queue that it does
# not use. AWS shows the URL of an SQS queue as https://…. The URL of an emulator may begin with http://.
_DRIVERS: Final[dict[str, Callable[[], _Driver]]] = {
    "sqs": _sqs,
    "https": _sqs,
    "http": _sqs,
    "kafka": _kafka,
    "kafka+tls": _kafka,
    "nats": _nats,
    "nats+tls": _nats,
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
}
_USE: Final = f"use {any_of(list(_DRIVERS))}, as in 'sqs://NAME?region=eu-central-1'"


def open_worker(
    url: str, handler: "AsyncHandler | Handler", options: Mapping[str, Any], context: "WorkerContext"
) -> "Worker":
    """Returns the worker for the queue at a URL. Raises SettingError if the URL or an option is invalid. No connection
    is opened before the worker runs."""
    driver = _driver(url)
    driver.check(url)
    return driver.open(url, handler, validate(driver.limits, **options), context)


def check_queue(url: str) -> None:
    """Raise SettingError if `open_worker` would reject the URL. No connection is opened."""
    _driver(url).check(url)


def counts_attempts(url: str) -> bool:
    """Whether the queue at this URL counts the attempts of a message, so that the gate must not count them."""
    counts = _driver(url).counts_attempts
    return counts(url) if callable(counts) else counts


def _driver(url: str) -> _Driver:
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise SettingError(f"{quoted(url)} is not a queue URL; {_USE}")
    if scheme not in _DRIVERS:
        raise SettingError(f"unknown queue scheme {scheme!r}; {_USE}")
    return _DRIVERS[scheme]()

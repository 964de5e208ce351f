"""Handlers that pass events on. `forward` posts events to a URL; `publish` sends events to a queue or a bus.

Such a handler is called a sink. A sink raises `errors.RetryLater` if the receiver is busy, broken or unreachable, and
`errors.Bury` if the receiver rejects the event. A sink does not retry: the gate or the platform delivers the event
again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, Unpack

from oncegate.durations import Duration
from oncegate.errors import MissingExtra, SettingError
from oncegate.files import Path
from oncegate.gate.handlers import Handler
from oncegate.text import any_of, quoted

__all__ = ["PUBLISH_SCHEMES", "forward", "publish"]


class ForwardOptions(TypedDict, total=False):
    timeout: Duration
    headers: Mapping[str, str] | Path | None
    hosts: Sequence[str]
    allow_private: bool
    pins: Sequence[str]
    ca: Path | None
    certificate: Path | None
    certificate_key: Path | None


def forward(url: str, **options: Unpack[ForwardOptions]) -> Handler:
    """Return a handler that posts each event to a URL, with the key of the event in the header `Idempotency-Key`. The
    class `forwarding.Forward` describes the options."""
    try:
        from oncegate.sinks.forwarding import Forward
    except ImportError as error:
        raise MissingExtra(f"forwarding to a URL (no {error.name} here)", "serve") from error
    return Forward(url, **options)


def publish(url: str) -> Handler:
    """Return a handler that sends each event to a destination: `sqs://QUEUE?region=…`, `eventbridge://BUS?region=…`,
    `stepfunctions://ARN`, `kafka://HOST/TOPIC`, `nats://HOST/STREAM?subject=…` or `amqp://HOST/QUEUE`."""
    scheme, separator, _ = url.partition("://")
    if scheme not in _PUBLISHERS or not separator:
        problem = f"unknown scheme {scheme!r} to publish to" if separator else f"{quoted(url)} is not a URL"
        raise SettingError(f"{problem}; use {any_of(PUBLISH_SCHEMES)}, as in 'sqs://QUEUE?region=eu-central-1'")
    return _PUBLISHERS[scheme]()(url)


def _aws() -> Callable[[str], Handler]:
    try:
        from oncegate.sinks.aws import publisher
    except ImportError as error:
        raise MissingExtra(f"publishing to AWS (no {error.name} here)", "aws") from error
    return publisher


def _kafka() -> Callable[[str], Handler]:
    from oncegate.sinks.kafka import KafkaPublisher

    return KafkaPublisher


def _nats() -> Callable[[str], Handler]:
    from oncegate.sinks.nats import NatsPublisher

    return NatsPublisher


def _rabbitmq() -> Callable[[str], Handler]:
    from oncegate.sinks.rabbitmq import RabbitPublisher

    return RabbitPublisher


# The module of a publisher is imported only when its scheme is used, because the import takes time and memory.
_PUBLISHERS: Final[dict[str, Callable[[], Callable[[str], Handler]]]] = {
    "sqs": _aws,
    "eventbridge": _aws,
    "stepfunctions": _aws,
    "kafka": _kafka,
    "kafka+tls": _kafka,
    "nats": _nats,
    "nats+tls": _nats,
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
}
PUBLISH_SCHEMES: Final = tuple(_PUBLISHERS)

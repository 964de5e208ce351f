"""Sinks: handlers that hand an event on, to a URL, a queue or a bus.

What a sink answers decides what becomes of the event. A sink that is busy, broken or out of reach raises
`errors.RetryLater`, one that does not take this event at all `errors.Bury`. None of them tries twice: whoever delivers
the event does.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict, Unpack

from oncegate.durations import Duration
from oncegate.errors import MissingExtra
from oncegate.gate.handlers import Handler

__all__ = ["forward", "publish"]

Path: TypeAlias = str | os.PathLike[str]


class ForwardOptions(TypedDict, total=False):
    timeout: Duration
    headers: Mapping[str, str] | Path | None
    hosts: Sequence[str]
    allow_private: bool
    pins: Sequence[str]
    ca: Path | None
    certificate: Path | None
    certificate_key: Path | None


def forward(url: str, **wishes: Unpack[ForwardOptions]) -> Handler:
    """A handler that posts each event to a URL, with its key as `Idempotency-Key`; `Forward` says what it takes."""
    try:
        from oncegate.sinks.forwarding import Forward
    except ImportError as error:
        raise MissingExtra(f"forwarding to a URL (no {error.name} here)", "serve") from error
    return Forward(url, **wishes)


def publish(url: str) -> Handler:
    """A handler that sends each event to `sqs://QUEUE?region=…` or `eventbridge://BUS?region=…`."""
    try:
        from oncegate.sinks.publishing import publisher
    except ImportError as error:
        raise MissingExtra(f"publishing to AWS (no {error.name} here)", "aws") from error
    return publisher(url)

"""Sinks: handlers that hand an event on, to a URL, a queue or a bus.

What a sink answers decides what becomes of the event. A sink that is busy, broken or out of reach raises
`errors.RetryLater`, one that does not take this event at all `errors.Bury`. None of them tries twice: whoever delivers
the event does.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias, TypedDict, Unpack

from oncegate.durations import Duration
from oncegate.errors import MissingExtra
from oncegate.gate.handlers import Handler

__all__ = ["forward", "publish"]

Path: TypeAlias = str | os.PathLike[str]


class ForwardWishes(TypedDict, total=False):
    timeout: Duration
    headers: Mapping[str, str] | Path | None
    hosts: Sequence[str]
    allow_private: bool
    pins: Sequence[str]
    ca: Path | None
    certificate: Path | None
    certificate_key: Path | None


def forward(url: str, **wishes: Unpack[ForwardWishes]) -> Handler:
    """A handler that posts each event to a URL, with its key as `Idempotency-Key`; `Forward` says what it takes."""
    forwarding = _loaded("oncegate.sinks.forwarding", "forwarding to a URL", "serve")
    handler: Handler = forwarding.Forward(url, **wishes)
    return handler


def publish(url: str) -> Handler:
    """A handler that sends each event to `sqs://QUEUE?region=…` or `eventbridge://BUS?region=…`."""
    publishing = _loaded("oncegate.sinks.publishing", "publishing to AWS", "aws")
    handler: Handler = publishing.publisher(url)
    return handler


def _loaded(module: str, what: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{what} (no {error.name} here)", extra) from error
